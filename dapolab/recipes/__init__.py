"""What frameworks compute, by version: recipes as plain data, their weights and differences.

``ALL`` holds every recipe by its id. Nothing here loads torch; ``dapolab.objective`` computes a
recipe's ``objective``, the conformance tests judge those whose evidence is ``judged``.
"""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from dapolab.errors import ConfigError
from dapolab.recipes import nemo_rl, openrlhf, papers, peers, skyrl, trl, verl, verl_history
from dapolab.recipes.differences import Differences, differences
from dapolab.recipes.formula import formula
from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.recipes.slopes import slope
from dapolab.recipes.weights import weights

ALL: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.id: recipe
        for recipe in (
            *papers.RECIPES,
            *verl_history.RECIPES,
            *verl.RECIPES,
            *trl.RECIPES,
            *openrlhf.RECIPES,
            *peers.RECIPES,
            *nemo_rl.RECIPES,
            *skyrl.RECIPES,
        )
    }
)


def find(name: str) -> Recipe:
    """Return the recipe of that id.

    Raises
    ------
    ConfigError
        There is none; the message names the nearest.
    """
    if name not in ALL:
        near = difflib.get_close_matches(name, ALL, n=3, cutoff=0.0)
        raise ConfigError(
            f"no recipe {name!r}; nearest: {', '.join(near)} (dapolab recipe lists all)"
        )
    return ALL[name]


__all__ = [
    "ALL",
    "Batch",
    "Differences",
    "Evidence",
    "Recipe",
    "differences",
    "find",
    "formula",
    "slope",
    "weights",
]

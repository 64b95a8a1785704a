"""What frameworks compute, by version: recipes as plain data, their weights and differences.

``ALL`` holds every recipe by its id. Nothing here loads torch; ``dapolab.objective`` computes a
recipe's ``objective``, the conformance tests judge those whose evidence is ``judged``.
"""

import difflib
from types import MappingProxyType
from typing import TYPE_CHECKING

from dapolab.errors import ConfigError
from dapolab.recipes import papers, peers, trl, verl
from dapolab.recipes.recipe import Batch, Evidence, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL: "Mapping[str, Recipe]" = MappingProxyType(
    {recipe.id: recipe for recipe in (*papers.RECIPES, *verl.RECIPES, *trl.RECIPES, *peers.RECIPES)}
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


__all__ = ["ALL", "Batch", "Evidence", "Recipe", "find"]

"""A recipe of ``dapolab.recipes`` fitted to a run of another size.

Recipes hold the numbers of the runs they were made for: 512 prompts, a cap of 20,480 tokens. What
scales with the batch or the cap is scaled; what the preset says itself stands.
"""

from collections.abc import Mapping
from typing import Any

from dapolab.errors import ConfigError
from dapolab.recipes import Recipe, find
from dapolab.scenario import Rollout, Rounds, check

OF_A_RECIPE = ("objective", "collector")
OF_A_RECIPE_IN_TRAIN = ("responses_per_update", "epochs", "when_no_signal")
"""What a recipe says, and a preset's file no longer says where the command line names a recipe."""


def without_recipe(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a preset less everything that a recipe would say."""
    tables = {key: value for key, value in data.items() if key not in OF_A_RECIPE}
    train = tables.get("train")
    if isinstance(train, Mapping):
        tables["train"] = {k: v for k, v in train.items() if k not in OF_A_RECIPE_IN_TRAIN}
    return tables


def resolve(data: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the tables with the recipe's settings under those of the preset.

    - overlong penalty: the cap is the run's, the buffer keeps its share of it; it stands in
      ``rollout.overlong`` and ``objective.length.penalty`` alike;
    - a constant that stands for the generation budget (Dr. GRPO) becomes the cap, and so does the
      padded width, as frameworks pad to the cap;
    - responses per update and the generation batch keep their share of the rollout;
    - TRL's generation batch is one rollout: as many steps as the rollout has updates.

    Raises
    ------
    ConfigError
        An unknown recipe; a recipe whose collector is not among ours and a preset without one; an
        overlong penalty said twice.
    """
    tables = {key: dict(v) if isinstance(v, Mapping) else v for key, v in data.items()}
    rollout = check(Rollout, _table(tables, "rollout", where), where=f"{where}: rollout")
    own = _table(tables, "objective", where)
    name = tables.get("recipe")
    if name is not None:
        recipe = find(str(name))
        tables["objective"] = _merge(_objective(recipe, rollout), own)
        tables["train"] = _train(recipe, rollout) | _table(tables, "train", where)
        if "collector" not in tables:
            tables["collector"] = _collector(recipe, rollout, where)
    _one_penalty(tables, own, rollout, where)
    _sizes(tables, rollout, where)
    return tables


def _table(tables: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: {name} should be a table of settings")
    return dict(table)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another; a table of another kind replaces the whole."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if not (isinstance(value, Mapping) and isinstance(below, dict)):
            merged[key] = value
        elif value.get("kind", below.get("kind")) != below.get("kind"):
            merged[key] = dict(value)
        else:
            merged[key] = _merge(below, value)
    return merged


def _objective(recipe: Recipe, rollout: Rollout) -> dict[str, Any]:
    table: dict[str, Any] = recipe.objective.model_dump()
    penalty = table["length"]["penalty"]
    if penalty is not None:
        share = penalty["buffer_tokens"] / penalty["cap_tokens"]
        penalty["cap_tokens"] = rollout.cap_tokens
        penalty["buffer_tokens"] = max(1, round(share * rollout.cap_tokens))
    if "constant" in table["aggregation"]:
        table["aggregation"]["constant"] = rollout.cap_tokens
    return table


def _train(recipe: Recipe, rollout: Rollout) -> dict[str, Any]:
    batch = recipe.batch
    table: dict[str, Any] = {"epochs": batch.epochs}
    if batch.responses_per_update and batch.prompts and batch.group_size:
        share = batch.responses_per_update / (batch.prompts * batch.group_size)
        n_rows = rollout.groups_per_step * rollout.group_size
        table["responses_per_update"] = max(1, round(share * n_rows))
    if recipe.when_no_signal in ("skip", "error"):
        table["when_no_signal"] = recipe.when_no_signal
    return table


def _collector(recipe: Recipe, rollout: Rollout, where: str) -> dict[str, Any]:
    if recipe.collector is None:
        raise ConfigError(
            f"{where}: the collector of recipe {recipe.id} is not among those of dapolab; say "
            "collector.kind"
        )
    collector = recipe.collector
    if isinstance(collector, Rounds) and collector.gen_groups and recipe.batch.prompts:
        share = collector.gen_groups / recipe.batch.prompts
        scaled = max(1, round(share * rollout.groups_per_step))
        collector = collector.model_copy(update={"gen_groups": scaled})
    return dict(collector.model_dump())


def _one_penalty(
    tables: dict[str, Any], own: Mapping[str, Any], rollout: Rollout, where: str
) -> None:
    """Write the overlong penalty where the simulator's tables and the objective's look for it.

    ``rollout.overlong`` replaces a recipe's penalty; two words of one preset are compared later.
    """
    objective = _table(tables, "objective", where)
    length = _table(objective, "length", f"{where}: objective")
    said = _table(own, "length", f"{where}: objective").get("penalty")
    if rollout.overlong is not None and said is None:
        beyond = dict(length.get("penalty") or {}).get("beyond", "clamped")
        penalty = {"cap_tokens": rollout.cap_tokens, **rollout.overlong.model_dump()}
        tables["objective"] = objective | {
            "length": length | {"penalty": penalty | {"beyond": beyond}}
        }
    elif rollout.overlong is None and isinstance(length.get("penalty"), Mapping):
        shared = ("buffer_tokens", "factor")
        overlong = {key: value for key, value in length["penalty"].items() if key in shared}
        tables["rollout"] = _table(tables, "rollout", where) | {"overlong": overlong}


def _sizes(tables: dict[str, Any], rollout: Rollout, where: str) -> None:
    """Fill what an aggregation takes from the batch: the padded width, TRL's generation batch."""
    objective = _table(tables, "objective", where)
    aggregation = _table(objective, "aggregation", f"{where}: objective")
    if aggregation.get("constant") == "padded-width":
        aggregation["constant"] = rollout.cap_tokens
    if aggregation.get("kind") == "generation-window":
        per_update = _table(tables, "train", where).get("responses_per_update")
        n_rows = rollout.groups_per_step * rollout.group_size
        n_updates = 1
        if isinstance(per_update, int) and per_update > 0:  # else refused later, by its key
            n_updates = -(-n_rows // per_update)
        accumulate = aggregation.get("gradient_accumulation_steps", 1)
        steps = n_updates * (accumulate if isinstance(accumulate, int) else 1)
        aggregation["steps_per_generation"] = steps
    if aggregation:
        tables["objective"] = objective | {"aggregation": aggregation}

"""Where two recipes differ: setting by setting, and in numbers on one example."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapolab.recipes.example import GROUPS, LENGTHS, REWARDS, advantages, penalty_at
from dapolab.recipes.recipe import Recipe
from dapolab.recipes.slopes import slope
from dapolab.recipes.weights import Update, update_of, weights
from dapolab.scenario.aggregation import GenerationWindow
from dapolab.scenario.objective import Objective

# Numbers within a thousandth of each other say nothing that the settings do not: the eps of a std.
_SAME = 1e-3


@dataclass(frozen=True)
class SettingDifference:
    """One setting, under its dotted name, as each recipe has it."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class NumberDifference:
    """One quantity of the example; None where it does not exist for a recipe."""

    name: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """Return b/a; None where either is absent or 0."""
        return self.b / self.a if self.a and self.b else None


@dataclass(frozen=True)
class Differences:
    """Everything that tells two recipes apart."""

    settings: tuple[SettingDifference, ...]
    numbers: tuple[NumberDifference, ...]


def differences(
    a: Recipe, b: Recipe, *, lengths: Sequence[int] = LENGTHS, groups: Sequence[int] = GROUPS
) -> Differences:
    """Compare two recipes.

    Settings are those of objective, collector and batch. The numbers are of one example: token
    weights of an update, whole and in micro-batches of one; a group of eight with one right answer,
    rewards ±1; single ratios; lengths at and past the cap. Only what differs is returned.

    Parameters
    ----------
    a, b
        The recipes.
    lengths, groups
        Tokens and prompt of each response of the update; default 10 and 100 tokens of one prompt
        and 1,000 of another.

    Raises
    ------
    ConfigError
        Lengths and groups make no update; see ``weights``.
    """
    changed = _changed_settings(settings(a), settings(b))
    update = update_of(lengths, groups=groups)
    numbers_a, numbers_b = dict(_numbers(a, b, update)), dict(_numbers(b, a, update))
    numbers = tuple(
        NumberDifference(name, value, numbers_b[name])
        for name, value in numbers_a.items()
        if not _same(value, numbers_b[name])
    )
    return Differences(changed, numbers)


def settings(recipe: Recipe) -> dict[str, str]:
    """Return the settings of a recipe under their dotted names, ``kind`` of a part at its head.

    Settings that are absent, and those of a sampler correction that is off, are left out.
    """
    table = recipe.objective.model_dump(mode="json")
    if recipe.objective.sampler.level == "none" and not recipe.objective.sampler.rejection:
        table["sampler"] = {"bypass": recipe.objective.sampler.bypass}
    flat = dict(_flat(table, ""))
    if recipe.collector is None:
        flat["collector"] = "its own"
    else:
        flat |= dict(_flat(recipe.collector.model_dump(mode="json"), "collector."))
    for name in ("prompts", "group_size", "responses_per_update", "epochs", "denominator"):
        value = getattr(recipe.batch, name)
        if value is not None:
            flat[f"batch.{name}"] = str(value)
    flat["when_no_signal"] = recipe.when_no_signal
    return flat


def _changed_settings(
    left: Mapping[str, str], right: Mapping[str, str]
) -> tuple[SettingDifference, ...]:
    """Return what differs, part by part; a part of another kind says so and not all it lacks."""
    names = list(dict.fromkeys((*left, *right)))
    parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    names.sort(key=lambda name: parts.index(name.partition(".")[0]))
    changed = []
    for name in names:
        part = name.partition(".")[0]
        only_one = name not in left or name not in right
        if only_one and name != part and left.get(part) != right.get(part):
            continue
        if left.get(name) != right.get(name):
            changed.append(SettingDifference(name, left.get(name, "–"), right.get(name, "–")))
    return tuple(changed)


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    if "kind" in table:
        yield prefix.rstrip("."), str(table["kind"])
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
            for number, part in enumerate(value, start=1):
                yield from _flat(part, f"{prefix}{key}.{number}.")
        elif key != "kind" and value is not None:
            yield f"{prefix}{key}", _word(value)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------------- numbers


def _numbers(recipe: Recipe, other: Recipe, update: Update) -> Iterator[tuple[str, float | None]]:
    """Yield the quantities that make sense for the pair, in one order for both."""
    objective = recipe.objective
    yield from _weights(objective, update)
    if _has_window(objective) or _has_window(other.objective):
        part = weights(_with_window(objective), update.lengths, groups=update.groups)
        yield f"{_labels(update)[0]}, 2 of 8 steps", part[0]
    group = advantages(objective.advantage, REWARDS)
    yield "A of the right one, 1 right of 8", None if group is None else group[0]
    yield "A of a wrong one, 1 right of 8", None if group is None else group[1]
    for ratio, sign in ((1.0, 1), (1.25, 1), (0.75, -1), (5.0, -1), (20.0, -1)):
        name = f"gradient factor, r {ratio:g}, A {'>' if sign > 0 else '<'} 0"
        yield name, slope(objective.clip, ratio, advantage=float(sign))
    yield from _penalties(objective, other.objective)


def _weights(objective: Objective, update: Update) -> Iterator[tuple[str, float]]:
    lengths, groups = update.lengths, update.groups
    labels = _labels(update)
    yield from zip(labels, weights(objective, lengths, groups=groups), strict=True)
    alone = weights(objective, lengths, groups=groups, micro_rows=1)
    yield from zip((f"{label}, alone" for label in labels), alone, strict=True)
    masked = weights(objective, (*lengths, 0), groups=(*groups, groups[-1]))
    yield f"{labels[0]}, one masked", masked[0]


def _labels(update: Update) -> list[str]:
    """Name the responses by length, and by position where a length comes twice."""
    repeated = len(set(update.lengths)) < update.n
    return [
        f"token weight, n {n:,}" + (f", response {i}" if repeated else "")
        for i, n in enumerate(update.lengths)
    ]


def _has_window(objective: Objective) -> bool:
    return isinstance(objective.aggregation, GenerationWindow)


def _with_window(objective: Objective) -> Objective:
    if not isinstance(objective.aggregation, GenerationWindow):
        return objective
    steps = {"gradient_accumulation_steps": 2, "steps_per_generation": 8}
    return objective.model_copy(
        update={"aggregation": objective.aggregation.model_copy(update=steps)}
    )


def _penalties(objective: Objective, other: Objective) -> Iterator[tuple[str, float | None]]:
    rule = objective.length.penalty
    caps = {p.cap_tokens for p in (rule, other.length.penalty) if p is not None}
    for cap in sorted(caps):
        yield f"reward for length {cap:,}", penalty_at(rule, cap)
        yield f"reward for length {cap * 11 // 10:,}", penalty_at(rule, cap * 11 // 10)


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= _SAME * max(abs(a), abs(b))

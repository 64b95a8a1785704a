"""From a sweep file to its points: every scenario checked before any is run.

A point is a scenario with some dotted keys changed, under one seed. Its id comes from the settings
that can change a number (with the content of the files that they name, not where these lie) and
the seed alone, so a rerun computes only what is missing, and an edited base computes everything
again. Points share the draws of equal (seed, replication): common random numbers.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from dapolab.rng import stream
from dapolab.scenario import Collector, Config, ConfigError, Scenario, check, load, read_toml
from dapolab.scenario.config import Count

_WORDS = ("name", "description", "source", "assumptions", "alternatives")
"""Settings of a scenario that change no number of its own policy."""
_POLICY = "policy"


class Spread(Config):
    """Values of one key of random draws: a range, or choices."""

    low: float | None = None
    high: float | None = None
    log: bool = Field(False, description="uniform in the logarithm")
    integer: bool = Field(False, description="rounded to whole numbers, both ends included")
    choices: tuple[Any, ...] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "Spread":
        if self.choices is not None:
            if not self.choices:
                raise ValueError("choices is empty")
            if self.low is not None or self.high is not None or self.log or self.integer:
                raise ValueError("give low and high, or choices, not both")
            return self
        if self.low is None or self.high is None or not self.low < self.high:
            raise ValueError("give low < high, or choices")
        if self.log and self.low <= 0:
            raise ValueError("log = true needs low > 0")
        return self

    def at(self, u: float) -> Any:
        """Return the value at ``u`` in [0, 1)."""
        if self.choices is not None:
            return self.choices[int(u * len(self.choices))]
        assert self.low is not None
        assert self.high is not None
        low, high = self.low, self.high
        if self.integer:  # every whole number has its share, the last one too
            low, high = float(math.ceil(low)), math.floor(high) + 1.0
        value = low * (high / low) ** u if self.log else low + (high - low) * u
        return min(int(value), int(high) - 1) if self.integer else value


class RandomDraws(Config):
    """``n`` random points; draw i is the same whatever n and the other keys are."""

    n: Count
    seed: Annotated[int, Field(ge=0)] = 0
    keys: dict[str, Spread] = Field(min_length=1)


class Sweep(Config):
    """A sweep file: base scenario, and what is varied.

    Points are the product of policies × grid × lists × random draws × seeds, as far as given.
    """

    name: str = Field("sweep", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    base: str = Field(description="scenario file, relative to this file")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    fixed: dict[str, Any] = Field({}, description="dotted keys laid over the base")
    policies: dict[str, Collector] = Field({}, description="collectors by name")
    grid: dict[str, tuple[Any, ...]] = Field({}, description="dotted keys, every combination")
    lists: dict[str, tuple[Any, ...]] = Field({}, description="dotted keys that move together")
    random: RandomDraws | None = None

    @model_validator(mode="after")
    def _has_values(self) -> "Sweep":
        if not (self.grid or self.lists or self.policies or self.random):
            raise ValueError(
                '[grid] is empty: name a setting and its values, "run.steps" = [5, 10]'
            )
        for table, keys in (("grid", self.grid), ("lists", self.lists)):
            for key, values in keys.items():
                if not values:
                    raise ValueError(f"{table}.{key} has no value")
        if len({len(values) for values in self.lists.values()}) > 1:
            lengths = ", ".join(f"{key} {len(values)}" for key, values in self.lists.items())
            raise ValueError(f"lists move together and need one length: {lengths}")
        return self

    def changes(self) -> Iterator[dict[str, Any]]:
        """Yield what each point changes, in order; ``policy`` is a name of ``policies``."""
        policies = [{_POLICY: name} for name in self.policies] or [{}]
        cells = [dict(zip(self.grid, v, strict=True)) for v in itertools.product(*_of(self.grid))]
        rows = [dict(zip(self.lists, v, strict=True)) for v in zip(*_of(self.lists), strict=True)]
        drawn = [self._draw(i) for i in range(self.random.n)] if self.random else [{}]
        for parts in itertools.product(policies, cells, rows or [{}], drawn):
            yield {key: value for part in parts for key, value in part.items()}

    def _draw(self, index: int) -> dict[str, Any]:
        assert self.random is not None
        seed = self.random.seed
        drawn = {
            key: spread.at(float(stream(seed, "sweep", key, index).random()))
            for key, spread in self.random.keys.items()
        }
        # a kind may be called none, which elsewhere in a file means absent
        return {k: "none" if v is None and k.endswith("kind") else v for k, v in drawn.items()}


def _of(table: Mapping[str, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return list(table.values())


@dataclass(frozen=True)
class Point:
    """One scenario of a sweep: its id, what was changed, and under which seed."""

    id: str
    changed: Mapping[str, Any]
    scenario: Scenario
    seed: int


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; ConfigError where it cannot be used."""
    return check(Sweep, read_toml(path), where=str(path))


def expand(sweep: Sweep, *, folder: Path, first_seed: int = 0) -> list[Point]:
    """Return the points in order, every scenario checked before any is run.

    Parameters
    ----------
    folder : what the base and the files in fixed, grid and lists are relative to.
    first_seed : added to the file's seeds.

    Raises
    ------
    ConfigError
        A key that no scenario has, or a value out of range, naming the point.
    """
    points: dict[str, Point] = {}
    for changed in sweep.changes():
        settings = {key: value for key, value in changed.items() if key != _POLICY}
        if _POLICY in changed:
            settings["collector"] = sweep.policies[changed[_POLICY]].model_dump(mode="json")
        try:
            scenario = load(folder / sweep.base, {**sweep.fixed, **settings}, folder=folder)
        except ConfigError as error:
            raise ConfigError(f"{error} (at {settings_text(changed)})") from None
        for seed in sweep.seeds:
            point = Point(
                identity(scenario, seed + first_seed), changed, scenario, seed + first_seed
            )
            points.setdefault(point.id, point)
    return list(points.values())


def settings_text(changed: Mapping[str, Any]) -> str:
    """Return changed settings as one reads them: key=value, key=value."""
    shown = {key: "none" if value is None else value for key, value in changed.items()}
    return ", ".join(
        f"{key}={f'{value:.6g}' if isinstance(value, float) else value}"
        for key, value in shown.items()
    )


def identity(scenario: Scenario, seed: int) -> str:
    """Return 16 hex digits of everything that can change the point's numbers.

    Names, descriptions and sources do not; files count by their content, not by their path.

    Raises
    ------
    ConfigError
        A file that the workload names cannot be read.
    """
    settings = scenario.model_dump(mode="json", exclude=set(_WORDS))
    settings["workload"].pop("source", None)
    for key in ("file", "draws"):
        if isinstance(name := settings["workload"].get(key), str):
            settings["workload"][key] = _digest(Path(name))
    text = json.dumps([settings, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None

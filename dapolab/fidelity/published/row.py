"""A published row, the variants that its inputs leave open, and the fitted baselines on disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dapolab.errors import ConfigError

BASELINES = Path(__file__).with_name("baselines.json")
"""Free parameters by system and variant, fitted to baseline rows by ``fit_baselines``."""


@dataclass(frozen=True)
class Variant:
    """One choice of what a publication leaves open: a name and its values.

    ``name`` is for readers and the file of baselines; nothing is read out of it. Where several are
    tried: ``lengths`` names the law of lengths, ``law`` the law of the engine, ``task`` what the
    answers are about.
    """

    name: str
    values: Mapping[str, float]
    lengths: str = ""
    law: str = ""
    task: str = ""


@dataclass(frozen=True)
class Row:
    """A published figure beside the range of predictions over the variants.

    ``low`` and ``high`` are None where the row is not computed; ``why`` says so, or explains a
    miss. ``baseline``: the row to which the free parameters were fitted. ``counted``: whether it
    was predicted before the published figure was looked at, and is not another row's twin.
    """

    system: str
    setting: str
    published: float
    unit: str
    low: float | None
    high: float | None
    baseline: bool = False
    counted: bool = True
    why: str = ""

    @property
    def inside(self) -> bool | None:
        """Whether the published figure lies in the range; None for baselines and blanks."""
        if self.low is None or self.high is None or self.baseline:
            return None
        return self.low <= self.published <= self.high

    @property
    def miss_share(self) -> float | None:
        """Relative distance of the range from the published figure; 0 inside.

        A gain g is compared as a speed, 1 + g.
        """
        if self.low is None or self.high is None:
            return None
        base = 1.0 if self.unit == "share" else 0.0
        if self.published < self.low:
            return (base + self.low) / (base + self.published) - 1
        return min((base + self.high) / (base + self.published) - 1, 0.0)


@dataclass(frozen=True)
class System:
    """A publication: its variants, how a baseline is fitted, what it says of the other rows.

    ``fit`` returns the free parameters of one variant; ``predict`` figure by setting for one
    variant and its parameters, the baseline's settings included. ``uncounted``: settings that say
    again what another one does; ``second_reading``: made once the rows had been compared, to test
    an explanation. Both are shown and not counted.
    """

    name: str
    source: str
    published: Mapping[str, tuple[float, str]]
    baseline: Sequence[str]
    variants: Sequence[Variant]
    fit: Callable[[Variant], Mapping[str, float]]
    predict: Callable[[Variant, Mapping[str, float]], Mapping[str, float]]
    notes: Mapping[str, str]
    uncounted: frozenset[str] = frozenset()
    second_reading: bool = False


def fit_baselines(systems: Sequence[System]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the free parameters of every system and variant, from their baseline rows alone."""
    return {
        system.name: {
            variant.name: {k: float(f"{v:.6g}") for k, v in system.fit(variant).items()}
            for variant in system.variants
        }
        for system in systems
    }


def baselines_text(systems: Sequence[System]) -> str:
    """Return the file of fitted parameters: what each system's baseline rows say, no other row."""
    body = {
        "fitted_to": {system.name: list(system.baseline) for system in systems},
        "parameters": fit_baselines(systems),
    }
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def read_baselines(path: Path = BASELINES) -> dict[str, dict[str, dict[str, float]]]:
    """Return the committed parameters.

    Raises
    ------
    ConfigError
        The file is missing: the baselines were never fitted.
    """
    if not path.is_file():
        raise ConfigError(f"{path.name}: no fitted baselines; dapolab fidelity --fit-baselines")
    return json.loads(path.read_text(encoding="utf-8"))["parameters"]  # type: ignore[no-any-return]


def rows_of(system: System, parameters: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Predict every row of a system with its committed parameters.

    Raises
    ------
    ConfigError
        A variant without committed parameters.
    """
    found: dict[str, list[float]] = {setting: [] for setting in system.published}
    for variant in system.variants:
        if variant.name not in parameters:
            raise ConfigError(f"{system.name}: variant {variant.name} has no committed parameters")
        for setting, value in system.predict(variant, parameters[variant.name]).items():
            found[setting].append(value)
    rows = []
    for setting, (published, unit) in system.published.items():
        values = found[setting]
        rows.append(
            Row(
                system=system.name,
                setting=setting,
                published=published,
                unit=unit,
                low=min(values) if values else None,
                high=max(values) if values else None,
                baseline=setting in system.baseline,
                counted=not system.second_reading
                and setting not in system.baseline
                and setting not in system.uncounted,
                why=system.notes.get(setting, ""),
            )
        )
    return rows

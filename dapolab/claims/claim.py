"""What a claim is: a sentence, the numbers that it says, what it denies, and who measures them.

Everything here stands before the run: statement, numbers, tolerances, seeds. The verdict is about
the sentence as circulated; what theory predicts is shown beside it and need not be the same.

A tolerance is the size below which nobody would act otherwise, said in ``why`` and never read off
a run. Of a value it is at most a quarter of the way to the rival, as DESIGN.md has it for a null,
unless ``why`` says what else sets it.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

RowKind = Literal["identity", "value", "null", "order", "bound"]
Kind = Literal["identity", "value", "null", "order", "bound", "universal"]
Instrument = Literal["simulator", "bandit", "objective", "real training", "none yet"]


@dataclass(frozen=True)
class Totals:
    """A ratio of totals, one numerator and one denominator a replication, each (n,).

    With a baseline: over the baseline's ratio, paired by replication.
    """

    over: npt.NDArray[np.float64]
    under: npt.NDArray[np.float64]
    baseline: "Totals | None" = None


Measured = float | npt.NDArray[np.float64] | Totals
"""A number without error (enumeration, closed form), one sample a seed or replication, (n,), or
their totals."""

IDENTITY = 1e-9
"""Largest error of an identity."""
LEAST_SAMPLES = 6
"""Fewer repetitions have no interval worth the name (DESIGN.md section 1)."""
PUBLISHED_SEED = 2
"""The block of seeds whose verdicts are published. Blocks 0 and 1 were seen before the tolerances
of today were written: they may look, they give no verdict."""
_SHARED = ("simulated.py", "toys.py")
"""Set-ups that claims share: windows, scenarios, toy settings."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number that a sentence speaks of.

    Attributes
    ----------
    kind : ``identity``: |measured − says| ≤ 1e-9; ``value``: within ±tolerance; ``null``: no
        effect, a value at 0; ``order``: beyond ``says`` by at least the tolerance, on ``side``;
        ``bound``: at most the tolerance beyond ``says`` on the other side.
    rival : the number that the sentence denies; the tolerance excludes it.
    why : what sets the tolerance; an identity needs none.
    says : the sentence's number; absent: it is the one that theory predicts.
    side : of ``order`` and ``bound``: where the sentence puts the measured number.
    """

    name: str
    kind: RowKind
    rival: float
    says: float | None = None
    tolerance: float = IDENTITY
    why: str = ""
    side: Literal["above", "below"] = "above"
    unit: str = ""

    def limit(self, says: float) -> float:
        """Return the end of what an order or a bound allows."""
        inward = self.tolerance if self.kind == "order" else -self.tolerance
        return says + inward if self.side == "above" else says - inward

    def excludes(self, value: float, *, says: float) -> bool:
        """Say whether an exact measurement of ``value`` would contradict the row."""
        if self.kind in ("order", "bound"):
            limit = self.limit(says)
            return value < limit if self.side == "above" else value > limit
        return abs(value - says) > self.tolerance


@dataclass(frozen=True)
class Draws:
    """Which random numbers a measurement uses: ``n`` repetitions of ``seed``."""

    seed: int
    n: int


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One published statement.

    Attributes
    ----------
    statement : the sentence as circulated, scope and version included.
    correction : what is true instead; empty where the sentence is.
    predict : theory's number for each row that it has a formula for, in the row's unit.
    measure : the instrument's number for each row; absent: no instrument exists yet.
    repeat : the independent unit, such as "replication of 200 steps"; "exact" without one.
    n, quick_n : repetitions of the full and of the quick run.
    """

    id: str
    kind: Kind
    statement: str
    source: str
    instrument: Instrument
    rows: tuple[Row, ...]
    predict: Callable[[], Mapping[str, float]]
    how_to_read: str
    correction: str = ""
    measure: Callable[[Draws], Mapping[str, Measured]] | None = None
    repeat: str = "exact"
    n: int = 1
    quick_n: int = 1

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(f"claim {self.id} has no row")
        if self.measure is not None and self.repeat != "exact" and self.quick_n < LEAST_SAMPLES:
            raise ValueError(f"claim {self.id}: quick_n must be at least {LEAST_SAMPLES}")

    @property
    def fingerprint(self) -> str:
        """Hash of the claim's file and the shared set-ups: no later change of δ or n can hide."""
        file = Path(inspect.getfile(self.predict))
        beside = (file.parent / name for name in _SHARED)
        parts = (file, *(path for path in beside if path.is_file()))
        return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:12]

    def draws(self, *, seed: int, quick: bool) -> Draws:
        """Return the repetitions of a run; the full run never reuses the quick one's seeds."""
        return Draws(2 * seed + (0 if quick else 1), self.quick_n if quick else self.n)

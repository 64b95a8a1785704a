"""Decode laws as plain numbers: presets from published measurements, first principles."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """Seconds of an iteration: a + b(n) + c·K + max(0, s·x − slack) + q·Σ x_j·context_j.

    n decoding responses with K context tokens in all, x prefilled tokens of which x_j belong to
    response j, whose context at the end of its chunk is context_j. b is piecewise linear through
    the knots and goes on with its first and last slopes outside them.
    """

    a_s: float
    n_knots: tuple[float, ...]
    b_knots_s: tuple[float, ...]
    c_s: float
    prefill_s: float = 0.0
    prefill_slack_s: float = 0.0
    prefill_context_s: float = 0.0
    source: str = ""

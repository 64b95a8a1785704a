"""Decode laws as plain numbers: presets from published measurements, first principles."""

from dataclasses import dataclass

from dapolab import scenario


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


def resolve(hardware: scenario.Hardware) -> Law:
    """Return the numbers behind ``hardware.law``."""
    match hardware.law:
        case scenario.AffineLaw() as law:
            knots = (0.0, 1.0), (0.0, law.b_s)
        case scenario.PiecewiseLaw() as law:
            knots = law.n_knots, law.b_knots_s
        case _:
            # the default preset until the table of presets is here
            return Law(0.00659, (0.0, 1.0), (0.0, 1.19e-5), 4.68e-8, 1.87e-5)
    return Law(
        a_s=law.a_s,
        n_knots=knots[0],
        b_knots_s=knots[1],
        c_s=law.c_s,
        prefill_s=law.prefill_s,
        prefill_slack_s=law.prefill_slack_s,
        prefill_context_s=law.prefill_context_s,
        source=law.source,
    )

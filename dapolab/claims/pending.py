"""Claims whose instrument does not exist yet: what theory says of them, and no verdict."""

from dapolab.claims.claim import Claim, Row
from dapolab.theory.pipeline import (
    best_split,
    exponential_step_rate,
    fixed_cycle_s,
    streaming_staleness,
)

_LATER = "No verdict yet: the async learner of the simulator is issue E."
_TRAINING = "No verdict yet: real training is issue D; no other instrument can decide it."

_P12 = Claim(
    id="p12-staleness",
    kind="value",
    statement="A staleness bound η > 1 helps only through randomness: with fixed rollout and train "
    "times of 1 s the cycle is 1 s at η=1 and η=3 alike, with exponential ones the rate goes from "
    "2/3 to 4/5; staleness grows in proportion to an answer's own length.",
    source="theory.md P12, F2, F3, F4",
    instrument="none yet",
    rows=(
        Row(
            name="cycle at η=3 over η=1, fixed times",
            kind="value",
            says=1.0,
            rival=0.5,
            tolerance=0.02,
            unit="ratio",
            why="2 % of the time",
        ),
        Row(
            name="rate at η=3 over η=1, exponential times",
            kind="value",
            says=1.2,
            rival=1.0,
            tolerance=0.04,
            unit="ratio",
            why="4 % of the time",
        ),
        Row(
            name="versions per mean length, K=64, B=32",
            kind="value",
            rival=0.0,
            tolerance=0.2,
            unit="versions",
            why="a fifth of a version",
        ),
    ),
    predict=lambda: {
        "cycle at η=3 over η=1, fixed times": fixed_cycle_s(1.0, train_s=1.0, staleness=3)
        / fixed_cycle_s(1.0, train_s=1.0, staleness=1),
        "rate at η=3 over η=1, exponential times": exponential_step_rate(
            1.0, train_per_s=1.0, staleness=3
        )
        / exponential_step_rate(1.0, train_per_s=1.0, staleness=1),
        "versions per mean length, K=64, B=32": streaming_staleness(
            n_slots=64, batch_responses=32, mean_duration_s=1.0
        ).slope_versions_per_s,
    },
    how_to_read=_LATER,
)

_C15 = Claim(
    id="c15-async-for-free",
    kind="order",
    statement="Asynchronous training removes the long tail for free: splitting the GPUs between "
    "rollout and training is faster than the colocated synchronous loop.",
    correction="With perfect scaling and no latency floor the best split gains exactly nothing; "
    "what it gains comes from the latency that no GPU shortens, and is paid in staleness.",
    source="theory.md circulated 15, F6",
    instrument="none yet",
    rows=(
        Row(
            name="colocated over split cycle, no latency floor",
            kind="order",
            says=1.0,
            rival=1.0,
            tolerance=0.05,
            unit="ratio",
            why="5 % of the time",
        ),
        Row(
            name="colocated over split cycle, a third latency",
            kind="order",
            says=1.0,
            rival=1.0,
            tolerance=0.05,
            unit="ratio",
            why="5 % of the time",
        ),
    ),
    predict=lambda: {
        "colocated over split cycle, no latency floor": best_split(1.0, train_s=1.0).gain,
        "colocated over split cycle, a third latency": best_split(
            1.0, train_s=1.0, latency_s=1.0
        ).gain,
    },
    how_to_read=_LATER,
)

_REAL_ENTROPY = Claim(
    id="real-clip-higher-entropy",
    kind="order",
    statement="With ε_high=.28 in place of .2 a language model's entropy collapses later, in the "
    "first hundred updates of a small task (DAPO Fig. 2, as circulated).",
    source="DAPO, arXiv 2503.14476 v2 §3.1; theory.md D5, D7",
    instrument="real training",
    rows=(
        Row(
            name="entropy with .28 less .2 at update 100",
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=0.02,
            unit="nats",
            why="2 % of a nat, the digits of an entropy curve",
        ),
    ),
    predict=lambda: {},
    how_to_read=_TRAINING,
)

_REAL_STEPS = Claim(
    id="real-fewer-steps",
    kind="order",
    statement="Dynamic sampling reaches the same accuracy in fewer training steps (DAPO Fig. 6).",
    source="DAPO, arXiv 2503.14476 v2 §3.2; theory.md C7",
    instrument="real training",
    rows=(
        Row(
            name="steps to the accuracy, without over with",
            kind="order",
            says=1.0,
            rival=1.0,
            tolerance=0.1,
            unit="ratio",
            why="a tenth of the steps",
        ),
    ),
    predict=lambda: {},
    how_to_read=f"{_TRAINING} Theory makes each step larger by 1/E[q] and no better directed; "
    "steps are not seconds.",
)

CLAIMS = (_P12, _C15, _REAL_ENTROPY, _REAL_STEPS)

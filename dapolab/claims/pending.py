"""Claims whose instrument does not exist yet: what theory says of them, and no verdict."""

from dapolab.claims.claim import Claim, Row

_TRAINING = "No verdict yet: real training alone can decide it."

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

CLAIMS = (_REAL_ENTROPY, _REAL_STEPS)

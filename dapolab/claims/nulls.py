"""Where the literature says "no effect": nulls, each beside the rival's effect in the same setting.

A null is a value of 0 within a quarter of the rival's effect; the last rows measure that effect, so
that a null cannot hold because nothing moves at all.
"""

import numpy as np

from dapolab.bandit import ArmBandit, train
from dapolab.bandit.environments import (
    difficulty_ladder,
    length_classes,
    many_arms,
    shared_length,
)
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.simulated import REPEAT, Floats, Setup, per_replication
from dapolab.claims.toys import GROUP_SIZE, gradient, mode

_QUARTER = "a quarter of the rival's effect"


def _null(name: str, *, rival: float, unit: str) -> Row:
    return Row(
        name=name,
        kind="null",
        says=0.0,
        rival=rival,
        tolerance=abs(rival) / 4.0,
        unit=unit,
        why=_QUARTER,
    )


def _effect(name: str, least: float, *, unit: str) -> Row:
    """Return the row that the rival's effect is there, on its side and at least so large."""
    return Row(
        name=name,
        kind="order",
        side="above" if least > 0 else "below",
        says=0.0,
        rival=0.0,
        tolerance=abs(least),
        unit=unit,
        why="the rival's effect, of which the nulls allow a quarter",
    )


def _changes(bandit: ArmBandit, words: str, draws: Draws, metric: str, **training: int) -> Floats:
    run = train(bandit, mode(words, **training), seeds=range(draws.n), seed=draws.seed, n_records=2)
    return run.change(metric)


# ---------------------------------------------------------------------------- one update a rollout

_CLIP_SIZE = 0.1
_ONCE, _OFTEN = "1 update a rollout", "16 updates a rollout"


def _clip_effect(draws: Draws, n_epochs: int) -> Floats:
    wide, narrow = (
        _changes(
            many_arms(case="random", p_likely=0.5),
            f"grpo+clip.high={high}",
            draws,
            "entropy/answer",
            group_size=32,
            n_epochs=n_epochs,
            n_steps=10,
        )
        for high in (0.5, 0.2)
    )
    return wide - narrow


_SINGLE = Claim(
    id="null-clip-single-update",
    kind="null",
    statement="With one optimizer update a rollout (mini-batch = rollout batch, one epoch) clip "
    "settings do nothing: ε_high=.5 in place of .2 leaves the entropy after 10 rollouts as it is.",
    source="DAPO#23 and other threads of field case B15; theory.md D1",
    instrument="bandit",
    repeat="seed",
    n=200,
    quick_n=50,
    rows=(
        _null(_ONCE, rival=_CLIP_SIZE, unit="nats"),
        _effect(_OFTEN, _CLIP_SIZE, unit="nats"),
    ),
    predict=lambda: {_ONCE: 0.0},
    measure=lambda draws: {_ONCE: _clip_effect(draws, 1), _OFTEN: _clip_effect(draws, 16)},
    how_to_read="Change of entropy with ε_high=.5 less that with .2, paired by seed; thirty arms, "
    "random reward, one arm at .5. The ratio of a first update is 1, so the null is exact: a "
    "difference of 0 in every seed.",
)

# ---------------------------------------------------------------------------- shared length

_TOKENS = 20.0
_LOOP = {"group_size": GROUP_SIZE, "learning_rate": 4, "n_steps": 100}
_SHARED = {
    "seq-mean-token-mean": "sample mean: all answers",
    "seq-mean-token-mean+grpo": "sample mean with std: all answers",
    "token-mean": "token mean: all answers",
}
_APART = "sample mean, a length of its own for right and wrong: wrong answers"

_SHARED_LENGTH = Claim(
    id="null-shared-length",
    kind="null",
    statement="1/|o| gives no length bias to a policy that cannot tell right from wrong while it "
    "writes: with one length parameter for both, correctness independent of length, mean length "
    "stays where it is, whatever the aggregation and with std or without (100 updates).",
    source="understand-r1-zero#10, #11 (field case B67), the view that there is no bias; theory.md "
    "C3",
    instrument="bandit",
    repeat="seed",
    n=400,
    quick_n=100,
    rows=(
        *(_null(name, rival=_TOKENS, unit="tokens") for name in _SHARED.values()),
        _effect(_APART, _TOKENS, unit="tokens"),
    ),
    predict=lambda: dict.fromkeys(_SHARED.values(), 0.0),
    measure=lambda draws: (
        {
            name: _changes(shared_length(p_long=0.5), words, draws, "length/mean", **_LOOP)
            for words, name in _SHARED.items()
        }
        | {
            _APART: _changes(
                length_classes(), "seq-mean-token-mean", draws, "length/wrong", **_LOOP
            )
        }
    ),
    how_to_read="Change of length over 100 updates, 10 or 100 tokens, each half of the time at the "
    "start. Single seeds wander far; the mean over them does not.",
)

# ---------------------------------------------------------------------------- constant denominator

_SIDES = ("right", "wrong")
_CONSTANT = "seq-mean-token-sum-norm+aggregation.constant=20"

_DR_TRAINED = Claim(
    id="null-constant-denominator",
    kind="null",
    statement="Dr. GRPO's constant denominator leaves the lengths of right and of wrong answers "
    "alone, not in the first update only but over 100 of them, at the learning progress of GRPO.",
    source="Dr. GRPO, arXiv 2503.20783; field case B67; theory.md C2, C4",
    instrument="bandit",
    repeat="seed",
    n=400,
    quick_n=100,
    rows=(
        *(_null(f"constant: {side} answers", rival=_TOKENS, unit="tokens") for side in _SIDES),
        _null("accuracy, constant less 1/|o|", rival=0.6, unit="share"),
        _effect("1/|o|: wrong answers", _TOKENS, unit="tokens"),
        _effect("1/|o|: right answers", -_TOKENS, unit="tokens"),
    ),
    predict=lambda: {f"constant: {side} answers": 0.0 for side in _SIDES},
    measure=lambda draws: (
        {
            f"{name}: {side} answers": _changes(
                length_classes(), words, draws, f"length/{side}", **_LOOP
            )
            for name, words in (("constant", _CONSTANT), ("1/|o|", "seq-mean-token-mean"))
            for side in _SIDES
        }
        | {
            "accuracy, constant less 1/|o|": _changes(
                length_classes(), _CONSTANT, draws, "reward/accuracy", **_LOOP
            )
            - _changes(length_classes(), "seq-mean-token-mean", draws, "reward/accuracy", **_LOOP)
        }
    ),
    how_to_read="Change of length over 100 updates; 10 or 100 tokens, from a pass rate of .3. The "
    "constant is 20, so that both learn about as much: at equal steps with a larger one the null "
    "would be cheap. The rival of the accuracy is all that 1/|o| gains.",
)

# ---------------------------------------------------------------------------- empty groups

_RATES = (0.1, 0.5, 0.9)
_GROUPS_OUT = {
    "seq-mean-token-mean": "sample mean: length of the expected gradient, with over without, − 1",
    "token-mean": "token mean: the same",
}
_TURN = "sample mean: 1 − cosine"
_DROP_SIZE = 0.4


def _dropping(aggregation: str) -> tuple[float, float]:
    """Return how the expected gradient's size and direction change without empty groups."""
    bandit = difficulty_ladder(pass_rates=_RATES)
    whole, kept = (
        gradient(bandit, f"{aggregation}+mean_only{extra}", group_size=4, n_groups=2)
        for extra in ("", "+degenerate_groups=out")
    )
    sizes = float(np.linalg.norm(whole)), float(np.linalg.norm(kept))
    return sizes[1] / sizes[0] - 1.0, 1.0 - float(whole @ kept) / (sizes[0] * sizes[1])


def _measure_dropping(_: object) -> dict[str, Measured]:
    found: dict[str, Measured] = {name: _dropping(words)[0] for words, name in _GROUPS_OUT.items()}
    return found | {_TURN: _dropping("seq-mean-token-mean")[1]}


_EMPTY = Claim(
    id="null-empty-groups",
    kind="null",
    statement="Groups that are all right or all wrong have no gradient; a filter that takes them "
    "out and puts nothing in their place changes nothing (sample mean over all sampled answers, "
    "no std).",
    source="as circulated of GRPO's zero-variance groups; theory.md C7",
    instrument="bandit",
    rows=(
        _null(_GROUPS_OUT["seq-mean-token-mean"], rival=_DROP_SIZE, unit="ratio"),
        _null(_TURN, rival=_DROP_SIZE, unit="1 − cosine"),
        _effect(_GROUPS_OUT["token-mean"], _DROP_SIZE, unit="ratio"),
    ),
    predict=lambda: {_GROUPS_OUT["seq-mean-token-mean"]: 0.0, _TURN: 0.0},
    measure=_measure_dropping,
    how_to_read="Exact over two groups of 4 from three pass rates. Only while the dropped answers "
    "stay in the denominator: under token mean their tokens leave it and the update grows, the "
    "last row.",
)

# ---------------------------------------------------------------------------- equal lengths

_OTHERS = ("token-mean", "seq-mean-token-sum")
_ANGLE = 0.15


def _turn(words: str, *, short: float, long: float) -> float:
    """Return 1 − cosine between a mode's expected gradient and the sample mean's."""
    bandit = length_classes(short_tokens=short, long_tokens=long)
    one, other = (
        gradient(bandit, text, group_size=GROUP_SIZE) for text in ("seq-mean-token-mean", words)
    )
    return 1.0 - float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


_EQUAL = Claim(
    id="null-equal-lengths",
    kind="null",
    statement="Where all answers are equally long the aggregation is a matter of the learning "
    "rate alone: token mean and token sum point where the sample mean does.",
    source="as circulated of loss_agg_mode; theory.md C1",
    instrument="bandit",
    rows=(
        *(_null(f"{w}, 55 tokens each", rival=_ANGLE, unit="1 − cosine") for w in _OTHERS),
        *(_effect(f"{w}, 10 or 100 tokens", _ANGLE, unit="1 − cosine") for w in _OTHERS),
    ),
    predict=lambda: {f"{w}, 55 tokens each": 0.0 for w in _OTHERS},
    measure=lambda _: {
        f"{w}, {name}": _turn(w, short=short, long=long)
        for w in _OTHERS
        for name, short, long in (
            ("55 tokens each", 55.0, 55.0),
            ("10 or 100 tokens", 10.0, 100.0),
        )
    },
    how_to_read="Exact expected first gradients, pass rate .3, G=8.",
)

# ---------------------------------------------------------------------------- whole rounds

_RACE = 0.16
_ROUNDS, _STREAM = "whole rounds of 3·B groups", "first B of a stream of 16 groups"


def _shorter(setup: Setup, draws: Draws) -> Floats:
    """Return trained over effective candidates' length, less 1, of each replication."""
    return per_replication(
        setup,
        draws,
        lambda s: s["bias/length_trained"].sum() / s["bias/length_effective"].sum() - 1.0,
    )


_NO_RACE = Claim(
    id="null-rounds-length",
    kind="null",
    statement="Over-sampling whole rounds and dropping the surplus does not favour short answers: "
    "what is kept is the first in the order of the data, not the first to finish (verl's DAPO "
    "recipe).",
    source="verl recipe dapo_ray_trainer.py, batch[:traj_bsz]; theory.md A6, A10",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        _null(_ROUNDS, rival=-_RACE, unit="share"),
        _effect(_STREAM, -_RACE, unit="share"),
    ),
    predict=lambda: {_ROUNDS: 0.0},
    measure=lambda draws: {
        _ROUNDS: _shorter(Setup(p_mixed=0.5, collector="rounds"), draws),
        _STREAM: _shorter(Setup(p_mixed=0.5, collector="streaming", slots=16), draws),
    },
    how_to_read="Mean length of trained answers over that of all candidates with a signal, less 1. "
    "B=4, G=8, q=.5. The race that keeps the first to finish and aborts the rest is the rival.",
)

CLAIMS = (_SINGLE, _SHARED_LENGTH, _DR_TRAINED, _EMPTY, _EQUAL, _NO_RACE)

"""The named environments with the modes that they are asked with, and how to read the answers."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dapolab.bandit.answers import Bandit
from dapolab.bandit.environments import (
    OVERLONG_BUFFER,
    OVERLONG_CAP,
    difficulty_ladder,
    eos_hazard,
    length_classes,
    many_arms,
    mismatch,
    overlong,
    rare_token,
    shared_length,
)
from dapolab.bandit.settings import Mode, Training
from dapolab.errors import ConfigError
from dapolab.scenario import (
    Advantage,
    Clip,
    GrpoAdvantage,
    MeanOnlyAdvantage,
    NoClip,
    Objective,
    PpoClip,
    SeqMeanTokenMean,
)


@dataclass(frozen=True)
class Study:
    """An environment with the modes that it is asked with."""

    name: str
    summary: str
    build: Callable[..., Bandit]
    base: Mode
    modes: tuple[str, ...]
    how_to_read: tuple[str, ...]
    penalty: dict[str, Any] = field(
        default_factory=lambda: {"cap_tokens": 120, "buffer_tokens": 40, "factor": 1.0}
    )
    """What the mode word ``overlong`` means here."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings of the environment and their defaults."""
        return {name: p.default for name, p in inspect.signature(self.build).parameters.items()}

    def bandit(self, **settings: Any) -> Bandit:
        """Build the environment.

        Raises
        ------
        ConfigError
            For a setting that it does not have.
        """
        for name in settings:
            if name not in self.parameters:
                near = get_close_matches(name, self.parameters, n=1, cutoff=0.0)[0]
                raise ConfigError(f"{self.name} has no setting {name!r}; nearest: {near}")
        return self.build(**settings)


def find_study(name: str) -> Study:
    """Return the study of this name.

    Raises
    ------
    ConfigError
        Naming the nearest one.
    """
    if name not in STUDIES:
        near = get_close_matches(name, STUDIES, n=1, cutoff=0.0)[0]
        raise ConfigError(f"unknown bandit {name!r}; nearest: {near}; all: {', '.join(STUDIES)}")
    return STUDIES[name]


_MEAN_ONLY = MeanOnlyAdvantage()
_AGGREGATIONS = (
    "seq-mean-token-mean",
    "token-mean",
    "token-mean-micro+micro_rows=1",
    "seq-mean-token-sum-norm+aggregation.constant=55",
)
_CLIPS = ("clip.high=0.2", "clip.high=0.28", "clip.high=0.5", "no-clip")


def _base(advantage: Advantage | None = None, *, clip: Clip | None = None, **training: Any) -> Mode:
    objective = Objective(
        advantage=advantage or GrpoAdvantage(),
        clip=clip or PpoClip(low=0.2, high=0.2),
        aggregation=SeqMeanTokenMean(),
    )
    return Mode(name="base", objective=objective, training=Training(**training))


def _studies() -> tuple[Study, ...]:
    return (
        Study(
            "length_classes",
            "right and wrong answers, each short or long: what an aggregation does to lengths",
            length_classes,
            _base(_MEAN_ONLY, learning_rate=4.0, n_steps=400),
            _AGGREGATIONS,
            (
                "wrong answers above their start and right ones below it: the 1/length weight of "
                "seq-mean-token-mean, and of micro-batches of one answer, which are the same.",
                "token-mean keeps a part of it while one group of 8 is all that it averages over; "
                "the part shrinks with +n_groups=8. Sums have none.",
                "the mean of all lengths is no bias of its own: it follows which answers become "
                "likely. Modes take steps of different size: compare them at equal pass rate too.",
            ),
        ),
        Study(
            "eos_hazard",
            "every token may be the last: the smallest model of an end-of-sequence token",
            eos_hazard,
            _base(_MEAN_ONLY, learning_rate=2.0, n_steps=400),
            (
                "seq-mean-token-mean",
                "token-mean",
                "seq-mean-token-sum-norm+aggregation.constant=50",
            ),
            (
                "seq-mean-token-mean: wrong answers grow, right ones shrink.",
                "sum-norm: lengths given right and wrong do not drift on average; their spread "
                "over seeds does grow.",
                "token-mean: the same signs as seq-mean-token-mean; a step has a few per cent of "
                "the size, and many steps add up.",
            ),
        ),
        Study(
            "shared_length",
            "correctness independent of length, one length parameter for both",
            shared_length,
            _base(_MEAN_ONLY, learning_rate=2.0, n_steps=200),
            (*_AGGREGATIONS, "seq-mean-token-mean+grpo", "token-mean+grpo"),
            (
                "no mode moves the expected length here, with or without std: a length bias needs "
                "a policy that can tell right from wrong while it writes.",
            ),
        ),
        Study(
            "rare_token",
            "a right answer of probability 0.01: how far one rollout can raise it",
            rare_token,
            _base(n_groups=8, group_size=64, n_epochs=32, learning_rate=5.0, n_steps=2),
            _CLIPS,
            (
                "the upper clip stops the right answer's own gradient; the wrong ones' keeps "
                "lifting it until theirs is clipped too.",
                "so one rollout may raise it far beyond (1 + high) times, for any high.",
            ),
        ),
        Study(
            "many_arms",
            "one likely arm among thirty: what clip-higher does to the entropy",
            many_arms,
            _base(group_size=32, n_epochs=16, n_steps=3),
            _CLIPS,
            (
                "whether a larger high raises or lowers entropy depends on what is likely and what "
                "is right: compare --set case=likely_right, likely_wrong and random.",
                "signs belong to the first rollouts; later the curves may cross.",
            ),
        ),
        Study(
            "difficulty_ladder",
            "prompts from hard to easy: std normalisation and dynamic sampling",
            difficulty_ladder,
            _base(n_groups=8, n_steps=100, learning_rate=0.5),
            ("mean_only", "grpo", "mean_only+filter-raw", "grpo+filter-raw"),
            (
                "a filter enlarges the step, it does not turn it: compare at equal progress, not "
                "at equal steps.",
                "std normalisation favours hard and easy prompts by 1.4 times at most, at 8 "
                "answers a group.",
            ),
        ),
        Study(
            "mismatch",
            "the sampler is not quite the policy: what corrections cost and save",
            mismatch,
            _base(clip=NoClip(), n_steps=60, learning_rate=2.0),
            ("no-correction", "importance", "tis", "icepop", "bypass+ppo"),
            (
                "bias of gradient: distance of the first expected gradient from that of a sampler "
                "which is the policy, over that one's length; its sd: spread from batch to batch "
                "on the same scale. Both are exact.",
                "importance weights correct single answers; a small bias stays, as group mean and "
                "std are those of the sampler's answers.",
            ),
        ),
        Study(
            "overlong",
            "lengths against a cap: shaped rewards, masking, and what is filtered",
            overlong,
            _base(n_groups=4, n_steps=100, learning_rate=4.0),
            (
                "no-length-rule",
                "overlong",
                "mask-truncated",
                "exclude-truncated",
                "overlong+filter-raw",
                "overlong+filter-shaped",
            ),
            (
                "overlong: right answers inside the buffer are pushed down with the wrong ones "
                "where most of their group is right.",
                "filter-shaped keeps groups that are all right because of their lengths alone: a "
                "length penalty at full strength.",
            ),
            penalty={"cap_tokens": OVERLONG_CAP, "buffer_tokens": OVERLONG_BUFFER, "factor": 1.0},
        ),
    )


STUDIES: dict[str, Study] = {study.name: study for study in _studies()}

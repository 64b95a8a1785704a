"""The recipe's rules on plain numbers: which group is kept, what a length costs, what a run yields.

No arrays, no clock, no framework: any sequence of floats will do, and the same functions serve
simulated groups, recorded ones and a real training loop.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from dapolab.scenario import ConfigError
from dapolab.scenario.collector import SPREAD_TOLERANCE

# ---------------------------------------------------------------------------- the group filter

Verdict = Literal["spread", "constant", "missing", "singleton"]


def judge_group(values: Sequence[float], *, tolerance: float = SPREAD_TOLERANCE) -> Verdict:
    """Say why a group would be kept or dropped.

    The spread (max − min) decides, not a standard deviation: the std of n equal floats need not be
    0 once their sum has been rounded (verl-recipe's numpy std keeps [0.1]·3, field case B33), their
    spread always is.

    Parameters
    ----------
    values
        Filter metric of each response; NaN where it is missing.
    tolerance
        Largest spread that still counts as constant.

    Returns
    -------
    ``spread``, ``constant``, ``singleton`` (a group of one) or ``missing`` (any value NaN: such a
    group is dropped, as verl's legacy filter does, and has a verdict of its own so that it is
    counted; verl's V1 keeps it).

    Raises
    ------
    ValueError
        If the group is empty.
    """
    if len(values) == 0:
        raise ValueError("an empty group cannot be judged; leave it out")
    if any(math.isnan(value) for value in values):
        return "missing"
    if len(values) == 1:
        return "singleton"
    low, high = min(values), max(values)
    return "constant" if low == high or high - low <= tolerance else "spread"


def keep_group(
    values: Sequence[float],
    *,
    tolerance: float = SPREAD_TOLERANCE,
    singletons: Literal["keep", "drop"] = "keep",
) -> bool:
    """Say whether a group has a learning signal (DAPO Eq. 11: 0 < right answers < G).

    A group of one follows ``singletons``; verl keeps it (recipe dapo_ray_trainer.py:261-265).
    See ``judge_group`` for the rest.
    """
    verdict = judge_group(values, tolerance=tolerance)
    return verdict == "spread" or (verdict == "singleton" and singletons == "keep")


def kept_only_by_shaping(
    raw: Sequence[float], *, shaped: Sequence[float], tolerance: float = SPREAD_TOLERANCE
) -> bool:
    """Say whether a filter on the shaped reward keeps a group whose raw outcomes are all equal.

    Such a group teaches length alone: all answers are wrong (or right), the short ones get a
    positive advantage (field case B34; NeMo-RL#2431, verl-recipe#125).
    """
    if len(raw) != len(shaped):
        raise ValueError(f"{len(raw)} raw rewards but {len(shaped)} shaped ones in one group")
    constant = judge_group(raw, tolerance=tolerance) == "constant"
    return constant and judge_group(shaped, tolerance=tolerance) == "spread"


def shaping_warning(n_only_by_shaping: int, *, n_kept: int) -> str | None:
    """Return the warning line for groups that shaping alone kept, or None where there are none."""
    if n_only_by_shaping == 0:
        return None
    return (
        f"{n_only_by_shaping} of {n_kept} kept groups were kept only because of shaping: their "
        'answers are all right or all wrong; filter on raw correctness (filter_metric = "correct")'
    )


# ---------------------------------------------------------------------------- reward


def overlong_penalty(
    n_tokens: float,
    *,
    cap_tokens: int,
    buffer_tokens: int,
    factor: float = 1.0,
    clamp: bool = True,
) -> float:
    """Return the soft overlong punishment, in reward units (DAPO Eq. 13).

    0 up to ``cap_tokens − buffer_tokens``, then linear to −factor at the cap. Beyond the cap it
    stays there (paper, TRL, OpenRLHF, 06-dapo) or, with ``clamp=False``, goes on falling (verl,
    AReaL, NeMo RL, ms-swift); an engine that stops at the cap never gets there. A buffer of 0 is a
    step: 0 up to and at the cap, −factor beyond (TRL); verl and 06-dapo refuse it.

    Raises
    ------
    ConfigError
        If the buffer is negative or longer than the cap (every answer would be punished; field case
        B56), or the length is negative.
    """
    if not 0 <= buffer_tokens <= cap_tokens:
        raise ConfigError(
            f"overlong buffer of {buffer_tokens} tokens must lie between 0 and the cap of "
            f"{cap_tokens}: a longer one punishes every answer"
        )
    if n_tokens < 0:
        raise ConfigError(f"a response cannot have {n_tokens} tokens")
    exceed = n_tokens - (cap_tokens - buffer_tokens)
    if exceed <= 0:
        return 0.0
    if buffer_tokens == 0:
        return -factor
    share = exceed / buffer_tokens
    return -factor * (min(share, 1.0) if clamp else share)


def shaped_reward(
    correct: bool,
    *,
    n_tokens: float,
    cap_tokens: int,
    buffer_tokens: int,
    factor: float = 1.0,
    clamp: bool = True,
) -> float:
    """Return ±1 for right or wrong (DAPO Eq. 7) plus the overlong penalty of the length."""
    penalty = overlong_penalty(
        n_tokens, cap_tokens=cap_tokens, buffer_tokens=buffer_tokens, factor=factor, clamp=clamp
    )
    return (1.0 if correct else -1.0) + penalty


# ---------------------------------------------------------------------------- updates and batches


@dataclass(frozen=True)
class Updates:
    """Optimizer updates of a run; see ``effective_updates``."""

    per_rollout: int
    """Updates made on the responses of one rollout step."""
    off_policy: int
    """Those of them that come after the first, so that a clip can act."""
    total: int
    """Updates of all rollout steps."""


def effective_updates(
    n_responses: int, *, mini_responses: int, n_epochs: int = 1, n_rollouts: int = 1
) -> Updates:
    """Count gradient updates, which is what the DAPO paper's x-axes show (field cases B15, B55).

    Parameters
    ----------
    n_responses
        Responses trained per rollout step (DAPO: 512 prompts · 16).
    mini_responses
        Responses per optimizer update (DAPO: 512); a short last mini-batch is an update too.
    n_epochs
        Passes over the same responses.
    n_rollouts
        Rollout steps.
    """
    if min(n_responses, mini_responses, n_epochs) < 1 or n_rollouts < 0:
        raise ConfigError("responses, mini-batch and epochs must be positive to make an update")
    per_rollout = math.ceil(n_responses / mini_responses) * n_epochs
    return Updates(per_rollout, off_policy=per_rollout - 1, total=per_rollout * n_rollouts)


@dataclass(frozen=True)
class Alignment:
    """What becomes of a batch whose size does not fit the ranks; see ``batch_alignment``."""

    n_rows: int
    """Rows that are trained, padding included."""
    n_lost: int
    """Rows with a signal that are cut off."""
    n_padded: int
    """Rows without a signal that are added."""
    mini_batches: tuple[int, ...]
    """Rows of each optimizer update, over all ranks."""
    note: str
    """One line for the report; empty where the batch fits."""


def batch_alignment(
    n_rows: int, *, n_ranks: int, mini_rows: int, misfit: Literal["pad", "trim", "stop"]
) -> Alignment:
    """Fit a filtered batch of any size to the data-parallel ranks (field case B39).

    A filter without refill leaves another number of rows each step; rows that do not divide by the
    ranks hang or crash a run. Every update, the short last one too, must divide by the ranks.

    Raises
    ------
    ConfigError
        If the batch does not fit and ``misfit`` is ``stop``, or ``mini_rows`` can never fit.
    """
    if n_rows < 0 or n_ranks < 1 or mini_rows < 1 or mini_rows % n_ranks:
        raise ConfigError(
            f"a mini-batch of {mini_rows} rows never divides by {n_ranks} ranks; change either"
        )
    rest = n_rows % n_ranks
    n_lost = rest if misfit == "trim" else 0
    n_padded = (n_ranks - rest) % n_ranks if misfit == "pad" else 0
    done = {"trim": f"{n_lost} rows lost", "pad": f"{n_padded} rows padded", "stop": "stopped"}
    note = f"{n_rows} not divisible by {n_ranks}: {done[misfit]}" if rest else ""
    if rest and misfit == "stop":
        raise ConfigError(f"{note}; pad or trim the batch, or refill what the filter drops")
    n_used = n_rows - n_lost + n_padded
    full, last = divmod(n_used, mini_rows)
    minis = (mini_rows,) * full + ((last,) if last else ())
    return Alignment(n_used, n_lost, n_padded, minis, note)


def check_alignment(n_groups: int, *, group_size: int, n_ranks: int) -> None:
    """Refuse settings under which no number of kept groups ever fits the ranks (field case B39).

    k kept groups give k·G rows; some k ≤ B must make that a multiple of the ranks.

    Raises
    ------
    ConfigError
        If none does.
    """
    if math.lcm(group_size, n_ranks) > n_groups * group_size:
        raise ConfigError(
            f"no number of kept groups up to {n_groups} makes groups of {group_size} divide by "
            f"{n_ranks} ranks; change group_size, groups_per_step or the ranks"
        )


# ---------------------------------------------------------------------------- the run as planned


@dataclass(frozen=True)
class EpochPlan:
    """Where the prompts of a run go; counts of groups unless named otherwise."""

    n_waves: int
    n_steps: int
    n_planned_steps: int
    n_filtered: int
    n_trained: int
    n_surplus: int
    n_unused: int
    """Kept for a step that the data did not fill."""
    n_not_sampled: int
    """Prompts of the tails that ``drop_last`` skips at the end of each epoch."""

    @property
    def schedule_share(self) -> float:
        """How far a learning-rate schedule of the planned length gets."""
        return self.n_steps / self.n_planned_steps if self.n_planned_steps else 0.0


def plan_epochs(
    n_prompts: int,
    *,
    gen_groups: int,
    groups_per_step: int,
    kept_by_wave: Iterable[int],
    n_epochs: int = 1,
) -> EpochPlan:
    """Account for every prompt of a run by whole rounds (verl's DAPO recipe; field case B42).

    The recipe takes the length of its data loader, which counts generation batches, for the number
    of training steps; with k waves a step the run ends after 1/k of the bar and of the schedule
    (verl#991). A partly filled batch is carried across the end of an epoch and lost at the end of
    the last.

    Parameters
    ----------
    n_prompts
        Prompts of the data set.
    gen_groups
        Groups of one generation batch; a data loader with ``drop_last`` skips a shorter one.
    groups_per_step
        B, groups of one training step.
    kept_by_wave
        Groups that pass the filter, wave after wave; may be endless.
    n_epochs
        Passes over the data set.
    """
    if min(n_prompts, gen_groups, groups_per_step, n_epochs) < 1:
        raise ConfigError("prompts, generation batch, training batch and epochs must be positive")
    waves_per_epoch, tail = divmod(n_prompts, gen_groups)
    n_waves = waves_per_epoch * n_epochs
    kept_of_run = list(islice(kept_by_wave, n_waves))
    if len(kept_of_run) < n_waves:
        raise ConfigError(
            f"{len(kept_of_run)} waves given, the run has {n_waves}: give all of them"
        )
    n_steps = n_kept = n_surplus = n_filtered = 0
    for kept in kept_of_run:
        if not 0 <= kept <= gen_groups:
            raise ConfigError(f"a wave of {gen_groups} groups cannot keep {kept}")
        n_filtered += gen_groups - kept
        n_kept += kept
        if n_kept >= groups_per_step:
            n_surplus += n_kept - groups_per_step
            n_steps += 1
            n_kept = 0
    return EpochPlan(
        n_waves=n_waves,
        n_steps=n_steps,
        n_planned_steps=n_waves,
        n_filtered=n_filtered,
        n_trained=n_steps * groups_per_step,
        n_surplus=n_surplus,
        n_unused=n_kept,
        n_not_sampled=tail * n_epochs,
    )

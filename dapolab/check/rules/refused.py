"""Refused: combinations that OpenRLHF and slime assert against at start."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.openrlhf import DOTTED_SINCE
from dapolab.check.run import Run, newer

OPENRLHF = "OpenRLHF 0.11.2 cli/train_ppo_ray.py:736-755"


def _openrlhf(run: Run) -> bool:
    """Say whether this is a release of OpenRLHF whose assertions were read."""
    return run.framework == "openrlhf" and newer(run.version_text, DOTTED_SINCE)


def generation_over_batch(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: more prompts generated than trained, which needs the async queue."""
    if not _openrlhf(run) or run.batch_groups is None:
        return
    key = "rollout.vllm_generate_batch_size"
    size = run.reading.integer(key)
    if size is None or size <= run.batch_groups:
        return
    if run.reading.flag("train.async_enable") is not False:
        return
    yield run.finding(
        "batch-generation-over-batch",
        "error",
        key,
        f"{size} prompts per generation for {run.batch_groups} trained, without async training: "
        "AssertionError at start",
        suggestion=f"--train.async_enable, or at most {run.batch_groups}",
        source=OPENRLHF,
    )


def filter_without_score(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: the group filter asks for a remote reward or an agent function."""
    if not _openrlhf(run) or run.filter is None or run.reading.source.entry is None:
        return  # a fragment need not name its reward
    if run.given("reward.remote_url") or run.given("train.agent_func_path"):
        return
    yield run.finding(
        "filter-needs-remote-reward",
        "error",
        "filter",
        "dynamic filtering without a remote reward or an agent function: AssertionError at start",
        suggestion="--reward.remote_url or --train.agent_func_path",
        source=OPENRLHF,
    )


def filter_range(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: bounds of the mean score in the wrong order, or equal."""
    key = "algo.dynamic_filtering_range"
    bounds = run.reading.value(key) if _openrlhf(run) and run.filter else None
    if not isinstance(bounds, list) or len(bounds) != 2:
        return
    low, high = bounds
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low < high:
        return
    yield run.finding(
        "filter-range-empty",
        "error",
        key,
        f"no mean score lies between {low:g} and {high:g}: AssertionError at start",
        suggestion="0 1 for 0/1 rewards",
        source=OPENRLHF,
    )


def chunk_below_batch(run: Run) -> Iterator[Finding]:
    """Flag: slime: fewer groups in a chunk than in the batch."""
    key = "over_sampling_batch_size"
    size = run.reading.integer(key) if run.framework == "slime" else None
    if size is None or run.batch_groups is None or size >= run.batch_groups:
        return
    yield run.finding(
        "batch-chunk-below-batch",
        "error",
        key,
        f"chunks of {size} groups are below the rollout's {run.batch_groups}: AssertionError at "
        "start",
        suggestion=f"{run.batch_groups} or more, or leave it out",
        source="slime 624b824 utils/arguments.py:1985-1989",
    )


def steps_disagree(run: Run) -> Iterator[Finding]:
    """Flag: slime: two settings of the update's size that do not agree."""
    if run.framework != "slime" or not run.batch_responses:
        return
    steps = run.reading.integer("num_steps_per_rollout")
    size = run.reading.integer("global_batch_size")
    if not steps or size is None or size == run.batch_responses // steps:
        return
    yield run.finding(
        "batch-steps-disagree",
        "error",
        "num_steps_per_rollout",
        f"{run.batch_responses} responses // {steps} steps are {run.batch_responses // steps}, "
        f"--global-batch-size is {size}: AssertionError at start",
        suggestion="one of the two",
        source=SLIME,
    )


def whitening(run: Run) -> Iterator[Finding]:
    """Flag: slime: REINFORCE++ without the whitening it asks for."""
    if run.framework != "slime" or run.reading.flag("normalize_advantages") is not False:
        return
    estimator = run.reading.text("advantage_estimator") or ""
    if estimator.startswith("reinforce_plus_plus"):
        yield run.finding(
            "advantage-not-whitened",
            "error",
            "advantage_estimator",
            f"{estimator} without --normalize-advantages: AssertionError at start",
            suggestion="--normalize-advantages",
            source=SLIME,
        )


SLIME = "slime 002fa9d utils/arguments.py (slime_validate_args)"

RULES = (
    generation_over_batch,
    filter_without_score,
    filter_range,
    chunk_below_batch,
    steps_disagree,
    whitening,
)

"""Filter: whether the group filter runs, on what it decides, and what it refills."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.verl import FILTER
from dapolab.check.run import Run

SHAPED = ("reward", "seq_reward", "seq_final_reward")
EXACT_SIZES = tuple(2**k for k in range(1, 12))
B34 = "verl-recipe#125: 0.715 -> 0.037 so filtered, 0.753 on the outcome; NeMo-RL#2431"
V1_BUFFER = "verl 0.9.1 trainer/ppo/v1/trainer_base.py:187-212"


def _verl_on(run: Run) -> bool:
    return run.framework == "verl" and run.reading.flag(f"{FILTER}.enable") is True


def _v1(run: Run) -> bool:
    return str(run.facts.get("trainer")).startswith("v1-")


def ignored(run: Run) -> Iterator[Finding]:
    """Flag: verl: the filter is configured in a trainer that has none."""
    if not _verl_on(run) or run.filter is not None:
        return
    certain = run.facts.get("trainer") in ("fully-async", "legacy")
    yield run.finding(
        "filter-ignored",
        "warning",
        "filter",
        f"the {run.trainer} does not read algorithm.filter_groups: all groups are trained, "
        "degenerate ones included",
        suggestion="V1 trainer (trainer.use_v1=true) or the DAPO recipe",
        source="verl 0.9.1 experimental/fully_async_policy: no reader of filter_groups (PR #5014 "
        "not merged); main_ppo_v0 neither",
        certain=certain,
    )


def metric_null(run: Run) -> Iterator[Finding]:
    """Flag: verl: no metric to decide on."""
    if run.filter is None or run.framework != "verl" or run.filter.metric is not None:
        return
    if run.reading.value(f"{FILTER}.metric") not in (None, ""):
        return
    yield run.finding(
        "filter-metric-null",
        "error",
        "metric" if run.given("metric") else "filter",
        "the group filter is on and its metric is null: "
        + ("ValueError at start" if _v1(run) else "KeyError at the first filtered batch"),
        suggestion=f"{FILTER}.metric=acc",
        source=f"{V1_BUFFER}; verl-recipe dapo_ray_trainer.py:237-294",
    )


def metric_missing(run: Run) -> Iterator[Finding]:
    """Flag: verl V1: seq_reward and seq_final_reward are no longer special names."""
    if run.filter is None or not _v1(run):
        return
    metric = run.filter.metric
    if metric not in ("seq_reward", "seq_final_reward"):
        return
    yield run.finding(
        "filter-metric-missing",
        "error",
        "metric",
        f"the V1 trainer looks {metric} up in the reward function's extra values: RuntimeError "
        "unless that function returns it",
        suggestion="acc (right or wrong), or reward (shaped) from 0.9.1 on",
        source="verl 0.9.1 trainer/ppo/v1/replay_buffer.py:261-315",
        certain=False,
    )


def shaped(run: Run) -> Iterator[Finding]:
    """Flag: the filter decides on a reward that length or KL has moved (field case B34)."""
    if run.filter is None or run.framework != "verl" or run.filter.metric not in SHAPED:
        return
    kl = run.filter.metric == "seq_final_reward" and run.reading.flag("algorithm.use_kl_in_reward")
    if run.overlong is None and not kl:
        return
    by = "the overlong penalty" if run.overlong is not None else "the KL in the reward"
    yield run.finding(
        "filter-on-shaped-reward",
        "warning",
        "metric" if run.given("metric") else "filter",
        f"metric {run.filter.metric} includes {by}: an all-wrong or all-right group is kept once "
        "its lengths differ, and teaches length alone",
        suggestion=f"{FILTER}.metric=acc",
        source=B34,
    )


def float_equality(run: Run) -> Iterator[Finding]:
    """Flag: a standard deviation compared with 0 on values that round (field case B33)."""
    if run.filter is None or run.framework != "verl" or run.group_size is None:
        return
    # V1's own "reward" comes from float32 and is immune: probed, verl reference 5.2.
    safe = (None, "acc", "reward") if _v1(run) else (None, "acc")
    if run.filter.metric in safe or run.group_size in EXACT_SIZES or run.group_size < 2:
        return
    yield run.finding(
        "filter-float-equality",
        "warning",
        "metric",
        f"std = 0 decides, on {run.filter.metric} and groups of {run.group_size}: equal rewards "
        "such as 0.1 can have a std of 1e-17 there and be kept",
        suggestion="metric acc, rewards like 0/1 or ±1, or a group size that is a power of two",
        source="verl-recipe dapo_ray_trainer.py:261-265, verl v1/replay_buffer.py:310; miles#570",
        certain=False,
    )


def group_of_one(run: Run) -> Iterator[Finding]:
    """Flag: a group of one has no baseline (field case B24)."""
    if run.group_size != 1 or not run.group_baseline:
        return
    what, severity = _ALONE.get(run.framework, ("the advantage is 0: nothing is learned", "error"))
    kept = " and the group filter keeps it" if run.filter and run.framework == "verl" else ""
    yield run.finding(
        "advantage-group-of-one",
        "error" if severity == "error" else "warning",
        "group_size",
        f"groups of one response: {what}{kept}",
        suggestion="8 or 16 responses per prompt",
        source="verl 0.9.1 core_algos.py:268-331; TRL 1.16 GRPOConfig; ms-swift#3980",
    )


_ALONE = {
    "verl": ("the advantage is the raw reward, there is no baseline", "warning"),
    "trl": ("GRPOConfig refuses fewer than 2 generations (ValueError)", "error"),
    "openrlhf": ("train_ppo_ray refuses it for this estimator (AssertionError)", "error"),
    "06-dapo": ("train.py refuses fewer than 2", "error"),
}


def leave_one_out(run: Run) -> Iterator[Finding]:
    """Flag: NeMo RL: with leave-one-out the std is per sample, and so is the filter."""
    if run.framework != "nemo-rl" or run.filter is None or not run.facts.get("leave_one_out"):
        return
    G = run.group_size
    never = " With 2 responses every std is 0: no batch ever fills." if G == 2 else ""
    yield run.finding(
        "filter-leave-one-out",
        "error" if G == 2 else "warning",
        "grpo.use_leave_one_out_baseline",
        "with the leave-one-out baseline the std is that of the other responses, and the filter "
        "drops single samples: a group with one right answer loses exactly that answer." + never,
        suggestion="use_leave_one_out_baseline: false, as in NeMo RL's DAPO recipe",
        source="NeMo RL 7ea279a advantage_estimator.py:57-98, grpo.py:1699-1828",
    )


def limit_ignored(run: Run) -> Iterator[Finding]:
    """Flag: verl V1: max_num_gen_batches is ignored, generation has no upper bound."""
    if not _verl_on(run) or not _v1(run):
        return
    limit = run.reading.integer(f"{FILTER}.max_num_gen_batches")
    if limit is None or limit <= 0:
        return
    yield run.finding(
        "filter-limit-ignored",
        "warning",
        "max_rounds",
        f"max_num_gen_batches = {limit} is ignored by the V1 trainer (a warning in its log): "
        "nothing ends a step whose groups are all degenerate",
        suggestion=f"{FILTER}.max_inflight_gen_batches bounds what is in flight",
        source=V1_BUFFER,
    )


def round_size_ignored(run: Run) -> Iterator[Finding]:
    """Flag: verl V1: gen_batch_size is forced to 1 while filtering."""
    size = run.reading.integer("data.gen_batch_size") if run.framework == "verl" else None
    if not _verl_on(run) or not _v1(run) or size in (None, 1):
        return
    yield run.finding(
        "filter-round-size-ignored",
        "warning",
        "round_groups",
        f"data.gen_batch_size = {size} is overridden to 1 while the filter is on: V1 refills by "
        "credit, not by rounds",
        suggestion="leave it out",
        source="verl 0.9.1 trainer/ppo/v1/trainer_base.py:727-739",
    )


def batch_is_round(run: Run) -> Iterator[Finding]:
    """Flag: the recipe without its filter trains on the whole generation batch."""
    if run.framework != "verl" or run.facts.get("trainer") != "recipe" or run.filter is not None:
        return
    size, batch = (run.reading.integer(f"data.{k}_batch_size") for k in ("gen", "train"))
    if not size or not batch or size == batch or run.reading.flag(f"{FILTER}.enable") is not False:
        return
    yield run.finding(
        "filter-off-batch-is-round",
        "warning",
        "round_groups",
        f"the filter is off, so the recipe trains on all {size} prompts of a generation batch, not "
        f"on train_batch_size = {batch}",
        suggestion=f"data.gen_batch_size={batch}",
        source="verl-recipe dapo_ray_trainer.py:235-236",
    )


def no_limit(run: Run) -> Iterator[Finding]:
    """Flag: the recipe without a limit on rounds (field case B41)."""
    if run.framework != "verl" or run.filter is None or run.filter.refill != "rounds":
        return
    limit = run.reading.integer(f"{FILTER}.max_num_gen_batches")
    if limit is None or limit > 0:
        return
    yield run.finding(
        "filter-no-limit",
        "note",
        "max_rounds",
        "max_num_gen_batches <= 0 is no limit: a step whose prompts are all too easy or too hard "
        "generates until the data end",
        suggestion="10, the published value, then read the error as a message about difficulty",
        source="verl-recipe dapo_ray_trainer.py:286-290; DAPO#22, #28",
    )


def fallback_inert(run: Run) -> Iterator[Finding]:
    """Flag: slime: the fallback filter with the default chunk size never drops anything."""
    f = run.filter
    if run.framework != "slime" or f is None or f.round_groups is None or not run.batch_groups:
        return
    if "fallback" in (f.metric or "") and f.round_groups <= run.batch_groups:
        yield run.finding(
            "filter-fallback-inert",
            "warning",
            "filter",
            f"the filter with fallback keeps a reject whenever no more than {run.batch_groups} "
            f"groups are left; with chunks of {f.round_groups} that is always: nothing is dropped",
            suggestion=f"--over-sampling-batch-size above {run.batch_groups}",
            source="slime 624b824 rollout/filter_hub/base_types.py:15-24",
        )
    elif "fallback" not in (f.metric or ""):
        B, chunk = run.batch_groups, f.round_groups
        start = f"one dropped group starts a whole chunk of {chunk}"
        if chunk > B:
            start = f"a step starts {chunk} groups, and {chunk} more after {chunk - B + 1} drops"
        keeps = run.reading.flag("partial_rollout") is True
        past = "those past the batch are thrown away"
        if keeps:
            past = "those past the batch are thrown away when finished, kept when aborted"
        yield run.finding(
            "filter-chunk-refill",
            "note",
            "filter",
            f"{start}: up to {B - 1 + chunk} groups are accepted or in flight, {past}",
            suggestion="" if keeps else "--partial-rollout keeps what is aborted",
            source="slime 624b824 rollout/sglang_rollout.py:374-470",
        )


def pass_rate_metric(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF's dynamic_filtering_pass_rate counts samples over prompts."""
    if run.framework != "openrlhf" or run.filter is None or not run.group_size:
        return
    yield run.finding(
        "filter-pass-rate-metric",
        "note",
        "filter",
        "the metric dynamic_filtering_pass_rate divides kept samples by prompts: it reads up to "
        f"{100 * run.group_size} %, {run.group_size} times too large",
        suggestion=f"divide it by {run.group_size}",
        source="OpenRLHF 3c3be62 samples_generator.py:122-123",
    )


RULES = (
    ignored,
    metric_null,
    metric_missing,
    shaped,
    float_equality,
    group_of_one,
    leave_one_out,
    limit_ignored,
    round_size_ignored,
    batch_is_round,
    no_limit,
    fallback_inert,
    pass_rate_metric,
)

"""Batch: sizes that do not fit each other."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.dapo06 import MOST_RESPONSES
from dapolab.check.frameworks.verl import ACTOR, config_name
from dapolab.check.keys import NEWEST
from dapolab.check.run import Run

VALIDATE = "verl 0.9.1 workers/config/actor.py, utils/config.py (validate_config)"
MINI = f"{ACTOR}.ppo_mini_batch_size"


def mini_over_batch(run: Run) -> Iterator[Finding]:
    """Flag: a mini-batch larger than the batch."""
    if run.batch_responses is None or run.update_responses is None:
        return
    if run.update_responses <= run.batch_responses:
        return
    shown = f"{run.update_responses} responses an update, {run.batch_responses} in a rollout"
    if run.framework == "verl":
        yield from _verl_mini_over_batch(run)
        return
    if run.framework == "trl":
        return  # an accumulation window may span generations: no loss, an on-policy update
    yield run.finding(
        "batch-mini-over-batch",
        "error" if run.framework == "slime" else "warning",
        "n_updates",
        f"{shown}: no full update per rollout",
        suggestion=f"{run.batch_responses} or a divisor of it",
        source="slime 624b824 utils/arguments.py; OpenRLHF 0.11.2 cli/train_ppo_ray.py",
        certain=run.framework == "slime",
    )


def _verl_mini_over_batch(run: Run) -> Iterator[Finding]:
    mini = run.reading.integer(MINI)
    if run.batch_groups is None or mini is None:
        return
    dynamic = run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is True
    v1 = str(run.facts.get("trainer")).startswith("v1")
    default = "" if run.reading.given(MINI) else " (the default)"
    shown = f"ppo_mini_batch_size = {mini}{default} is above the {run.batch_groups} prompts trained"
    effect = "ValueError at start"
    if dynamic:
        effect = "padding rows fill the one update" if v1 else "AssertionError at the first update"
    yield run.finding(
        "batch-mini-over-batch",
        "warning" if dynamic and v1 else "error",
        "n_updates" if run.reading.given(MINI) else "batch_groups",
        f"{shown}: {effect}",
        suggestion=f"ppo_mini_batch_size={run.batch_groups} or a divisor of it",
        source=VALIDATE,
        certain=not dynamic,
    )


def not_divisible(run: Run) -> Iterator[Finding]:
    """Flag: verl: batch, mini-batch and ranks that never align (field case B39)."""
    if run.framework != "verl" or not run.group_size or not run.batch_groups:
        return
    ranks = _ranks(run)
    mini = run.reading.integer(MINI)
    trainer = str(run.facts.get("trainer"))
    responses = run.batch_groups * run.group_size
    dynamic = run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is True
    if ranks and not dynamic and responses % ranks and trainer != "fully-async":
        yield run.finding(
            "batch-not-divisible",
            "error",
            "batch_groups",
            f"{run.batch_groups} prompts x {run.group_size} responses = {responses} are not "
            f"divisible by {ranks} GPUs ({responses % ranks} left over): AssertionError at start",
            suggestion=f"a batch whose responses are a multiple of {ranks}",
            source=VALIDATE,
            certain=not megatron(run),
        )
    if not mini:
        return
    if 0 < mini < run.batch_groups and run.batch_groups % mini:
        yield from _uneven_minis(run, mini, trainer)
    dp = _data_parallel(run)
    if dp and mini * run.group_size % dp:
        yield run.finding(
            "batch-not-divisible",
            "error",
            "n_updates",
            f"a mini-batch of {mini} x {run.group_size} = {mini * run.group_size} responses is not "
            f"divisible by {dp} data-parallel ranks: AssertionError at the first update",
            suggestion=f"a mini-batch whose responses are a multiple of {dp}",
            source="verl 0.9.1 workers/engine_workers.py:267",
            certain=not megatron(run),
        )


def _uneven_minis(run: Run, mini: int, trainer: str) -> Iterator[Finding]:
    assert run.batch_groups is not None
    left = run.batch_groups % mini
    v1 = trainer.startswith("v1")
    effect = f"V1 pads the last one with {mini - left} empty groups" if v1 else "AssertionError"
    yield run.finding(
        "batch-not-divisible",
        "warning" if v1 else "error",
        "n_updates",
        f"{run.batch_groups} prompts are not a multiple of mini-batches of {mini} "
        f"({left} left over): {effect}",
        suggestion=f"a divisor of {run.batch_groups}",
        source="verl 0.9.1 utils/tensordict_utils.py:588; v1/trainer_base.py:1585-1606",
        certain=not v1,
    )


def _ranks(run: Run) -> int | None:
    gpus = run.reading.integer("trainer.n_gpus_per_node")
    nodes = run.reading.integer("trainer.nnodes")
    if not run.reading.given("trainer.n_gpus_per_node"):
        return None  # a fragment: the default of 8 is nobody's choice
    return gpus * nodes if gpus and nodes else None


def megatron(run: Run) -> bool:
    """Say whether the Megatron engine trains: its data-parallel size is not in these settings."""
    return "megatron" in config_name(run.reading.source)


def _data_parallel(run: Run) -> int | None:
    ranks = _ranks(run)
    sp = run.reading.integer(f"{ACTOR}.ulysses_sequence_parallel_size")
    return ranks // sp if ranks and sp and not megatron(run) and ranks % sp == 0 else None


def trl_generation(run: Run) -> Iterator[Finding]:
    """Flag: TRL: both sizes given, or groups that do not fill the generation batch."""
    r = run.reading
    if run.framework != "trl":
        return
    if r.value("generation_batch_size") is not None and r.value("steps_per_generation") is not None:
        yield run.finding(
            "batch-generation-twice",
            "error",
            "generation_batch_size",
            "generation_batch_size and steps_per_generation are both set: ValueError",
            suggestion="set one of them",
            source="TRL 1.16 GRPOConfig.__post_init__",
        )
        return
    size = r.integer("generation_batch_size") or run.batch_responses
    G = run.group_size
    if not size or not G or size % G == 0:
        return
    exact = r.value("generation_batch_size") is not None or r.given("num_processes")
    yield run.finding(
        "batch-not-divisible",
        "error" if exact else "warning",
        "group_size",
        f"a generation batch of {size}{'' if exact else ' per process'} is not divisible by "
        f"num_generations = {G}: ValueError"
        + ("" if exact else " unless the number of processes makes up for it"),
        suggestion=f"per_device_train_batch_size x processes x steps a multiple of {G}",
        source="TRL 1.16 GRPOConfig.__post_init__",
        certain=exact,
    )


def others_not_divisible(run: Run) -> Iterator[Finding]:
    """Flag: slime and OpenRLHF: the rollout is not a multiple of the update."""
    total, update = run.batch_responses, run.update_responses
    if run.framework not in ("slime", "openrlhf") or not total or not update or update > total:
        return
    if total % update == 0:
        return
    slime = run.framework == "slime"
    yield run.finding(
        "batch-not-divisible",
        "error" if slime else "warning",
        "n_updates",
        f"{total} responses per rollout are not a multiple of {update} per update "
        f"({total % update} left over)" + (": the arguments are refused" if slime else ""),
        suggestion=f"a divisor of {total}",
        source="slime 624b824 utils/arguments.py; OpenRLHF 0.11.2 cli/train_ppo_ray.py",
        certain=slime,
    )


def dapo06_limit(run: Run) -> Iterator[Finding]:
    """Flag: 06-dapo: more responses per step than one training batch may have."""
    if run.framework != "06-dapo" or run.batch_responses is None:
        return
    if run.version_text != NEWEST["06-dapo"]:
        return  # the limit is that commit's
    if run.batch_responses > MOST_RESPONSES:
        yield run.finding(
            "batch-too-large",
            "error",
            "batch_groups",
            f"{run.batch_groups} groups x {run.group_size} = {run.batch_responses} responses exceed"
            f" the {MOST_RESPONSES} of one training batch: refused at start",
            suggestion=f"groups x group size <= {MOST_RESPONSES}",
            source="agentic-rl-lab 06-dapo/train.py:47, 605-611 (5fc44d8)",
        )


def async_sizes(run: Run) -> Iterator[Finding]:
    """Flag: verl's fully async and separate async modes ask for sizes of their own."""
    trainer = run.facts.get("trainer")
    if trainer == "fully-async":
        for key, must in (("data.train_batch_size", 0), ("data.gen_batch_size", 1)):
            if run.reading.integer(key) not in (None, must):
                yield run.finding(
                    "batch-async-sizes",
                    "error",
                    key,
                    f"the fully async trainer needs {key}={must}, here {run.reading.integer(key)}: "
                    "AssertionError at start",
                    suggestion=f"{key}={must}",
                    source="verl 0.9.1 fully_async_policy/fully_async_rollouter.py:351-352",
                )
    if trainer == "v1-separate-async":
        batch = run.reading.integer("data.train_batch_size")
        mini = run.reading.integer(MINI)
        syncs = run.reading.integer("trainer.v1.separate_async.parameter_sync_step")
        if batch and mini and syncs and batch != mini * syncs:
            yield run.finding(
                "batch-async-sizes",
                "error",
                "batch_groups",
                f"separate_async needs train_batch_size = parameter_sync_step x "
                f"ppo_mini_batch_size = {syncs} x {mini} = {syncs * mini}, here {batch}",
                suggestion=f"data.train_batch_size={syncs * mini}",
                source="verl 0.9.1 trainer/ppo/v1 (separate_async)",
            )


RULES = (
    mini_over_batch,
    not_divisible,
    trl_generation,
    others_not_divisible,
    dapo06_limit,
    async_sizes,
)

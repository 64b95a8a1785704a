"""Tables of how rollout and training share time: in turns, one step apart, or side by side."""

from typing import Annotated, Literal

from pydantic import Field

from dapolab.scenario.config import Config, Count, NonNegative

Versions = Annotated[int, Field(ge=0)]


class Synchronous(Config):
    """Rollout and training take turns on the same weights (colocated)."""

    kind: Literal["sync"] = "sync"


class OneStepOff(Config):
    """Rollout k + 1 during training k, with any collector; new weights at the boundary.

    Both engines meet there, the weights are copied (``learner.sync_s``), both go on: a cycle lasts
    max(D, T) + sync (theory F1). verl recipe/one_step_off_policy.
    """

    kind: Literal["one_step_off"] = "one_step_off"


class Admission(Config):
    """Submit while accepted + running < (η + version + 1)·B; what was started is trained.

    AReaL staleness_manager.py:79-113, SkyRL fully_async_trainer.py (η its max_staleness_steps − 1),
    NeMo RL's gated samplers, tinker-cookbook (sampling_steps_ahead). It bounds how far sampling
    runs ahead; a straggler may be older than η when it is trained, unless the queue is in order or
    weight_fifo.
    """

    kind: Literal["admission"] = "admission"
    staleness: Versions = Field(1, description="η, versions that sampling may run ahead")
    max_running_groups: Count | None = Field(None, description="absent: no limit of its own")


class Pacing(Config):
    """As admission, and the learner waits for groups that would grow older than η.

    verl V1's staleness strategy "wait" (η = max_off_policy_threshold − 1), the first form of
    tinker-cookbook #822: none is thrown away, and the longest sets the pace. With queue in_order
    or weight_fifo no group is trained older than η. In another order more than B groups may come
    due at once, and none is older than max(η, 2η − 1): while such a backlog lasts nothing younger
    is trained, so after η − 1 more steps all it was trained before is due as well. verl looks no
    further ahead (replay_buffer.py, _has_enough_samples), and waits for all that is due, before
    each mini-batch; here the learner waits for as much of it as the step takes.
    """

    kind: Literal["pacing"] = "pacing"
    staleness: Versions = Field(1, description="η, age at which the learner waits for a group")
    max_running_groups: Count | None = Field(None, description="absent: no limit of its own")


class AgeDrop(Config):
    """Keep a fixed number of groups on the way; drop those older than ``max_age`` when they come.

    TRL's asynchronous GRPO (max_staleness 4, async_grpo_trainer.py:277-280), open-instruct
    (async_steps·B on the way, data_loader.py), prime-rl (max_off_policy_steps 8, in-flight groups
    cancelled, dispatcher.py:368-397), NeMo RL's windowed sampler. What takes long is never trained.
    """

    kind: Literal["age_drop"] = "age_drop"
    max_age: Versions = Field(8, description="oldest version difference that is trained")
    ahead_groups: Count | None = Field(
        None, description="groups on the way; absent: B·max(max_age, 1)"
    )
    counts: Literal["running", "running_and_ready"] = Field(
        "running_and_ready", description="what is on the way: prime-rl counts running ones alone"
    )
    cancel: bool = Field(False, description="abort running groups that grew too old (prime-rl)")


class Quota(Config):
    """At most (1 + staleness)·B groups a version, those left over from before counted in.

    verl fully_async_policy (fully_async_rollouter.py): max_required_samples less what is running or
    queued at the weight update. No age is ever checked, and it has no group filter.
    """

    kind: Literal["quota"] = "quota"
    staleness: NonNegative = Field(0.1, description="verl's staleness_threshold, may be a fraction")
    max_running_groups: Count | None = Field(
        None, description="absent: no limit (verl: 16 a replica)"
    )


Control = Annotated[Admission | Pacing | AgeDrop | Quota, Field(discriminator="kind")]


class FullyAsync(Config):
    """Rollout never stops; the learner takes finished groups from a queue.

    One step is one version of the weights: B groups, in ``fetches_per_step`` equal parts. verl's
    fully_async modes are quota 0 with 1 fetch (a, on-policy pipeline) and with more (b, stream),
    quota > 0 drained (c) and in flight with recomputed KV (d, partial rollout); its
    trigger_parameter_sync_step is ``fetches_per_step``, and B = trigger · require_batches ·
    ppo_mini_batch_size: a fetch is require_batches mini-batches, one update each, so
    ``learner.updates_per_step`` is trigger · require_batches.

    A group that fails is replaced, whatever the control counts (AReaL's rejected ones, verl V1's
    refill); verl's fully_async ends with the first failure (on_failure "fail_run": an exception in
    fully_async_rollouter.py's processor is not caught).
    """

    kind: Literal["fully_async"] = "fully_async"
    control: Control = Admission()
    queue: Literal["fifo", "ready_first", "freshest_first", "weight_fifo", "in_order"] = Field(
        "fifo",
        description="which finished groups are trained first: those that finished first (verl), "
        "were submitted first (AReaL, NeMo ready_first and windowed), are the freshest; or wait "
        "until the oldest version has returned (weight_fifo) or the first submitted (in_order)",
    )
    weights: Literal["in_flight", "drained"] = Field(
        "in_flight", description="new weights interrupt answers (PipelineRL), or wait for them"
    )
    kv: Literal["kept", "recomputed"] = Field(
        "kept", description="what an interrupted answer goes on with"
    )
    fetches_per_step: Count = Field(1, description="parts in which the learner takes its batch")


Schedule = Annotated[Synchronous | OneStepOff | FullyAsync, Field(discriminator="kind")]

"""prime-rl's keys: ``metrics.jsonl`` of orchestrator and trainer, and the console's step lines.

The two processes step independently and may write to one file; their times keep the role in front.
"""

import re
from collections.abc import Mapping

from dapolab.logs.vocabulary import Key, Mapped, Vocabulary

_TRAINER_ROOTS = frozenset(
    {"perf", "optim", "loss", "entropy", "mismatch_kl", "kl_ent_ratio", "is_masked", "ref_kl"}
)
_TIME = "time/"
_AGENT = re.compile(r"^(train/agg/(?:all|effective))/[^/]+/(?=reward/|is_truncated/|solved_)")
_ALL = "everything that came back for the step, rejected and errored too"
_EFFECTIVE = "admitted, without error, of a trained agent"
_SOLVED = "of the groups that came back; right means a reward of 1, wrong that rewards sum to 0"
_GROUPS = "means over groups of the group's mean, not over responses"

KEYS = (
    Key("time/step", ("time/step_seconds",), "the orchestrator's step, not the trainer's"),
    Key("orchestrator/Time", ("time/step_seconds",), "the orchestrator's step"),
    Key("time/wait_for_policy", (), "the orchestrator waits for new weights: the trainer is slow"),
    Key("trainer/time/step", (), "the trainer's step; it runs beside the orchestrator's"),
    Key("trainer/time/wait_for_batch", ("pipeline/learner_wait_seconds",)),
    Key("trainer/time/forward_backward", ("time/update_seconds",), "without the optimizer's step"),
    Key("trainer/time/broadcast_weights", ("time/sync_seconds",)),
    Key("time/save_ckpt", ("time/checkpoint_seconds",)),
    Key("trainer/time/save_ckpt", ("time/checkpoint_seconds",)),
    Key("decode_len/all/mean", ("trained/mean_completion_tokens", "bias/length_trained"), _GROUPS),
    Key("decode_len/all/max", (), "the largest mean of a group, not the longest response"),
    Key("seq_len/all/mean", (), "prompt and response; " + _GROUPS),
    Key("prefill_len/all/mean", ("trained/mean_prompt_tokens",), _GROUPS),
    Key("orchestrator/Seq. Length", (), "prompt and response; " + _GROUPS),
    Key("is_truncated/all/mean", ("trained/truncated_share",), _GROUPS),
    Key(
        "reward/all/mean",
        ("reward/trained_mean",),
        "the batch, before zero-advantage samples are pruned; " + _GROUPS,
    ),
    Key("orchestrator/Reward", ("reward/trained_mean",), "the batch, before pruning"),
    Key(
        "solve_none/all",
        ("rollout/all_wrong_share",),
        "groups of the batch whose rewards sum to 0",
    ),
    Key(
        "solve_all/all",
        ("rollout/all_right_share",),
        "groups of the batch whose rewards sum to the group size",
    ),
    Key(
        "effective_batch_size/all",
        ("rollout/mixed_share",),
        "the rest, partial rewards included",
    ),
    Key(
        "train/agg/all/num_output_tokens/mean",
        ("rollout/mean_completion_tokens",),
        _ALL + "; turns of an episode are summed",
    ),
    Key("train/agg/all/num_output_tokens/max", ("rollout/max_completion_tokens",), _ALL),
    Key("train/agg/all/num_output_tokens/min", ("rollout/min_completion_tokens",), _ALL),
    Key(
        "train/agg/effective/num_output_tokens/mean",
        ("trained/mean_completion_tokens", "bias/length_trained"),
        _EFFECTIVE,
    ),
    Key(
        "train/agg/effective/num_output_tokens/max", ("trained/max_completion_tokens",), _EFFECTIVE
    ),
    Key("train/agg/all/AGENT/is_truncated/mean", ("rollout/truncated_share",), _ALL),
    Key("train/agg/effective/AGENT/is_truncated/mean", ("trained/truncated_share",), _EFFECTIVE),
    Key("train/agg/all/AGENT/reward/mean", ("reward/candidate_mean",), _ALL),
    Key("train/agg/effective/AGENT/reward/mean", ("reward/trained_mean",), _EFFECTIVE),
    Key("train/agg/all/AGENT/solved_none", ("rollout/all_wrong_share",), _SOLVED),
    Key("train/agg/all/AGENT/solved_all", ("rollout/all_right_share",), _SOLVED),
    Key("train/agg/all/AGENT/solved_some", ("rollout/mixed_share",), _SOLVED),
    Key(
        "progress/output_tokens",
        ("rollout/train_completion_tokens",),
        "the admitted rollouts of the batch",
    ),
    Key("progress/samples", ("trained/responses",), "the batch, before pruning"),
    Key("progress/rollouts", ("trained/responses",), "the batch, before pruning"),
    Key("progress/tokens", ("trained/total_tokens",), "prompts and responses of the batch"),
    Key("off_policy/mean", ("staleness/mean_versions_by_response",)),
    Key("off_policy/max", ("staleness/max_versions",)),
    Key("pre_filters/all/dropped_rate", (), "rollouts dropped before the batch was cut"),
    Key("mismatch_kl/all/mean", (), "between trainer and the older policy that sampled"),
    Key("entropy/all/mean", ("train/entropy",)),
    Key("entropy/mean", ("train/entropy",)),
    Key("optim/grad_norm", ("train/gradient_norm",)),
    Key("optim/lr", ("train/learning_rate",)),
    Key("loss/mean", ("train/loss",)),
    Key("perf/throughput", (), "the trainer's, without GPUs divided out"),
    Key("trainer/Loss", ("train/loss",)),
    Key("trainer/Entropy", ("train/entropy",)),
    Key("trainer/Time", (), "the trainer's step; it runs beside the orchestrator's"),
)


def with_role(values: Mapping[str, float]) -> Mapping[str, float]:
    """Put ``trainer/`` before the times of a row that prime-rl's trainer wrote."""
    is_prime = "time/step" in values or "time/wait_for_batch" in values
    if not is_prime or _TRAINER_ROOTS.isdisjoint(key.split("/", 1)[0] for key in values):
        return values
    return {f"trainer/{k}" if k.startswith(_TIME) else k: v for k, v in values.items()}


def derive(mapped: Mapped) -> None:
    """Say what an asynchronous run has no number for."""
    mapped.notes.append(
        "asynchronous: generation overlaps training, so the log has no rollout time and no waves"
    )


PRIME_RL = Vocabulary(
    "prime_rl",
    KEYS,
    same=(_AGENT, r"\1/AGENT/"),
    marks=(
        "train/agg/",
        "time/step",
        "time/wait_for_policy",
        "trainer/",
        "orchestrator/",
        "decode_len/",
        "solve_",
        "off_policy/",
        "mismatch_kl/",
    ),
    derive=derive,
    silent="rollout seconds, longest response, groups that were cancelled or rejected before the "
    "batch",
)

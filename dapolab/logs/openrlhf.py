"""OpenRLHF's keys (``trainer/ppo_trainer.py``), console and TensorBoard (``train/KEY``) alike."""

from dapolab.logs.vocabulary import Key, Vocabulary

_KEPT = "the trained batch: kept groups only where dynamic filtering is on"

KEYS = (
    Key("timing/step_total", ("time/step_seconds",)),
    Key(
        "timing/generation",
        ("time/rollout_seconds",),
        "all prompts of the step, filtered ones included; in async mode the wait for the queue",
    ),
    Key("timing/make_experience", (), "scoring, old and reference log-probabilities together"),
    Key("timing/ppo_train", ("time/update_seconds",)),
    Key("timing/broadcast", ("time/sync_seconds",)),
    Key(
        "rollout/response_length_mean",
        ("trained/mean_completion_tokens", "bias/length_trained"),
        _KEPT,
    ),
    Key(
        "response_length",
        ("trained/mean_completion_tokens", "bias/length_trained"),
        _KEPT + "; mean of micro-batches",
    ),
    Key("rollout/truncated_rate", ("trained/truncated_share",), _KEPT),
    Key("response_clip_ratio", ("trained/truncated_share",), _KEPT),
    Key("rollout/reward_mean", ("reward/trained_mean",), _KEPT),
    Key("reward", ("reward/trained_mean",), _KEPT),
    Key("rollout/num_samples", ("trained/responses",)),
    Key(
        "dynamic_filtering_pass_rate",
        (),
        "samples over prompts, in percent: n samples a prompt times too large (800 % is 100 % at "
        "n = 8)",
    ),
    Key("policy_loss", ("train/loss",)),
    Key("actor_lr", ("train/learning_rate",)),
    Key("entropy_loss", ("train/entropy",)),
    Key("ppo_clip_ratio", ("clip/share",)),
    Key("clip_ratio", ("clip/share",)),
    Key("ppo_kl", ("kl/old_k1",)),
    Key("actor_grad_norm", ("train/gradient_norm",)),
)

OPENRLHF = Vocabulary(
    "openrlhf",
    KEYS,
    marks=(
        "timing/generation",
        "timing/ppo_train",
        "policy_loss",
        "rollout/response_length_mean",
        "dynamic_filtering_pass_rate",
    ),
    prefixes=("train/",),
    silent="rejected groups and their tokens, right and wrong groups, longest response",
)

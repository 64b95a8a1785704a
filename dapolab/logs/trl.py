"""TRL's keys (``trl/trainer/grpo_trainer.py``), of its console, trainer state and wandb."""

import pandas as pd

from dapolab.logs.vocabulary import Key, Mapped, Vocabulary

PER_ROW = "log/steps"
COUNTED = "log/counted"  # 1 where the step is the row's place, for want of a number

KEYS = (
    Key(
        "step_time",
        ("time/step_seconds",),
        "generation, scoring, forward and backward of a step; not the optimizer's step, evaluation "
        "or saving",
    ),
    Key(
        "completions/mean_length",
        (
            "trained/mean_completion_tokens",
            "bias/length_trained",
            "rollout/mean_completion_tokens",
        ),
    ),
    Key(
        "completions/max_length",
        ("trained/max_completion_tokens", "rollout/max_completion_tokens"),
    ),
    Key(
        "completions/min_length",
        ("trained/min_completion_tokens", "rollout/min_completion_tokens"),
    ),
    Key(
        "completions/clipped_ratio",
        ("trained/truncated_share", "rollout/truncated_share"),
        "completions without an end token",
    ),
    Key(
        "completion_length",
        ("trained/mean_completion_tokens", "bias/length_trained"),
        "the old name of completions/mean_length",
    ),
    Key("reward", ("reward/trained_mean", "reward/candidate_mean"), "weighted sum of the rewards"),
    Key(
        "frac_reward_zero_std",
        ("trained/zero_spread_share",),
        "groups of equal rewards; TRL trains them too, and all right and all wrong are not told "
        "apart",
    ),
    Key("entropy", ("train/entropy",)),
    Key("kl", (), "k3 against the reference; absent where beta is 0"),
    Key("clip_ratio/region_mean", ("clip/share",)),
    Key("clip_ratio/low_mean", ("clip/lower_share",)),
    Key("clip_ratio/high_mean", ("clip/upper_share",)),
    Key("clip_ratio", ("clip/share",), "the old name of clip_ratio/region_mean"),
    Key("grad_norm", ("train/gradient_norm",)),
    Key("learning_rate", ("train/learning_rate",)),
    Key("loss", ("train/loss",)),
    Key(COUNTED),
    Key("num_tokens", (), "counts up over the run, prompts included"),
)


def derive(mapped: Mapped) -> None:
    """Say how many steps a row is the mean of; take tokens of a step from the running count."""
    mapped.notes.append("TRL does not filter: the trained batch is all that was sampled")
    if mapped.has(COUNTED):
        mapped.notes.append(
            "the log does not number its steps, its rows are counted; for TRL's console --every N "
            "says how many steps lie between two"
        )
        return
    steps = pd.Series(mapped.keys.index, index=mapped.keys.index, dtype="float64")
    gaps = steps.diff()
    if len(gaps) > 1:
        gaps.iloc[0] = gaps.iloc[1]
    usual = gaps.mode()
    per_row = float(usual.iloc[0]) if len(usual) else float("nan")
    mapped.fill(PER_ROW, gaps.where(gaps == per_row), source="step")
    if per_row > 1:
        mapped.notes.append(
            f"a row is the mean over {per_row:.0f} steps: maxima and minima are means of the "
            "steps' own"
        )
    if mapped.has("num_tokens"):
        tokens = mapped.keys["num_tokens"].diff() / steps.diff()
        if bool((tokens.dropna() > 0).all()):
            mapped.fill("trained/total_tokens", tokens, source="num_tokens")


TRL = Vocabulary(
    "trl",
    KEYS,
    marks=("completions/", "completion_length", "frac_reward_zero_std", "step_time"),
    prefixes=("train/",),
    derive=derive,
    silent="the parts of a step's time, right and wrong groups, the number of responses",
)

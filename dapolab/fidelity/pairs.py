"""A pair of real runs that differ in dynamic sampling: GRPO's log and what DAPO then took.

terrense/qwen3-8b-grpo-dapo-lab @25ba57b4: Qwen3-8B without thinking, DAPO-Math-17k, 4 × H20 (two
replicas of TP 2), 16 prompts × 8, cap 8192, 20 updates each, same seed. The second run filters
(metric acc, gen batch 16), drops the KL term and with it the reference pass, and punishes answers
beyond 6144 tokens. No licence is stated: facts only.
"""

from pathlib import Path

import pandas as pd

from dapolab.errors import ConfigError
from dapolab.scenario import Hardware, Learner, NoFilter, Overlong, Rollout, Rounds, Run, Scenario

M20_DAPO: dict[str, float] = {
    "waves": 2.1,
    "rollout seconds": 76.46,
    "step seconds": 122.07,
    "update seconds": 32.27,
    "trained tokens": 242_565.0,
    "trained length": 1731.2,
    "longest trained": 5890.6,
}
"""Means over its 20 steps (experiments/M20_dapo; analysis/ALGORITHM_COMPARISON.md has the totals:
25.5 min of rollout, 40.7 min in all, 4.851 M tokens, 18 steps of two rounds and 2 of three)."""

M20_GSPO: dict[str, float] = {
    "rollout seconds": 12.7 * 60 / 20,
    "step seconds": 30.7 * 60 / 20,
    "trained tokens": 4.714e6 / 20,
}
"""A third run of the same settings as the first but its policy loss (same document)."""

POLL_S = 2.0
# KV bytes a token (2 × 36 layers × 8 heads × 128 × 2 bytes) over TP 2 × 4 TB/s at 80 %.
CONTEXT_S = 2 * 36 * 8 * 128 * 2 / (2 * 4.0e12 * 0.8)

_COLUMNS = {
    "num_gen_batches": "rollout/waves",
    "t_gen": "time/rollout_seconds",
    "t_step": "time/step_seconds",
    "t_old_logprob": "time/old_logprob_seconds",
    "t_ref_logprob": "time/reference_seconds",
    "t_update_actor": "time/update_seconds",
    "t_weight_sync": "time/sync_seconds",
    "t_testing": "time/validation_seconds",
    "response_length_mean": "trained/mean_completion_tokens",
    "response_length_max": "trained/max_completion_tokens",
    "total_num_tokens": "trained/total_tokens",
}
_GROUPS = {
    "all_correct_groups": "rollout/all_right_share",
    "all_wrong_groups": "rollout/all_wrong_share",
    "mixed_groups": "rollout/mixed_share",
}


def m20_grpo_steps(folder: Path) -> pd.DataFrame:
    """Return the GRPO run's steps under the names of the step table.

    Raises
    ------
    ConfigError
        The file is not there.
    """
    path = folder / "M20_grpo_steps.csv"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    table = pd.read_csv(path)
    steps = table.rename(columns=_COLUMNS)[["step", *_COLUMNS.values()]]
    shares = {name: table[key] / 16 for key, name in _GROUPS.items()}
    return steps.assign(run="M20_grpo", **shares)


def m20_grpo_scenario() -> Scenario:
    """Return the settings of the GRPO run; law, learner and workload come from its log."""
    return Scenario(
        name="M20_grpo",
        rollout=Rollout(groups_per_step=16, group_size=8, cap_tokens=8192),
        collector=NoFilter(),
        hardware=Hardware(replicas=2, gpus_per_replica=2, slots=128),
        run=Run(steps=20),
    )


def m20_dapo_scenario() -> Scenario:
    """Return the settings of the DAPO run."""
    base = m20_grpo_scenario()
    overlong = Overlong(buffer_tokens=2048)
    return base.model_copy(
        update={
            "name": "M20_dapo",
            "rollout": base.rollout.model_copy(update={"overlong": overlong}),
            "collector": Rounds(gen_groups=16, max_num_gen_batches=10),
            "learner": Learner(reference_s_per_token=0.0),
        }
    )

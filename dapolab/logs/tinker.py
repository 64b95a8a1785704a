"""tinker-cookbook's ``metrics.jsonl`` (``rl/train.py``, ``utils/ml_log.py``)."""

from dapolab.logs.vocabulary import Key, Mapped, Vocabulary

_MIXED = "env/all/by_group/frac_mixed"
_SEEN = "the groups that reach the metrics"
_COMPOSITION = ("rollout/mixed_share", "rollout/all_right_share", "rollout/all_wrong_share")

KEYS = (
    Key("time/total", ("time/step_seconds",), "evaluations of the step included (time/run_evals)"),
    Key("time/train", ("time/update_seconds",)),
    Key("time/run_evals", ("time/validation_seconds",)),
    Key("time/save_checkpoint", ("time/checkpoint_seconds",)),
    Key("time/assemble_training_data", ("time/advantage_seconds",)),
    Key(
        "time/do_group_rollout_and_filter_constant_reward",
        (),
        "of groups that run at once: not taken as the seconds of the rollout",
    ),
    Key(_MIXED, ("rollout/mixed_share",), _SEEN + "; rewards not all equal"),
    Key(
        "env/all/by_group/frac_all_good",
        ("rollout/all_right_share",),
        _SEEN + "; equal rewards of 0.5 or more",
    ),
    Key(
        "env/all/by_group/frac_all_bad",
        ("rollout/all_wrong_share",),
        _SEEN + "; equal rewards below 0.5",
    ),
    Key("env/all/reward/total", ("reward/candidate_mean",), _SEEN),
    Key("env/all/total_episodes", ("rollout/candidate_responses",), _SEEN),
    Key("env/all/ac_tokens_per_turn", (), "a turn, not a response, where turns_per_episode > 1"),
    Key("optim/kl_sample_train_v1", ("sampler/k1",)),
    Key("optim/entropy", ("train/entropy",), "minus the mean log-probability that was sampled"),
    Key("optim/lr", ("train/learning_rate",)),
)


def derive(mapped: Mapped) -> None:
    """Tokens of a response from tokens of a turn; composition only where nothing was removed."""
    turn, turns = "env/all/ac_tokens_per_turn", "env/all/turns_per_episode"
    if mapped.has(turn) and mapped.has(turns):
        mapped.fill(
            "rollout/mean_completion_tokens",
            mapped.keys[turn] * mapped.keys[turns],
            source=f"{turn} × {turns}",
        )
    if mapped.has(_MIXED) and bool((mapped.keys[_MIXED].dropna() == 1.0).all()):
        for column in _COMPOSITION:
            mapped.move_to_extra(column)
        mapped.notes.append(
            f"{_MIXED} is 1 at every step: constant groups were removed before it was computed, so "
            "it says nothing of the groups that were sampled"
        )


TINKER = Vocabulary(
    "tinker",
    KEYS,
    marks=("env/all/", "time/total"),
    derive=derive,
    silent="seconds of the rollout, longest response, truncation, trained responses after "
    "constant groups are removed",
)

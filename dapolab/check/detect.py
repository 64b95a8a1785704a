"""Which framework a file belongs to, by the entry it launches and the keys it sets."""

from dapolab.check import keys
from dapolab.check.frameworks import dapo06, openrlhf, slime
from dapolab.check.reading import Framework, Source
from dapolab.errors import ConfigError

_VERL_TOPS = frozenset(
    {"actor_rollout_ref", "algorithm", "critic", "reward", "reward_model", "async_training"}
)
_NEMO_TOPS = frozenset({"grpo", "loss_fn"})
_MARKS_06 = frozenset(
    {"algorithm", "groups_per_step", "max_candidate_multiplier", "overlong_cache"}
)
_MARKS_SLIME = frozenset({"rollout_batch_size", "global_batch_size", "hf_checkpoint", "rm_type"})


def framework_of(source: Source, *, name: str = "") -> Framework:
    """Return the framework whose settings these are.

    Raises
    ------
    ConfigError
        No framework's settings, or none more than another's.
    """
    entry = (source.entry or "").lower()
    for word, framework in _ENTRIES:
        if word in entry:
            return framework
    scores = _scores(source)
    best = max(scores, key=lambda key: scores[key])
    if scores[best] == 0 or sum(s == scores[best] for s in scores.values()) > 1:
        raise ConfigError(
            f"{name or 'text'}: cannot tell the framework; name it: --framework verl|trl|06-dapo|…"
        )
    return best


_ENTRIES: tuple[tuple[str, Framework], ...] = (
    ("verl", "verl"),
    ("main_ppo", "verl"),
    ("main_dapo", "verl"),
    ("openrlhf", "openrlhf"),
    ("06-dapo", "06-dapo"),
    ("trl grpo", "trl"),
    ("grpoconfig", "trl"),
    ("slime", "slime"),
    ("nemo_rl", "nemo-rl"),
)


def _scores(source: Source) -> dict[Framework, float]:
    given = {s.key for s in source.settings}
    tops = {key.partition(".")[0] for key in given if "." in key}
    trl = keys.table("trl")
    rlhf = set(keys.table("openrlhf")["keys"])
    return {
        "verl": 3.0 * len(tops & _VERL_TOPS)
        + sum(k in keys.verl_keys("ppo_trainer") for k in given),
        "trl": sum(k in trl["keys"] or k in trl["command_only"] for k in given),
        "06-dapo": 3.0 * len(given & _MARKS_06) + 0.5 * len(given & set(dapo06.DEFAULTS)),
        "openrlhf": len(given & rlhf) + 1.1 * len(given & set(openrlhf.FLAT)),
        "slime": 2.0 * len(given & _MARKS_SLIME) + len(given & set(slime.DEFAULTS)),
        "nemo-rl": 4.0 * len(tops & _NEMO_TOPS),
    }

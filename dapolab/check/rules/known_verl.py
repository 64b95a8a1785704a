"""verl's keys: rejected by Hydra, read by nobody, moved, or nearly spelt like another."""

import difflib
from collections.abc import Iterator

from dapolab.check import keys
from dapolab.check.findings import Finding
from dapolab.check.frameworks import verl
from dapolab.check.reading import Setting
from dapolab.check.rules.unlisted import is_newest, nearest, not_judged
from dapolab.check.run import Run
from dapolab.check.values import Unknown

# Settings that moved: nearest by spelling would mislead.
MOVED = {
    "reward_model.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg (enable, len, "
    "penalty_factor, log) and reward.reward_kwargs.max_resp_len, appended with +",
    "custom_reward_function.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg and "
    "reward.reward_kwargs.max_resp_len, appended with +",
    f"{verl.ACTOR}.use_token_level_loss": f"{verl.ACTOR}.loss_agg_mode=token-mean",
}
# Read by 0.9.1 although the composed defaults lack them: YAML or + may set them.
READ_BEYOND = ("reward.reward_kwargs.", "reward_model.reward_kwargs.")
GONE = ("reward_model.overlong_buffer", "custom_reward_function.overlong_buffer")
HYDRA_OWN = ("hydra", "defaults", "--config", "model_engine")
# Engine sections whose content depends on the chosen engine.
ENGINE = (".megatron", ".veomni", ".torchtitan", ".automodel")


def unknown_keys(run: Run) -> Iterator[Finding]:
    """Flag: settings that verl does not know, by the defaults that Hydra composes."""
    if not is_newest(run):
        yield from not_judged(run)
        return
    known = set(keys.verl_keys(verl.config_name(run.reading.source)))
    if verl.is_recipe(run.reading.source):
        known |= set(verl.RECIPE_KEYS)
    sections = {key.rpartition(".")[0] for key in known}
    sections |= {s.rpartition(".")[0] for s in sections}
    overrides = run.reading.source.form == "overrides"
    seen: set[str] = set()
    for setting in run.reading.source.settings:
        if setting.key.startswith(HYDRA_OWN) or "@" in setting.key or "/" in setting.key:
            continue
        moved = next((old for old in MOVED if setting.key.startswith(old)), setting.key)
        if moved in seen:  # one finding for the whole of what moved
            continue
        seen.add(moved)
        present = setting.key in known or setting.key in sections
        if not present and setting.key.startswith(READ_BEYOND):
            if overrides and setting.prefix in ("", "~"):
                yield _needs_plus(run, setting)
            continue
        gone = next((old for old in GONE if setting.key.startswith(old)), None)
        if gone and setting.prefix in ("+", "++"):
            yield _gone(run, setting, gone)
        elif setting.prefix == "+" and _has_value(run, setting.key, sections):
            yield _append_existing(run, setting)
        elif not present and setting.prefix in ("", "~") and overrides:
            yield _rejected(run, setting, known)
        elif not present and not overrides and not _free(setting.key, known):
            yield _nobody_reads(run, setting, known)
        elif not present and setting.prefix in ("+", "++"):
            yield from _near_miss(run, setting, known)


def _has_value(run: Run, key: str, sections: set[str]) -> bool:
    """Say whether a key's default is anything but null: only then Hydra refuses to append it."""
    default = run.reading.defaults.get(key)
    missing = isinstance(default, Unknown) and default.reason == "must be set"
    return key in sections or (default is not None and not missing)


def _free(key: str, known: set[str]) -> bool:
    """Say whether a key lies in a section that has no fixed content."""
    parents = [key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)]
    return any(parent in known for parent in parents) or any(part in key for part in ENGINE)


def _gone(run: Run, setting: Setting, old: str) -> Finding:
    return run.finding(
        "key-ignored",
        "warning",
        setting.key,
        f"+{old}.* is accepted and read by nobody in verl {run.version_text}: no overlong penalty",
        suggestion=MOVED[old],
        source="verl 0.9.1 experimental/reward_loop/reward_loop.py:39-91 moves reward_kwargs alone",
    )


def _needs_plus(run: Run, setting: Setting) -> Finding:
    return run.finding(
        "key-rejected",
        "error",
        setting.key,
        f"{setting.key} is read by verl {run.version_text} but is not in its defaults: Hydra "
        "refuses it without a +",
        suggestion=f"+{setting.key}=…",
        source="verl 0.9.1 experimental/reward_loop/reward_manager/dapo.py:33-35",
    )


def _append_existing(run: Run, setting: Setting) -> Finding:
    return run.finding(
        "key-append-existing",
        "error",
        setting.key,
        f"+{setting.key} appends a key that verl {run.version_text} already has: Hydra refuses",
        suggestion=f"{setting.key}=… without the +",
        source="hydra-core: 'Could not append to config'",
    )


def _rejected(run: Run, setting: Setting, known: set[str]) -> Finding:
    moved = next((new for old, new in MOVED.items() if setting.key.startswith(old)), None)
    return run.finding(
        "key-rejected",
        "error",
        setting.key,
        f"verl {run.version_text} has no {setting.key}: Hydra refuses to start",
        suggestion=moved or f"nearest: {nearest(setting.key, known)}",
        source=f"verl {keys.NEWEST['verl']} composed by hydra (keys/verl-0.9.1.json)",
    )


def _nobody_reads(run: Run, setting: Setting, known: set[str]) -> Finding:
    parent = setting.key.rpartition(".")[0]
    checked = f"{parent}._target_" in known
    moved = next((new for old, new in MOVED.items() if setting.key.startswith(old)), None)
    effect = "its section's dataclass refuses it" if checked else "nobody reads it"
    return run.finding(
        "key-rejected" if checked else "key-ignored",
        "error" if checked else "warning",
        setting.key,
        f"verl {run.version_text} has no {setting.key}: {effect}",
        suggestion=moved or f"nearest: {nearest(setting.key, known)}",
        source=f"verl {keys.NEWEST['verl']} composed by hydra (keys/verl-0.9.1.json)",
        certain=checked,
    )


def _near_miss(run: Run, setting: Setting, known: set[str]) -> Iterator[Finding]:
    parent, _, leaf = setting.key.rpartition(".")
    siblings = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == parent]
    close = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.85)
    if close:
        yield run.finding(
            "key-near-miss",
            "warning",
            setting.key,
            f"+{setting.key} adds a new key; {parent}.{close[0]} keeps its value",
            suggestion=f"{parent}.{close[0]}, without the +",
            source="RLinf#316: the other spelling is swallowed silently",
            certain=False,
        )

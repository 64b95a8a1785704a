"""Keys: unknown to the version, rejected, read by nobody, given twice, or of the wrong type."""

from collections.abc import Iterator

from dapolab.check import keys
from dapolab.check.findings import Finding
from dapolab.check.frameworks import dapo06, nemo, openrlhf, slime
from dapolab.check.reading import Setting
from dapolab.check.rules import known_verl
from dapolab.check.rules.unlisted import is_newest, like, nearest, not_judged, outside
from dapolab.check.run import Run, newer

PROCESS_FLAGS = ("num_processes", "config_file", "config", "num_machines", "main_process_port")


def unknown(run: Run) -> Iterator[Finding]:
    """Flag: settings that the version does not know."""
    check = {
        "verl": known_verl.unknown_keys,
        "trl": _trl,
        "06-dapo": _dapo06,
        "openrlhf": _openrlhf,
        "slime": _slime,
        "nemo-rl": _nemo,
    }
    yield from check[run.framework](run)


def _trl(run: Run) -> Iterator[Finding]:
    if not is_newest(run):
        yield from not_judged(run)
        return
    stored = keys.table("trl")
    known = set(stored["keys"])
    if run.reading.source.form in ("yaml", "arguments"):
        known |= set(stored["command_only"]) | set(PROCESS_FLAGS)
    for setting in run.reading.source.settings:
        top = setting.key.partition(".")[0]
        if top in known or (run.reading.source.form == "yaml" and top == "env"):
            continue
        negated = top.removeprefix("no_")
        if negated in known and run.reading.source.form == "arguments":
            continue
        yield run.finding(
            "key-rejected",
            "error",
            setting.key,
            f"TRL {run.version_text} has no {setting.key}: "
            + ("TypeError" if run.reading.source.form in ("python", "json") else "ValueError"),
            suggestion=f"nearest: {nearest(setting.key, known)}",
            source=f"TRL {keys.NEWEST['trl']} GRPOConfig (keys/trl-1.16.0.json)",
        )


def _dapo06(run: Run) -> Iterator[Finding]:
    if not is_newest(run):
        yield from not_judged(run)
        return
    for setting in run.reading.source.settings:
        if setting.key not in dapo06.DEFAULTS:
            yield run.finding(
                "key-rejected",
                "error",
                setting.key,
                f"06-dapo's train.py has no --{setting.key.replace('_', '-')}: argparse refuses",
                suggestion="nearest: --"
                + nearest(setting.key, set(dapo06.DEFAULTS)).replace("_", "-"),
                source="agentic-rl-lab 06-dapo/train.py:431-622 (5fc44d8)",
            )


def _openrlhf(run: Run) -> Iterator[Finding]:
    flat = [s for s in run.reading.source.settings if s.key in openrlhf.FLAT]
    if not newer(run.version_text, openrlhf.DOTTED_SINCE):
        yield from not_judged(run)
        return
    if flat:
        first = flat[0]
        yield run.finding(
            "keys-old-style",
            "error",
            openrlhf.FLAT[first.key],
            f"{len(flat)} flat arguments of earlier releases, first --{first.key}: OpenRLHF "
            f"{run.version_text} takes dotted ones and refuses these",
            suggestion=f"--{openrlhf.FLAT[first.key]}, or name the release: --version 0.8",
            source="OpenRLHF 0.11.2 cli/train_ppo_ray.py (keys/openrlhf-0.11.2.json)",
        )
        return
    known = set(keys.table("openrlhf")["keys"])
    for setting in run.reading.source.settings:
        if setting.key not in known:
            yield run.finding(
                "key-rejected",
                "error",
                setting.key,
                f"OpenRLHF {run.version_text} has no --{setting.key}: argparse refuses",
                suggestion=f"nearest: --{nearest(setting.key, known)}",
                source="OpenRLHF 0.11.2 cli/train_ppo_ray.py (keys/openrlhf-0.11.2.json)",
            )


# So alike that no argument of Megatron or SGLang is taken for a misspelt one of slime.
_MISSPELT = 0.9


def _slime(run: Run) -> Iterator[Finding]:
    stored = keys.table("slime")
    known = {*stored["keys"], *slime.DEFAULTS}
    judged = set(known)
    for setting in run.reading.source.settings:
        if setting.key in known or setting.key.startswith("sglang_"):
            continue
        meant = like(setting.key, stored["keys"], cutoff=_MISSPELT)
        if meant is None:
            continue
        judged.add(setting.key)
        dashed = meant.replace("_", "-")
        yield run.finding(
            "key-ignored",
            "warning",
            setting.key,
            f"slime adds no such argument and its parser ignores unknown ones: it does nothing, "
            f"--{dashed} stays at {_shown(stored['keys'][meant])}",
            suggestion=f"nearest: --{dashed}",
            source=f"slime {stored['version']} utils/arguments.py, "
            "backends/megatron_utils/arguments.py (ignore_unknown_args)",
            certain=is_newest(run),
        )
    yield from outside(run, judged, whose="Megatron's and SGLang's arguments")


def _shown(default: object) -> str:
    return "its default" if default is None else str(default)


def _nemo(run: Run) -> Iterator[Finding]:
    if run.given("defaults"):
        yield run.finding(
            "settings-elsewhere",
            "note",
            "defaults",
            f"{run.reading.text('defaults')} is not read: what this file leaves out is taken to be "
            "as in grpo_math_1B.yaml",
            source="NeMo RL nemo_rl/utils/config.py: defaults names the file underneath",
        )
    stored = keys.table("nemo-rl")
    known = {*stored["keys"], *nemo.DEFAULTS, "defaults"}
    judged = set(known)
    for setting in run.reading.source.settings:
        section = setting.key.partition(".")[0]
        if setting.key in known or section not in ("grpo", "loss_fn"):
            continue
        judged.add(setting.key)
        meant = nearest(setting.key, {key for key in known if key.startswith(f"{section}.")})
        yield run.finding(
            "key-ignored",
            "warning",
            setting.key,
            f"NeMo RL takes any key in {section} and its code reads no {setting.key}: it does "
            "nothing",
            suggestion=f"nearest: {meant}",
            source=f'NeMo RL {stored["version"]} {_NEMO_CLASS[section]} (extra="allow")',
            certain=is_newest(run) and like(setting.key, [meant], cutoff=_MISSPELT) is not None,
        )
    yield from outside(run, judged, whose="the keys outside grpo and loss_fn")


_NEMO_CLASS = {
    "grpo": "nemo_rl/algorithms/grpo.py GRPOConfig",
    "loss_fn": "nemo_rl/algorithms/loss/loss_functions.py ClippedPGLossConfig",
}


def twice(run: Run) -> Iterator[Finding]:
    """Flag: one setting given twice with different values: the last one wins."""
    first: dict[str, Setting] = {}
    for setting in run.reading.source.settings:
        before = first.setdefault(setting.key, setting)
        if before is not setting and before.value != setting.value:
            yield run.finding(
                "key-twice",
                "warning",
                setting.key,
                f"set in line {before.line} and again in line {setting.line}: the last one wins",
                suggestion="keep one",
                source="Hydra, argparse and YAML take the last value",
            )


def wrong_type(run: Run) -> Iterator[Finding]:
    """Flag: a word where a number is read."""
    for key, (setting, what) in run.reading.expected.items():
        yield run.finding(
            "value-type",
            "error",
            key,
            f"{str(setting.value)[:40]!r} is not {what}",
            suggestion=f"write {what}",
            source="the setting's type in the framework's defaults",
        )


def unresolved(run: Run) -> Iterator[Finding]:
    """Flag: settings whose value the file alone does not tell."""
    for key, setting in run.reading.unresolved.items():
        reason = getattr(setting.value, "reason", "")
        yield run.finding(
            "value-unknown",
            "note",
            key,
            f"its value is not in the file ({reason[:60]}): what depends on it was not checked",
            suggestion="check again with the value written out",
            source="the file is read, never run",
        )


RULES = (unknown, twice, wrong_type, unresolved)

"""Read a configuration, understand it, apply the rules."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dapolab.check import keys, readers
from dapolab.check.detect import framework_of
from dapolab.check.difficulty import Difficulty, filter_cost
from dapolab.check.findings import Finding, in_order
from dapolab.check.frameworks import dapo06, nemo, openrlhf, slime, trl, verl
from dapolab.check.reading import FRAMEWORKS, Framework, Reading
from dapolab.check.rules import RULES, known
from dapolab.check.run import Run
from dapolab.check.summary import summarise
from dapolab.errors import ConfigError


@dataclass(frozen=True)
class Report:
    """All that is said about one configuration, findings sorted by severity and line."""

    framework: Framework
    version: str
    findings: tuple[Finding, ...]
    summary: str

    @property
    def n_errors(self) -> int:
        """How many findings are errors."""
        return sum(f.severity == "error" for f in self.findings)


_UNDERSTAND: dict[Framework, Callable[[Reading], Run]] = {
    "verl": verl.understand,
    "trl": trl.understand,
    "06-dapo": dapo06.understand,
    "openrlhf": openrlhf.understand,
    "slime": slime.understand,
    "nemo-rl": nemo.understand,
}
_READING = {
    "verl": verl.reading,
    "trl": trl.reading,
    "06-dapo": dapo06.reading,
    "openrlhf": openrlhf.reading,
    "slime": slime.reading,
    "nemo-rl": nemo.reading,
}


def check_config(
    config: Path | str,
    *,
    framework: str | None = None,
    version: str | None = None,
    pass_rate: float | None = None,
) -> list[Finding]:
    """Return the findings on a file (a Path) or a text (a str); see ``check_text``."""
    if isinstance(config, Path):
        report = check_file(config, framework=framework, version=version, pass_rate=pass_rate)
    else:
        report = check_text(config, framework=framework, version=version, pass_rate=pass_rate)
    return list(report.findings)


def check_file(
    path: Path | str,
    *,
    framework: str | None = None,
    version: str | None = None,
    pass_rate: float | None = None,
    workload: Path | None = None,
) -> Report:
    """Check a configuration file; see ``check_text``.

    Raises
    ------
    ConfigError
        Not UTF-8 text, or as ``check_text``.
    OSError
        The file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        data = file.read(readers.MOST_BYTES + 1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name}: not UTF-8 text; a configuration is expected") from None
    return check_text(
        text,
        name=path.name,
        framework=framework,
        version=version,
        pass_rate=pass_rate,
        workload=workload,
    )


def check_text(
    text: str,
    *,
    name: str = "",
    framework: str | None = None,
    version: str | None = None,
    pass_rate: float | None = None,
    workload: Path | None = None,
) -> Report:
    """Check a configuration's text. It is parsed, never run.

    Parameters
    ----------
    framework
        One of ``FRAMEWORKS``; None: told by the text.
    version
        The framework's version; None: the newest known (``keys.NEWEST``).
    pass_rate
        Probability that a response is right, one for all prompts: adds what the filter costs.
    workload
        TOML of a workload that ``dapolab fit`` wrote: the same, over its prompts.

    Raises
    ------
    ConfigError
        No settings, broken syntax, an unknown framework, a pass rate outside [0, 1].
    """
    source = readers.read(text, name=name)
    if framework is None:
        chosen = framework_of(source, name=name)
    elif framework in FRAMEWORKS:
        chosen = next(f for f in FRAMEWORKS if f == framework)
    else:
        raise ConfigError(f"--framework {framework}: one of {', '.join(FRAMEWORKS)}")
    reading = _READING[chosen](source, version=_version(version, chosen))
    run = _UNDERSTAND[chosen](reading)
    findings = [finding for rule in RULES for finding in rule(run)]
    difficulty = _difficulty(run, pass_rate, workload)
    if difficulty is not None:
        findings += filter_cost(run, difficulty)
    # Rules ask for settings too, so what they could not learn is known only now.
    findings += [*known.wrong_type(run), *known.unresolved(run)]
    return Report(chosen, reading.version, tuple(in_order(findings)), summarise(run))


def _version(version: str | None, framework: Framework) -> str:
    if version is None:
        return keys.NEWEST[framework]
    dotted = version.removeprefix("v")
    if "." in keys.NEWEST[framework] and not re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,3}", dotted):
        raise ConfigError(f"--version {version}: expected numbers like {keys.NEWEST[framework]}")
    return dotted


def _difficulty(run: Run, pass_rate: float | None, workload: Path | None) -> Difficulty | None:
    if pass_rate is None and workload is None:
        return None
    if pass_rate is not None and not 0 <= pass_rate <= 1:
        raise ConfigError(f"--pass-rate {pass_rate:g}: a probability between 0 and 1")
    if run.filter is None or run.group_size is None or run.group_size < 1:
        return None
    from dapolab.check import workload as prompts

    if workload is not None:
        return prompts.from_workload(workload, group_size=run.group_size)
    assert pass_rate is not None
    return prompts.from_pass_rate(pass_rate, group_size=run.group_size)

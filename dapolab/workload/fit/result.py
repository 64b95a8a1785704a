"""What a fit returns: the workload, its uncertainty, its goodness, what it cannot know."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from dapolab.scenario import ConfigError, JointWorkload


@dataclass(frozen=True)
class Estimate:
    """One parameter with its 99 % interval; low and high are None where it is not estimated."""

    value: float
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True)
class Goodness:
    """One held-out comparison.

    ``low`` … ``high`` is the 99 % interval of observed − predicted (bootstrap over prompts and
    parameter draws); ``tolerance`` the difference that would matter. Inside: holds; disjoint:
    fails; else undecided.
    """

    quantity: str
    unit: str
    observed: float
    predicted: float
    low: float
    high: float
    tolerance: float

    @property
    def verdict(self) -> str:
        """Return holds, fails or undecided."""
        if -self.tolerance <= self.low and self.high <= self.tolerance:
            return "holds"
        if self.low > self.tolerance or self.high < -self.tolerance:
            return "fails"
        return "undecided"


@dataclass(frozen=True, eq=False)
class FittedWorkload:
    """A workload fitted to records.

    ``estimates`` holds workload parameters and derived quantities (``mixed_share`` at
    ``group_size``, ``truncated_share``, ``mean_tokens`` at the native cap); ``draws`` one row per
    bootstrap draw, columns named as the keys of ``[workload]``; ``loop_bounds`` the estimates if
    no truncated row loops ("none") and if all do ("all"); ``not_identified`` (name, reason).
    """

    workload: JointWorkload
    selection: str
    group_size: int
    cap_tokens: int | None
    n_prompts: int
    n_responses: int
    estimates: dict[str, Estimate]
    draws: pd.DataFrame
    loop_bounds: dict[str, dict[str, float]]
    goodness: tuple[Goodness, ...]
    not_identified: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    figures: dict[str, pd.DataFrame] = field(repr=False)


def with_draw(workload: JointWorkload, draws: pd.DataFrame, *, number: int) -> JointWorkload:
    """Return the workload with the parameters of one bootstrap draw (number modulo their count)."""
    row = draws.iloc[number % len(draws)]
    return workload.model_copy(update={str(name): float(value) for name, value in row.items()})


def read_draws(path: str | Path) -> pd.DataFrame:
    """Read a table of bootstrap draws written beside a fitted workload.

    Raises
    ------
    ConfigError
        File missing, empty, or with a column that is no number of a joint workload.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file (workload.draws)")
    table = pd.read_csv(path, comment="#")
    wrong = [name for name in table if name not in JointWorkload.model_fields]
    if table.empty or wrong or table.isna().any().any():
        detail = f"unknown column {wrong[0]!r}" if wrong else "empty or missing cells"
        raise ConfigError(f"{path}: not a table of workload draws: {detail}")
    return table


def draws_text(result: FittedWorkload) -> str:
    """Return the draws as CSV text with six significant digits, for the file beside the TOML."""
    return str(result.draws.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def fit_tables(result: FittedWorkload) -> dict[str, pd.DataFrame]:
    """Return everything a report draws, as plain tables.

    ``parameters``, ``goodness``, ``not_identified``, ``loop_bounds``, and where the data have them
    ``length_cdf`` (tokens, observed, model), ``composition`` (n_correct, observed, model shares),
    ``within_sd`` (sd, observed and model cdf of the within-prompt sd of log length).
    """
    parameters = pd.DataFrame(
        [
            {"name": name, "value": e.value, "low": e.low, "high": e.high, "unit": e.unit}
            for name, e in result.estimates.items()
        ]
    )
    goodness = pd.DataFrame(
        [
            {
                "quantity": g.quantity,
                "unit": g.unit,
                "observed": g.observed,
                "predicted": g.predicted,
                "difference_low": g.low,
                "difference_high": g.high,
                "tolerance": g.tolerance,
                "verdict": g.verdict,
            }
            for g in result.goodness
        ]
    )
    missing = pd.DataFrame(list(result.not_identified), columns=["parameter", "reason"])
    bounds = pd.DataFrame(
        [
            {"name": name, "none_loop": value, "all_loop": result.loop_bounds["all"].get(name)}
            for name, value in result.loop_bounds.get("none", {}).items()
        ]
    )
    return {
        "parameters": parameters,
        "goodness": goodness,
        "not_identified": missing,
        "loop_bounds": bounds,
        **result.figures,
    }


def to_toml(result: FittedWorkload, *, draws_file: str | None = None) -> str:
    """Return a ``[workload]`` file that the scenario loader reads, with its provenance as comments.

    ``draws_file`` names the table of draws beside the file; it is written as ``workload.draws``.
    """
    lines = [
        f"# Fitted workload: {result.n_responses} responses of {result.n_prompts} prompts"
        f" (groups of {result.group_size}), selection {result.selection}.",
        f"# Source: {result.workload.source or 'not stated'}",
        "# 99 % intervals from a bootstrap over prompts stand behind the values.",
    ]
    lines += [f"# Warning: {text}" for text in result.warnings]
    lines += [f"# Not identified: {name} ({why})" for name, why in result.not_identified]
    for name, what in (("median_tokens", "Lengths"), ("mean_logit", "Pass rates")):
        if name not in result.estimates:
            lines.append(f"# {what} are not in the data: defaults stand in, or set them yourself.")
    lines += [
        f"# Held out: {g.quantity} observed {g.observed:.4g}, predicted {g.predicted:.4g} "
        f"{g.unit}: {g.verdict} (tolerance {g.tolerance:.3g})"
        for g in result.goodness
    ]
    for name in ("loop_share", "sigma", "prompt_share"):
        if "none" in result.loop_bounds and name in result.loop_bounds["none"]:
            none, every = (result.loop_bounds[key][name] for key in ("none", "all"))
            lines.append(
                f"# {name}: {none:.4g} if no truncated answer loops, {every:.4g} if all do"
            )
    lines += ["", "[workload]", 'kind = "joint"']
    lines += _values(result)
    if draws_file is not None and len(result.draws):
        lines.append(f"draws = {toml_value(draws_file)}")
    lines.append(f"source = {toml_value(result.workload.source)}")
    derived = [name for name in result.estimates if name not in JointWorkload.model_fields]
    lines += ["", "# what follows from it at the native cap:"]
    lines += [f"# {name} = {_shown(result.estimates[name])}" for name in derived]
    prompts = result.workload.prompts.model_dump(exclude_defaults=True, exclude_none=True)
    if prompts:
        lines += ["", "[workload.prompts]"]
        lines += [f"{name} = {toml_value(value)}" for name, value in prompts.items()]
    return "\n".join(lines) + "\n"


def _values(result: FittedWorkload) -> list[str]:
    lines = []
    for name, estimate in result.estimates.items():
        if name not in JointWorkload.model_fields:
            continue
        value = getattr(result.workload, name)
        lines.append(f"{name} = {toml_value(value)}{_interval(estimate)}")
    if result.workload.native_cap_tokens is not None:
        lines.append(f"native_cap_tokens = {result.workload.native_cap_tokens}")
    return lines


def _interval(estimate: Estimate) -> str:
    unit = f" {estimate.unit}" if estimate.unit else ""
    if estimate.low is None or estimate.high is None:
        return f"  # not estimated{unit}"
    return f"  # {estimate.low:.4g} … {estimate.high:.4g}{unit}"


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.4g}{_interval(estimate).replace('  # ', ' (')})"


def toml_value(value: object) -> str:
    """Return a TOML value; numbers keep six significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(one) for one in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'

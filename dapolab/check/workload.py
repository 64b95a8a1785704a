"""Share of mixed groups: from one pass rate, or from the prompts of a fitted workload."""

import tomllib
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dapolab.check.difficulty import Difficulty
from dapolab.errors import ConfigError
from dapolab.scenario.workload import (
    BetaPassRate,
    FixedPassRate,
    JointWorkload,
    LogitNormalPassRate,
    MixedProbability,
    Workload,
)
from dapolab.theory import groups


def from_pass_rate(pass_rate: float, *, group_size: int) -> Difficulty:
    """Return q = 1 − p^G − (1−p)^G if every prompt had this pass rate (theory A1)."""
    q = float(groups.p_mixed(pass_rate, group_size=group_size))
    return Difficulty(q, f"with every prompt at pass rate {pass_rate:g}")


def from_workload(path: Path, *, group_size: int) -> Difficulty:
    """Return q over a workload's distribution of pass rates (theory A1, A2).

    Raises
    ------
    ConfigError
        No TOML, no workload, or one whose pass rates have no closed form (a replay, a list).
    """
    workload = _load(path)
    if isinstance(workload, JointWorkload):
        law = groups.mixed_groups_logit_normal(
            workload.mean_logit,
            workload.sd_logit,
            group_size=group_size,
            unsolvable_share=workload.unsolvable_share,
            guess_rate=workload.guess_rate,
        )
        return Difficulty(law.p_mixed, f"with the prompts of {path.name}")
    rate = getattr(workload, "pass_rate", None)
    if isinstance(rate, LogitNormalPassRate):
        law = groups.mixed_groups_logit_normal(
            rate.mean_logit, rate.sd_logit, group_size=group_size
        )
    elif isinstance(rate, BetaPassRate):
        law = groups.mixed_groups_beta(rate.a, rate.b, group_size=group_size)
    elif isinstance(rate, FixedPassRate):
        return from_pass_rate(rate.p, group_size=group_size)
    elif isinstance(rate, MixedProbability):
        return Difficulty(rate.p_mixed, f"with the prompts of {path.name}")
    else:
        raise ConfigError(f"{path.name}: its pass rates have no closed form; use --pass-rate")
    return Difficulty(law.p_mixed, f"with the prompts of {path.name}")


def _load(path: Path) -> Workload:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: no TOML ({error})") from None
    table = table.get("workload", table)
    if isinstance(table, dict):
        table.setdefault("kind", "joint")
    try:
        adapter: TypeAdapter[Workload] = TypeAdapter(Workload)
        return adapter.validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path.name}: no workload ({where}: {first['msg']})") from None

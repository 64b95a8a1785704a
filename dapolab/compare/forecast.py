"""A whole run ahead of time: steps before the data run out, the LR schedule, GPU-hours, price.

Frameworks compute the schedule's length from generation batches (verl) or prompts, while the
counter moves by training steps; with several waves a step training ends, silently, a fraction
through the schedule (field case B42).

The interval here is for one run, not for a mean over many: it does not shrink with replications.
Run-to-run chance and, where the workload was fitted, the uncertainty of the fit are shown apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dapolab.collectors import round_size
from dapolab.compare.comparison import Comparison
from dapolab.scenario import Rounds
from dapolab.sim.run import gpus_held
from dapolab.stats import LEVEL, Estimate
from dapolab.workload.model import n_prompts_of


@dataclass(frozen=True)
class Forecast:
    """One policy's whole run.

    Attributes
    ----------
    quantities : name -> Estimate with the interval of one run, parameters fixed.
    with_fit : the same with workload parameters drawn anew for each run; empty where the workload
        has no draws.
    n_planned_steps : steps that the framework plans from the data; None where data are endless.
    ended : how the replications ended -> their number.
    """

    quantities: Mapping[str, Estimate]
    with_fit: Mapping[str, Estimate]
    n_planned_steps: int | None
    ended: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """Return METRICs by name, widest interval first in line, the parts beside it."""
        found: dict[str, object] = {
            name: (self.with_fit.get(name) or e).to_json() for name, e in self.quantities.items()
        }
        if self.with_fit:
            found["parts"] = {
                "run_to_run": {name: e.to_json() for name, e in self.quantities.items()},
                "with_fit": {name: e.to_json() for name, e in self.with_fit.items()},
            }
        if self.n_planned_steps is not None:
            found["run/planned_steps"] = self.n_planned_steps
        found["run/ended"] = dict(self.ended)
        return found

    def sentence(self) -> str:
        """Return the forecast in a few sentences."""
        shown = [
            f"{self._span(name)} {words}"
            for name, words in (
                ("run/hours", "h"),
                ("run/gpu_hours", "GPU-hours"),
                ("run/usd", "USD"),
            )
            if name in self.quantities
        ]
        text = f"{self._span('run/steps')} steps take {', '.join(shown)}."
        if self.with_fit:
            text += " In brackets: 99 % of runs, by chance alone; then with the fit's uncertainty."
        else:
            text += " In brackets: 99 % of runs."
        if "run/lr_schedule_share" in self.quantities:
            share = self.quantities["run/lr_schedule_share"].mean
            text += (
                f" The data end the run at {share:.0%} of the {self.n_planned_steps:,} steps that "
                "the LR schedule is planned for."
            )
        return text

    def _span(self, name: str) -> str:
        parts = [self.quantities[name]]
        if name in self.with_fit:
            parts.append(self.with_fit[name])
        spans = [
            f"{_plain(e.low)}–{_plain(e.high)}"
            for e in parts
            if e.low is not None and e.high is not None and e.low < e.high
        ]
        return _plain(parts[0].mean) + (f" [{'; '.join(spans)}]" if spans else "")


def _plain(value: float) -> str:
    """Return three significant digits, never as a power of ten."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(digits, 0)}f}"


def one_run(x: npt.ArrayLike, *, unit: str) -> Estimate:
    """Return mean and 99 % prediction interval of one more run: x̄ ± t·s·√(1 + 1/n), not below 0."""
    values = np.asarray(x, dtype=np.float64)
    n = len(values)
    mean = float(values.mean())
    if n < 2:
        return Estimate(mean, None, None, n, unit)
    t = float(special.stdtrit(n - 1, (1 + LEVEL) / 2))
    half = t * float(values.std(ddof=1)) * math.sqrt(1 + 1 / n)
    return Estimate(mean, max(mean - half, 0.0), mean + half, n, unit)


def planned_steps(comparison: Comparison, policy: str) -> int | None:
    """Return the steps that the framework plans from the data; None where data are endless.

    verl counts generation batches of an epoch × epochs (rounds); the others B prompts a step.
    Without ``drop_last`` batches reach over the end of an epoch, and the last may be short.
    """
    scenario = comparison.scenario
    prompts = scenario.workload.prompts
    if prompts.epochs is None:
        return None
    collector = comparison.collectors[policy]
    batch = scenario.rollout.groups_per_step
    if isinstance(collector, Rounds):
        batch = round_size(collector, n_wanted=batch)
    rollout = scenario.rollout
    count = n_prompts_of(
        scenario.workload, group_size=rollout.group_size, cap_tokens=rollout.cap_tokens
    )
    if prompts.drop_last:
        return max(count // batch, 1) * prompts.epochs
    return -(-count * prompts.epochs // batch)


def forecast(
    comparison: Comparison, policy: str, *, with_fit: Comparison | None = None
) -> Forecast:
    """Return the whole-run forecast of ``policy``.

    ``with_fit`` is the same comparison with a draw of the workload's parameters a replication.
    """
    endings = comparison.endings[comparison.endings["policy"] == policy]
    return Forecast(
        quantities=_quantities(comparison, policy),
        with_fit=_quantities(with_fit, policy) if with_fit else {},
        n_planned_steps=planned_steps(comparison, policy),
        ended={str(k): int(v) for k, v in endings["ended"].value_counts().items()},
    )


def _quantities(comparison: Comparison, policy: str) -> dict[str, Estimate]:
    endings = comparison.endings[comparison.endings["policy"] == policy]
    rows = comparison.steps[comparison.steps["policy"] == policy]
    seconds = rows.groupby("replication")["time/step_seconds"].sum()
    seconds = seconds.reindex(endings["replication"], fill_value=0.0)
    # the last step, which an error or the end of the data left without an update, is paid too
    hours = (seconds.to_numpy() + endings["unlearned_s"].to_numpy()) / 3600
    gpu_hours = hours * gpus_held(comparison.scenario)
    n_steps = endings["n_steps"].to_numpy(dtype=float)
    found = {
        "run/steps": one_run(n_steps, unit="steps"),
        "run/hours": one_run(hours, unit="h"),
        "run/gpu_hours": one_run(gpu_hours, unit="GPU·h"),
    }
    price = comparison.scenario.run.usd_per_gpu_hour
    if price:
        found["run/usd"] = one_run(gpu_hours * price, unit="USD")
    planned = planned_steps(comparison, policy)
    if planned and (endings["ended"] == "data exhausted").any():
        found["run/lr_schedule_share"] = one_run(n_steps / planned, unit="share")
    return found

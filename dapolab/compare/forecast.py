"""A whole run ahead of time: steps before the data run out, the LR schedule, GPU-hours, price.

Frameworks compute the schedule's length from generation batches (verl) or prompts, while the
counter moves by training steps; with several waves a step training ends, silently, a fraction
through the schedule (field case B42).
"""

from dataclasses import dataclass

from dapolab.compare.comparison import Comparison
from dapolab.stats import LEVEL, Estimate, mean_estimate


@dataclass(frozen=True)
class Forecast:
    """One policy's whole run; every estimate is over replications."""

    steps: Estimate
    n_planned_steps: int | None
    schedule_share: Estimate | None
    hours: Estimate
    gpu_hours: Estimate
    usd: Estimate | None
    ended: dict[str, int]

    def to_json(self) -> dict[str, object]:
        """Return METRICs by name; what does not apply is absent."""
        found: dict[str, object] = {
            "run/steps": self.steps.to_json(),
            "run/hours": self.hours.to_json(),
            "run/gpu_hours": self.gpu_hours.to_json(),
            "run/ended": self.ended,
        }
        if self.schedule_share is not None:
            found["run/planned_steps"] = self.n_planned_steps
            found["run/lr_schedule_share"] = self.schedule_share.to_json()
        if self.usd is not None:
            found["run/usd"] = self.usd.to_json()
        return found

    def sentence(self) -> str:
        """Return the forecast in one or two sentences."""
        text = (
            f"{self.steps.mean:,.1f} steps take {_span(self.hours)} h and "
            f"{_span(self.gpu_hours)} GPU-hours"
        )
        if self.usd is not None:
            text += f", {_span(self.usd)} USD"
        text += "."
        if self.schedule_share is not None:
            text += (
                f" The data end the run at {self.schedule_share.mean:.0%} of the "
                f"{self.n_planned_steps:,} steps that the LR schedule is planned for."
            )
        return text


def _span(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:,.3g}"
    return f"{estimate.mean:,.3g} ({estimate.low:,.3g}–{estimate.high:,.3g})"


def planned_steps(comparison: Comparison, policy: str) -> int | None:
    """Return the steps that the framework plans from the data; None where data are endless.

    verl counts generation batches of an epoch × epochs (rounds); the others count B prompts a step.
    """
    scenario = comparison.scenario
    prompts = scenario.workload.prompts
    if prompts.epochs is None:
        return None
    collector = comparison.collectors[policy]
    batch = scenario.rollout.groups_per_step
    if collector.kind == "rounds":
        batch = collector.gen_groups or 3 * batch
    return max(prompts.count // batch, 1) * prompts.epochs


def forecast(comparison: Comparison, policy: str) -> Forecast:
    """Return the whole-run forecast of ``policy``."""
    endings = comparison.endings[comparison.endings["policy"] == policy]
    rows = comparison.steps[comparison.steps["policy"] == policy]
    totals = rows.groupby("replication")[["time/step_seconds", "time/gpu_seconds"]].sum()
    totals = totals.reindex(range(len(endings)), fill_value=0.0) / 3600
    gpu_hours = totals["time/gpu_seconds"].to_numpy()
    n_steps = endings["n_steps"].to_numpy(dtype=float)
    planned = planned_steps(comparison, policy)
    exhausted = (endings["ended"] == "data exhausted").any()
    price = comparison.scenario.run.usd_per_gpu_hour
    return Forecast(
        steps=mean_estimate(n_steps, level=LEVEL, unit="steps"),
        n_planned_steps=planned,
        schedule_share=(
            mean_estimate(n_steps / planned, level=LEVEL, unit="share")
            if planned and exhausted
            else None
        ),
        hours=mean_estimate(totals["time/step_seconds"].to_numpy(), level=LEVEL, unit="h"),
        gpu_hours=mean_estimate(gpu_hours, level=LEVEL, unit="GPU·h"),
        usd=mean_estimate(gpu_hours * price, level=LEVEL, unit="USD") if price else None,
        ended={str(k): int(v) for k, v in endings["ended"].value_counts().items()},
    )

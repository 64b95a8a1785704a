"""RollPacker (NSDI'26, arXiv 2509.21009) Table 2: what each part gains end to end over veRL.

Published: tail batching alone 1.30, 1.48 and 2.21 × for the 7B, 14B and 32B; with the reward
scheduler 2.01, 1.99 and 2.48; with the stream trainer 2.03, 2.22 and 2.56. Of the step's parts only
those of the 14B are published (§2: rollout, reward, training 72/5/23 % on mathematics, 66/13/21 on
code, 71/7/22 with a judge); they stand in for all three models. A step is then the sum of its
parts, with the rollout shortened by the simulated ratio of tail batching (η 1.25, long rounds
included; no scalar is in a ratio), and

- the reward scheduler hides all of the reward behind the rollout, the most it can do;
- the stream trainer runs beside long rounds, one in five: it hides that part of the training.

Nothing is fitted.
"""

from collections.abc import Mapping
from functools import cache

from dapolab.fidelity.published.rollpacker import MODELS, scenario_of, variants, workload_of
from dapolab.fidelity.published.row import System, Variant
from dapolab.scenario import Collector, NoFilter, TailBatching, Workload
from dapolab.sim.run import simulate

SOURCE = "RollPacker, NSDI'26 (arXiv 2509.21009), Table 2 and §2"
SHARES = {
    "mathematics": (0.72, 0.05, 0.23),
    "code": (0.66, 0.13, 0.21),
    "judge": (0.71, 0.07, 0.22),
}
LONG_ROUND_SHARE = 0.2
_PARTS = ("tail batching", "with reward scheduler", "with stream trainer")
_PUBLISHED = {
    "7B, 8k": (1.30, 2.01, 2.03),
    "14B, 16k": (1.48, 1.99, 2.22),
    "32B, 32k": (2.21, 2.48, 2.56),
}
_NOTES = {
    f"{model}: tail batching": "at these shares Fig. 11's own rollouts (82 → 47 s, 277 → 88 s) "
    "would gain 39 to 44 % (7B) and 82 to 97 % (14B) of a step: the table's runs gain less than "
    "its figure; the 7B's rollouts are cut more here besides"
    for model in ("7B, 8k", "14B, 16k")
}
_NOTES["7B, 8k: with stream trainer"] = "the shares of the 14B's step stand in for the 7B's"


def gains(rollout_ratio: float, shares: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the three gains over a step of 1, minus 1, of a rollout that takes the ratio."""
    rollout, reward, training = shares
    short = rollout * rollout_ratio
    steps = (
        short + reward + training,
        short + training,
        short + training * (1 - LONG_ROUND_SHARE),
    )
    alone, scheduled, streamed = (1 / step - 1 for step in steps)
    return alone, scheduled, streamed


@cache
def _mean_seconds(model: str, workload: Workload, policy: Collector) -> float:
    scenario = scenario_of(model, workload, 1.0, policy)
    runs = [simulate(scenario, seed=0, replication=r, keep_groups=False).steps for r in range(4)]
    return sum(float(run["time/rollout_seconds"].mean()) for run in runs) / len(runs)


def _predict(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    workload, shares = workload_of(variant), SHARES[variant.task]
    found = {}
    for model in MODELS:
        ratio = _mean_seconds(model, workload, TailBatching()) / _mean_seconds(
            model, workload, NoFilter()
        )
        for part, gain in zip(_PARTS, gains(ratio, shares), strict=True):
            found[f"{model}: {part}"] = gain
    return found


def system() -> System:
    """Return the comparison: Fig. 11's lengths × the step's parts in three tasks."""
    return System(
        name="RollPacker Table 2",
        source=SOURCE,
        published={
            f"{model}: {part}": (gain - 1, "share")
            for model, row in _PUBLISHED.items()
            for part, gain in zip(_PARTS, row, strict=True)
        },
        baseline=[],
        variants=[
            Variant(f"{one.name}; {task}", one.values, task=task)
            for one in variants()
            for task in SHARES
        ],
        fit=lambda variant: {},
        predict=_predict,
        notes=_NOTES,
    )

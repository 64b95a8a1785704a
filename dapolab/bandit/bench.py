"""How fast the bandit is, against a loop over seeds that calls the same objective."""

import time

from dapolab.bandit.environments import length_classes
from dapolab.bandit.run import train
from dapolab.bandit.settings import Mode, Training
from dapolab.scenario import MeanOnlyAdvantage, Objective, PpoClip


def bandit_benchmarks(
    *, n_seeds: int = 1000, n_updates: int = 1000, n_loop_seeds: int = 2
) -> list[dict[str, object]]:
    """Time 4 arms of 10 and 100 tokens, 8 answers a group, one update a step.

    Parameters
    ----------
    n_loop_seeds
        Seeds that the loop trains one after the other, each ``n_updates / 5`` updates; its time a
        seed and update stands for all seeds.

    Returns
    -------
    Rows ``{name, value, unit, against, ratio}``: seconds for all seeds, and how many times longer
    the loop takes, measured in the same run.
    """
    rows: list[dict[str, object]] = []
    for n_groups in (1, 8):
        mode = _mode(n_groups, n_updates)
        short = _mode(n_groups, max(1, n_updates // 5))
        bandit = length_classes()
        train(bandit, _mode(n_groups, 3), seeds=range(n_seeds), n_records=2)  # first calls allocate
        start = time.perf_counter()
        train(bandit, mode, seeds=range(n_seeds), n_records=2)
        together = time.perf_counter() - start
        start = time.perf_counter()
        for index in range(n_loop_seeds):
            train(bandit, short, seeds=[index], n_records=2)
        alone = time.perf_counter() - start
        per_update = alone / (n_loop_seeds * short.training.n_steps)
        looped = per_update * n_seeds * n_updates
        groups = "1 group" if n_groups == 1 else f"{n_groups} groups"
        rows.append(
            {
                "name": f"bandit: {n_seeds:,} seeds × {n_updates:,} updates, {groups} of 8",
                "value": together,
                "unit": "s",
                "against": f"a loop over seeds, {looped:,.0f} s",
                "ratio": looped / together,
            }
        )
    return rows


def _mode(n_groups: int, n_updates: int) -> Mode:
    objective = Objective(advantage=MeanOnlyAdvantage(), clip=PpoClip(low=0.2, high=0.28))
    training = Training(n_groups=n_groups, n_steps=n_updates, learning_rate=0.5)
    return Mode(name="bench", objective=objective, training=training)

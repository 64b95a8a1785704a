"""Several modes on the same draws: their curves, and all that is said of each."""

from collections.abc import Callable, Sequence

from dapolab.bandit.answers import Bandit
from dapolab.bandit.correction import gradient_estimates
from dapolab.bandit.curves import Curves, final_estimates
from dapolab.bandit.drift import first_drift
from dapolab.bandit.run import train
from dapolab.bandit.settings import Mode
from dapolab.stats import Estimate


def train_together(
    bandit: Bandit,
    modes: Sequence[Mode],
    *,
    seeds: Sequence[int],
    seed: int,
    on_step: Callable[[], object] | None = None,
) -> tuple[list[Curves], dict[str, dict[str, Estimate]]]:
    """Return each mode's curves, and by name its estimates at the end and of its first update."""
    candidates = max(mode.training.n_candidates for mode in modes)
    runs = [
        train(bandit, mode, seeds=seeds, seed=seed, candidates=candidates, on_step=on_step)
        for mode in modes
    ]
    found = {
        mode.name: final_estimates(run)
        | first_drift(bandit, mode, seed=seed)
        | gradient_estimates(bandit, mode)
        for mode, run in zip(modes, runs, strict=True)
    }
    return runs, found

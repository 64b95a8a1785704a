"""Training curves: many independent seeds of one bandit and one mode, as one tensor program."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dapolab.bandit.answers import Bandit
from dapolab.bandit.curves import Curves
from dapolab.bandit.rollout import Draws, Rollout, collect
from dapolab.bandit.settings import Mode, Training
from dapolab.bandit.threads import one_thread
from dapolab.bandit.update import loss_gradient, update_metrics
from dapolab.rng import seed_sequence

CLIP_METRICS = ("clip/upper_share", "clip/lower_share")


@one_thread()
def train(
    bandit: Bandit,
    mode: Mode,
    *,
    seeds: Sequence[int],
    seed: int = 0,
    n_records: int = 40,
    candidates: int | None = None,
    automatic: bool = False,
    on_step: Callable[[], object] | None = None,
) -> Curves:
    """Train one policy a seed and measure it along the way.

    Parameters
    ----------
    seeds
        Numbers of the seeds; each is a replica whose draws depend on (seed, number) alone, so that
        modes are paired and a seed alone repeats its row.
    n_records
        Points of a curve, the start included; lengths, pass rate and entropy are exact functions
        of the policy, clip shares are those of the rollout before the point, shares of groups
        means over the rollouts since the point before.
    candidates
        Groups for which numbers are drawn each step, where modes with different needs are to see
        the same draws; at least the mode's own ``n_candidates``.
    automatic
        Differentiate ``policy_loss`` instead of using its ``gradient_weights``; the two agree.
    on_step
        Called after every step.
    """
    training = mode.training
    n_groups = max(candidates or 0, training.n_candidates)
    draws = Draws(seed, seeds, n_groups=n_groups, group_size=training.group_size)
    start = bandit.start.expand(len(seeds), -1).clone()
    learner = _Learner(bandit, mode, start, seeds=seeds, seed=seed, automatic=automatic)
    marks = set(np.unique(np.linspace(0, training.n_steps, n_records).round()).astype(int).tolist())
    curves = _Recorder(bandit)
    curves.add(0, learner.theta, {})
    for step in range(1, training.n_steps + 1):
        learner.step(draws.step(), measure=step in marks)
        if step in marks:
            curves.add(step, learner.theta, learner.tell())
        if on_step is not None:
            on_step()
    return curves.finish(mode.name, learner.theta)


class _Learner:
    """Parameters, optimizer state and the policies of the past."""

    def __init__(
        self,
        bandit: Bandit,
        mode: Mode,
        theta: Tensor,
        *,
        seeds: Sequence[int],
        seed: int,
        automatic: bool,
    ) -> None:
        self.bandit, self.mode, self.theta, self.automatic = bandit, mode, theta, automatic
        self._reference = None if mode.objective.kl is None else theta.clone()
        self._past: deque[Tensor] = deque([theta], maxlen=mode.training.staleness + 1)
        self._adam = _Adam(theta, mode.training)
        self._noted: dict[str, tuple[Tensor, int]] = {}
        self._generators = None
        if mode.objective.clip.kind == "clip_cov":
            self._generators = [_generator(seed, index) for index in seeds]

    def step(self, draws: tuple[Tensor, Tensor], *, measure: bool) -> None:
        """Sample with the policy of ``staleness`` steps ago and make all updates."""
        rollout = collect(
            self.bandit,
            self.mode,
            theta=self.theta,
            sampler_theta=self._past[0],
            draws=draws,
            reference=self._reference,
        )
        for rows in _mini_batches(self.mode.training):
            if measure:
                self._measure(rollout, rows)
            gradient = loss_gradient(
                self.bandit,
                self.theta,
                rollout,
                self.mode,
                rows=rows,
                generator=self._generators,
                automatic=self.automatic,
            )
            self.theta = self.theta - self._direction(gradient)
        self._past.append(self.theta)
        self._note("rollout/effective_group_ratio", rollout.effective_share)
        self._note("rollout/effective_fill_ratio", rollout.filled.to(torch.float64).mean(dim=-1))

    def tell(self) -> dict[str, Tensor]:
        """Return the means of what was noted since the last time, each (R,)."""
        means = {name: total / n for name, (total, n) in self._noted.items()}
        self._noted = {}
        return means

    def _note(self, name: str, value: Tensor) -> None:
        total, n = self._noted.get(name, (torch.zeros_like(value), 0))
        self._noted[name] = (total + value, n + 1)

    def _measure(self, rollout: Rollout, rows: Tensor | None) -> None:
        # The generators' states are put back, or looking at an update would change the run.
        generators = self._generators or ()
        states = [generator.get_state() for generator in generators]
        found = update_metrics(
            self.bandit, self.theta, rollout, self.mode, rows=rows, generator=self._generators
        )
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        for name in CLIP_METRICS:
            self._note(name, found[name])

    def _direction(self, gradient: Tensor) -> Tensor:
        """Return what is taken from θ."""
        training = self.mode.training
        if training.geometry == "adam":
            return self._adam.direction(gradient)
        if training.geometry == "natural":
            gradient = self.bandit.natural(self.theta, gradient)
        return training.learning_rate * gradient


def _generator(seed: int, index: int) -> torch.Generator:
    """Return the generator from which one seed's ``clip_cov`` draws its tokens."""
    words = seed_sequence(seed, "bandit", "clip_cov", index).generate_state(1)
    return torch.Generator().manual_seed(int(words[0]))


class _Adam:
    """Adam without weight decay (Kingma & Ba 2015, algorithm 1), all replicas at once."""

    def __init__(self, theta: Tensor, training: Training) -> None:
        self._settings = training
        self._mean, self._square = torch.zeros_like(theta), torch.zeros_like(theta)
        self._n = 0

    def direction(self, gradient: Tensor) -> Tensor:
        s = self._settings
        self._n += 1
        self._mean = s.adam_beta1 * self._mean + (1.0 - s.adam_beta1) * gradient
        self._square = s.adam_beta2 * self._square + (1.0 - s.adam_beta2) * gradient.square()
        mean = self._mean / (1.0 - s.adam_beta1**self._n)
        square = self._square / (1.0 - s.adam_beta2**self._n)
        return s.learning_rate * mean / (square.sqrt() + s.adam_eps)


def _mini_batches(training: Training) -> Sequence[Tensor | None]:
    """Return the rows of each update of a step."""
    if training.n_mini_batches == 1:
        return [None] * training.n_epochs
    parts = torch.arange(training.n_rows).chunk(training.n_mini_batches)
    return list(parts) * training.n_epochs


class _Recorder:
    """Metrics at the points of a curve."""

    def __init__(self, bandit: Bandit) -> None:
        self._bandit = bandit
        self._steps: list[int] = []
        self._rows: list[dict[str, np.ndarray]] = []

    def add(self, step: int, theta: Tensor, told: dict[str, Tensor]) -> None:
        found = self._bandit.expectations(theta) | told
        self._steps.append(step)
        self._rows.append({name: value.numpy(force=True) for name, value in found.items()})

    def finish(self, name: str, theta: Tensor) -> Curves:
        names = dict.fromkeys(metric for row in self._rows for metric in row)
        n_seeds = theta.shape[0]
        missing = np.full(n_seeds, np.nan)
        values = {
            metric: np.stack([row.get(metric, missing) for row in self._rows]) for metric in names
        }
        return Curves(name, tuple(self._steps), values, theta.numpy(force=True))

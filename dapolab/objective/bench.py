"""How much the objective costs over the same loss written inline (``dapolab bench``)."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from dapolab.objective.batch import Batch
from dapolab.objective.loss import policy_loss
from dapolab.scenario import Objective, PpoClip

_RESPONSES, _TOKENS = 64, 4096
_LOW, _HIGH = 0.2, 0.28


def objective_benchmarks(*, n_rounds: int = 40, seed: int = 0) -> list[dict[str, object]]:
    """Time loss and gradient of 64 responses × 4096 tokens, float32, CPU, one thread.

    Parameters
    ----------
    n_rounds
        Rounds; each times the inline loss and the two of the package in turn, so that whatever
        else the machine does hits all three alike.
    seed
        Of the made-up log-probs.

    Returns
    -------
    Rows ``{name, value, unit, against, ratio}``: median milliseconds, and the median over rounds of
    the ratio to the inline loss.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = _rounds(_batch(seed), n_rounds)
    finally:
        torch.set_num_threads(n_threads)
    inline = times["inline"]
    named = {
        "objective: loss and gradient": times["loss"],
        "objective: loss, gradient, metrics": times["metrics"],
    }
    rows: list[dict[str, object]] = []
    for name, spent in named.items():
        ratio = median(s / i for s, i in zip(spent, inline, strict=True))
        rows.append(
            {
                "name": name,
                "value": 1e3 * median(spent),
                "unit": "ms",
                "against": f"the same loss inline, {1e3 * median(inline):.2f} ms",
                "ratio": ratio,
            }
        )
    return rows


def _batch(seed: int) -> Batch:
    """Make log-probs a little off policy and responses of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    shape = (_RESPONSES, _TOKENS)
    old = -torch.rand(shape, generator=generator)
    logp = (old + 0.1 * torch.randn(shape, generator=generator)).requires_grad_()
    lengths = torch.randint(_TOKENS // 8, _TOKENS + 1, (_RESPONSES, 1), generator=generator)
    return Batch(
        logp=logp,
        old_logp=old,
        sampler_logp=old + 0.01 * torch.randn(shape, generator=generator),
        entropy=torch.rand(shape, generator=generator),
        mask=(torch.arange(_TOKENS) < lengths).float(),
        advantages=torch.randn(_RESPONSES, generator=generator),
    )


def _rounds(batch: Batch, n_rounds: int) -> dict[str, list[float]]:
    config = Objective(clip=PpoClip(low=_LOW, high=_HIGH))
    ways: dict[str, Callable[[], Tensor]] = {
        "inline": lambda: _inline(batch),
        "loss": lambda: policy_loss(batch, config, metrics=False).value,
        "metrics": lambda: policy_loss(batch, config).value,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):  # first calls allocate and choose kernels
        for way in ways.values():
            torch.autograd.grad(way(), batch.logp)
    for _ in range(n_rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            torch.autograd.grad(way(), batch.logp)
            times[name].append(time.perf_counter() - start)
    return times


def _inline(batch: Batch) -> Tensor:
    """Write clip-higher with the token mean as a training script does."""
    assert batch.old_logp is not None
    advantages = batch.advantages.unsqueeze(-1)
    ratio = (batch.logp - batch.old_logp).exp()
    free = -advantages * ratio
    bound = -advantages * ratio.clamp(1.0 - _LOW, 1.0 + _HIGH)
    return (torch.maximum(free, bound) * batch.mask).sum() / batch.mask.sum()

"""Decode laws as plain numbers: presets from published measurements, first principles."""

import difflib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dapolab import scenario
from dapolab.scenario import ConfigError
from dapolab.sim.presets import PRESETS, Preset


@dataclass(frozen=True)
class Law:
    """Seconds of an iteration: a + b(n) + c·K + max(0, s·x − slack) + q·Σ x_j·context_j.

    n decoding responses with K context tokens in all, x prefilled tokens of which x_j belong to
    response j, whose context at the end of its chunk is context_j. b is piecewise linear through
    the knots and goes on with its first and last slopes outside them.
    """

    a_s: float
    n_knots: tuple[float, ...]
    b_knots_s: tuple[float, ...]
    c_s: float
    prefill_s: float = 0.0
    prefill_slack_s: float = 0.0
    prefill_context_s: float = 0.0
    source: str = ""


def batch_seconds(law: Law, *, slots: int) -> NDArray[np.float64]:
    """Return b(n) for n = 0 … slots: linear between knots, first and last slope outside, ≥ 0."""
    n = np.arange(slots + 1, dtype=np.float64)
    x = np.asarray(law.n_knots, dtype=np.float64)
    y = np.asarray(law.b_knots_s, dtype=np.float64)
    slope = np.diff(y) / np.diff(x)
    piece = np.clip(np.searchsorted(x, n, side="right") - 1, 0, slope.size - 1)
    return np.asarray(np.maximum(0.0, y[piece] + slope[piece] * (n - x[piece])))


def speculative_seconds(
    law: Law, speculation: scenario.Speculation, *, slots: int
) -> tuple[NDArray[np.float64], float]:
    """Return what a token of n = 0 … slots responses takes under speculation, in a mean field.

    An iteration takes a + b((k + 1)·n) + c·K + k·draft_s + verify_s and yields E tokens a response:
    k + 1 of each are verified, which reads the context once.

    Returns
    -------
    Seconds without the context for each n, and seconds for each context token; both over E.
    """
    k = speculation.draft_tokens
    yielded = float(np.sum(speculation.acceptance ** np.arange(k + 1)))
    verified_s = batch_seconds(law, slots=(k + 1) * slots)[:: k + 1]
    fixed_s = law.a_s + verified_s + k * speculation.draft_s + speculation.verify_s
    return np.asarray(fixed_s / yielded), law.c_s / yielded


class Gpu(NamedTuple):
    """Data-sheet figures: bandwidth in bytes/s, dense bf16 peak in flop/s, memory in bytes."""

    bandwidth: float
    bf16_flops: float
    memory: float


GPUS: dict[str, Gpu] = {
    "a100": Gpu(2.04e12, 312e12, 80e9),
    "h100": Gpu(3.35e12, 989e12, 80e9),
    "h200": Gpu(4.80e12, 989e12, 141e9),
    "h20": Gpu(4.00e12, 148e12, 96e9),
    "b200": Gpu(8.00e12, 2250e12, 180e9),
    "rtx4090": Gpu(1.01e12, 165e12, 24e9),
    "rtxpro6000": Gpu(1.79e12, 504e12, 96e9),
}
"""NVIDIA data sheets, SXM versions; GeForce and RTX PRO with dense bf16 at fp32 accumulation."""


def resolve(hardware: scenario.Hardware) -> Law:
    """Return the numbers behind ``hardware.law``.

    Raises
    ------
    ConfigError
        A preset or a GPU that is not in the tables; the nearest one is named.
    """
    match hardware.law:
        case scenario.PresetLaw() as law:
            return _preset(law)
        case scenario.AffineLaw() as law:
            return _as_given(law, (0.0, 1.0), (0.0, law.b_s))
        case scenario.PiecewiseLaw() as law:
            return _as_given(law, law.n_knots, law.b_knots_s)
        case scenario.FirstPrinciplesLaw() as law:
            return first_principles(law)


def _as_given(
    law: scenario.AffineLaw | scenario.PiecewiseLaw,
    n_knots: tuple[float, ...],
    b_knots_s: tuple[float, ...],
) -> Law:
    return Law(
        a_s=law.a_s,
        n_knots=n_knots,
        b_knots_s=b_knots_s,
        c_s=law.c_s,
        prefill_s=law.prefill_s,
        prefill_slack_s=law.prefill_slack_s,
        prefill_context_s=law.prefill_context_s,
        source=law.source,
    )


def _preset(law: scenario.PresetLaw) -> Law:
    published = PRESETS[_known(law.name, PRESETS, "hardware.law.name")]
    ms = 1e-3 * law.scale
    knots = published.knots or ((0.0, 0.0), (1.0, published.b_ms))
    return Law(
        a_s=published.a_ms * ms,
        n_knots=tuple(float(n) for n, _ in knots),
        b_knots_s=tuple(b * ms for _, b in knots),
        c_s=published.c_ms * ms,
        prefill_s=published.prefill_ms * ms,
        prefill_slack_s=published.slack_ms * ms,
        prefill_context_s=published.context_ms * ms,
        source=f"{law.name}: {published.source}" + (f" × {law.scale:g}" if law.scale != 1 else ""),
    )


def first_principles(law: scenario.FirstPrinciplesLaw) -> Law:
    """Return a law from bytes over bandwidth and flops over peak, nothing measured.

    a = weight bytes/(TP·bandwidth·efficiency) + launch, c = KV bytes a token/(TP·bandwidth·eff),
    b = per_sequence_s, prefill = 2·parameters flops a token, hidden while weights are read
    (simulators.md §4; the roofline that LLM-Optimizer and BLIS start from).
    """
    gpu = GPUS[_known(law.gpu, GPUS, "hardware.law.gpu")]
    bandwidth = law.tensor_parallel * gpu.bandwidth * law.bandwidth_efficiency
    weights_s = law.parameters * law.bytes_per_weight / bandwidth
    flops = law.tensor_parallel * gpu.bf16_flops * law.flops_efficiency
    return Law(
        a_s=weights_s + law.launch_s,
        n_knots=(0.0, 1.0),
        b_knots_s=(0.0, law.per_sequence_s),
        c_s=kv_bytes_per_token(law) / bandwidth,
        prefill_s=2.0 * law.parameters / flops,
        prefill_slack_s=weights_s,
        source=f"first principles: {law.parameters / 1e9:.3g} B on {law.gpu}, TP "
        f"{law.tensor_parallel}",
    )


def kv_bytes_per_token(law: scenario.FirstPrinciplesLaw) -> float:
    """Return bytes of keys and values that one token keeps: 2·layers·KV heads·head dim·bytes."""
    return 2.0 * law.layers * law.kv_heads * law.head_dim * law.bytes_per_kv


def kv_capacity_tokens(law: scenario.FirstPrinciplesLaw, *, memory_share: float = 0.9) -> int:
    """Return tokens that fit beside the weights in ``memory_share`` of the replica's memory."""
    gpu = GPUS[_known(law.gpu, GPUS, "hardware.law.gpu")]
    free = law.tensor_parallel * gpu.memory * memory_share - law.parameters * law.bytes_per_weight
    if free <= 0:
        raise ConfigError(
            f"{law.parameters / 1e9:.3g} B parameters do not fit on {law.tensor_parallel} × "
            f"{law.gpu}: raise hardware.law.tensor_parallel"
        )
    return int(free / kv_bytes_per_token(law))


def _known(name: str, table: dict[str, Preset] | dict[str, Gpu], key: str) -> str:
    if name in table:
        return name
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.0)[0]
    raise ConfigError(f"{key} {name!r} is not known; nearest: {near!r}; all: {', '.join(table)}")

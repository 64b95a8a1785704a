"""Decode laws as plain numbers: presets from published measurements, first principles, own figures.

A law's figures hold where they were measured: decode batches up to 512 and contexts up to 32k for
the operator tables, up to 256 responses for the end-to-end ones. c comes from memory bandwidth and
carries over to other lengths; a and b are best refitted on a measured run (``dapolab calibrate``).
"""

import difflib
from dataclasses import dataclass

from dapolab import scenario
from dapolab.scenario import ConfigError


@dataclass(frozen=True)
class Law:
    """Seconds of an iteration: a + b(n) + c·K + max(0, s·x − slack) + q·Σ x_j·context_j.

    n decoding responses with K context tokens in all, x prefilled tokens of which x_j belong to
    response j, whose context at the end of its chunk is context_j. b is piecewise linear through
    the knots and goes on with its first and last slopes outside them. s is ``prefill_s``, q is
    ``prefill_context_s``; all are seconds.
    """

    a_s: float
    n_knots: tuple[float, ...]
    b_knots_s: tuple[float, ...]
    c_s: float
    prefill_s: float = 0.0
    prefill_slack_s: float = 0.0
    prefill_context_s: float = 0.0
    source: str = ""

    def scaled(self, factor: float) -> "Law":
        """Return the law with every term multiplied by ``factor``."""
        return Law(
            a_s=self.a_s * factor,
            n_knots=self.n_knots,
            b_knots_s=tuple(b * factor for b in self.b_knots_s),
            c_s=self.c_s * factor,
            prefill_s=self.prefill_s * factor,
            prefill_slack_s=self.prefill_slack_s * factor,
            prefill_context_s=self.prefill_context_s * factor,
            source=self.source,
        )


@dataclass(frozen=True)
class Preset:
    """A published law, with its mean absolute error relative to the measurements behind it."""

    name: str
    law: Law
    decode_error_share: float
    prefill_error_share: float | None  # None: prefill was not measured, it comes from flops


@dataclass(frozen=True)
class Gpu:
    """Vendor figures of one GPU: memory bandwidth, dense bf16 peak, memory."""

    bytes_per_s: float
    flops_per_s: float
    memory_bytes: float


# Vendor data sheets (SXM where there is a choice; dense, not sparse, peaks).
GPUS = {
    "a100": Gpu(2.039e12, 312e12, 80e9),
    "h100": Gpu(3.35e12, 989e12, 80e9),
    "h200": Gpu(4.8e12, 989e12, 141e9),
    "b200": Gpu(8.0e12, 2250e12, 180e9),
    "h20": Gpu(4.0e12, 148e12, 96e9),
    "rtx-4090": Gpu(1.008e12, 165e12, 24e9),
    "rtx-pro-6000": Gpu(1.792e12, 500e12, 96e9),
}

_GRID = "AIConfigurator operator tables, vLLM 0.24 bf16 (0.14 on A100), 88 points n ≤ 512, ≤ 32k"
_LAYERS = "LLMServingSim's measured vLLM 0.19 layers, n ≤ 256; prefill from flops at half of peak"
_SPLITWISE = "Splitwise perf_model.csv (2023 engine), n ≤ 64, medians; prefill of > 512 tokens"

# Milliseconds: a, b, c, prefill s, slack, q (None: no quadratic term identified), errors in %.
# Operator tables: a, b, c refit by relative least squares; prefill of ≥ 512 tokens fitted as
# a' + s·T + q·B·T², slack = a − a' (that much of it hides behind reading the weights).
_ROWS: tuple[
    tuple[str, float, float, float, float, float, float, float, float | None, str], ...
] = (
    ("qwen3-8b-h100-tp1", 6.59, 0.0119, 4.68e-5, 0.02012, 4.43, 4.88e-7, 2.6, 2.0, _GRID),
    ("qwen3-8b-h200-tp1", 5.06, 0.0144, 3.31e-5, 0.01979, 3.25, 6.10e-7, 2.4, 2.9, _GRID),
    ("qwen3-8b-a100-tp1", 11.60, 0.0401, 9.25e-5, 0.05497, 3.59, 1.703e-6, 3.7, 0.6, _GRID),
    ("qwen3-8b-b200-tp1", 3.48, 0.0060, 2.04e-5, 0.00980, 0.62, 2.97e-7, 2.0, 1.8, _GRID),
    ("qwen3-32b-h100-tp2", 13.54, 0.0274, 4.22e-5, 0.05036, 9.98, 8.59e-7, 2.0, 1.3, _GRID),
    ("qwen3-32b-h100-tp4", 8.26, 0.0219, 2.13e-5, 0.02915, 2.03, 5.06e-7, 2.3, 1.7, _GRID),
    ("qwen3-32b-h200-tp2", 10.63, 0.0301, 2.93e-5, 0.04933, 7.64, 1.053e-6, 2.8, 2.3, _GRID),
    ("llama-3.1-8b-h100-tp1", 6.39, 0.0118, 4.16e-5, 0.02022, 5.09, 4.59e-7, 2.4, 1.8, _GRID),
    ("llama-3.1-70b-h100-tp8", 9.85, 0.0301, 1.34e-5, 0.03858, 3.43, 2.36e-7, 3.4, 1.2, _GRID),
    ("llama-3.1-8b-rtx-pro-6000-tp1", 11.08, 0.0192, 8.72e-5, 0.0642, 0, 0, 1.2, None, _LAYERS),
    ("qwen3-32b-rtx-pro-6000-tp2", 24.3, 0.0405, 8.89e-5, 0.131, 0, 0, 1.1, None, _LAYERS),
    ("llama-3.1-8b-rtx-4090-tp1", 16.9, 0.0418, 1.39e-4, 0.195, 0, 0, 1.2, None, _LAYERS),
    ("llama2-70b-h100-tp8", 29.9, 0.199, 1.79e-4, 0.0742, 17.6, 2.57e-6, 1.9, 12.4, _SPLITWISE),
    ("llama2-70b-h100-tp4", 28.8, 0.264, 1.01e-4, 0.0999, 21.5, 1.78e-6, 1.8, 3.9, _SPLITWISE),
    ("llama2-70b-a100-tp8", 44.1, 0.190, 3.35e-4, 0.173, 43.2, 0, 1.8, 11.8, _SPLITWISE),
    ("llama2-70b-a100-tp4", 43.3, 0.183, 3.72e-4, 0.254, 43.3, 0, 2.4, 10.3, _SPLITWISE),
    ("bloom-176b-h100-tp8", 35.6, 0.304, 1.56e-4, 0.134, 32.0, 5.57e-6, 1.8, 7.9, _SPLITWISE),
    ("bloom-176b-a100-tp8", 48.0, 0.437, 4.09e-4, 0.296, 34.4, 1.09e-5, 1.6, 10.1, _SPLITWISE),
)

# Mixture of experts: how many experts a batch wakes grows concavely with it. Knots chosen and b
# fitted here (relative least squares, slopes constrained to fall). An affine b errs by 20.5 %.
# The prefill's own intercept (14.2 ms: all experts are read) is above a, which the law cannot say:
# prompts of less than a thousand tokens are undercharged by up to 10 ms an iteration.
_MIXTURE = Preset(
    "qwen3-30b-a3b-h100-tp2",
    Law(
        a_s=3.652e-3,
        n_knots=(1.0, 2.0, 8.0, 32.0, 64.0, 512.0),
        b_knots_s=(0.0, 1.0788e-3, 3.4362e-3, 8.0157e-3, 9.5852e-3, 14.6542e-3),
        c_s=1.600e-8,
        prefill_s=8.31e-6,
        prefill_context_s=2.83e-10,
        source=f"{_GRID}; b(n) fitted piecewise",
    ),
    decode_error_share=0.013,
    prefill_error_share=None,
)


def presets() -> dict[str, Preset]:
    """Return the published laws by name, with their errors and sources."""
    found = {}
    for name, a, b, c, s, slack, q, error, prefill_error, source in _ROWS:
        law = Law(
            a_s=a / 1000,
            n_knots=(0.0, 1.0),
            b_knots_s=(0.0, b / 1000),
            c_s=c / 1000,
            prefill_s=s / 1000,
            prefill_slack_s=slack / 1000,
            prefill_context_s=q / 1000,
            source=source,
        )
        share = None if prefill_error is None else prefill_error / 100
        found[name] = Preset(name, law, error / 100, share)
    found[_MIXTURE.name] = _MIXTURE
    return found


def resolve(hardware: scenario.Hardware) -> Law:
    """Return the numbers behind ``hardware.law``.

    Raises
    ------
    ConfigError
        An unknown preset or GPU; the message names the nearest one.
    """
    law = hardware.law
    if isinstance(law, scenario.PresetLaw):
        known = presets()
        if law.name not in known:
            raise ConfigError(_unknown("hardware.law.name", law.name, list(known)))
        return known[law.name].law.scaled(law.scale)
    if isinstance(law, scenario.FirstPrinciplesLaw):
        return first_principles(law)
    if isinstance(law, scenario.AffineLaw):
        n_knots, b_knots_s = (0.0, 1.0), (0.0, law.b_s)
    else:
        n_knots, b_knots_s = law.n_knots, law.b_knots_s
    return Law(
        a_s=law.a_s,
        n_knots=tuple(n_knots),
        b_knots_s=tuple(b_knots_s),
        c_s=law.c_s,
        prefill_s=law.prefill_s,
        prefill_slack_s=law.prefill_slack_s,
        prefill_context_s=law.prefill_context_s,
        source=law.source or "given in the scenario",
    )


def first_principles(law: scenario.FirstPrinciplesLaw) -> Law:
    """Return the roofline law of a dense model.

    a = weight bytes / (TP·bandwidth·efficiency) + launch, c = KV bytes of a token / (the same),
    s = 2·parameters / (TP·peak·efficiency), of which the time to read the weights is hidden;
    b is ``per_sequence_s``. Attention's flops (q) are left out: the number of query heads is not
    asked for. Against the operator tables decode errs by 6–15 % up to TP 2 and by 17–28 % at TP 4
    and 8, whose all-reduces it does not know (tests/validation/test_hardware_laws.py).
    """
    gpu = _gpu(law.gpu)
    if law.bandwidth_efficiency == 0 or law.flops_efficiency == 0:
        raise ConfigError("hardware.law: efficiencies of 0 would take forever; use a value ≤ 1")
    bytes_per_s = law.tensor_parallel * gpu.bytes_per_s * law.bandwidth_efficiency
    weights_s = law.parameters * law.bytes_per_weight / bytes_per_s
    flops_per_s = law.tensor_parallel * gpu.flops_per_s * law.flops_efficiency
    return Law(
        a_s=weights_s + law.launch_s,
        n_knots=(0.0, 1.0),
        b_knots_s=(0.0, law.per_sequence_s),
        c_s=_kv_bytes(law) / bytes_per_s,
        prefill_s=2 * law.parameters / flops_per_s,
        prefill_slack_s=weights_s,
        source=f"first principles: {law.gpu} × {law.tensor_parallel}, vendor bandwidth and peak",
    )


def kv_capacity_tokens(law: scenario.FirstPrinciplesLaw, *, memory_share: float = 0.9) -> int:
    """Return the tokens that fit beside the weights in ``memory_share`` of the GPUs' memory.

    Raises
    ------
    ConfigError
        The weights alone do not fit.
    """
    memory = memory_share * law.tensor_parallel * _gpu(law.gpu).memory_bytes
    free = memory - law.parameters * law.bytes_per_weight
    if free < _kv_bytes(law):
        raise ConfigError(
            f"hardware.law: the weights do not fit on {law.tensor_parallel} × {law.gpu}; "
            "raise tensor_parallel"
        )
    return int(free // _kv_bytes(law))


def _kv_bytes(law: scenario.FirstPrinciplesLaw) -> float:
    return 2 * law.layers * law.kv_heads * law.head_dim * law.bytes_per_kv


def _gpu(name: str) -> Gpu:
    if name not in GPUS:
        raise ConfigError(_unknown("hardware.law.gpu", name, list(GPUS)))
    return GPUS[name]


def _unknown(key: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return f"{key} {name!r} is unknown; nearest: {nearest!r} (known: {', '.join(sorted(known))})"

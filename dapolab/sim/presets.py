"""Published decode laws by name: coefficients, what they were fitted to, how well they fit.

Sources
-------
AIC : NVIDIA AIConfigurator's measured operator tables (vLLM 0.24, A100: 0.14; bf16), composed on an
    88-point grid of batch 1–512 × context 256–32k; prefill on 32 points. Weighted least squares on
    relative error here; figures in brackets are the mean absolute percentage error in sample.
LSS : layers that LLMServingSim 2.0 measured in vLLM 0.19 (decode only, batch ≤ 256).
SPL : splitwise-sim's perf_model.csv (Llama-2-70B, a 2023 engine).

The slack is the difference between a decode iteration's fixed part and a prefill iteration's: that
much prefill hides behind reading the weights.
"""

from typing import NamedTuple


class Preset(NamedTuple):
    """Milliseconds, as published; ``knots`` is b(n) for mixture of experts."""

    a_ms: float
    b_ms: float
    c_ms: float
    prefill_ms: float
    slack_ms: float
    context_ms: float
    source: str
    knots: tuple[tuple[float, float], ...] = ()


PRESETS: dict[str, Preset] = {
    "qwen3-8b-h100-tp1": Preset(6.588, 0.01194, 4.683e-5, 0.01868, 2.00, 7.06e-7, "AIC [2.6 %]"),
    "qwen3-8b-h200-tp1": Preset(5.059, 0.01435, 3.314e-5, 0.01869, 1.47, 7.78e-7, "AIC [2.4 %]"),
    "qwen3-8b-a100-tp1": Preset(11.603, 0.04012, 9.252e-5, 0.05456, 2.77, 1.76e-6, "AIC [3.7 %]"),
    "qwen3-8b-b200-tp1": Preset(3.484, 0.00596, 2.037e-5, 0.00941, 0.0, 3.54e-7, "AIC [2.0 %]"),
    "qwen3-32b-h100-tp2": Preset(13.542, 0.02742, 4.216e-5, 0.04709, 4.69, 1.35e-6, "AIC [2.0 %]"),
    "qwen3-32b-h100-tp4": Preset(8.257, 0.02186, 2.131e-5, 0.02821, 0.30, 6.43e-7, "AIC [2.3 %]"),
    "qwen3-32b-h200-tp2": Preset(10.635, 0.03008, 2.934e-5, 0.04681, 3.67, 1.44e-6, "AIC [2.8 %]"),
    "llama-3.1-8b-h100-tp1": Preset(
        6.389, 0.01179, 4.159e-5, 0.01882, 2.86, 6.73e-7, "AIC [2.4 %]"
    ),
    "llama-3.1-70b-h100-tp8": Preset(
        9.848, 0.03013, 1.341e-5, 0.03783, 2.17, 3.48e-7, "AIC [3.4 %]"
    ),
    # Experts are switched on one after the other, so b(n) is concave. Non-negative least squares
    # on min(n, knot); fitted on half a checkerboard it misses the other half by 1.8 %, a straight
    # b(n) by 21 %.
    "qwen3-30b-a3b-h100-tp2": Preset(
        3.012,
        0.0,
        1.600e-5,
        0.0082,
        0.0,
        2.96e-7,
        "AIC [1.9 %]",
        ((0, 0.0), (4, 2.885), (16, 5.580), (32, 8.771), (64, 10.051), (96, 10.699), (512, 15.198)),
    ),
    # these three publish no prefill term: prompts are charged as on the H100 law of the same size
    "llama-3.1-8b-rtx-pro-6000": Preset(11.08, 0.0192, 8.72e-5, 0.0188, 0.0, 0.0, "LSS [1.2 %]"),
    "qwen3-32b-rtx-pro-6000-tp2": Preset(24.3, 0.0405, 8.89e-5, 0.0471, 0.0, 0.0, "LSS [1.1 %]"),
    "llama-3.1-8b-rtx-4090": Preset(16.9, 0.0418, 1.39e-4, 0.0188, 0.0, 0.0, "LSS [1.2 %]"),
    "llama-2-70b-h100-tp8": Preset(29.9, 0.199, 1.8e-4, 0.0378, 0.0, 0.0, "SPL [1.9 %]"),
}
"""Law by name. b(512) of the mixture extrapolates with its last slope beyond 512 responses."""

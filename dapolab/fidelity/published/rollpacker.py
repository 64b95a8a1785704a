"""RollPacker (NSDI'26, arXiv 2509.21009) Fig. 11: rollout seconds a step under over-sampling.

Published: Qwen2.5 7B, 14B and 32B with caps 8k, 16k and 32k, 128 prompts × 8 on 32 H800; the
longest answer is 25–32 times the median, P75 is 755 to 1,100 tokens at the 16k cap. Two kinds of
lengths have that: a lognormal (the ratio gives sigma, P75 the median), or a narrower one with
answers that never stop (the longest is the cap, so the median is the cap over the ratio; P75 gives
sigma; their share is not published, and they cluster in prompts as in Qwen3-1.7B's GPQA record).
The one free parameter of a model, a scalar on its decode law, is fitted to its row without
over-sampling.

What the figure calls the average of a step is, in its script (plot/plt_sensitive_squeezer.py of the
artifact; run_8k.sh has 10 iterations a setting), no mean: with k = 1/(η − 1) short rounds to a
long one it is (k · longest short round + longest long round)/(k + 1), and without long rounds the
longest of all iterations. That is what is computed here, over runs of 10 iterations.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dapolab.fidelity.published.row import System, Variant
from dapolab.scenario import (
    Collector,
    Hardware,
    IndependentWorkload,
    JointWorkload,
    LognormalLengths,
    NoFilter,
    PresetLaw,
    Rollout,
    Run,
    Scenario,
    TailBatching,
    Workload,
)
from dapolab.sim.run import simulate

SOURCE = "RollPacker, NSDI'26 (arXiv 2509.21009), Fig. 11 and §2"
PROMPTS, RESPONSES, CAP_OF_P75 = 128, 8, 16_384
PROMPT_SHARE, LOOP_SD_LOGIT = 0.75, 2.06
ETAS = (1.125, 1.25, 1.5)
_ITERATIONS, _RUNS = 10, 4
# (law shape, GPUs a replica, cap, seconds: none, responses only, prompts only, both at 1.25)
MODELS: dict[str, tuple[str, int, int, float, tuple[float, ...], tuple[float, ...], float]] = {
    "7B, 8k": ("qwen3-8b-h100-tp1", 1, 8192, 82, (77, 71, 54), (77, 72, 60), 47),
    "14B, 16k": ("qwen3-32b-h100-tp2", 2, 16_384, 277, (260, 232, 115), (244, 169, 143), 88),
    "32B, 32k": ("qwen3-32b-h100-tp4", 4, 32_768, 673, (658, 655, 265), (636, 259, 279), 170),
}


@cache
def _lognormal(longest_over_median: float, p75: float) -> IndependentWorkload:
    """Return the lognormal whose longest of a wave and third quartile are as published."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    weights = weights / weights.sum()
    x = np.exp(np.linspace(-3.0, 12.0, 4001))  # longest over median

    def longest(sigma: float) -> float:
        between, within = sigma * np.sqrt(PROMPT_SHARE), sigma * np.sqrt(1 - PROMPT_SHARE)
        z = (np.log(x)[:, None] - between * nodes) / within
        one_prompt = np.exp(RESPONSES * special.log_ndtr(z)) @ weights
        survival = 1 - np.clip(one_prompt, 0, 1) ** PROMPTS
        return float(x[0] + np.trapezoid(survival, x))

    sigma = float(optimize.brentq(lambda s: longest(s) - longest_over_median, 0.3, 2.5))
    median = p75 / float(np.exp(special.ndtri(0.75) * sigma))
    lengths = LognormalLengths(median_tokens=median, sigma=sigma, prompt_share=PROMPT_SHARE)
    return IndependentWorkload(lengths=lengths)


def _with_loops(longest_over_median: float, p75: float, loop_share: float) -> JointWorkload:
    """Return a body with the published median and P75, and answers that run into the cap."""
    median = CAP_OF_P75 / longest_over_median
    return JointWorkload(
        median_tokens=median,
        sigma=float(np.log(p75 / median) / special.ndtri(0.75)),
        prompt_share=PROMPT_SHARE,
        loop_share=loop_share,
        loop_sd_logit=LOOP_SD_LOGIT,
    )


def scenario_of(model: str, workload: Workload, scale: float, policy: Collector) -> Scenario:
    """Return the rollout of one model; ``scale`` multiplies its decode law."""
    preset, gpus, cap, *_ = MODELS[model]
    return Scenario(
        workload=workload,
        rollout=Rollout(groups_per_step=PROMPTS, group_size=RESPONSES, cap_tokens=cap),
        collector=policy,
        hardware=Hardware(
            law=PresetLaw(name=preset, scale=scale), replicas=32 // gpus, gpus_per_replica=gpus
        ),
        run=Run(steps=_ITERATIONS),
    )


def plotted_average(seconds: NDArray[np.float64], eta: float) -> float:
    """Return the figure's average of one run's iterations; every (k + 1)-th round is long."""
    if eta == 1.0:
        return float(seconds.max())
    short = int(1 / (eta - 1))
    used = seconds[: len(seconds) // (short + 1) * (short + 1)].reshape(-1, short + 1)
    return float((used[:, :short].max() * short + used[:, short].max()) / (short + 1))


def _seconds(scenario: Scenario) -> float:
    policy = scenario.collector
    eta = policy.eta if isinstance(policy, TailBatching) else 1.0
    runs = [
        simulate(scenario, seed=0, replication=r, keep_groups=False).steps for r in range(_RUNS)
    ]
    found = [plotted_average(r["time/rollout_seconds"].to_numpy(float), eta) for r in runs]
    return float(np.mean(found))


def workload_of(variant: Variant) -> Workload:
    """Return the lengths of a variant."""
    v = variant.values
    if v["loop_share"]:
        return _with_loops(v["longest_over_median"], v["p75"], v["loop_share"])
    return _lognormal(v["longest_over_median"], v["p75"])


def _fit(variant: Variant) -> dict[str, float]:
    """Return one scalar a model: without over-sampling the engine's time is linear in it."""
    workload = workload_of(variant)
    return {
        model: row[3] / _seconds(scenario_of(model, workload, 1.0, NoFilter()))
        for model, row in MODELS.items()
    }


def _policies() -> dict[str, Collector]:
    found: dict[str, Collector] = {"no over-sampling": NoFilter()}
    found |= {f"responses × {e:g}": TailBatching(eta=1.0, response_eta=e) for e in ETAS}
    found |= {f"prompts × {e:g}": TailBatching(eta=e, response_eta=1.0) for e in ETAS}
    found["both × 1.25"] = TailBatching(eta=1.25, response_eta=1.25)
    return found


def _predict(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    workload = workload_of(variant)
    return {
        f"{model}: {name}": _seconds(scenario_of(model, workload, parameters[model], policy))
        for model in MODELS
        for name, policy in _policies().items()
    }


def _published() -> dict[str, tuple[float, str]]:
    found = {}
    for model, (_, _, _, none, responses, prompts, both) in MODELS.items():
        values = (none, *responses, *prompts, both)
        for name, value in zip(_policies(), values, strict=True):
            found[f"{model}: {name}"] = (float(value), "s")
    return found


_RESPONSES = (
    "over-sampled responses gain nothing here: among ten times 128 prompts one has more long "
    "answers than the spare ones, and the longest iteration counts; answers of a prompt are more "
    "alike in this law than in the run"
)
_PROMPTS = (
    "over-sampled prompts cut more here: in the run more prompts seem to hold a long answer than "
    "P75 and the ratio tell, and the longest short round counts"
)
_NOTES = {f"{model}: responses × {eta:g}": _RESPONSES for model in MODELS for eta in ETAS}
_NOTES |= {f"{model}: prompts × {eta:g}": _PROMPTS for model in MODELS for eta in ETAS}
_NOTES |= {f"{model}: both × 1.25": _PROMPTS for model in MODELS}


def variants() -> list[Variant]:
    """Return the eight choices of what is published as a range or not at all."""
    found = [
        Variant(
            f"lognormal, longest {ratio:g} × median, P75 {p75:g}",
            {"longest_over_median": ratio, "p75": p75, "loop_share": 0.0},
        )
        for ratio in (25.0, 32.0)
        for p75 in (755.0, 1100.0)
    ]
    found += [
        Variant(
            f"{share:.1%} never stop, median cap/28.5, P75 {p75:g}",
            {"longest_over_median": 28.5, "p75": p75, "loop_share": share},
        )
        for share in (0.005, 0.02)
        for p75 in (755.0, 1100.0)
    ]
    return found


def system() -> System:
    """Return the comparison of Fig. 11."""
    return System(
        name="RollPacker Fig. 11",
        source=SOURCE,
        published=_published(),
        baseline=[f"{model}: no over-sampling" for model in MODELS],
        variants=variants(),
        fit=_fit,
        predict=_predict,
        notes=_NOTES,
    )

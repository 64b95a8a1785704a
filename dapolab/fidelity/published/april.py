"""APRIL: +17, +21 and +35 % rollout throughput on DAPO-Math, DeepScaleR and DeepMath.

Published (arXiv 2509.18521; RLsys-Foundation/APRIL README): Qwen3-4B, 8 H100 or 8 MI300. Its
scripts (scripts/partial_rollout/qwen/grpo/run-qwen3-4B-*-partial.sh) are the same for the three
data sets: 32 prompts × 8, cap 16,384, two GPUs an engine, 64 prompts launched where 32 are wanted;
what is aborted is resumed first, and nothing is filtered. Not published: the lengths, in which
alone the three differ, and the engine's law. Qwen3 thinks by default: a Qwen3-8B run on DAPO-Math
prompts at the same cap has median 7,124 and 18.8 % truncated (a lognormal of sigma 0.94); half of
that median is the other end. Nothing is fitted: there is no baseline but the ratio itself.

slime's policy always filters here; at a pass rate of one half a group of 8 has no spread once in
128, so the gain is understated by as much.
"""

from collections.abc import Mapping

from dapolab.fidelity.published.row import System, Variant
from dapolab.scenario import (
    Chunked,
    Collector,
    FirstPrinciplesLaw,
    FixedPassRate,
    Hardware,
    IndependentWorkload,
    Law,
    LognormalLengths,
    NoFilter,
    PresetLaw,
    Rollout,
    Run,
    Scenario,
)
from dapolab.sim.run import simulate

GROUPS, SIZE, CAP_TOKENS, LAUNCHED, GPUS, GPUS_AN_ENGINE = 32, 8, 16_384, 64, 8, 2
MEDIAN_TOKENS, SIGMA = 7124.0, 0.94
_STEPS, _WARM_UP = 40, 5
_LAWS: dict[str, Law] = {
    "law of an 8B on one H100": PresetLaw(name="qwen3-8b-h100-tp1"),
    "first principles": FirstPrinciplesLaw(
        gpu="h100", tensor_parallel=2, parameters=4.02e9, layers=36, kv_heads=8, head_dim=128
    ),
}
_DATA_SETS = {"DAPO-Math-17k": 0.17, "DeepScaleR": 0.21, "DeepMath-103K": 0.35}
_NOTES = dict.fromkeys(
    ("DAPO-Math-17k", "DeepScaleR"),
    "what is gained is the part of a wave that only its longest answers fill. Where more answers "
    "meet the cap less of it is left; and rollout throughput as logged may have seconds in it, of "
    "weights and scores, that no policy shortens",
)


def _throughput(variant: Variant, policy: Collector) -> float:
    """Return trained tokens a second of rollout."""
    v = variant.values
    lengths = LognormalLengths(median_tokens=v["median"], sigma=SIGMA, prompt_share=v["share"])
    scenario = Scenario(
        workload=IndependentWorkload(lengths=lengths, pass_rate=FixedPassRate(p=0.5)),
        rollout=Rollout(groups_per_step=GROUPS, group_size=SIZE, cap_tokens=CAP_TOKENS),
        collector=policy,
        hardware=Hardware(
            law=_LAWS[variant.law],
            replicas=GPUS // GPUS_AN_ENGINE,
            gpus_per_replica=GPUS_AN_ENGINE,
            dispatch="least_loaded",
        ),
        run=Run(steps=_STEPS),
    )
    steps = simulate(scenario, seed=0, keep_groups=False).steps.iloc[_WARM_UP:]
    tokens = steps["rollout/train_completion_tokens"].sum()
    return float(tokens / steps["time/rollout_seconds"].sum())


def _predict(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    policy = Chunked(over_sampling_batch_size=LAUNCHED, leftovers="resume")
    gain = _throughput(variant, policy) / _throughput(variant, NoFilter()) - 1
    return dict.fromkeys(_DATA_SETS, gain)


def system() -> System:
    """Return APRIL's headlines: lengths × how alike a prompt's answers are × two laws."""
    return System(
        name="APRIL",
        source="RLsys-Foundation/APRIL (README, scripts), arXiv 2509.18521",
        published={name: (gain, "share") for name, gain in _DATA_SETS.items()},
        baseline=[],
        variants=[
            Variant(
                f"median {median:g}, between prompts {share:g}; {law}",
                {"median": median, "share": share},
                law=law,
            )
            for median in (MEDIAN_TOKENS / 2, MEDIAN_TOKENS)
            for share in (0.7, 0.8)
            for law in _LAWS
        ],
        fit=lambda variant: {},
        predict=_predict,
        notes=_NOTES,
    )

"""Headlines whose published inputs do not determine them: printed as the range of what is possible.

APRIL (arXiv 2509.18521, README): +17, +21 and +35 % rollout throughput in three settings whose
lengths and over-sampling are not in the headline. verl's one-step-off (docs/advance/
one_step_off.md): +23 % (FSDP2) and +40 % (Megatron), with neither the split nor the parts of a step
in it.
"""

from collections.abc import Mapping

from dapolab.fidelity.published.row import System, Variant
from dapolab.scenario import (
    Collector,
    Hardware,
    IndependentWorkload,
    LognormalLengths,
    NoFilter,
    Rollout,
    Run,
    Scenario,
    Streaming,
)
from dapolab.sim.run import simulate
from dapolab.theory.pipeline import best_split

_GROUPS, _SIZE, _CAP, _STEPS = 32, 8, 16_384, 40


def _throughput(variant: Variant, policy: Collector) -> float:
    """Return trained tokens a second of rollout."""
    v = variant.values
    lengths = LognormalLengths(median_tokens=1500, sigma=v["sigma"], prompt_share=v["share"])
    scenario = Scenario(
        workload=IndependentWorkload(lengths=lengths),
        rollout=Rollout(groups_per_step=_GROUPS, group_size=_SIZE, cap_tokens=_CAP),
        collector=policy,
        hardware=Hardware(slots=_GROUPS * _SIZE * 2),
        run=Run(steps=_STEPS),
    )
    steps = simulate(scenario, seed=0, keep_groups=False).steps.iloc[5:]
    tokens = steps["rollout/train_completion_tokens"].sum()
    return float(tokens / steps["time/rollout_seconds"].sum())


def _april(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    more = round(variant.values["over_sampling"] * _GROUPS)
    # launch N' groups, stop at N, resume the rest first: no filter
    policy = Streaming(slots=more, filter=False, leftovers="resume")
    gain = _throughput(variant, policy) / _throughput(variant, NoFilter()) - 1
    return dict.fromkeys(("setting 1", "setting 2", "setting 3"), gain)


def april() -> System:
    """Return APRIL's headlines: tails from mild to heavy, over-sampling from 1.25 to 2."""
    return System(
        name="APRIL",
        source="github RLsys-Foundation/APRIL (README), arXiv 2509.18521",
        published={
            "setting 1": (0.17, "share"),
            "setting 2": (0.21, "share"),
            "setting 3": (0.35, "share"),
        },
        baseline=[],
        variants=[
            Variant(
                f"sigma {sigma:g}, between prompts {share:g}, launched × {more:g}",
                {"sigma": sigma, "share": share, "over_sampling": more},
            )
            for sigma in (0.6, 1.0)
            for share in (0.7, 0.8)
            for more in (1.25, 2.0)
        ],
        fit=lambda variant: {},
        predict=_april,
        notes=dict.fromkeys(
            ("setting 1", "setting 2", "setting 3"),
            "what is gained is the part of a wave that only its longest answers fill, about a "
            "third with the 256 responses an engine assumed here; more responses an engine leave "
            "less of it, and their number is not published",
        ),
    )


def _one_step_off(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    """Gain of running side by side on the best split of the same GPUs (theory F6)."""
    rollout, latency = variant.values["rollout_share"], variant.values["latency_share"]
    scaling = rollout * (1 - latency)
    split = best_split(scaling, train_s=1 - rollout, latency_s=rollout * latency)
    return dict.fromkeys(("FSDP2", "Megatron"), 1.0 / split.cycle_s - 1)


def one_step_off() -> System:
    """Return one-step-off's headlines: what of a step is rollout, and what of that is latency."""
    return System(
        name="verl one step off",
        source="verl docs/advance/one_step_off.md",
        published={"FSDP2": (0.23, "share"), "Megatron": (0.40, "share")},
        baseline=[],
        variants=[
            Variant(
                f"rollout {share:.0%} of a step, {latency:.0%} of it latency",
                {"rollout_share": share, "latency_share": latency},
            )
            for share in (0.4, 0.55, 0.7)
            for latency in (0.0, 0.4, 0.8)
        ],
        fit=lambda variant: {},
        predict=_one_step_off,
        notes={
            "Megatron": "more than the best split of these shares gains: what else of the "
            "synchronous step overlaps or is saved is not published"
        },
    )

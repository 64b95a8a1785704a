"""Recipes of OpenRLHF: its losses are judged, its advantages were read."""

from dapolab.recipes.recipe import Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage, MeanOnlyAdvantage
from dapolab.scenario.aggregation import SeqMeanTokenMean, TokenMean
from dapolab.scenario.clip import GspoClip, PpoClip
from dapolab.scenario.collector import NoFilter
from dapolab.scenario.objective import Kl, Objective, Rejection, SamplerCorrection

_EVIDENCE = Evidence("judged", "openrlhf==0.11.2", "2026-09-14")
_SOURCE = (
    "openrlhf/models/loss.py:11-39, 115-260",
    "openrlhf/trainer/ppo_utils/experience_maker.py:245-330",
    "openrlhf/cli/train_ppo_ray.py (defaults)",
)
_ADVANTAGE = GrpoAdvantage(ddof=1, eps=1e-9)
_CLIP = PpoClip(low=0.2, high=0.2, log_ratio_clamp=20.0)
_KL = Kl(place="reward", estimator="k1", coefficient=0.01)
_NOTES = (
    "estimator group_norm here; the default is gae",
    "the KL penalty is in the reward by default (init_coef 0.01, k1)",
    "--algo.dynamic_filtering_enable replaces each dropped group by one (collector replenish)",
)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        id="openrlhf",
        framework="OpenRLHF",
        version="0.11.2",
        summary="token mean of the optimizer window, KL in the reward",
        objective=Objective(advantage=_ADVANTAGE, clip=_CLIP, aggregation=TokenMean(), kl=_KL),
        collector=NoFilter(),
        evidence=_EVIDENCE,
        source=_SOURCE,
        notes=_NOTES,
    ),
    Recipe(
        id="openrlhf-gspo",
        framework="OpenRLHF",
        version="0.11.2",
        summary="GSPO: mean of sequence means, fully masked rows left out",
        objective=Objective(
            advantage=_ADVANTAGE,
            clip=GspoClip(low=0.2, high=0.2, level="sequence"),
            aggregation=SeqMeanTokenMean(empty_rows="out"),
            kl=_KL,
        ),
        collector=NoFilter(),
        evidence=_EVIDENCE,
        source=_SOURCE,
        notes=(*_NOTES, "ε stays 0.2 unless set: far from GSPO's 3e-4"),
    ),
    Recipe(
        id="openrlhf-binary-kl",
        framework="OpenRLHF",
        version="0.11.2",
        summary="sampler's weights, responses out by their mean binary KL (FlashREINFORCE)",
        objective=Objective(
            advantage=MeanOnlyAdvantage(),
            clip=_CLIP,
            aggregation=SeqMeanTokenMean(empty_rows="out"),
            sampler=SamplerCorrection(
                level="token",
                upper=None,
                rejection=(Rejection(estimator="binary_kl", level="geometric", upper=5e-3),),
            ),
        ),
        collector=NoFilter(),
        evidence=_EVIDENCE,
        source=(*_SOURCE, "examples/scripts/train_flash_reinforce_ray_agent_async.sh"),
        notes=(
            "is_correction_level seq, gating binary_kl, threshold 5e-3, no KL to the reference",
            "estimator dr_grpo here; the script draws one answer a prompt and takes the mean of "
            "the rollout batch from it (flash_reinforce)",
            "at level token, float32 rounds small KLs below 0 and the gate drops those tokens",
        ),
    ),
)

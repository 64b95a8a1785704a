"""Recipes of SkyRL, as its source was read; nothing of it was run."""

from dapolab.recipes.recipe import Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage
from dapolab.scenario.aggregation import PromptMean, TokenMean
from dapolab.scenario.clip import PpoClip
from dapolab.scenario.collector import NoFilter
from dapolab.scenario.objective import Kl, Objective

# It holds the policy loss "dppo", which pull 1037 added after this day.
_EVIDENCE = Evidence("read", "NovaSky-AI/SkyRL a956457", "after 2026-06-17")
_SOURCE = ("skyrl/backends/skyrl_train/utils/ppo_utils.py:1152-1220",)
_KL = Kl(place="loss", estimator="k3", coefficient=0.001)
_SYMMETRIC = PpoClip(low=0.2, high=0.2)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        id="skyrl",
        framework="SkyRL",
        version="a956457",
        summary="token mean of the mini-batch, KL loss on by default",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6),
            clip=_SYMMETRIC,
            aggregation=TokenMean(),
            kl=_KL,
        ),
        collector=NoFilter(),
        evidence=_EVIDENCE,
        source=_SOURCE,
        notes=('dual clip (c 3) only with policy_loss_type "dual_clip"',),
    ),
    Recipe(
        id="skyrl-prompt-mean",
        framework="SkyRL",
        version="a956457",
        summary="loss_reduction prompt_mean: DAPO Eq. 12 as printed",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6),
            clip=_SYMMETRIC,
            aggregation=PromptMean(),
            kl=_KL,
        ),
        collector=NoFilter(),
        evidence=_EVIDENCE,
        source=_SOURCE,
    ),
)

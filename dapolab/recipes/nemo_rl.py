"""Recipes of NeMo RL, as its source was read; nothing of it was run."""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage, LeaveOneOutAdvantage
from dapolab.scenario.aggregation import TokenMean
from dapolab.scenario.clip import PpoClip
from dapolab.scenario.collector import NoFilter, Rounds
from dapolab.scenario.objective import Kl, Length, Objective, OverlongPenalty

_EVIDENCE = Evidence("read", "NVIDIA-NeMo/RL 7ea279a", "by 2026-08-22")
_SOURCE = (
    "nemo_rl/algorithms/loss/loss_functions.py:111-788",
    "nemo_rl/algorithms/advantage_estimator.py:57-98",
)
_SYMMETRIC = PpoClip(low=0.2, high=0.2)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        id="nemo-rl",
        framework="NeMo RL",
        version="7ea279a",
        summary="leave-one-out baseline and std, token mean, KL loss",
        objective=Objective(
            advantage=LeaveOneOutAdvantage(ddof=1, eps=1e-6),
            clip=_SYMMETRIC,
            aggregation=TokenMean(),
            kl=Kl(place="loss", estimator="k3", coefficient=0.01),
        ),
        collector=NoFilter(),
        evidence=_EVIDENCE,
        source=_SOURCE,
        notes=(
            "the std is that of the others, per sample: with 1 right of 8 the right one has none",
        ),
    ),
    Recipe(
        id="nemo-rl-dapo",
        framework="NeMo RL",
        version="dapo-qwen2.5-7b.v2",
        summary="its DAPO example: group std, clip-higher, dual clip 10",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6),
            clip=PpoClip(low=0.2, high=0.28, dual_c=10.0),
            aggregation=TokenMean(),
            length=Length(
                penalty=OverlongPenalty(cap_tokens=14_336, buffer_tokens=2_048, beyond="unclamped")
            ),
        ),
        collector=Rounds(max_num_gen_batches=11),
        batch=Batch(prompts=512, group_size=16),
        when_no_signal="error",
        evidence=_EVIDENCE,
        source=(*_SOURCE, "examples/configs/recipes/llm/dapo-qwen2.5-7b.v2.yaml @03334c2"),
        notes=(
            "max_gen_batches 10 is checked afterwards: 11 rounds are generated",
            "the filter keeps samples, not groups; the engine may go on to 16,384 tokens, past "
            "the cap of the penalty",
        ),
    ),
)

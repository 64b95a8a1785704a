"""Recipes of TRL's GRPOTrainer: each ``loss_type`` at 1.16, and what differs up to 1.10.

Defaults: ε 0.2 both ways, no KL (``beta`` 0), std within the group with ε 1e-4 whatever the loss
type, one accumulation step. ``steps_per_generation`` follows ``gradient_accumulation_steps``.
"""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage
from dapolab.scenario.aggregation import (
    Aggregation,
    GenerationWindow,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
    TokenMeanMicro,
)
from dapolab.scenario.clip import CispoClip, Clip, LuspoClip, PpoClip, SapoClip, VespoClip
from dapolab.scenario.collector import NoFilter
from dapolab.scenario.objective import Objective

_JUDGE = Evidence("judged", "trl==1.16.0", "2026-10-15")
_READ = Evidence("read", "huggingface/trl f2cd577 (1.10.0.dev0)", "2026-07-24")
_FILE = "trl/trainer/grpo_trainer.py"
_PPO = PpoClip(low=0.2, high=0.2)
_CISPO = CispoClip(bounds="absolute", low=None, high=0.2)
_BATCH = Batch(
    group_size=8,
    note="updates per rollout = num_iterations · steps_per_generation / accumulation; 1 by "
    "default, and then nothing can clip",
)
_CISPO_NOTE = (
    "epsilon_high is an absolute cap and falls back to epsilon: unset, every ratio is cut to 0.2 "
    "and the gradient is a fifth; ScaleRL and TRL's help say 5.0"
)
_WINDOW_NOTE = "the window's share of the generation batch's tokens, not its own tokens"
_OLD_NOTE = (
    "an update is scaled by gradient_accumulation_steps / steps_per_generation (trl#5619, "
    "repaired by #5890 and #6024)"
)


def _trl(
    loss_type: str,
    summary: str,
    clip: Clip,
    aggregation: Aggregation,
    *,
    version: str = "1.16",
    notes: tuple[str, ...] = (),
) -> Recipe:
    current = version == "1.16"
    return Recipe(
        id=f"trl-{version}-{loss_type}",
        framework="TRL",
        version="1.16.0" if current else "≤ 1.10",
        summary=summary,
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-4),
            clip=clip,
            aggregation=aggregation,
        ),
        collector=NoFilter(),
        batch=_BATCH,
        evidence=_JUDGE if current else _READ,
        source=(f"{_FILE}:{'3109-3180 @1.16.0' if current else '3080-3150 @f2cd577'}",),
        notes=notes,
    )


_MEAN = SeqMeanTokenMean(micro="mean")
_NEW = GenerationWindow(variant="trl-1.16")
_OLD = GenerationWindow(variant="trl-1.10")

RECIPES: tuple[Recipe, ...] = (
    _trl(
        "grpo",
        "mean of sequence means; fully masked rows count",
        _PPO,
        _MEAN,
    ),
    _trl(
        "bnpo",
        "token mean of each local micro-batch, then averaged",
        _PPO,
        TokenMeanMicro(combine="mean"),
        notes=("with one response a micro-batch this is loss_type grpo",),
    ),
    _trl(
        "dr_grpo",
        "token sums over max_completion_length; the std stays unless switched off",
        _PPO,
        SeqMeanTokenSumNorm(constant=512, micro="mean"),
        notes=(
            'scale_rewards is "group" by default: Dr. GRPO needs "none"',
            "max_completion_length is 512 by default",
        ),
    ),
    _trl(
        "dapo",
        "default loss: token sum over the window's average share of the generation",
        _PPO,
        _NEW,
        notes=(_WINDOW_NOTE, "ε_high is 0.2 by default; DAPO's 0.28 must be set"),
    ),
    _trl(
        "cispo",
        "CISPO with an absolute cap of epsilon_high: 0.2 unless set",
        _CISPO,
        _NEW,
        notes=(_CISPO_NOTE, _WINDOW_NOTE),
    ),
    _trl(
        "sapo",
        "SAPO's soft gate, mean of sequence means",
        SapoClip(),
        _MEAN,
    ),
    _trl(
        "luspo",
        "mean over sequences of token sums",
        LuspoClip(low=0.2, high=0.2, level="token"),
        _MEAN,
        notes=(
            'importance_sampling_level is "token" by default; the LUSPO paper\'s loss needs '
            '"sequence" (TRL warns)',
        ),
    ),
    _trl(
        "vespo",
        "VESPO's gate of the sequence weight",
        VespoClip(log_ratio_clamp=20.0, log_weight_clamp=True),
        _NEW,
        notes=(
            _WINDOW_NOTE,
            "with vLLM's correction its weights enter w (sampler.applies = enters)",
        ),
    ),
    _trl("grpo", "mean of sequence means, as at 1.16", _PPO, _MEAN, version="1.10"),
    _trl(
        "bnpo",
        "token mean of each local micro-batch, as at 1.16",
        _PPO,
        TokenMeanMicro(combine="mean"),
        version="1.10",
    ),
    _trl(
        "dr_grpo",
        "token sums over max_completion_length, as at 1.16",
        _PPO,
        SeqMeanTokenSumNorm(constant=512, micro="mean"),
        version="1.10",
    ),
    _trl("sapo", "SAPO's soft gate, as at 1.16", SapoClip(), _MEAN, version="1.10"),
    _trl(
        "luspo",
        "the mean of loss times length: LUSPO at the sequence level alone",
        LuspoClip(low=0.2, high=0.2, level="sequence"),
        _MEAN,
        version="1.10",
        notes=(
            'shown for importance_sampling_level "sequence"; with the default "token" its mean '
            "runs over the padding of the batch too, which 1.16 repaired",
        ),
    ),
    _trl(
        "dapo",
        "dapo before the repair: mis-scaled by accumulation / steps per generation",
        _PPO,
        _OLD,
        version="1.10",
        notes=(_OLD_NOTE,),
    ),
    _trl(
        "cispo",
        "cispo before the repair of the scale",
        _CISPO,
        _OLD,
        version="1.10",
        notes=(_CISPO_NOTE, _OLD_NOTE),
    ),
    _trl(
        "vespo",
        "vespo before the repair of the scale",
        VespoClip(log_ratio_clamp=20.0, log_weight_clamp=True),
        _OLD,
        version="1.10",
        notes=(_OLD_NOTE,),
    ),
)

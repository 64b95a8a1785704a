"""Recipes of verl's past, one for each change of what it computes, up to 0.9.0.

The legacy FSDP actor gave every micro-batch its own denominators; the model engine of 0.7.1 has
those of the global mini-batch.
"""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.recipes.verl import CORE, GSPO, VANILLA, verl_recipe
from dapolab.scenario.aggregation import (
    Aggregation,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)
from dapolab.scenario.clip import Clip, PpoClip

_FIRST = PpoClip(low=0.2, high=0.2, dual_c=3.0)
_LEGACY_SOURCE = ("verl/workers/actor/dp_actor.py", f"{CORE}: agg_loss")
_LEGACY_BATCH = Batch(note="each micro-batch has its own denominators, weighed 1/accumulation")
_UNSTEADY = "depends on the packing into micro-batches: not a global token mean (verl#5625)"


def _legacy(
    tag: str,
    version: str,
    summary: str,
    aggregation: Aggregation,
    evidence: Evidence,
    *,
    clip: Clip = VANILLA,
    notes: tuple[str, ...] = (),
) -> Recipe:
    """Return a recipe of the legacy FSDP actor, up to 0.7."""
    return verl_recipe(
        tag,
        version,
        summary,
        aggregation,
        evidence,
        clip=clip,
        batch=_LEGACY_BATCH,
        source=_LEGACY_SOURCE,
        notes=notes,
    )


_F = Evidence("read", "verl 3a27a98", "2025-04-04")
_NORM = Evidence("read", "verl 4424616", "2025-10-27")
_GLOBAL = Evidence("read", "verl 8ed5baf", "2025-11-24")
_SUM_NORM = Evidence("read", "verl b8d91ef", "2026-02-26")
_SUM = Evidence("read", "verl 4730d46", "2026-08-03")

RECIPES: tuple[Recipe, ...] = (
    _legacy(
        "2025-04-04",
        "3a27a98",
        "first DAPO in verl: token mean of each micro-batch",
        TokenMeanMicro(combine="mean"),
        _F,
        clip=_FIRST,
        notes=(
            _UNSTEADY,
            "log ratios are not clamped before 2c85b43 (2025-06-13); the dual-clip metric is "
            "always 0 before 88db554 (2025-04-09)",
        ),
    ),
    _legacy(
        "2025-04-04-seq-sum",
        "3a27a98",
        "seq-mean-token-sum that divides by the length too (verl#911)",
        SeqMeanTokenSum(variant="verl-3a27a98", micro="mean"),
        _F,
        clip=_FIRST,
        notes=("fixed two days later; a fully masked row gives NaN",),
    ),
    _legacy(
        "2025-04-06-seq-sum",
        "4d722b1",
        "seq-mean-token-sum repaired (#931)",
        SeqMeanTokenSum(micro="mean"),
        Evidence("read", "verl 4d722b1", "2025-04-06"),
        clip=_FIRST,
    ),
    _legacy(
        "0.4.0",
        "0.4.0",
        "token mean of each micro-batch",
        TokenMeanMicro(combine="mean"),
        Evidence("read", "verl 6d8f2f6", "2025-04-20"),
        clip=_FIRST,
        notes=(_UNSTEADY, "with use_dynamic_bsz the weights are the shares of rows instead"),
    ),
    _legacy(
        "0.4.0-sum-norm",
        "0.4.0",
        "sum-norm is a sum over sequences, over the padded width (0.4.0–0.7.0)",
        SeqMeanTokenSumNorm(constant="padded-width", rows="sum", micro="mean"),
        Evidence("read", "verl 6d8f2f6", "2025-04-20"),
        clip=_FIRST,
        notes=("no mean over sequences: the scale follows the micro-batch size (verl#3741)",),
    ),
    _legacy(
        "0.6.1",
        "0.6.1",
        "token mean of each micro-batch; log ratios clamped to ±20",
        TokenMeanMicro(combine="mean"),
        _NORM,
        notes=(
            _UNSTEADY,
            "one mini-batch and one epoch: old log-probs are the current ones, ratio ≡ 1 "
            "(6e55669, 2025-08-19)",
        ),
    ),
    _legacy(
        "0.6.1-seq-mean",
        "0.6.1",
        "sequence modes leave fully masked rows out (#3915)",
        SeqMeanTokenMean(empty_rows="out", micro="mean"),
        _NORM,
    ),
    _legacy(
        "0.7.0-fsdp",
        "0.7.0 (FSDP actor)",
        "legacy actor: still the token mean of each micro-batch (verl#5625)",
        TokenMeanMicro(combine="mean"),
        _GLOBAL,
        notes=(_UNSTEADY, "agg_loss takes global counts now (#4211), this actor gives none"),
    ),
    _legacy(
        "0.7.0-sum-norm",
        "0.7.0 (FSDP actor)",
        "sum-norm still a sum over sequences; loss_scale_factor may follow (#4360)",
        SeqMeanTokenSumNorm(constant="padded-width", rows="sum", micro="mean"),
        _GLOBAL,
    ),
    _legacy(
        "2025-12-01-sum-norm",
        "6e6ae96",
        "sum-norm over loss_scale_factor where it is set, still a sum of sequences (#4360)",
        SeqMeanTokenSumNorm(constant=512, rows="sum", micro="mean"),
        Evidence("read", "verl 6e6ae96", "2025-12-01"),
        notes=("512 is data.max_response_length by default; unset: the padded width",),
    ),
    _legacy(
        "2025-12-17-seq-mean",
        "6a58521",
        "sequence modes may count fully masked rows again (#4510), for two weeks",
        SeqMeanTokenMean(empty_rows="in", micro="mean"),
        Evidence("read", "verl 6a58521", "2025-12-17"),
        notes=("reverted by 78014a2 (2026-01-03); shown with the option on",),
    ),
    verl_recipe(
        "0.7.1",
        "0.7.1 (model engine)",
        "token mean of the global mini-batch, whatever the split",
        TokenMean(),
        _SUM_NORM,
        notes=("the legacy FSDP actor stays in the tree until 044bbba (2026-04-20)",),
    ),
    verl_recipe(
        "0.7.1-sum-norm",
        "0.7.1 (model engine)",
        "sum-norm becomes a mean over sequences: 1/B of before (#5366, #5417)",
        SeqMeanTokenSumNorm(constant="padded-width"),
        _SUM_NORM,
        notes=("without loss_scale_factor the constant is the padded width of the batch",),
    ),
    verl_recipe(
        "0.9.0",
        "0.9.0",
        "token mean of the global mini-batch; V1 trainer by default",
        TokenMean(),
        _SUM,
    ),
    verl_recipe(
        "0.9.0-token-sum",
        "0.9.0",
        "new mode token-sum: no denominator at all (#7197)",
        TokenSum(),
        _SUM,
    ),
    verl_recipe(
        "0.9.0-gspo",
        "0.9.0",
        "GSPO, aggregation forced to seq-mean-token-mean",
        SeqMeanTokenMean(),
        _SUM,
        clip=GSPO,
        notes=("loss_agg_mode is ignored up to 0.9.0; 0.9.1 obeys it",),
    ),
)

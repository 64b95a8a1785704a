"""Recipes of verl, one for each change of what it computes, up to 0.9.1.

Its defaults otherwise: clip 0.2/0.2, dual clip 3, no KL, token-mean. ``algorithm.adv_estimator``
defaults to gae; its DAPO recipe sets grpo, and so do these.
"""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage
from dapolab.scenario.aggregation import (
    Aggregation,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)
from dapolab.scenario.clip import (
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    GmpoClip,
    GpgClip,
    GspoClip,
    KlCov,
    PpoClip,
    SapoClip,
)
from dapolab.scenario.collector import NoFilter
from dapolab.scenario.objective import Objective, SamplerCorrection

_FIRST = PpoClip(low=0.2, high=0.2, dual_c=3.0)
_VANILLA = PpoClip(low=0.2, high=0.2, dual_c=3.0, log_ratio_clamp=20.0)
_GSPO = GspoClip(low=0.2, high=0.2, level="sequence_token", log_ratio_cap=10.0)
_NO_SAMPLER = SamplerCorrection()
_JUDGE = Evidence("judged", "verl==0.9.1", "2026-09")
_CORE = "verl/trainer/ppo/core_algos.py"
_AGG_SOURCE = (f"{_CORE}:1140-1206 (agg_loss, 0.9.1)",)
_LEGACY_SOURCE = ("verl/workers/actor/dp_actor.py", f"{_CORE}: agg_loss")
_LEGACY_BATCH = Batch(note="each micro-batch has its own denominators, weighed 1/accumulation")
_ENGINE_BATCH = Batch(note="denominators of the global mini-batch, micro-batches are summed")
_UNSTEADY = "depends on the packing into micro-batches: not a global token mean (verl#5625)"


def _verl(
    tag: str,
    version: str,
    summary: str,
    aggregation: Aggregation,
    evidence: Evidence,
    *,
    clip: Clip = _VANILLA,
    sampler: SamplerCorrection = _NO_SAMPLER,
    batch: Batch = _ENGINE_BATCH,
    source: tuple[str, ...] = _AGG_SOURCE,
    notes: tuple[str, ...] = (),
) -> Recipe:
    return Recipe(
        id=f"verl-{tag}",
        framework="verl",
        version=version,
        summary=summary,
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6, singletons="raw"),
            clip=clip,
            aggregation=aggregation,
            sampler=sampler,
        ),
        collector=NoFilter(),
        batch=batch,
        evidence=evidence,
        source=source,
        notes=notes,
    )


def _legacy(
    tag: str,
    version: str,
    summary: str,
    aggregation: Aggregation,
    evidence: Evidence,
    *,
    clip: Clip = _VANILLA,
    notes: tuple[str, ...] = (),
) -> Recipe:
    """Return a recipe of the legacy FSDP actor, up to 0.7."""
    return _verl(
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

_HISTORY: tuple[Recipe, ...] = (
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
    _verl(
        "0.7.1",
        "0.7.1 (model engine)",
        "token mean of the global mini-batch, whatever the split",
        TokenMean(),
        _SUM_NORM,
        notes=("the legacy FSDP actor stays in the tree until 044bbba (2026-04-20)",),
    ),
    _verl(
        "0.7.1-sum-norm",
        "0.7.1 (model engine)",
        "sum-norm becomes a mean over sequences: 1/B of before (#5366, #5417)",
        SeqMeanTokenSumNorm(constant="padded-width"),
        _SUM_NORM,
        notes=("without loss_scale_factor the constant is the padded width of the batch",),
    ),
    _verl(
        "0.9.0",
        "0.9.0",
        "token mean of the global mini-batch; V1 trainer by default",
        TokenMean(),
        _SUM,
    ),
    _verl(
        "0.9.0-token-sum",
        "0.9.0",
        "new mode token-sum: no denominator at all (#7197)",
        TokenSum(),
        _SUM,
    ),
    _verl(
        "0.9.0-gspo",
        "0.9.0",
        "GSPO, aggregation forced to seq-mean-token-mean",
        SeqMeanTokenMean(),
        _SUM,
        clip=_GSPO,
        notes=("loss_agg_mode is ignored up to 0.9.0; 0.9.1 obeys it",),
    ),
)

_CURRENT: tuple[Recipe, ...] = (
    _verl(
        "0.9.1",
        "0.9.1",
        "vanilla loss, token mean of the global mini-batch",
        TokenMean(),
        _JUDGE,
        source=(f"{_CORE}:1285-1376 (vanilla)", *_AGG_SOURCE),
        notes=(
            "overriding clip_ratio alone does nothing: low and high have their own 0.2",
            "rejected tokens stay in the count of tokens (V1 trainer)",
        ),
    ),
    _verl(
        "0.9.1-seq-mean",
        "0.9.1",
        "loss_agg_mode seq-mean-token-mean",
        SeqMeanTokenMean(),
        _JUDGE,
    ),
    _verl(
        "0.9.1-seq-sum",
        "0.9.1",
        "loss_agg_mode seq-mean-token-sum",
        SeqMeanTokenSum(),
        _JUDGE,
    ),
    _verl(
        "0.9.1-sum-norm",
        "0.9.1",
        "loss_agg_mode seq-mean-token-sum-norm, no loss_scale_factor",
        SeqMeanTokenSumNorm(constant="padded-width"),
        _JUDGE,
        notes=("set loss_scale_factor, or padding decides the learning rate (verl#3741)",),
    ),
    _verl("0.9.1-token-sum", "0.9.1", "loss_agg_mode token-sum", TokenSum(), _JUDGE),
    _verl(
        "0.9.1-gspo",
        "0.9.1",
        "GSPO, aggregation of the config: token-mean unless set",
        TokenMean(),
        _JUDGE,
        clip=_GSPO,
        source=(f"{_CORE}:1545-1619 (gspo)", *_AGG_SOURCE),
        notes=("the same config gave seq-mean-token-mean up to 0.9.0",),
    ),
    _verl(
        "0.9.1-sapo",
        "0.9.1",
        "SAPO, aggregation forced to seq-mean-token-mean",
        SeqMeanTokenMean(),
        _JUDGE,
        clip=SapoClip(log_ratio_clamp=20.0),
        source=(f"{_CORE}:1622-1704 (sapo)",),
    ),
    _verl(
        "0.9.1-gpg",
        "0.9.1",
        "plain policy gradient, no ratio",
        TokenMean(),
        _JUDGE,
        clip=GpgClip(),
        source=(f"{_CORE}:1707-1740 (gpg)",),
        notes=("its usual estimator gpg rescales advantages by the non-zero rewards",),
    ),
    _verl(
        "0.9.1-cispo",
        "0.9.1",
        "CISPO with the band 1 ± ε of the PPO clip: 0.8 to 1.2 by default",
        TokenMean(),
        _JUDGE,
        clip=CispoClip(bounds="band", low=0.2, high=0.2, log_ratio_clamp=20.0),
        source=(f"{_CORE}:2047-2105 (cispo)",),
    ),
    _verl(
        "0.9.1-dppo-tv",
        "0.9.1",
        "DPPO, total variation: ε bounds the change of a probability",
        TokenMean(),
        _JUDGE,
        clip=DppoTvClip(low=0.2, high=0.2, cap=3.0, log_ratio_clamp=20.0),
        source=(f"{_CORE}:1379-1457 (dppo_tv)",),
        notes=("clip_ratio_c caps the ratio: the config's 3.0 wins over the function's 20",),
    ),
    _verl(
        "0.9.1-dppo-kl",
        "0.9.1",
        "DPPO, binary KL: ε bounds a divergence",
        TokenMean(),
        _JUDGE,
        clip=DppoKlClip(low=0.2, high=0.2, cap=3.0, log_ratio_clamp=20.0),
        source=(f"{_CORE}:1460-1542 (dppo_kl)",),
    ),
    _verl(
        "0.9.1-clip-cov",
        "0.9.1",
        "Clip-Cov: a random 0.02 % of high-covariance tokens lose their loss",
        TokenMean(),
        _JUDGE,
        clip=ClipCov(low=0.2, high=0.2),
        source=(f"{_CORE}:1743-1845 (clip_cov)",),
    ),
    _verl(
        "0.9.1-kl-cov",
        "0.9.1",
        "KL-Cov: the 0.02 % of highest covariance pay a KL penalty, no clip",
        TokenMean(),
        _JUDGE,
        clip=KlCov(),
        source=(f"{_CORE}:1848-1925 (kl_cov)",),
    ),
    _verl(
        "0.9.1-geo-mean",
        "0.9.1",
        "GMPO: grows with the number of micro-batches",
        SeqMeanTokenMean(micro="sum"),
        _JUDGE,
        clip=GmpoClip(low=0.2, high=0.2),
        source=(f"{_CORE}:1928-2011 (geo_mean)",),
        notes=("ignores loss_agg_mode and the global counts: k micro-batches, k times the loss",),
    ),
    _verl(
        "0.9.1-bypass",
        "0.9.1",
        "bypass mode: the sampler stands in for old, so the clip acts on current/sampler",
        TokenMean(),
        _JUDGE,
        sampler=SamplerCorrection(bypass=True),
        batch=Batch(denominator="sampler", note=_ENGINE_BATCH.note),
        source=(f"{_CORE}:2413-2549 (bypass_mode)",),
        notes=("the default of fully_async_policy",),
    ),
)

RECIPES: tuple[Recipe, ...] = _HISTORY + _CURRENT

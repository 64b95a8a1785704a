"""Recipes of verl 0.9.1: its aggregations and its policy losses.

Defaults: clip 0.2/0.2, dual clip 3, no KL, token-mean. ``algorithm.adv_estimator`` defaults to gae;
verl's DAPO recipe sets grpo, and so do these.
"""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage
from dapolab.scenario.aggregation import (
    Aggregation,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
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
from dapolab.scenario.collector import Collector, NoFilter, VerlV1
from dapolab.scenario.objective import Objective, Rejection, SamplerCorrection

VANILLA = PpoClip(low=0.2, high=0.2, dual_c=3.0, log_ratio_clamp=20.0)
GSPO = GspoClip(low=0.2, high=0.2, level="sequence_token", log_ratio_cap=10.0)
_NO_SAMPLER = SamplerCorrection()
_NO_FILTER = NoFilter()
_JUDGE = Evidence("judged", "verl==0.9.1", "2026-09-01")
CORE = "verl/trainer/ppo/core_algos.py"
_AGG_SOURCE = (f"{CORE}:1140-1206 (agg_loss, 0.9.1)",)
_ENGINE_BATCH = Batch(note="denominators of the global mini-batch, micro-batches are summed")


def verl_recipe(
    tag: str,
    version: str,
    summary: str,
    aggregation: Aggregation,
    evidence: Evidence,
    *,
    clip: Clip = VANILLA,
    sampler: SamplerCorrection = _NO_SAMPLER,
    batch: Batch = _ENGINE_BATCH,
    collector: Collector = _NO_FILTER,
    source: tuple[str, ...] = _AGG_SOURCE,
    notes: tuple[str, ...] = (),
) -> Recipe:
    """Return a recipe with verl's defaults; the batch is that of the new model engine."""
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
        collector=collector,
        batch=batch,
        evidence=evidence,
        source=source,
        when_no_signal="resample" if isinstance(collector, VerlV1) else "train",
        notes=notes,
    )


_SAMPLER_BATCH = Batch(denominator="sampler", note=_ENGINE_BATCH.note)
_BYPASS_SOURCE = (
    f"{CORE}:2413-2549 (bypass_mode)",
    "verl/trainer/config/algorithm.py:302-350 (RolloutCorrectionConfig.bypass_ppo_clip_…)",
)
_COUNTS_ON = "rejected tokens stay in the global count of tokens"
_BY_NAME = (
    "0.9.1 needs policy_loss.loss_mode=bypass_mode and +policy_loss.rollout_correction.…: beside "
    "algorithm.rollout_correction.bypass_mode nothing is rejected"
)


def _bypass(rule: Rejection) -> SamplerCorrection:
    return SamplerCorrection(bypass=True, log_ratio_clamp=20.0, rejection=(rule,))


RECIPES: tuple[Recipe, ...] = (
    verl_recipe(
        "0.9.1",
        "0.9.1",
        "vanilla loss, token mean of the global mini-batch",
        TokenMean(),
        _JUDGE,
        source=(f"{CORE}:1285-1376 (vanilla)", *_AGG_SOURCE),
        notes=(
            "overriding clip_ratio alone does nothing: low and high have their own 0.2",
            "rejected tokens stay in the count of tokens (V1 trainer)",
            "no group filter by default; filter_groups.enable fills as collector verl_v1 does",
        ),
    ),
    verl_recipe(
        "0.9.1-filter",
        "0.9.1",
        "filter_groups.enable in the V1 trainer: two prompts for each group it evicts",
        TokenMean(),
        _JUDGE,
        collector=VerlV1(),
        source=(
            "verl/trainer/ppo/v1/replay_buffer.py:422-511",
            "verl/trainer/ppo/v1/trainer_base.py:187-212, 727-739",
        ),
        notes=(
            "max_num_gen_batches is ignored: no limit; max_inflight_gen_batches is 1",
            "the metric is reward by default, with the overlong penalty in it: set acc",
            "V1 alone: the DAPO recipe's trainer fills by rounds, fully async has no filter",
        ),
    ),
    verl_recipe(
        "0.9.1-seq-mean",
        "0.9.1",
        "loss_agg_mode seq-mean-token-mean",
        SeqMeanTokenMean(),
        _JUDGE,
    ),
    verl_recipe(
        "0.9.1-seq-sum",
        "0.9.1",
        "loss_agg_mode seq-mean-token-sum",
        SeqMeanTokenSum(),
        _JUDGE,
    ),
    verl_recipe(
        "0.9.1-sum-norm",
        "0.9.1",
        "loss_agg_mode seq-mean-token-sum-norm, no loss_scale_factor",
        SeqMeanTokenSumNorm(constant="padded-width"),
        _JUDGE,
        notes=("set loss_scale_factor, or padding decides the learning rate (verl#3741)",),
    ),
    verl_recipe("0.9.1-token-sum", "0.9.1", "loss_agg_mode token-sum", TokenSum(), _JUDGE),
    verl_recipe(
        "0.9.1-gspo",
        "0.9.1",
        "GSPO, aggregation of the config: token-mean unless set",
        TokenMean(),
        _JUDGE,
        clip=GSPO,
        source=(f"{CORE}:1545-1619 (gspo)", *_AGG_SOURCE),
        notes=("the same config gave seq-mean-token-mean up to 0.9.0",),
    ),
    verl_recipe(
        "0.9.1-sapo",
        "0.9.1",
        "SAPO, aggregation forced to seq-mean-token-mean",
        SeqMeanTokenMean(),
        _JUDGE,
        clip=SapoClip(log_ratio_clamp=20.0),
        source=(f"{CORE}:1622-1704 (sapo)",),
    ),
    verl_recipe(
        "0.9.1-gpg",
        "0.9.1",
        "plain policy gradient, no ratio",
        TokenMean(),
        _JUDGE,
        clip=GpgClip(),
        source=(f"{CORE}:1707-1740 (gpg)",),
        notes=("its usual estimator gpg rescales advantages by the non-zero rewards",),
    ),
    verl_recipe(
        "0.9.1-cispo",
        "0.9.1",
        "CISPO with the band 1 ± ε of the PPO clip: 0.8 to 1.2 by default",
        TokenMean(),
        _JUDGE,
        clip=CispoClip(bounds="band", low=0.2, high=0.2, log_ratio_clamp=20.0),
        source=(f"{CORE}:2047-2105 (cispo)",),
    ),
    verl_recipe(
        "0.9.1-dppo-tv",
        "0.9.1",
        "DPPO, total variation: ε bounds the change of a probability",
        TokenMean(),
        _JUDGE,
        clip=DppoTvClip(low=0.2, high=0.2, cap=3.0, log_ratio_clamp=20.0),
        source=(f"{CORE}:1379-1457 (dppo_tv)",),
        notes=("clip_ratio_c caps the ratio: the config's 3.0 wins over the function's 20",),
    ),
    verl_recipe(
        "0.9.1-dppo-kl",
        "0.9.1",
        "DPPO, binary KL: ε bounds a divergence",
        TokenMean(),
        _JUDGE,
        clip=DppoKlClip(low=0.2, high=0.2, cap=3.0, log_ratio_clamp=20.0),
        source=(f"{CORE}:1460-1542 (dppo_kl)",),
    ),
    verl_recipe(
        "0.9.1-clip-cov",
        "0.9.1",
        "Clip-Cov: a random 0.02 % of high-covariance tokens lose their loss",
        TokenMean(),
        _JUDGE,
        clip=ClipCov(low=0.2, high=0.2),
        source=(f"{CORE}:1743-1845 (clip_cov)",),
    ),
    verl_recipe(
        "0.9.1-kl-cov",
        "0.9.1",
        "KL-Cov: the 0.02 % of highest covariance pay a KL penalty, no clip",
        TokenMean(),
        _JUDGE,
        clip=KlCov(),
        source=(f"{CORE}:1848-1925 (kl_cov)",),
    ),
    verl_recipe(
        "0.9.1-geo-mean",
        "0.9.1",
        "GMPO: grows with the number of micro-batches",
        SeqMeanTokenMean(micro="sum"),
        _JUDGE,
        clip=GmpoClip(low=0.2, high=0.2),
        source=(f"{CORE}:1928-2011 (geo_mean)",),
        notes=("ignores loss_agg_mode and the global counts: k micro-batches, k times the loss",),
    ),
    verl_recipe(
        "0.9.1-bypass",
        "0.9.1",
        "bypass mode: the sampler stands in for old, so the clip acts on current/sampler",
        TokenMean(),
        _JUDGE,
        sampler=SamplerCorrection(bypass=True),
        batch=_SAMPLER_BATCH,
        source=(f"{CORE}:2413-2549 (bypass_mode)",),
        notes=("the default of fully_async_policy; the loss stays the configured one",),
    ),
    verl_recipe(
        "0.9.1-bypass-geo-rs",
        "0.9.1",
        "bypass mode, and responses go whose mean log ratio is beyond 0.1 %",
        TokenMean(),
        _JUDGE,
        sampler=_bypass(Rejection(level="geometric", lower=1 / 1.001, upper=1 / 0.999)),
        batch=_SAMPLER_BATCH,
        source=_BYPASS_SOURCE,
        notes=(
            _COUNTS_ON,
            _BY_NAME,
            "rollout_rs seq_mean_k1, threshold 0.999_1.001 of sampler/current",
        ),
    ),
    verl_recipe(
        "0.9.1-bypass-k3-rs",
        "0.9.1",
        "bypass mode, and responses go whose mean k3 against the sampler exceeds 0.01",
        TokenMean(),
        _JUDGE,
        sampler=_bypass(Rejection(estimator="k3", level="geometric", upper=0.01)),
        batch=_SAMPLER_BATCH,
        source=_BYPASS_SOURCE,
        notes=(_COUNTS_ON, _BY_NAME, "rollout_rs seq_mean_k3, threshold 0.01"),
    ),
)

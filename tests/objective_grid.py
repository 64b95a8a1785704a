"""The cells that the objective's tests walk: every surrogate, every aggregation, splits."""

import torch

from dapolab.objective import Structure
from dapolab.scenario import (
    CispoClip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GenerationWindow,
    GmpoClip,
    GpgClip,
    GspoClip,
    KlCov,
    LuspoClip,
    NoClip,
    PpoClip,
    PromptMean,
    SapoClip,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
    VespoClip,
)

PLAIN_CLIPS = [
    NoClip(),
    NoClip(log_ratio_clamp=0.5),
    PpoClip(low=0.2, high=0.28),
    PpoClip(dual_c=1.5, log_ratio_clamp=20.0),
    PpoClip(delta=1.6),
    GspoClip(low=0.1, high=0.2),
    GspoClip(low=0.1, high=0.2, level="sequence_token", log_ratio_cap=10.0),
    LuspoClip(low=0.1, high=0.2),
    LuspoClip(low=0.1, high=0.2, level="token"),
    CispoClip(low=0.2, high=0.28),
    CispoClip(bounds="absolute", high=1.2),
    CispoClip(bounds="absolute", high=1.05, level="sequence"),
    SapoClip(),
    SapoClip(level="sequence"),
    GmpoClip(low=0.1, high=0.2),
    VespoClip(),
    DppoTvClip(low=0.1, high=0.1),
    DppoTvClip(low=0.2, high=0.2, cap=None, surrogate="ratio", log_ratio_penalty=1e-3),
    DppoKlClip(low=0.05, high=0.02),
    GpgClip(),
    DroClip(beta=0.3),
]
COVARIANCE_CLIPS = [ClipCov(share=0.1, cov_low=0.01, cov_high=9.0), KlCov(share=0.1, coef=0.5)]
CLIPS = PLAIN_CLIPS + COVARIANCE_CLIPS

GLOBAL_MODES = [
    TokenMean(),
    GenerationWindow(),
    SeqMeanTokenMean(),
    SeqMeanTokenMean(empty_rows="out"),
    SeqMeanTokenSum(),
    SeqMeanTokenSum(empty_rows="out"),
    SeqMeanTokenSum(variant="verl-3a27a98"),
    SeqMeanTokenSumNorm(constant=5),
    SeqMeanTokenSumNorm(constant=5, empty_rows="out"),
    SeqMeanTokenSumNorm(constant="padded-width", rows="sum"),
    PromptMean(),
    PromptMean(empty_groups="out"),
    TokenSum(),
]
MICRO_MODES = [TokenMeanMicro(combine=c) for c in ("mean", "rows", "sum")] + [
    mode
    for c in ("mean", "rows", "sum")
    for mode in (
        SeqMeanTokenMean(micro=c),
        SeqMeanTokenMean(micro=c, empty_rows="out"),
        SeqMeanTokenSum(micro=c),
        SeqMeanTokenSum(micro=c, empty_rows="out"),
        SeqMeanTokenSumNorm(constant=5, micro=c),
        SeqMeanTokenSumNorm(constant="padded-width", rows="sum", micro=c),
    )
]
MODES = GLOBAL_MODES + MICRO_MODES

SPLITS = [
    Structure.split(6, n_ranks=1, micro_rows=6),
    Structure.split(6, n_ranks=1, micro_rows=2),
    Structure.split(6, n_ranks=2, micro_rows=2),
    Structure(rank_N=torch.tensor([1, 0, 1, 1, 0, 1]), micro_N=torch.tensor([0, 4, 2, 0, 4, 7])),
]

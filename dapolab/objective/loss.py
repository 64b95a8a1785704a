"""The loss: surrogate × sampler correction, KL and entropy terms, one aggregation for all of them.

loss = Σ_i scale_i Σ_t m_it·(w_it·surrogate_it + β·kl_it − c·entropy_it)
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.aggregation import aggregate, row_scales
from dapolab.objective.batch import Batch, Loss, Structure
from dapolab.objective.clipping import choose_tokens, surrogate
from dapolab.objective.covariance import Generators
from dapolab.objective.gates import token_gate
from dapolab.objective.kl import kl_estimate
from dapolab.objective.masking import keep_valid, row_mean
from dapolab.objective.metrics import update_metrics
from dapolab.objective.sampler import Correction, correct
from dapolab.objective.tokens import Tokens, clean_tokens
from dapolab.objective.weighting import entering_weight
from dapolab.scenario import Kl, NoClip, Objective

# Surrogates that read no old policy.
_WITHOUT_OLD = ("gpg",)


@dataclass(frozen=True)
class Parts:
    """What the loss is made of, once rejection and cleaning are done."""

    batch: Batch
    tokens: Tokens
    correction: Correction | None
    scales: Tensor
    chosen: Tensor | None
    weight: Tensor | None
    """Factor of the surrogate: the sampler's weight and whatever gates close."""


def policy_loss(
    batch: Batch,
    config: Objective,
    *,
    structure: Structure | None = None,
    scales: Tensor | None = None,
    generator: Generators | None = None,
    selection: Tensor | None = None,
    metrics: bool = True,
) -> Loss:
    """Compute the loss of one update, or of a micro-batch of it.

    Parameters
    ----------
    batch
        Tensors of the update. Each policy that the objective reads must be there: none stands in
        for another, except where ``sampler.bypass`` says so.
    config
        The objective.
    structure
        Rank and micro-batch of each response, for aggregations that depend on the split.
    scales
        (..., N) token weights of these responses as ``row_scales`` gave them for the whole update;
        a micro-batch computed with them contributes its exact part of the global loss. Absent:
        computed from this batch alone.
    generator
        For ``clip_cov``, which draws tokens: one for all replicas, or one each.
    selection
        (..., N, T) tokens of ``select_tokens`` for these responses, where the update is computed in
        micro-batches: a covariance rule chooses from the whole update. Absent: from this batch.
    metrics
        Whether to fill ``Loss.metrics``; they cost about as much as the loss.

    Raises
    ------
    ConfigError
        If a policy, the group ids or the generator is needed and absent, or shapes do not fit.

    Notes
    -----
    ``kl.place = "reward"`` adds nothing here: it belongs to the reward (``learning_signal``).
    What looks at all tokens at once, ``sampler.normalise``, ``top_entropy_share`` and
    ``entropy_aggregation``, looks at this batch: under micro-batches that is one of them.
    """
    parts = split_parts(
        batch,
        config,
        structure=structure,
        scales=scales,
        generator=generator,
        selection=selection,
    )
    if config.sampler.applies == "replaces":
        losses = -parts.tokens.advantages * parts.tokens.logp
    else:
        losses = surrogate(parts.tokens, config.clip, chosen=parts.chosen)
    if parts.weight is not None:
        losses = losses * parts.weight
    if config.kl is not None and config.kl.place == "loss":
        losses = losses + config.kl.coefficient * kl_term(parts, config.kl)
    value = aggregate(losses, mask=parts.tokens.mask, scales=parts.scales)
    if config.entropy_coef:
        value = value - config.entropy_coef * _entropy(parts, config, structure)
    n_tokens = parts.tokens.mask.sum(dim=(-2, -1)).expand(value.shape)
    told = _metrics(parts, config) if metrics else {}
    return Loss(value=value, metrics=told, is_empty=n_tokens == 0)


def _entropy(parts: Parts, config: Objective, structure: Structure | None) -> Tensor:
    """Aggregate the entropy as the loss, or by its own rule from this batch alone."""
    mask = parts.tokens.mask
    entropy = keep_valid(parts.batch.need("entropy", what_for="entropy_coef"), mask=mask)
    scales = parts.scales
    if config.entropy_aggregation is not None:
        rule, group = config.entropy_aggregation, parts.batch.group
        scales = row_scales(mask, rule, group=group, structure=structure)
    return aggregate(entropy, mask=mask, scales=scales)


def _metrics(parts: Parts, config: Objective) -> dict[str, Tensor]:
    return update_metrics(
        parts.batch,
        parts.tokens,
        clip=NoClip() if config.sampler.applies == "replaces" else config.clip,
        correction=parts.correction,
        weight=parts.weight,
        chosen=parts.chosen,
    )


def select_tokens(
    batch: Batch, config: Objective, *, generator: Generators | None = None
) -> Tensor | None:
    """Return the tokens of an update that ``clip_cov`` or ``kl_cov`` chooses; else None.

    For updates computed in micro-batches: choose once, hand each its rows as ``selection``.
    """
    with torch.no_grad():
        return split_parts(batch, config, generator=generator).chosen


def split_parts(
    batch: Batch,
    config: Objective,
    *,
    structure: Structure | None = None,
    scales: Tensor | None = None,
    generator: Generators | None = None,
    selection: Tensor | None = None,
) -> Parts:
    """Choose the policies, apply rejection, clean what the mask leaves out, weigh the responses."""
    batch = batch.checked()
    correction = _correction(batch, config)
    full_mask = batch.mask if batch.full_mask is None else batch.full_mask
    if correction is not None and not config.sampler.rejected_in_denominator:
        batch = replace(batch, mask=batch.mask * correction.keep)
    if scales is None:
        scales = row_scales(
            batch.mask,
            config.aggregation,
            group=batch.group,
            structure=structure,
            full_mask=full_mask,
        )
    tokens = clean_tokens(
        batch.logp, old=_old(batch, config), advantages=batch.advantages, mask=batch.mask
    )
    if selection is None and config.sampler.applies == "multiplies":
        selection = choose_tokens(tokens, config.clip, generator=generator)
    weight = None if correction is None else correction.weight
    if weight is not None and config.sampler.applies == "enters":
        by_token = config.sampler.level == "token"
        entering = entering_weight(weight, mask=tokens.mask, by_token=by_token)
        tokens, weight = replace(tokens, sampler_log_weight=entering), None
    gate = token_gate(batch, tokens, config)
    if gate is not None:
        weight = gate if weight is None else weight * gate
    return Parts(batch, tokens, correction, scales, selection, weight)


def kl_term(parts: Parts, config: Kl) -> Tensor:
    """Return the KL estimate of each token against the reference, clean."""
    reference = parts.batch.need("ref_logp", what_for="kl")
    log_ratio = keep_valid(parts.batch.logp - reference.detach(), mask=parts.tokens.mask)
    estimate = kl_estimate(log_ratio, config)
    if config.ratio_weight == "none":
        return estimate
    ratio = kl_ratio(parts.tokens, config)
    return estimate * (ratio.detach() if config.ratio_weight == "detached" else ratio)


def kl_ratio(tokens: Tokens, config: Kl) -> Tensor:
    """Return π/π_old of each token, or of each response, that weighs the KL."""
    if tokens.log_ratio is None:
        raise ConfigError("kl.ratio_weight needs old_logp; pass it")
    if config.ratio_level == "token":
        return tokens.log_ratio.exp()
    return row_mean(tokens.log_ratio, mask=tokens.mask).exp()


def _old(batch: Batch, config: Objective) -> Tensor | None:
    """Return the policy in the ratio's denominator."""
    replaced = config.sampler.applies == "replaces"
    weighs_kl = config.kl is not None and config.kl.ratio_weight != "none"
    if config.sampler.bypass:
        return batch.need("sampler_logp", what_for="sampler.bypass")
    if (config.clip.kind in _WITHOUT_OLD or replaced) and not weighs_kl:
        return batch.old_logp
    hint = f'clip "{config.clip.kind}"'
    return batch.need("old_logp", what_for=hint)


def _correction(batch: Batch, config: Objective) -> Correction | None:
    """Return the sampler's weights; without gradient."""
    rule = config.sampler
    if rule.level == "none" and not rule.rejection and rule.applies == "multiplies":
        return None
    sampler = batch.need("sampler_logp", what_for="the sampler correction")
    of_current = rule.bypass or rule.applies == "replaces"
    if of_current:
        numerator = batch.logp
    else:
        numerator = batch.need("old_logp", what_for="the sampler correction (old/sampler)")
    return correct(numerator, sampler_logp=sampler, mask=batch.mask, config=rule)

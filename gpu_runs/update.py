"""The optimizer updates of one rollout, with the objective of ``dapolab.objective``."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from dapolab.errors import ConfigError
from dapolab.objective import (
    Batch,
    Signal,
    Structure,
    learning_signal,
    policy_loss,
    row_scales,
    select_tokens,
)
from dapolab.rng import stream
from dapolab.scenario import Objective
from gpu_runs.batch import TrainBatch, chunks
from gpu_runs.forward import Policy
from gpu_runs.preset import Train


@dataclass(frozen=True)
class Learned:
    """What the updates of one rollout did.

    Attributes
    ----------
    updates : metrics of each (``dapolab.metrics.UPDATE_METRICS`` and ``ppo/loss``,
        ``train/gradient_norm``, ``train/learning_rate``).
    parameter_step : ‖Δθ‖ of all of them together.
    seconds : of the parts, under the names of ``time/…_seconds``.
    """

    updates: list[dict[str, float]]
    parameter_step: float
    seconds: dict[str, float]


class Learner:
    """Policy, optimizer and objective of one run.

    Parameters
    ----------
    policy : what learns, at the sampler's temperature; fp32 weights.
    objective, train : what is minimised, and how.
    reference : policy of a KL term; needed where the objective has one.
    seed : of the order of rows and of surrogates that draw tokens.
    clock : seconds.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        objective: Objective,
        train: Train,
        reference: Policy | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.policy, self.reference = policy, reference
        self.objective, self.train, self.seed, self.clock = objective, train, seed, clock
        self.parameters = list(policy.model.parameters())
        self.device = policy.device
        self.n_updates = 0
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.adam_eps,
            weight_decay=train.weight_decay,
            fused=True,
        )

    def learn(self, batch: TrainBatch, *, step: int) -> Learned:
        """Make the updates of one rollout.

        Raises
        ------
        ConfigError
            The objective needs what is not there, a batch without signal where the preset calls it
            an error, or a gradient that is not finite.
        """
        seconds: dict[str, float] = {}
        kl = self.objective.kl
        in_reward = kl is not None and kl.place == "reward"
        old_logp = ref_logp = None
        if in_reward or not self.objective.sampler.bypass:
            old_logp = self._timed("old_logprob", seconds, self.policy, batch)
        if kl is not None:
            if self.reference is None:
                raise ConfigError("the objective's KL needs a reference policy")
            ref_logp = self._timed("reference", seconds, self.reference, batch)
        started = self.clock()
        signal = learning_signal(
            batch.reward_N,
            self.objective,
            group=batch.group_N,
            mask=batch.mask_NT,
            status=batch.status_N,
            old_logp=old_logp,
            ref_logp=ref_logp,
        )
        fixed = signal.apply(
            Batch(
                logp=batch.sampler_logp_NT,  # replaced in each update
                mask=batch.mask_NT,
                advantages=signal.advantages,
                old_logp=old_logp,
                sampler_logp=batch.sampler_logp_NT,
                ref_logp=ref_logp,
                group=batch.group_N,
            )
        )
        updates: list[dict[str, float]] = []
        parameter_step = 0.0
        if self._goes_on(signal, step):
            before = parameters_to_vector(self.parameters).detach().clone()
            for number, rows in enumerate(self._mini_batches(batch.n_rows, step)):
                updates.append(self._update(batch, fixed, rows, step=step, number=number))
            change = parameters_to_vector(self.parameters).detach() - before
            parameter_step = float(change.norm())
        seconds["update"] = self.clock() - started
        return Learned(updates, parameter_step, seconds)

    def _goes_on(self, signal: Signal, step: int) -> bool:
        """Apply the preset's rule for a batch without any group with spread."""
        if not bool(signal.details.constant.all()) or self.train.when_no_signal == "train":
            return True
        if self.train.when_no_signal == "error":
            raise ConfigError(f"step {step}: no group with spread is left to train")
        return False

    def _mini_batches(self, n_rows: int, step: int) -> list[Tensor]:
        size = self.train.responses_per_update or n_rows
        found: list[Tensor] = []
        for epoch in range(self.train.epochs):
            order = torch.arange(n_rows)
            if self.train.shuffle:
                rng = stream(self.seed, "mini-batches", step, epoch)
                order = torch.from_numpy(rng.permutation(n_rows))
            found += torch.split(order, size)
        return found

    # ------------------------------------------------------------------ one update

    def _update(
        self, batch: TrainBatch, fixed: Batch, rows: Tensor, *, step: int, number: int
    ) -> dict[str, float]:
        """Make one optimizer step on some rows."""
        whole = fixed.rows(rows.to(self.device))
        split = replace(
            Structure.split(len(rows), micro_rows=self.train.micro_rows),
            generation_tokens=fixed.mask.sum(),
        )
        selection = self._selection(batch, whole, rows, step=step, number=number)
        self.optimizer.zero_grad(set_to_none=True)
        logp, entropy = self._backward(batch, whole, rows, split, selection)
        told = self._metrics(replace(whole, logp=logp, entropy=entropy), split, selection)
        return told | self._step(step, number, empty=bool(told["update/is_empty"]))

    def _backward(
        self,
        batch: TrainBatch,
        whole: Batch,
        rows: Tensor,
        split: Structure,
        selection: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Add the update's gradient up over its pieces; return log-probs and entropies."""
        pieces, scales = [torch.arange(len(rows))], None
        if not self._sees_all():
            pieces = chunks(batch.length_N[rows], most_tokens=self.train.micro_tokens)
            scales = self._scales(whole, split)
        logp, entropy = torch.zeros_like(whole.logp), torch.zeros_like(whole.logp)
        for at in pieces:
            width = int(batch.length_N[rows[at]].max())
            found = self.policy(batch, rows[at], width=width)
            here = at.to(self.device)
            part = replace(_cut(whole.rows(here), width), logp=found[0], entropy=found[1])
            loss = policy_loss(
                part,
                self.objective,
                structure=split if scales is None else None,
                scales=None if scales is None else scales[here],
                selection=None if selection is None else selection[here, :width],
                metrics=False,
            )
            if loss.value.requires_grad:
                loss.value.backward()  # type: ignore[no-untyped-call]
            logp[here, :width], entropy[here, :width] = (x.detach() for x in found)
        return logp, entropy

    def _step(self, step: int, number: int, *, empty: bool) -> dict[str, float]:
        """Clip and apply the gradient; an update without a token in its loss makes no step."""
        rate = self.train.learning_rate
        if self.train.warmup_updates:
            rate *= min(1.0, (self.n_updates + 1) / self.train.warmup_updates)
        limit = self.train.grad_clip
        norm = clip_grad_norm_(self.parameters, torch.inf if limit is None else limit)
        if not bool(torch.isfinite(norm)):
            raise ConfigError(f"step {step}, update {number}: the gradient is not finite")
        if not empty:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.n_updates += 1
        return {"train/gradient_norm": float(norm), "train/learning_rate": rate}

    @torch.no_grad()
    def _metrics(
        self, whole: Batch, split: Structure | None, selection: Tensor | None
    ) -> dict[str, float]:
        # of the update at once: quantiles and extremes of pieces do not add up
        loss = policy_loss(whole, self.objective, structure=split, selection=selection)
        found = loss.metrics | {"ppo/loss": loss.value}
        values = torch.stack([value.float() for value in found.values()])
        return dict(zip(found, values.tolist(), strict=True))

    def _scales(self, whole: Batch, split: Structure) -> Tensor:
        return row_scales(
            whole.mask,
            self.objective.aggregation,
            group=whole.group,
            structure=split,
            full_mask=whole.full_mask,
        )

    def _selection(
        self, batch: TrainBatch, whole: Batch, rows: Tensor, *, step: int, number: int
    ) -> Tensor | None:
        """Let a covariance rule choose from the whole update, which takes a pass of its own."""
        if self.objective.clip.kind not in _CHOOSING:
            return None
        generator = torch.Generator(device=self.device)
        generator.manual_seed(int(stream(self.seed, "selection", step, number).integers(2**62)))
        logp = self.policy.of_rows(batch, rows, most_tokens=self.train.micro_tokens)
        return select_tokens(replace(whole, logp=logp), self.objective, generator=generator)

    def _timed(
        self, name: str, seconds: dict[str, float], policy: Policy, batch: TrainBatch
    ) -> Tensor:
        started = self.clock()
        everything = torch.arange(batch.n_rows)
        found = policy.of_rows(batch, everything, most_tokens=self.train.micro_tokens)
        seconds[name] = self.clock() - started
        return found

    def _sees_all(self) -> bool:
        """Say whether a part of the loss looks at all tokens of an update at once."""
        rule = self.objective
        return (
            rule.sampler.normalise != "none"
            or rule.top_entropy_share < 1.0
            or rule.entropy_aggregation is not None
            or not rule.sampler.rejected_in_denominator
        )


_CHOOSING = ("clip_cov", "kl_cov")


def _cut(batch: Batch, width: int) -> Batch:
    """Return the first tokens of every tensor that has one a token."""

    def cut(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[..., :width]

    advantages = batch.advantages
    return replace(
        batch,
        logp=batch.logp[..., :width],
        mask=batch.mask[..., :width],
        advantages=advantages if advantages.shape[-1] == 1 else advantages[..., :width],
        old_logp=cut(batch.old_logp),
        sampler_logp=cut(batch.sampler_logp),
        ref_logp=cut(batch.ref_logp),
        full_mask=cut(batch.full_mask),
    )

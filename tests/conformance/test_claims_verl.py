"""Published claims that name verl, against the real verl 0.9.1: c9, c10, c13, verl-0.9.1-means.

The numbers are those of reports/claims.json, as published; the package computes its own from its
own functions. A twin that is 5 % off must disagree.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import judges_verl as verl
import pytest
import torch
from agreement import COUNT_EPS

PUBLISHED = Path(__file__).parents[2] / "reports" / "claims.json"
# verl reads the loss's slope in float64; 1e-8 in a token count is all that it adds.
SLACK = 2 * COUNT_EPS


def measured(claim: str, row: str) -> float:
    """Return the number that the report publishes."""
    claims = {c["id"]: c for c in json.loads(PUBLISHED.read_text(encoding="utf-8"))["claims"]}
    (found,) = (r["measured"] for r in claims[claim]["rows"] if r["name"] == row)
    return float(found)


def agrees(published: float, judged: float) -> bool:
    return abs(published - judged) <= SLACK * abs(judged)


def pushes(
    lengths: Sequence[int],
    *,
    loss: str,
    aggregation: str,
    ratio: float = 1.0,
    info: dict[str, int] | None = None,
    **settings: object,
) -> torch.Tensor:
    """Return |∂loss/∂log π| of each answer's first token, advantages ±1 in turn; (N,)."""
    mask = torch.zeros((len(lengths), max(lengths)), dtype=torch.float64)
    for row, n in enumerate(lengths):
        mask[row, :n] = 1.0
    old = torch.full_like(mask, -1.0)
    logp = (old + torch.tensor(ratio, dtype=torch.float64).log()).requires_grad_()
    signs = torch.tensor([(-1.0) ** row for row in range(len(lengths))], dtype=torch.float64)
    value, _ = verl.policy_loss(
        loss,
        logp=logp,
        old=old,
        advantages=signs.unsqueeze(-1).expand_as(mask),
        mask=mask,
        aggregation=aggregation,
        config=verl.actor_config(global_batch_info=info, **settings),
    )
    (slope,) = torch.autograd.grad(value, logp)
    return slope[:, 0].abs()


def test_gspo_carries_the_inverse_length(setting: Callable[..., None]) -> None:
    """c13: ten times the weight in an answer a tenth as long, as GRPO's; 1 under token mean."""
    gspo, grpo, token = (
        pushes([10, 100], loss=loss, aggregation=mode)
        for loss, mode in (
            ("gspo", "seq-mean-token-mean"),
            ("vanilla", "seq-mean-token-mean"),
            ("gspo", "token-mean"),
        )
    )
    ratio = float(gspo[0] / gspo[1])
    published = measured("c13-gspo-length", "token weight, 10 over 100 tokens")
    assert agrees(published, ratio)
    assert not agrees(1.05 * published, ratio)
    assert agrees(
        measured("c13-gspo-length", "the same over GRPO's"), ratio / float(grpo[0] / grpo[1])
    )
    assert float(token[0] / token[1]) == pytest.approx(1.0, abs=1e-12)
    setting("claim", "c13-gspo-length")


def test_sum_norm_is_a_mean_over_sequences(setting: Callable[..., None]) -> None:
    """verl-0.9.1-means, first row; a sum, as in 0.7.0 (c9), would give 1."""
    few, many = (
        pushes([10] * n, loss="vanilla", aggregation="seq-mean-token-sum-norm") for n in (4, 8)
    )
    row = "sum-norm: weight of a token, 4 over 8 answers"
    assert agrees(measured("verl-0.9.1-means", row), float(few[0] / many[0]))
    assert not agrees(1.05 * measured("verl-0.9.1-means", row), float(few[0] / many[0]))
    assert not agrees(measured("c9-verl-means", row), float(few[0] / many[0]))
    setting("claim", "verl-0.9.1-means")


def test_token_mean_by_micro_batch(setting: Callable[..., None]) -> None:
    """Global counts: 1. Local means weighed n_m/n, what the legacy actor did: c9's 10."""
    info = {"dp_size": 1, "batch_num_tokens": 220, "global_batch_size": 4}
    long, short = (
        pushes([n, n], loss="vanilla", aggregation="token-mean", info=info) for n in (100, 10)
    )
    row = "token-mean: weight of a short over a long answer's token, by micro-batch"
    assert agrees(measured("verl-0.9.1-means", row), float(short[0] / long[0]))
    # dp_actor.py of 0.7.0 and 0.7.1: loss_scale_factor = micro rows / ppo_mini_batch_size
    local_long, local_short = (
        pushes([n, n], loss="vanilla", aggregation="token-mean") * (2 / 4) for n in (100, 10)
    )
    row = "token-mean: weight by micro-batch, short over long"
    assert agrees(measured("c9-verl-means", row), float(local_short[0] / local_long[0]))
    assert not agrees(1.05 * measured("c9-verl-means", row), float(local_short[0] / local_long[0]))
    setting("claim", "c9-verl-means")


def test_sapo_amplifies_reinforce(setting: Callable[..., None]) -> None:
    """c10: verl's sapo at τ=1 and r=2.06, over its gradient at r=1."""
    at, one = (
        pushes(
            [1],
            loss="sapo",
            aggregation="seq-mean-token-mean",
            ratio=ratio,
            tau_pos=1.0,
            tau_neg=1.0,
        )
        for ratio in (2.06, 1.0)
    )
    published = measured("c10-sapo-attenuates", "multiplier at r=2.06")
    judged = float(at[0] / one[0])
    # τ is a float32 constant in verl
    assert published == pytest.approx(judged, rel=2e-6)
    assert published != pytest.approx(1.05 * judged, rel=2e-6)
    setting("claim", "c10-sapo-attenuates")

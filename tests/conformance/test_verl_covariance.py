"""Clip-Cov with a share below 1: verl and dapolab draw other tokens, but as many of one band."""

import counterparts_verl as pairs
import pytest
import torch
from agreement import COUNT_EPS
from draws import LOCAL, draw

from dapolab.objective import policy_loss, select_tokens
from dapolab.scenario import Objective, PpoClip


@pytest.mark.parametrize("share", [0.001, 0.05, 0.1])
def test_clip_cov_draws_as_many_tokens_as_verl(share: float) -> None:
    """Which tokens is chance on both sides; how many is not, nor is the band they are of."""
    fewer, clip = 0, PpoClip(low=pairs.LOW, high=pairs.HIGH)
    for seed in range(20):
        data = draw(seed)
        A = data.advantages.unsqueeze(-1) * data.mask
        logp = data.logp.clone().requires_grad_()
        judge, (told,) = pairs.judged_loss(
            "clip_cov",
            "token-mean",
            data,
            A,
            LOCAL,
            logp=logp,
            policy_loss={"clip_cov_ratio": share},
        )
        (slope,) = torch.autograd.grad(judge, logp)
        all_eligible = pairs.CLIPS["clip_cov"]
        some = all_eligible.model_copy(update={"share": share})
        rng = torch.Generator().manual_seed(seed)
        batch = data.batch(data.logp, A)
        ours = policy_loss(batch, Objective(clip=some), generator=rng).metrics
        every = policy_loss(batch, Objective(clip=all_eligible), generator=rng).metrics
        n_chosen, n_every = (m["clip/covariance_share"].item() for m in (ours, every))
        assert told["actor/pg_clipfrac"] == pytest.approx(n_chosen, rel=COUNT_EPS)
        fewer += n_chosen < n_every
        plain = policy_loss(data.batch(logp, A), Objective(clip=clip)).value
        (plain_slope,) = torch.autograd.grad(plain, logp)
        lost = (slope == 0) & (plain_slope != 0)
        in_band = select_tokens(batch, Objective(clip=all_eligible), generator=rng)
        assert in_band is not None
        assert bool((lost <= in_band).all())
    assert fewer >= 10  # else the share would not have mattered

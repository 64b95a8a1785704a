"""The optimal token baseline and GPG's factor, against loops over tokens in plain Python."""

import math
import random

import pytest
import torch

from dapolab.objective import Status, TokenEnergy, advantages
from dapolab.scenario import ConfigError, GpgAdvantage, MeanOnlyAdvantage
from dapolab.scenario import OptimalTokenBaselineAdvantage as TokenBaseline

F = torch.float64


def found(rewards, config, *, group, mask, logp=None, squares=None, **more) -> torch.Tensor:
    mask = torch.tensor(mask, dtype=F)
    logp = torch.full_like(mask, -1.0) if logp is None else torch.tensor(logp, dtype=F)
    squares = torch.full_like(mask, 0.5) if squares is None else torch.tensor(squares, dtype=F)
    return advantages(
        torch.tensor(rewards, dtype=F),
        config,
        group=torch.tensor(group),
        mask=mask,
        energy=TokenEnergy(old_logp=logp, sum_pi_squared=squares, **more),
    ).value


def by_hand(rewards, *, group, mask, logp, squares) -> list[list[float]]:
    """B_t = Σ G·W/Σ W over the responses that have a t-th token; terminal rewards, eps 0."""
    rows = range(len(rewards))
    tokens = [[t for t, m in enumerate(mask[i]) if m] for i in rows]
    energy = []
    for i in rows:
        total, along = 0.0, []
        for t in tokens[i]:
            total += 1 - 2 * math.exp(logp[i][t]) + squares[i][t]
            along.append(total)
        energy.append(along)
    out = [[0.0] * len(mask[0]) for _ in rows]
    for i in rows:
        mates = [j for j in rows if group[j] == group[i]]
        for place, t in enumerate(tokens[i]):
            there = [j for j in mates if len(tokens[j]) > place]
            top = sum(rewards[j] * energy[j][place] for j in there)
            baseline = top / sum(energy[j][place] for j in there)
            out[i][t] = rewards[i] - (baseline if len(there) > 1 else 0.0)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_each_token_has_the_baseline_of_its_place(seed: int) -> None:
    rng = random.Random(seed)
    group = [0, 1, 0, 1, 0, 0]
    rewards = [rng.choice((-1.0, 0.0, 1.0, 2.5)) for _ in group]
    mask = [[float(rng.random() < 0.7) for _ in range(6)] for _ in group]
    logp = [[-rng.random() * 3 - 0.01 for _ in range(6)] for _ in group]
    # Σπ² is at least the sampled token's own part of it.
    squares = [[math.exp(2 * x) + 0.3 * rng.random() for x in row] for row in logp]
    given = {"group": group, "mask": mask, "logp": logp, "squares": squares}
    right = torch.tensor(by_hand(rewards, **given), dtype=F)
    ours = found(rewards, TokenBaseline(align="token", eps=0.0), **given)
    torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)
    packed = {**given, "mask": [sorted(row, reverse=True) for row in mask]}
    by_place = found(rewards, TokenBaseline(align="position", eps=0.0), **packed)
    right = torch.tensor(by_hand(rewards, **packed), dtype=F)
    torch.testing.assert_close(by_place, right, rtol=1e-12, atol=1e-12)


def test_another_energy_is_another_baseline() -> None:
    given = {"group": [0, 0], "mask": [[1], [1]], "logp": [[-0.5], [-2.0]]}
    ours = found([0.0, 1.0], TokenBaseline(eps=0.0), **given, squares=[[0.5], [0.3]])
    twin = by_hand([0.0, 1.0], **given, squares=[[0.5 * 1.05], [0.3]])
    assert abs(ours[0, 0].item() - twin[0][0]) > 1e-3


def test_the_tail_of_the_longest_response_has_no_baseline() -> None:
    """Two right answers of 1 and 3 tokens: nothing to learn together, the rest alone."""
    ours = found([1.0, 1.0], TokenBaseline(eps=0.0), group=[0, 0], mask=[[1, 0, 0], [1, 1, 1]])
    assert ours.tolist() == [[0, 0, 0], [0, 1, 1]]


def test_sampler_weights_enter_squared() -> None:
    """Energies 0.2 and 0.2·2²: the baseline is (0·0.2 + 1·0.8)/1.0."""
    logp = [[math.log(0.65)], [math.log(0.65)]]
    ours = found(
        [0.0, 1.0],
        TokenBaseline(eps=0.0),
        group=[0, 0],
        mask=[[1], [1]],
        logp=logp,
        squares=[[0.5], [0.5]],
        sampler_weight=torch.tensor([[1.0], [2.0]], dtype=F),
    )
    assert ours.flatten().tolist() == pytest.approx([-0.8, 0.2], abs=1e-12)


@pytest.mark.parametrize(("policy", "right"), [("raw", 0.7), ("zero", 0.0)])
def test_a_group_of_one(policy: str, right: float) -> None:
    config = TokenBaseline(singletons=policy)
    ours = found([0.7, 1.0, 0.0], config, group=[4, 5, 5], mask=[[1, 1]] * 3)
    assert ours[0].tolist() == pytest.approx([right, right])


def test_what_it_needs_is_said() -> None:
    rewards, mask, group = torch.ones(2, dtype=F), torch.ones(2, 1, dtype=F), torch.tensor([0, 1])
    with pytest.raises(ConfigError, match="sum_pi_squared"):
        advantages(rewards, TokenBaseline(), group=group, mask=mask)
    with pytest.raises(ConfigError, match="group of one"):
        found([1.0], TokenBaseline(singletons="error"), group=[0], mask=[[1]])


def test_gpg_scales_by_responses_over_rewarded_ones() -> None:
    """Three of six rewards are 0: twice the difference to the mean; with ±1 there is no factor."""
    rewards = torch.tensor([1.0, 0, 0, 2, 0, 1], dtype=F)
    group = torch.tensor([0, 0, 1, 1, 1, 1])
    mask = torch.ones(6, 1, dtype=F)
    plain = advantages(rewards, MeanOnlyAdvantage(), group=group, mask=mask).value
    ours = advantages(rewards, GpgAdvantage(), group=group, mask=mask).value
    torch.testing.assert_close(ours, 2.0 * plain)
    signed = torch.where(rewards > 0, 1.0, -1.0).to(F)
    same = advantages(signed, GpgAdvantage(), group=group, mask=mask).value
    centred = advantages(signed, MeanOnlyAdvantage(), group=group, mask=mask).value
    assert torch.equal(same, centred)


def test_gpg_counts_members_alone() -> None:
    """An aborted response is in neither count: 3 counted, 2 of them rewarded."""
    rewards = torch.tensor([1.0, 0, 3, 5], dtype=F)
    status = torch.tensor([0, 0, 0, Status.ABORTED])
    ours = advantages(
        rewards,
        GpgAdvantage(),
        group=torch.zeros(4, dtype=torch.int64),
        mask=torch.ones(4, 1, dtype=F),
        status=status,
    ).value.flatten()
    mean = 4 / 3
    right = [1.5 * (1 - mean), 1.5 * -mean, 1.5 * (3 - mean), 0.0]
    assert ours.tolist() == pytest.approx(right)

"""Advantages: field cases, formulas on unequal groups, statuses, whitening, GAE."""

import itertools
import math
import statistics

import pytest
import torch

from dapolab.objective import Status, advantages, learning_signal
from dapolab.scenario import (
    BatchStdAdvantage,
    ConfigError,
    GaeAdvantage,
    GdpoAdvantage,
    GrpoAdvantage,
    Kl,
    LeaveOneOutAdvantage,
    Length,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    Objective,
    OpoAdvantage,
    OverlongPenalty,
    PassAtKAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
)

F = torch.float64
REWARDS = [1.0, 2, 3, 4, 10, 12, 5, 6, 7]
GROUP = [3, 3, 3, 3, 9, 9, 0, 0, 0]


def of(rewards, config, group, *, mask=None, **more) -> list[float]:
    rewards = torch.tensor(rewards, dtype=F)
    mask = torch.ones(len(group), 1, dtype=F) if mask is None else mask
    found = advantages(rewards, config, group=torch.tensor(group), mask=mask, **more)
    return found.value[..., 0].tolist()


def test_groups_of_unequal_size() -> None:
    """B20: group means, never the batch mean; with std (ddof 1) and ε = 0."""
    assert of(REWARDS, MeanOnlyAdvantage(), GROUP) == [-1.5, -0.5, 0.5, 1.5, -1, 1, -1, 0, 1]
    right = [-1.1619, -0.3873, 0.3873, 1.1619, -0.7071, 0.7071, -1, 0, 1]
    assert of(REWARDS, GrpoAdvantage(eps=0), GROUP) == pytest.approx(right, abs=5e-5)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_order_of_the_rows_is_of_no_account(order: tuple[int, ...]) -> None:
    """B20, B26: tiled prompts are two constant groups; consecutive slices would give ±0.5."""
    rewards, group = [1.0, 0, 1, 0], [1, 2, 1, 2]
    shuffled = of([rewards[i] for i in order], GrpoAdvantage(), [group[i] for i in order])
    assert shuffled == [0.0] * 4


SINGLETONS = [
    (GrpoAdvantage(), 0.0),
    (GrpoAdvantage(singletons="raw"), 0.7 / (1 + 1e-6)),
    (MeanOnlyAdvantage(), 0.0),
    (MeanOnlyAdvantage(singletons="raw"), 0.7),
    (RlooAdvantage(), 0.0),
    (RlooAdvantage(singletons="raw"), 0.7),
    (LeaveOneOutAdvantage(), 0.0),
    (OpoAdvantage(), 0.0),
    (OpoAdvantage(singletons="raw"), 0.7),
    (MaxRlAdvantage(), 0.0),
    (PassAtKAdvantage(singletons="zero"), 0.0),
    (ReinforcePpBaselineAdvantage(whiten=False), 0.0),
    (ReinforcePpBaselineAdvantage(whiten=False, singletons="raw"), 0.7),
]


@pytest.mark.parametrize(("config", "right"), SINGLETONS, ids=lambda x: getattr(x, "kind", x))
def test_a_group_of_one_follows_its_policy(config, right: float) -> None:
    """B24: 0, or what the policy says, never NaN; and it is counted."""
    rewards = torch.tensor([0.7, 1.0, 0.0], dtype=F)
    found = advantages(
        rewards, config, group=torch.tensor([4, 5, 5]), mask=torch.ones(3, 2, dtype=F)
    )
    assert found.value[0, 0].item() == pytest.approx(right, rel=1e-14, abs=0)
    assert found.n_singletons.item() == 1
    assert bool(torch.isfinite(found.value).all())


@pytest.mark.parametrize("config", [GrpoAdvantage(singletons="error"), PassAtKAdvantage()])
def test_a_group_of_one_can_be_an_error(config) -> None:
    with pytest.raises(ConfigError, match="group of one"):
        of([0.7, 1.0, 0.0], config, [4, 5, 5])


def loop(rewards: list[float], group: list[int], of_group) -> list[float]:
    """Estimate group by group in plain Python."""
    out = [0.0] * len(rewards)
    for g in set(group):
        rows = [i for i, x in enumerate(group) if x == g]
        values = of_group([rewards[i] for i in rows]) if len(rows) > 1 else [0.0]
        for row, value in zip(rows, values, strict=True):
            out[row] = value
    return out


def leave_one_out(r: list[float], *, divide: bool) -> list[float]:
    out = []
    for i, own in enumerate(r):
        others = r[:i] + r[i + 1 :]
        gap = own - statistics.fmean(others)
        std = statistics.stdev(others) if len(others) > 1 else 0.0
        out.append(gap / (std + 1e-6) if divide and std > 0 else gap)
    return out


def best_only(r: list[float]) -> list[float]:
    first, second = sorted(r)[:-3:-1]
    return [(first - second) / (statistics.stdev(r) + 1e-6) if x == first else 0.0 for x in r]


@pytest.mark.parametrize("seed", range(4))
def test_vectorised_estimators_equal_their_loops(seed: int) -> None:
    """B24: verl#7581, where two implementations of one estimator differed by 1.085."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(0, 5, (24,), generator=generator).tolist()
    group += [7, 7, 8, 8, 8]
    rewards = torch.randn(29, generator=generator, dtype=F).tolist()
    pairs = [
        (GrpoAdvantage(), lambda r: centred(r, statistics.stdev(r) + 1e-6)),
        (GrpoAdvantage(ddof=0, eps=1e-4), lambda r: centred(r, statistics.pstdev(r) + 1e-4)),
        (MeanOnlyAdvantage(), lambda r: centred(r, 1.0)),
        (RlooAdvantage(), lambda r: leave_one_out(r, divide=False)),
        (LeaveOneOutAdvantage(), lambda r: leave_one_out(r, divide=True)),
        (BatchStdAdvantage(), lambda r: centred(r, statistics.stdev(rewards) + 1e-4)),
        (MaxRlAdvantage(), lambda r: centred(r, statistics.fmean(r))),
        (PassAtKAdvantage(singletons="zero"), best_only),
    ]
    for config, of_group in pairs:
        right = loop(rewards, group, of_group)
        assert of(rewards, config, group) == pytest.approx(right, rel=1e-9, abs=1e-11), config.kind


def centred(r: list[float], scale: float) -> list[float]:
    mean = statistics.fmean(r)
    return [(x - mean) / scale for x in r]


def test_nemo_keeps_the_odd_one_out_undivided() -> None:
    """trainers.md §7: the others of 1 right in 8 are constant; G = 2: always. No division then."""
    one_right = of([1.0] + [0.0] * 7, LeaveOneOutAdvantage(), [0] * 8)
    others_std = statistics.stdev([1.0] + [0.0] * 6)
    assert one_right == pytest.approx([1.0] + [-1 / 7 / (others_std + 1e-6)] * 7)
    assert of([0.3, 0.1], LeaveOneOutAdvantage(), [0, 0]) == pytest.approx([0.2, -0.2])


@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3, 1e6 + 0.1])
@pytest.mark.parametrize("size", [3, 7, 10, 16])
def test_equal_rewards_never_teach(reward: float, size: int) -> None:
    """verl.md §3: 16 equal rewards of 0.1 gave −0.0074 in float32."""
    for dtype in (torch.float32, F):
        rewards = torch.full((size,), reward, dtype=dtype)
        for config in (
            GrpoAdvantage(),
            LeaveOneOutAdvantage(),
            RlooAdvantage(),
            OpoAdvantage(),
            BatchStdAdvantage(),
        ):
            found = advantages(
                rewards,
                config,
                group=torch.zeros(size, dtype=torch.int64),
                mask=torch.ones(size, 1, dtype=dtype),
            )
            assert bool((found.value == 0).all())
            assert bool(found.constant.all())


def test_batch_spread_is_not_group_spread() -> None:
    """B30: A all 1, B all 0: batch std .5345, in-group std 0, all groups constant, gradient 0."""
    rewards = torch.tensor([1.0] * 4 + [0.0] * 4, dtype=F)
    group = torch.tensor([0] * 4 + [1] * 4)
    mask = torch.ones(8, 1, dtype=F)
    assert rewards.std().item() == pytest.approx(0.5345, abs=5e-5)
    for config in (GrpoAdvantage(), BatchStdAdvantage()):
        found = advantages(rewards, config, group=group, mask=mask)
        assert bool((found.value == 0).all())
        assert bool(found.constant.all())


@pytest.mark.parametrize(("G", "K"), [(8, 1), (8, 4), (8, 7), (16, 1), (16, 5)])
@pytest.mark.parametrize("ddof", [0, 1])
def test_extremes_of_normalised_advantages(G: int, K: int, ddof: int) -> None:
    """theory.md C6: Σ|A| = 2√(K(G−K)) with the population std, ×√((G−1)/G) with the sample one."""
    found = of([1.0] * K + [0.0] * (G - K), GrpoAdvantage(ddof=ddof, eps=0), [0] * G)
    factor = math.sqrt((G - 1) / G) if ddof else 1.0
    assert sum(map(abs, found)) == pytest.approx(2 * math.sqrt(K * (G - K)) * factor, rel=1e-12)
    if K == 1:
        assert max(found) == pytest.approx((G - 1) / math.sqrt(G) if ddof else math.sqrt(G - 1))


def test_opo_weighs_the_baseline_by_length() -> None:
    mask = (torch.arange(4) < torch.tensor([[1], [3], [4]])).to(F)
    rewards = [1.0, 0.0, 2.0]
    baseline = (1 * 1 + 3 * 0 + 4 * 2) / 8
    found = of(rewards, OpoAdvantage(), [0, 0, 0], mask=mask)
    assert found == pytest.approx([r - baseline for r in rewards])


# ---------------------------------------------------------------------------- statuses (D8)


@pytest.mark.parametrize("status", [Status.TRUNCATED, Status.ABORTED, Status.REJECTED])
@pytest.mark.parametrize("role", ["count", "baseline_only", "exclude"])
def test_members_by_status(status: Status, role: str) -> None:
    config = MeanOnlyAdvantage(**{status.name.lower(): role})
    rewards = torch.tensor([1.0, 0.0, 0.8], dtype=F)
    found = advantages(
        rewards,
        config,
        group=torch.zeros(3, dtype=torch.int64),
        mask=torch.ones(3, 1, dtype=F),
        status=torch.tensor([0, 0, int(status)]),
    )
    mean = statistics.fmean([1.0, 0.0] if role == "exclude" else [1.0, 0.0, 0.8])
    odd = 0.8 - mean if role == "count" else 0.0
    assert found.value[:, 0].tolist() == pytest.approx([1 - mean, -mean, odd])
    assert found.trained.tolist() == [True, True, role == "count"]


def test_default_roles_are_those_of_the_convention() -> None:
    """D8: truncated counts; aborted and rejected members leave the baseline, NaN reward or not."""
    rewards = torch.tensor([1.0, 0.0, torch.nan, torch.nan, 0.5], dtype=F)
    found = advantages(
        rewards,
        MeanOnlyAdvantage(),
        group=torch.zeros(5, dtype=torch.int64),
        mask=torch.ones(5, 1, dtype=F),
        status=torch.tensor([0, 1, 2, 3, 0]),
    )
    assert found.value[:, 0].tolist() == [0.5, -0.5, 0.0, 0.0, 0.0]


# ---------------------------------------------------------------------------- token level


def test_reinforce_pp_is_whitened_reward_to_go() -> None:
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 0, 1, 1]], dtype=F)
    gamma = 0.9
    config = ReinforcePpAdvantage(gamma=gamma)
    rewards = torch.tensor([1.0, -2.0], dtype=F)
    found = advantages(rewards, config, group=torch.tensor([0, 1]), mask=mask).value
    to_go = [[gamma**2, gamma, 1], [-2 * gamma**2, -2 * gamma, -2]]
    flat = to_go[0] + to_go[1]
    mean, var = statistics.fmean(flat), statistics.variance(flat)
    right = [(x - mean) / math.sqrt(var + 1e-8) for x in flat]
    assert found[mask != 0].tolist() == pytest.approx(right, rel=1e-12)
    assert found[mask == 0].tolist() == [0.0, 0.0]


def test_reinforce_pp_baseline_whitens_over_tokens() -> None:
    mask = (torch.arange(3) < torch.tensor([[1], [3], [2], [2]])).to(F)
    rewards = [1.0, 0.0, 3.0, 4.0]
    flat = [0.5] * 1 + [-0.5] * 3 + [-0.5] * 2 + [0.5] * 2
    mean, var = statistics.fmean(flat), statistics.variance(flat)
    found = of(rewards, ReinforcePpBaselineAdvantage(), [0, 0, 1, 1], mask=mask)
    right = [(x - mean) / math.sqrt(var + 1e-8) for x in (0.5, -0.5, -0.5, 0.5)]
    assert found == pytest.approx(right, rel=1e-12)


def test_remax_takes_the_greedy_reward_off() -> None:
    mask = torch.tensor([[1.0, 1, 0], [1, 1, 1]], dtype=F)
    penalty = torch.tensor([[-0.1, -0.2, torch.nan], [-0.3, -0.4, -0.5]], dtype=F)
    found = advantages(
        torch.tensor([1.0, 2.0], dtype=F),
        RemaxAdvantage(),
        group=torch.tensor([0, 1]),
        mask=mask,
        greedy=torch.tensor([0.5, 0.25], dtype=F),
        token_penalty=penalty,
    ).value
    right = [[1 - 0.3 - 0.5, 1 - 0.2 - 0.5, 0.0], [2 - 1.2 - 0.25, 2 - 0.9 - 0.25, 2 - 0.5 - 0.25]]
    torch.testing.assert_close(found, torch.tensor(right, dtype=F), rtol=1e-12, atol=0)
    with pytest.raises(ConfigError, match="greedy"):
        of([1.0], RemaxAdvantage(), [0])


def gae_of_row(r: list[float], v: list[float], gamma: float, lam: float) -> list[float]:
    """Sum over the future, as the definition has it (GAE Eq. 16)."""
    delta = [r[t] + gamma * (v[t + 1] if t + 1 < len(v) else 0.0) - v[t] for t in range(len(v))]
    return [
        sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, len(v))) for t in range(len(v))
    ]


@pytest.mark.parametrize("alpha", [0.5, 0.25])
def test_gae_with_the_decoupled_and_length_adaptive_lambda_of_vapo(alpha: float) -> None:
    """VAPO Eq. 9; three tokens at α = .25 would have λ = −1/3, which is 0."""
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(2, 6, generator=generator, dtype=F)
    mask = torch.tensor([[1.0, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]], dtype=F)
    config = GaeAdvantage(gamma=0.97, critic_lam=1.0, length_alpha=alpha, whiten=False)
    rewards = torch.tensor([1.0, -1.0], dtype=F)
    found = advantages(rewards, config, group=torch.tensor([0, 1]), mask=mask, values=values)
    for row in range(2):
        valid = mask[row] != 0
        v = values[row][valid].tolist()
        r = [0.0] * (len(v) - 1) + [rewards[row].item()]
        lam = max(0.0, 1 - 1 / (alpha * len(v)))
        assert found.value[row][valid].tolist() == pytest.approx(gae_of_row(r, v, 0.97, lam))
        target = [a + b for a, b in zip(gae_of_row(r, v, 0.97, 1.0), v, strict=True)]
        assert found.returns is not None
        assert found.returns[row][valid].tolist() == pytest.approx(target)
    with pytest.raises(ConfigError, match="values"):
        of([1.0], GaeAdvantage(), [0])


def test_gdpo_normalises_each_reward_on_its_own() -> None:
    """The sum of rewards hides a rare one; GDPO gives both the same scale."""
    rewards = torch.tensor([[1.0, 0.0], [0.0, 10.0], [0.0, 0.0]], dtype=F)
    group = torch.zeros(3, dtype=torch.int64)
    mask = torch.ones(3, 1, dtype=F)
    config = GdpoAdvantage(weights=(1.0, 0.5), eps=0.0, whiten="none")
    found = advantages(rewards, config, group=group, mask=mask).value[:, 0].tolist()
    one = centred([1.0, 0, 0], statistics.stdev([1.0, 0, 0]))
    two = centred([0.0, 10, 0], statistics.stdev([0.0, 10, 0]))
    right = [a + 0.5 * b for a, b in zip(one, two, strict=True)]
    assert found == pytest.approx(right, rel=1e-12)
    rows = GdpoAdvantage(weights=(1.0, 0.5), eps=0.0, whiten="rows")
    whitened = advantages(rewards, rows, group=group, mask=mask).value[:, 0]
    assert whitened.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert whitened.std().item() == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(ConfigError, match="weights"):
        advantages(rewards, GdpoAdvantage(weights=(1.0,)), group=group, mask=mask)


# ---------------------------------------------------------------------------- the whole order


def test_order_is_shaping_then_kl_then_advantage() -> None:
    """Rewards are cut for length first, KL is taken off next, groups are centred last."""
    mask = (torch.arange(4) < torch.tensor([[2], [4]])).to(F)
    config = Objective(
        advantage=MeanOnlyAdvantage(),
        length=Length(penalty=OverlongPenalty(cap_tokens=4, buffer_tokens=2)),
        kl=Kl(place="reward", estimator="k1", coefficient=0.1),
    )
    old = torch.full((2, 4), -1.0, dtype=F)
    reference = torch.tensor([[-1.5] * 4, [-1.2] * 4], dtype=F)
    signal = learning_signal(
        torch.tensor([1.0, 1.0], dtype=F),
        config,
        group=torch.tensor([0, 0]),
        mask=mask,
        old_logp=old,
        ref_logp=reference,
    )
    shaped = [1.0, 0.0]
    assert signal.rewards.tolist() == shaped
    total = [shaped[0] - 0.1 * 2 * 0.5, shaped[1] - 0.1 * 4 * 0.2]
    mean = sum(total) / 2
    assert signal.advantages[:, 0].tolist() == pytest.approx([x - mean for x in total])
    with pytest.raises(ConfigError, match="ref_logp"):
        learning_signal(
            torch.tensor([1.0, 1.0], dtype=F), config, group=torch.tensor([0, 0]), mask=mask
        )


def test_masks_of_filtered_and_degenerate_responses() -> None:
    mask = torch.ones(4, 2, dtype=F)
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=F)
    group = torch.tensor([0, 0, 1, 1])
    status = torch.tensor([0, int(Status.TRUNCATED), 0, 0])
    plain = learning_signal(rewards, Objective(), group=group, mask=mask, status=status)
    assert torch.equal(plain.mask, mask)
    assert plain.truncated_share.item() == 0.25
    config = Objective(length=Length(mask_truncated=True), degenerate_groups="out")
    signal = learning_signal(rewards, config, group=group, mask=mask, status=status)
    assert signal.mask.sum(dim=-1).tolist() == [2.0, 0.0, 0.0, 0.0]
    assert torch.equal(signal.full_mask, mask)
    assert signal.advantages[0, 0].item() == pytest.approx(plain.advantages[0, 0].item())

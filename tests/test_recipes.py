"""Recipes: complete, their weights against hand formulas and the torch loss, their differences."""

import math
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch

from dapolab import recipes
from dapolab.errors import ConfigError
from dapolab.objective import Batch, Structure, policy_loss
from dapolab.objective import advantages as torch_advantages
from dapolab.recipes import differences, find, formula, slope, weights
from dapolab.recipes.example import advantages, penalty_at
from dapolab.recipes.recipe import UNKNOWN_DATE
from dapolab.rules import keep_group, overlong_penalty
from dapolab.scenario import aggregation as agg
from dapolab.scenario import clip as clips
from dapolab.scenario.advantage import (
    Advantage,
    BatchStdAdvantage,
    GaeAdvantage,
    GrpoAdvantage,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    OpoAdvantage,
    PassAtKAdvantage,
    RlooAdvantage,
)
from dapolab.scenario.objective import Objective

NAMED = """
seed-reference paper dapo-32b-run dapo-32b-run-no-ds dapo-early verl-2025-04-04 verl-0.4.0
verl-0.6.1 verl-0.7.0-fsdp verl-0.7.1 verl-0.9.0 verl-0.9.1 verl-0.9.0-gspo verl-0.9.1-gspo
trl-1.16-grpo trl-1.16-bnpo trl-1.16-dr_grpo trl-1.16-dapo trl-1.16-cispo trl-1.16-sapo
trl-1.16-luspo trl-1.16-vespo trl-1.10-grpo trl-1.10-bnpo trl-1.10-dr_grpo trl-1.10-dapo
trl-1.10-cispo trl-1.10-sapo trl-1.10-luspo trl-1.10-vespo 06-grpo 06-dapo openrlhf
verl-2025-12-01-sum-norm verl-2025-12-17-seq-mean verl-0.9.1-bypass-geo-rs verl-0.9.1-bypass-k3-rs
openrlhf-gspo openrlhf-binary-kl slime slime-per-token prime-rl prime-rl-ipo areal nemo-rl skyrl
nemo-rl-dapo skyrl-prompt-mean roll tinker-ppo tinker-cispo ms-swift-dapo open-instruct dr-grpo grpo
"""


def modes(aggregation):
    return Objective(aggregation=aggregation)


# ---------------------------------------------------------------------------- the collection


def test_every_named_recipe_is_there():
    assert set(NAMED.split()) <= set(recipes.ALL)


@pytest.mark.parametrize("name", recipes.ALL)
def test_every_recipe_is_complete(name):
    recipe = find(name)
    assert recipe.id == name
    assert recipe.summary
    assert recipe.source
    assert recipe.evidence.reference
    dated = re.fullmatch(r"(by |after )?20\d\d-\d\d(-\d\d)?", recipe.evidence.date)
    assert dated or (recipe.evidence.date == UNKNOWN_DATE and recipe.evidence.how == "read")
    assert f"({recipe.evidence.date})" in str(recipe.evidence)
    judges = {"verl": "verl==0.9.1", "TRL": "trl==1.16.0", "OpenRLHF": "openrlhf==0.11.2"}
    if recipe.evidence.how == "judged":
        assert recipe.evidence.reference == judges[recipe.framework]
    lines = formula(recipe.objective).splitlines()
    assert max(map(len, lines)) <= 76
    assert [line[0] for line in lines if line[:3] in ("A =", "l =", "L =")] == ["A", "l", "L"]


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'trl-1\.16-drgrpo'; nearest: trl-1\.16-dr_grpo"):
        find("trl-1.16-drgrpo")


def test_recipes_and_their_command_load_nothing_heavy():
    code = (
        "import sys; from dapolab.cli import main; main(['recipe', 'paper', '06-dapo']);"
        "print([m for m in ('torch', 'simpy', 'numba', 'pandas', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_updates_of_the_published_run():
    """8,192 responses in updates of 512 are 16, of which 15 can clip (field case B15)."""
    assert find("paper").batch.updates_per_rollout == 16
    assert find("dapo-32b-run").batch.updates_per_rollout == 16
    assert find("06-dapo").batch.updates_per_rollout == 1


# ---------------------------------------------------------------------------- weights by hand


def test_weights_of_b67():
    """Two answers of 10 and 100 tokens (field case B67)."""
    lengths = (10, 100)
    assert weights(modes(agg.SeqMeanTokenMean()), lengths) == pytest.approx((0.05, 0.005))
    assert weights(modes(agg.TokenMean()), lengths) == pytest.approx((1 / 110, 1 / 110))
    norm = modes(agg.SeqMeanTokenSumNorm(constant=100))
    assert weights(norm, lengths) == pytest.approx((0.005, 0.005))


def test_weights_of_c1():
    """Every row of theory.md C1, two prompts of two and one answers."""
    lengths, groups = (2, 6, 12), (7, 7, 3)
    expected = {
        agg.TokenMean(): (1 / 20,) * 3,
        agg.PromptMean(): (1 / 16, 1 / 16, 1 / 24),
        agg.SeqMeanTokenMean(): (1 / 6, 1 / 18, 1 / 36),
        agg.SeqMeanTokenSum(): (1 / 3,) * 3,
        agg.SeqMeanTokenSumNorm(constant=40): (1 / 120,) * 3,
        agg.SeqMeanTokenSumNorm(constant=40, rows="sum"): (1 / 40,) * 3,
        agg.SeqMeanTokenSumNorm(constant="padded-width"): (1 / 36,) * 3,
        agg.TokenSum(): (1.0,) * 3,
    }
    for aggregation, weight in expected.items():
        assert weights(modes(aggregation), lengths, groups=groups) == pytest.approx(weight)


def test_prompt_mean_and_batch_mean_give_the_two_values_of_b11():
    lengths, groups, losses = (1, 1, 3, 3), (0, 0, 1, 1), (4, 4, 1, 1)

    def value(name):
        of = weights(find(name).objective, lengths, groups=groups)
        return sum(w * n * loss for w, n, loss in zip(of, lengths, losses, strict=True))

    assert value("dapo-32b-run") == pytest.approx(1.75)
    assert value("verl-0.9.1") == pytest.approx(1.75)
    assert value("paper") == pytest.approx(2.5)
    assert value("skyrl-prompt-mean") == pytest.approx(2.5)


def test_split_into_micro_batches_of_b01():
    """One row of 1 token, one of 3: 1/4 each, or 1/2 and 1/6 by the legacy actor."""
    new = weights(find("verl-0.7.1").objective, (1, 3), micro_rows=1)
    old = weights(find("verl-0.7.0-fsdp").objective, (1, 3), micro_rows=1)
    assert new == pytest.approx((1 / 4, 1 / 4))
    assert old == pytest.approx((1 / 2, 1 / 6))
    assert weights(find("verl-0.7.0-fsdp").objective, (1, 3)) == pytest.approx(new)


def test_dynamic_batches_weigh_by_rows():
    """Per-token weight n_m/n · 1/T_m (theory.md C8), micro-batches of 2 and 1 rows."""
    run = weights(find("dapo-32b-run").objective, (2, 4, 3), micro_rows=2)
    assert run == pytest.approx((2 / 3 / 6, 2 / 3 / 6, 1 / 3 / 3))
    fixed = weights(find("verl-0.7.0-fsdp").objective, (2, 4, 3), micro_rows=2)
    assert fixed == pytest.approx((1 / 2 / 6, 1 / 2 / 6, 1 / 2 / 3))


def test_masked_rows_in_and_out():
    """One answer of 4 tokens and a fully masked one: 1/4, or miles' 1/5 (field case B07)."""
    assert weights(find("openrlhf").objective, (4, 0)) == pytest.approx((1 / 4, 0))
    assert weights(find("slime-per-token").objective, (4, 0)) == pytest.approx((1 / 5, 0))
    assert weights(find("openrlhf-gspo").objective, (4, 0)) == pytest.approx((1 / 4, 0))
    assert weights(find("trl-1.16-grpo").objective, (4, 0)) == pytest.approx((1 / 8, 0))
    assert weights(find("verl-0.6.1-seq-mean").objective, (4, 0)) == pytest.approx((1 / 4, 0))
    assert weights(find("verl-0.9.1-seq-mean").objective, (4, 0)) == pytest.approx((1 / 8, 0))


def test_the_filter_of_verl_v1_changes_the_batch_alone():
    """Same loss with and without filter_groups; only what fills the batch differs."""
    found = differences(find("verl-0.9.1"), find("verl-0.9.1-filter"))
    assert found.numbers == ()
    assert {setting.name.partition(".")[0] for setting in found.settings} == {
        "collector",
        "when_no_signal",
    }
    collector = find("verl-0.9.1-filter").collector
    assert collector is not None
    assert collector.kind == "verl_v1"


def test_an_update_without_tokens_has_no_weight():
    for recipe in recipes.ALL.values():
        assert weights(recipe.objective, (0, 0, 0)) == (0.0, 0.0, 0.0)


# ---------------------------------------------------------------------------- histories


def test_sum_norm_shrank_by_the_number_of_sequences():
    lengths = (3, 5, 9, 9)
    before = weights(find("verl-0.7.0-sum-norm").objective, lengths, padded_width=32)
    after = weights(find("verl-0.7.1-sum-norm").objective, lengths, padded_width=32)
    assert before == pytest.approx((1 / 32,) * 4)
    assert after == pytest.approx((1 / 32 / 4,) * 4)


def test_sum_norm_of_the_legacy_actor_follows_the_micro_batches():
    """verl#3741: k micro-batches, 1/k of the update."""
    old = find("verl-0.4.0-sum-norm").objective
    assert weights(old, (8,) * 4, micro_rows=1) == pytest.approx((1 / 8 / 4,) * 4)
    assert weights(old, (8,) * 4, micro_rows=2) == pytest.approx((1 / 8 / 2,) * 4)


def test_first_token_sum_was_a_token_mean():
    """verl#911: losses [[6], [1, 2, 3]] give 4 instead of 6 (field case B04)."""
    lengths, sums = (1, 3), (6, 6)

    def value(name):
        of = weights(find(name).objective, lengths)
        return sum(w * s for w, s in zip(of, sums, strict=True))

    assert value("verl-2025-04-04-seq-sum") == pytest.approx(4.0)
    assert value("verl-2025-04-06-seq-sum") == pytest.approx(6.0)


def test_gspo_changed_its_aggregation_between_releases():
    assert weights(find("verl-0.9.0-gspo").objective, (2, 8)) == pytest.approx((1 / 4, 1 / 16))
    assert weights(find("verl-0.9.1-gspo").objective, (2, 8)) == pytest.approx((1 / 10, 1 / 10))
    found = differences(find("verl-0.9.0-gspo"), find("verl-0.9.1-gspo"))
    assert [row.name for row in found.settings] == ["aggregation"]


def test_gmpo_of_verl_grows_with_its_micro_batches():
    """Probe of verl 0.9.1: 0.308 whole, 1.232 as four micro-batches (a factor of 4)."""
    objective = find("verl-0.9.1-geo-mean").objective
    whole = weights(objective, (5, 7, 2, 9))
    split = weights(objective, (5, 7, 2, 9), micro_rows=1)
    assert split == pytest.approx([4 * w for w in whole])


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "vespo"])
@pytest.mark.parametrize(("accumulation", "steps"), [(2, 8), (4, 4), (8, 2)])
def test_old_trl_scales_by_accumulation_over_steps(loss_type, accumulation, steps):
    """trl#5619."""

    def of(version):
        objective = find(f"trl-{version}-{loss_type}").objective
        window = objective.aggregation.model_copy(
            update={"gradient_accumulation_steps": accumulation, "steps_per_generation": steps}
        )
        return weights(objective.model_copy(update={"aggregation": window}), (10, 30))

    factor = accumulation / steps
    assert of("1.10") == pytest.approx([factor * w for w in of("1.16")])


def test_ms_swift_divides_once_more():
    """Four micro-steps of 10 tokens, losses 1: 0.25 instead of 1 (field case B10)."""
    objective = find("ms-swift-dapo").objective
    window = objective.aggregation.model_copy(
        update={"gradient_accumulation_steps": 4, "steps_per_generation": 4}
    )
    of = weights(objective.model_copy(update={"aggregation": window}), (10,) * 4)
    assert sum(10 * w for w in of) == pytest.approx(0.25)


def test_cispo_of_trl_without_its_own_cap_learns_a_fifth():
    assert weights(find("trl-1.16-cispo").objective, (4, 6)) == pytest.approx((0.02, 0.02))
    assert weights(find("trl-1.16-dapo").objective, (4, 6)) == pytest.approx((0.1, 0.1))


# ---------------------------------------------------------------------------- against torch


def torch_weights(objective, lengths, *, groups, width, structure):
    """−∂loss/∂log π at ratio 1 and advantage 1, by autograd."""
    n = len(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).double()
    start = torch.full((n, width), math.log(0.3), dtype=torch.float64)
    logp = start.clone().requires_grad_()
    batch = Batch(
        logp=logp,
        mask=mask,
        advantages=torch.ones(n, dtype=torch.float64),
        old_logp=start,
        sampler_logp=start,
        ref_logp=start,
        group=torch.tensor(groups),
    )
    loss = policy_loss(
        batch,
        objective,
        structure=structure,
        generator=torch.Generator().manual_seed(0),
        metrics=False,
    )
    (gradient,) = torch.autograd.grad(loss.value, logp)
    return -gradient, mask


@pytest.mark.parametrize("name", recipes.ALL)
@pytest.mark.parametrize(("n_ranks", "micro_rows"), [(1, None), (1, 1), (2, 3), (4, 1)])
def test_weights_are_the_gradient_of_the_loss(name, n_ranks, micro_rows):
    objective = find(name).objective
    lengths = (4, 1, 0, 9, 3, 3, 12, 0)
    groups = (5, 5, 5, 2, 2, 8, 8, 8)
    width = 15
    closed = weights(
        objective,
        lengths,
        groups=groups,
        micro_rows=micro_rows,
        n_ranks=n_ranks,
        padded_width=width,
    )
    structure = Structure.split(len(lengths), n_ranks=n_ranks, micro_rows=micro_rows)
    gradient, mask = torch_weights(
        objective, lengths, groups=groups, width=width, structure=structure
    )
    expected = torch.tensor(closed, dtype=torch.float64)[:, None] * mask
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


ALL_CLIPS = [
    clips.NoClip(),
    clips.PpoClip(low=0.2, high=0.28),
    clips.PpoClip(low=0.2, high=0.2, dual_c=3.0, log_ratio_clamp=20.0),
    clips.PpoClip(low=0.2, high=0.2, delta=4.0),
    clips.GspoClip(low=0.2, high=0.2),
    clips.GspoClip(low=0.2, high=0.2, level="sequence_token", log_ratio_cap=10.0),
    clips.LuspoClip(low=0.2, high=0.2),
    clips.CispoClip(bounds="band", low=0.2, high=0.2, log_ratio_clamp=20.0),
    clips.CispoClip(bounds="absolute", low=None, high=5.0),
    clips.SapoClip(),
    clips.GmpoClip(low=0.2, high=0.2),
    clips.VespoClip(),
    clips.DppoTvClip(low=0.2, high=0.2, cap=3.0),
    clips.DppoKlClip(low=0.1, high=0.1, cap=None, surrogate="ratio"),
    clips.GpgClip(),
    clips.DroClip(beta=0.5),
    clips.ClipCov(low=0.2, high=0.2),
]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("clip", ALL_CLIPS, ids=lambda clip: clip.kind)
def test_slope_is_the_gradient_of_one_token(clip, sign):
    for p_old, ratios in ((0.5, (0.5, 0.75, 1.0, 1.25, 1.9)), (0.03, (0.1, 3.5, 5.0, 20.0))):
        for ratio in ratios:
            old = torch.tensor([[math.log(p_old)]], dtype=torch.float64)
            logp = (old + math.log(ratio)).requires_grad_()
            batch = Batch(
                logp=logp,
                mask=torch.ones_like(old),
                advantages=torch.tensor([sign], dtype=torch.float64),
                old_logp=old,
            )
            objective = Objective(clip=clip, aggregation=agg.TokenSum())
            loss = policy_loss(
                batch, objective, generator=torch.Generator().manual_seed(0), metrics=False
            )
            (gradient,) = torch.autograd.grad(loss.value, logp, allow_unused=True)
            measured = 0.0 if gradient is None else -gradient.item() / sign
            closed = slope(clip, ratio, advantage=sign, p_old=p_old)
            assert closed == pytest.approx(measured, rel=1e-12, abs=1e-12), ratio


def test_slopes_that_people_ask_for():
    """Dual clip: ratio 10 keeps its gradient without c and with c = 10 (field case B18)."""
    assert slope(clips.PpoClip(), 10.0, advantage=-1) == 10
    assert slope(clips.PpoClip(dual_c=3.0), 10.0, advantage=-1) == 0
    assert slope(clips.PpoClip(dual_c=10.0), 10.0, advantage=-1) == 10
    assert slope(clips.PpoClip(dual_c=3.0), 2.0, advantage=-1) == 2
    assert slope(clips.PpoClip(high=0.2), 1.25, advantage=1) == 0
    assert slope(clips.PpoClip(high=0.28), 1.25, advantage=1) == 1.25
    peak = slope(clips.SapoClip(), 2.06, advantage=1)
    assert peak == pytest.approx(1.575, abs=1e-3)  # theory.md D1


# ---------------------------------------------------------------------------- the seed's snippet


def test_seed_reference_is_the_snippet():
    """The article's own example, worked out by hand from its definition.

    Rewards [[0,0],[0,1],[1,1],[1,0]]: groups 1 and 3 are mixed, A = (r − ½)/½ = ±1 with ddof 0.
    Ratios (1, 1.3, 1), masks [1,1,0] and [1,0,0]; A < 0 keeps min(−1.3, −1.28) = −1.3, A > 0 keeps
    1.28: the six tokens add up to (−1 − 1.3 + 1) + (1 + 1.28 − 1) = −0.02.
    """
    recipe = find("seed-reference")
    rewards = [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    mixed = [keep_group(group) for group in rewards]
    assert mixed == [False, True, False, True]
    kept = [group for group, keep in zip(rewards, mixed, strict=True) if keep]
    of_groups = [advantages(recipe.objective.advantage, group) for group in kept]
    assert of_groups == [(-1.0, 1.0), (1.0, -1.0)]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]] * 2, dtype=torch.float64)
    old = torch.zeros(4, 3, dtype=torch.float64) - 3
    logp = old + torch.tensor([1.0, 1.3, 1.0], dtype=torch.float64).log()
    batch = Batch(
        logp=logp,
        mask=mask,
        advantages=torch.tensor(of_groups, dtype=torch.float64).flatten(),
        old_logp=old,
        group=torch.tensor([1, 1, 3, 3]),
    )
    loss = policy_loss(batch, recipe.objective).value
    assert loss.item() == pytest.approx(0.02 / 6, rel=1e-9)
    assert recipe.when_no_signal == "error"
    assert recipe.objective.degenerate_groups == "out"


def snippet(rewards_PG, new_PGT, old_PGT, mask_PGT, low=0.2, high=0.28):
    """The article's definition in numpy, token by token: mixed groups, ddof 0, one token mean."""
    total = n_tokens = 0.0
    for rewards, new, old, mask in zip(rewards_PG, new_PGT, old_PGT, mask_PGT, strict=True):
        if rewards.max() == rewards.min():
            continue
        for reward, *tokens in zip(rewards, new, old, mask, strict=True):
            advantage = (reward - np.mean(rewards)) / np.std(rewards)
            for a, b, counts in zip(*tokens, strict=True):
                ratio = np.exp(a - b)
                kept = np.clip(ratio, 1 - low, 1 + high)
                total += counts * min(ratio * advantage, kept * advantage)
                n_tokens += counts
    return -total / n_tokens


@pytest.mark.parametrize("seed", range(5))
def test_seed_reference_on_random_groups(seed):
    rng = np.random.default_rng(seed)
    P, G, T = 6, 4, 9
    rewards = rng.integers(0, 2, (P, G)).astype(float)
    rewards[0], rewards[1] = 1.0, (0.0, 1.0, 1.0, 1.0)
    old = rng.normal(-2, 0.5, (P, G, T))
    new = old + rng.normal(0, 0.4, (P, G, T))
    mask = (np.arange(T) < rng.integers(1, T + 1, (P, G, 1))).astype(float)
    recipe = find("seed-reference")
    mixed = [keep_group(list(group)) for group in rewards]
    of = [advantages(recipe.objective.advantage, list(group)) for group in rewards[mixed]]
    batch = Batch(
        logp=torch.tensor(new[mixed]).flatten(0, 1),
        mask=torch.tensor(mask[mixed]).flatten(0, 1),
        advantages=torch.tensor(of, dtype=torch.float64).flatten(),
        old_logp=torch.tensor(old[mixed]).flatten(0, 1),
    )
    loss = policy_loss(batch, recipe.objective).value.item()
    assert loss == pytest.approx(snippet(rewards, new, old, mask), rel=1e-12)


# ---------------------------------------------------------------------------- advantages, lengths


def test_advantages_of_one_right_of_four():
    rewards = (1.0, 0.0, 0.0, 0.0)
    sample, population = math.sqrt(0.25), math.sqrt(0.1875)
    right, wrong = 0.75, -0.25
    assert advantages(GrpoAdvantage(ddof=1, eps=0), rewards)[:2] == pytest.approx(
        (right / sample, wrong / sample)
    )
    assert advantages(GrpoAdvantage(ddof=0, eps=0), rewards)[:2] == pytest.approx(
        (right / population, wrong / population)
    )
    assert advantages(MeanOnlyAdvantage(), rewards)[:2] == (right, wrong)
    assert advantages(RlooAdvantage(), rewards)[:2] == pytest.approx((1.0, -1 / 3))
    assert advantages(MaxRlAdvantage(), rewards)[:2] == pytest.approx((3.0, -1.0))
    # The others of the right one are all alike: no std, the plain difference (NeMo RL).
    one_out = advantages(LeaveOneOutAdvantage(eps=0), rewards)
    assert one_out[:2] == pytest.approx((1.0, -(1 / 3) / math.sqrt(1 / 3)))
    weighed = advantages(OpoAdvantage(), rewards, lengths=(3, 1, 1, 1))
    assert weighed[:2] == pytest.approx((0.5, -0.5))
    best = advantages(PassAtKAdvantage(eps=0), rewards)
    assert best == pytest.approx((1 / sample, 0, 0, 0))


ESTIMATORS = [
    GrpoAdvantage(ddof=0, eps=1e-8),
    GrpoAdvantage(ddof=1, eps=1e-4),
    MeanOnlyAdvantage(),
    LeaveOneOutAdvantage(),
    RlooAdvantage(),
    BatchStdAdvantage(),
    MaxRlAdvantage(eps=1e-6),
    OpoAdvantage(),
    PassAtKAdvantage(),
]


@pytest.mark.parametrize("config", ESTIMATORS, ids=lambda config: config.kind)
@pytest.mark.parametrize(
    "rewards", [(1.0, 0.0, 0.0, 1.0), (1.0, -1.0, -1.0, -1.5), (0.25, 0.5), (1.0, 0.0, 0.0)]
)
def test_advantages_are_those_of_the_objective(config, rewards):
    n = len(rewards)
    lengths = tuple(range(1, n + 1))
    mask = (torch.arange(n) < torch.tensor(lengths)[:, None]).double()
    judge = torch_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        config,
        group=torch.zeros(n, dtype=torch.int64),
        mask=mask,
    )
    closed = advantages(config, rewards, lengths=lengths)
    assert closed == pytest.approx(judge.value.reshape(n, -1)[:, 0].tolist(), rel=1e-12)


def test_equal_rewards_have_no_advantage():
    assert advantages(GrpoAdvantage(eps=0), (0.5,) * 4) == (0.0,) * 4


def test_every_advantage_has_words_of_its_own():
    configs = get_args(get_args(Advantage)[0])
    assert len(configs) >= 15
    said = {config: formula(Objective(advantage=config())).splitlines()[0] for config in configs}
    assert len(set(said.values())) == len(configs)
    assert not [config for config, text in said.items() if "None" in text]
    gae = formula(Objective(advantage=GaeAdvantage(gamma=0.9, lam=0.8)))
    assert "GAE(γ 0.9, λ 0.8)" in gae
    # the divisor of a standard deviation is told: n − 1 or n
    shown = [formula(Objective(advantage=GrpoAdvantage(ddof=d))).splitlines()[0] for d in (1, 0)]
    assert ["[n−1]" in text for text in shown] == [True, False]


@pytest.mark.parametrize("name", [r.id for r in recipes.ALL.values() if r.objective.length.penalty])
def test_penalties_are_those_of_the_rules(name):
    rule = find(name).objective.length.penalty
    for share in (0.5, 0.9, 1.0, 1.1):
        n = int(rule.cap_tokens * share)
        expected = overlong_penalty(
            n,
            cap_tokens=rule.cap_tokens,
            buffer_tokens=rule.buffer_tokens,
            factor=rule.factor,
            clamp=rule.beyond != "unclamped",
        )
        assert penalty_at(rule, n) == pytest.approx(expected)


# ---------------------------------------------------------------------------- differences


@pytest.mark.parametrize("name", recipes.ALL)
def test_a_recipe_does_not_differ_from_itself(name):
    found = differences(find(name), find(name))
    assert found.settings == ()
    assert found.numbers == ()


def test_differences_turn_around():
    a, b = find("paper"), find("nemo-rl")
    there, back = differences(a, b), differences(b, a)
    assert {(d.name, d.a, d.b) for d in there.settings} == {
        (d.name, d.b, d.a) for d in back.settings
    }
    assert {(d.name, d.a, d.b) for d in there.numbers} == {(d.name, d.b, d.a) for d in back.numbers}


def test_paper_against_its_published_run():
    found = differences(find("paper"), find("dapo-32b-run"))
    changed = {row.name: (row.a, row.b) for row in found.settings}
    assert changed["aggregation"] == ("prompt-mean", "token-mean-micro")
    assert changed["clip.dual_c"] == ("–", "10")
    assert changed["length.penalty.beyond"] == ("clamped", "unclamped")
    numbers = {row.name: (row.a, row.b) for row in found.numbers}
    assert numbers["token weight, n 10"] == pytest.approx((1 / 2 / 110, 1 / 1110))
    assert numbers["token weight, n 1,000, alone"] == pytest.approx((1 / 2000, 1 / 3000))
    assert numbers["gradient factor, r 20, A < 0"] == (20, 0)
    # 22,528 tokens exceed the cap by half a buffer.
    assert numbers["reward for length 22,528"] == pytest.approx((-1, -1.5))
    assert "reward for length 20,480" not in numbers


def test_the_two_published_runs_differ_in_the_collector_alone():
    found = differences(find("dapo-32b-run"), find("dapo-32b-run-no-ds"))
    parts = {row.name.partition(".")[0] for row in found.settings}
    assert parts == {"collector", "when_no_signal"}
    assert found.numbers == ()


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": ()}, "at least one"),
        ({"lengths": (3, -1)}, "0 or more"),
        ({"lengths": (3, 1), "groups": (0,)}, "1 groups for 2 lengths"),
        ({"lengths": (3, 1, 2), "n_ranks": 2}, "do not divide"),
        ({"lengths": (3, 1), "micro_rows": 0}, "do not divide"),
        ({"lengths": (3, 1), "padded_width": 2}, "below the longest"),
    ],
)
def test_impossible_updates_are_refused(options, words):
    lengths = options.pop("lengths")
    with pytest.raises(ConfigError, match=words):
        weights(find("paper").objective, lengths, **options)

"""Training: replicas are seeds, two ways to a gradient, every switch, and what must not matter."""

import math

import numpy as np
import pytest
import torch

from dapolab.bandit import (
    STUDIES,
    Mode,
    Training,
    curve_table,
    final_estimates,
    parse_mode,
    three_paths,
    train,
)
from dapolab.bandit.answers import Answers
from dapolab.bandit.bench import bandit_benchmarks
from dapolab.bandit.environments import (
    difficulty_ladder,
    eos_hazard,
    length_classes,
    many_arms,
    overlong,
)
from dapolab.bandit.modes import ADVANTAGES, AGGREGATIONS, CLIPS
from dapolab.bandit.rollout import Draws, collect, score
from dapolab.errors import ConfigError
from dapolab.scenario import (
    GrpoAdvantage,
    Kl,
    MeanOnlyAdvantage,
    NoClip,
    Objective,
    OverlongPenalty,
    PpoClip,
    SeqMeanTokenMean,
    TokenMean,
)

PENALTY = {"cap_tokens": 100, "buffer_tokens": 40}
BASE = Mode(
    name="base",
    objective=Objective(advantage=MeanOnlyAdvantage(), aggregation=SeqMeanTokenMean()),
    training=Training(n_steps=4, n_groups=2, group_size=4, learning_rate=3.0),
)


def mode(text: str, base: Mode = BASE) -> Mode:
    return parse_mode(text, base=base, penalty=PENALTY)


def theta(bandit, text, **options):
    options = {"seeds": range(3), "n_records": 2} | options
    return train(bandit, mode(text), **options).theta


# ---------------------------------------------------------------------------- replicas

# a band that holds many tokens of the toy, and a third of them drawn
CLIP_COV = "clip_cov+clip.share=0.3+clip.cov_low=-0.5+clip.cov_high=0.5"


@pytest.mark.parametrize(
    "text",
    [
        "token-mean",
        "grpo+adam+n_epochs=2+n_mini_batches=4",
        "seq-mean-token-mean+natural",
        "token-mean-micro+micro_rows=2+staleness=2",
        "prompt-mean+filter-raw+max_candidates=3",
        "overlong+filter-shaped",
        "exclude-truncated",
        f"{CLIP_COV}+n_epochs=3",
    ],
)
def test_a_seed_among_many_is_the_seed_alone(text) -> None:
    together = train(overlong(), mode(text), seeds=range(5))
    for index in (0, 3):
        alone = train(overlong(), mode(text), seeds=[index])
        assert np.abs(alone.theta[0] - together.theta[index]).max() < 1e-12
        for name, values in together.values.items():
            np.testing.assert_allclose(alone.values[name][:, 0], values[:, index], atol=1e-12)


def test_clip_cov_draws_apart_for_each_seed() -> None:
    """What one replica drops is its own draw: other company, other order, the same curve."""
    text = f"{CLIP_COV}+n_epochs=3"
    others = train(overlong(), mode(text), seeds=[7, 2, 9]).theta
    assert (others[1] == theta(overlong(), text, seeds=[2])[0]).all()
    # the draw acts: without it some of these seeds end elsewhere
    assert (others != theta(overlong(), "ppo+n_epochs=3", seeds=[7, 2, 9])).any()
    assert (others[0] != others[1]).any()


def test_equal_calls_give_equal_bits_and_seeds_differ() -> None:
    first, second = (theta(eos_hazard(), "token-mean") for _ in range(2))
    assert (first == second).all()
    assert np.unique(first[:, 0]).size == 3
    assert (theta(eos_hazard(), "token-mean", seed=1) != first).all()


def test_modes_with_other_needs_see_the_same_draws() -> None:
    more = theta(length_classes(), "token-mean", candidates=16)
    filtered = mode("token-mean+filter-raw")
    assert filtered.training.n_candidates == 16
    draws = Draws(0, [0, 1, 2], n_groups=16, group_size=4).step()
    assert draws[0].shape == (3, 16)
    assert not np.isnan(more).any()


def test_a_long_run_does_not_depend_on_the_block_of_draws() -> None:
    few = Draws(0, [4], n_groups=1, group_size=2)
    many = Draws(0, [4], n_groups=1, group_size=2)
    many._block = many._next = 7
    for _ in range(300):
        assert torch.equal(few.step()[1], many.step()[1])


# ---------------------------------------------------------------------------- two ways


@pytest.mark.parametrize("kind", CLIPS)
def test_gradient_weights_and_automatic_differentiation_train_alike(kind) -> None:
    word = "no-clip" if kind == "none" else kind
    text = f"{word}+n_epochs=3+n_mini_batches=2"
    for bandit in (length_classes(), eos_hazard(hazard_right=0.3, hazard_wrong=0.2)):
        direct = theta(bandit, text)
        assert np.abs(direct - theta(bandit, text, automatic=True)).max() < 1e-10


@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_every_aggregation_with_every_advantage(kind, advantage) -> None:
    text = f"{kind}+{advantage}+micro_rows=3+n_epochs=2"
    direct = theta(overlong(), text)
    assert np.abs(direct - theta(overlong(), text, automatic=True)).max() < 1e-10
    assert np.abs(direct - overlong().start.numpy()).max() > 1e-6


def test_optimal_token_baseline_by_hand() -> None:
    """verl's Σ G·W/Σ W at the decision token, W = 1 − 2π + Σπ², reward-to-go = the reward."""
    bandit, chosen = length_classes(), mode("optimal_token_baseline+token-sum+n_groups=1")
    start = bandit.start.expand(1, -1)
    answers = Answers(
        torch.tensor([[0, 1, 2, 3]]),
        torch.tensor([[True, True, False, False]]),
        torch.tensor([[10.0, 100.0, 10.0, 100.0]], dtype=torch.float64),
    )
    pi = bandit.probabilities(bandit.start)[0].numpy()
    weight = 1.0 - 2.0 * pi + (pi**2).sum()
    reward = np.array([1.0, 1.0, 0.0, 0.0])
    wanted = reward - (reward * weight).sum() / weight.sum()
    found = score(bandit, chosen, start, answers).advantages[0, :, 0].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-7)
    with pytest.raises(ConfigError, match="no optimal_token_baseline"):
        theta(eos_hazard(), "optimal_token_baseline")


def test_entropy_bonus_raises_entropy_and_kl_holds_the_policy_back() -> None:
    change = {}
    for name, extra in {
        "plain": {},
        "bonus": {"entropy_coef": 0.2},
        "kl": {"kl": Kl(coefficient=2.0)},
        "kl in reward": {"kl": Kl(coefficient=2.0, place="reward", estimator="k1")},
    }.items():
        objective = Objective(
            clip=NoClip(), advantage=MeanOnlyAdvantage(), aggregation=SeqMeanTokenMean(), **extra
        )
        training = Training(n_steps=60, group_size=16, learning_rate=1.0)
        run = train(
            many_arms(n_arms=4, p_likely=0.5),
            Mode(name=name, objective=objective, training=training),
            seeds=range(16),
        )
        change[name] = run.change("entropy/answer").mean()
    assert change["bonus"] > change["plain"]
    assert change["kl"] > change["plain"]
    assert change["kl in reward"] > change["plain"]


# ---------------------------------------------------------------------------- updates


def test_adam_is_that_of_torch() -> None:
    bandit, chosen = length_classes(), mode("adam+learning_rate=0.1+n_steps=6")
    run = train(bandit, chosen, seeds=[0])
    leaf = bandit.start.unsqueeze(0).clone().requires_grad_()
    judge = torch.optim.Adam([leaf], lr=0.1, betas=(0.9, 0.95), eps=1e-8)
    draws = Draws(0, [0], n_groups=2, group_size=4)
    from dapolab.bandit.update import loss_gradient

    for _ in range(6):
        at = leaf.detach().clone()
        rollout = collect(bandit, chosen, theta=at, sampler_theta=at, draws=draws.step())
        leaf.grad = loss_gradient(bandit, at, rollout, chosen)
        judge.step()
    assert np.abs(run.theta - leaf.detach().numpy()).max() < 1e-12


def test_one_update_a_rollout_makes_every_clip_the_same() -> None:
    """B15: with ratio 1 the upper bound cannot matter, bit by bit."""
    runs = {
        high: train(many_arms(), mode(f"grpo+clip.high={high}+n_steps=25"), seeds=range(8))
        for high in (0.2, 0.28, 0.5)
    }
    for high in (0.28, 0.5):
        assert (runs[high].theta == runs[0.2].theta).all()
        for metric, values in runs[0.2].values.items():
            np.testing.assert_array_equal(runs[high].values[metric], values)
    for name in ("clip/upper_share", "clip/lower_share"):
        assert (runs[0.2].values[name][1:] == 0.0).all()


def test_with_more_updates_a_rollout_the_clip_acts() -> None:
    """The twin of B15: 16 updates of one rollout (DAPO) let 15 clip."""
    text = "grpo+n_steps=3+group_size=32+n_epochs=16+learning_rate=1.0"
    low, high = (
        train(many_arms(case="random"), mode(f"{text}+clip.high={h}"), seeds=range(8))
        for h in (0.2, 0.5)
    )
    assert (low.theta != high.theta).any(axis=1).all()
    assert (low.values["clip/upper_share"][1:].max(axis=0) > 0).all()


def test_micro_batches_of_one_are_sequence_means() -> None:
    """theory.md C8."""
    one = theta(length_classes(), "token-mean-micro+micro_rows=1")
    assert np.abs(one - theta(length_classes(), "seq-mean-token-mean")).max() < 1e-12


@pytest.mark.parametrize(
    "kind",
    ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"],
)
def test_global_denominators_do_not_see_the_split(kind) -> None:
    """B01: the same step whatever the micro-batches, and another one with local denominators."""
    whole, split = (theta(length_classes(), f"{kind}{word}") for word in ("", "+micro_rows=3"))
    assert np.abs(split - whole).max() < 1e-12
    word = "token-mean-micro" if kind == "token-mean" else f"{kind}+aggregation.micro=mean"
    assert np.abs(theta(length_classes(), f"{word}+micro_rows=3") - whole).max() > 1e-6


def test_mini_batches_and_epochs_are_updates_in_order() -> None:
    whole = theta(length_classes(), "token-sum+n_epochs=1+no-clip+learning_rate=1e-6")
    cut = theta(length_classes(), "token-sum+n_mini_batches=4+no-clip+learning_rate=1e-6")
    start = length_classes().start.numpy()
    # Sums over parts are the sum over all, to first order in the learning rate.
    assert np.abs(cut - whole).max() < 1e-9
    assert np.abs(whole - start).max() > 1e-7
    twice = theta(length_classes(), "token-sum+n_epochs=2+no-clip+learning_rate=1e-6")
    assert np.abs((twice - start) - 2 * (whole - start)).max() < 1e-9


def test_a_stale_sampler_is_the_policy_of_steps_ago() -> None:
    """With lag 3 the first four rollouts come from the start: without a correction the ratio is 1,
    so that their gradients differ from the fresh ones only through the answers."""
    fresh = train(length_classes(), mode("n_steps=1"), seeds=range(4))
    stale = train(length_classes(), mode("n_steps=1+staleness=3"), seeds=range(4))
    assert (fresh.theta == stale.theta).all()
    later = [
        train(length_classes(), mode(f"n_steps=4+{lag}"), seeds=range(4)).theta
        for lag in ("staleness=0", "staleness=3")
    ]
    assert (later[0] != later[1]).any()


# ---------------------------------------------------------------------------- filters


def test_filter_keeps_the_first_mixed_groups_in_order() -> None:
    bandit = difficulty_ladder(pass_rates=(0.05, 0.5))
    chosen = mode("mean_only+filter-raw+max_candidates=6")
    start = bandit.start.expand(50, -1)
    draws = Draws(0, range(50), n_groups=12, group_size=4).step()
    plain = collect(
        bandit,
        mode("mean_only+n_groups=12"),
        theta=start,
        sampler_theta=start,
        draws=draws,
    )
    kept = collect(bandit, chosen, theta=start, sampler_theta=start, draws=draws)
    right = plain.answers.right.reshape(50, 12, 4)
    mixed = right.any(-1) & ~right.all(-1)
    for row in range(50):
        wanted = plain.answers.choice.reshape(50, 12, 4)[row][mixed[row]][:2]
        n = wanted.shape[0]
        assert torch.equal(kept.answers.choice.reshape(50, 2, 4)[row][:n], wanted)
        assert kept.filled[row].tolist() == [True] * 4 * n + [False] * 4 * (2 - n)
        assert (kept.mask[row].sum(-1) > 0).tolist() == kept.filled[row].tolist()
    assert torch.equal(kept.effective_share, mixed.double().mean(-1))


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_a_partial_batch_is_a_smaller_batch(kind) -> None:
    """Slots that no group filled are in no denominator."""
    bandit = difficulty_ladder(pass_rates=(0.03,))
    partial = mode(f"{kind}+filter-raw+n_groups=8+max_candidates=1+n_steps=1")
    run = train(bandit, partial, seeds=range(40))
    draws = Draws(0, range(40), n_groups=8, group_size=4).step()
    start = bandit.start.expand(40, -1)
    rollout = collect(bandit, partial, theta=start, sampler_theta=start, draws=draws)
    n_kept = (rollout.filled.sum(-1) // 4).tolist()
    assert {0, 1, 2} <= set(n_kept)
    for row, n in enumerate(n_kept):
        moved = run.theta[row] - bandit.start.numpy()
        if n == 0:
            assert (moved == 0).all()
            continue
        K = rollout.answers.right[row].reshape(8, 4).sum(-1)[:n].double()
        slope = (K * (1 - K / 4)).sum().item()  # Σ A·(right − p) of a sigmoid, at any p
        tokens = n * 4
        scale = {"token-sum": 1.0, "seq-mean-token-sum-norm": 1 / (tokens * 100.0)}
        expected = 3.0 * slope * scale.get(kind, 1 / tokens)
        assert moved[0] == pytest.approx(expected, rel=1e-12)


def test_filter_on_shaped_rewards_keeps_groups_that_are_all_right() -> None:
    bandit = overlong(right=(0.5, 0.48), wrong=(0.005, 0.005, 0.01))
    start = bandit.start.expand(200, -1)
    draws = Draws(0, range(200), n_groups=16, group_size=4).step()
    shares = {
        text: collect(
            bandit, mode(f"overlong+{text}"), theta=start, sampler_theta=start, draws=draws
        )
        .effective_share.mean()
        .item()
        for text in ("filter-raw", "filter-shaped")
    }
    # All right with equal lengths: .5⁴ + .48⁴; shaped keeps nearly all others.
    assert shares["filter-raw"] < 0.12
    assert shares["filter-shaped"] > 0.8


# ---------------------------------------------------------------------------- modes


def test_words_of_a_mode() -> None:
    found = mode("seq-mean-token-sum-norm+aggregation.constant=55+grpo+advantage.ddof=0+gspo")
    assert found.objective.aggregation.constant == 55
    assert found.objective.advantage == GrpoAdvantage(ddof=0)
    assert found.objective.clip.kind == "gspo"
    assert mode("clip.dual_c=3.0+clip.high=0.28").objective.clip == PpoClip(
        low=0.2, high=0.28, dual_c=3.0
    )
    assert mode("overlong").objective.length.penalty == OverlongPenalty(**PENALTY)
    assert mode("icepop").objective.sampler.action == "band"
    assert mode("natural+filter-shaped").training.filter == "shaped"
    assert mode("entropy_coef=0.1").objective.entropy_coef == 0.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokenmean", "nearest: token-mean"),
        ("clip.hihg=0.5", "nearest: clip.high"),
        ("n_step=4", "nearest: n_steps"),
        ("clip.high=much", "clip.ppo.high"),
        ("n_mini_batches=3", "divisor"),
        ("bypass+tis+sampler.bypass=true", "bypass"),
    ],
)
def test_wrong_words_name_the_nearest(text, words) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        mode(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_trains_in_all_its_modes(name) -> None:
    study = STUDIES[name]
    for text in study.modes:
        chosen = parse_mode(text, base=study.base, penalty=study.penalty)
        short = chosen.training.model_copy(update={"n_steps": 2})
        run = train(study.bandit(), chosen.model_copy(update={"training": short}), seeds=range(3))
        assert np.isfinite(run.theta).all()
        assert set(final_estimates(run)) >= {"length/mean", "change/entropy/answer"}


# ---------------------------------------------------------------------------- tables


def test_each_prompt_has_its_pass_rate() -> None:
    """Pass rates of the ladder at the start, and σ(θ_k) of each prompt at the end, by formula."""
    rates = (0.1, 0.5, 0.9)
    run = train(difficulty_ladder(pass_rates=rates), mode("grpo"), seeds=range(6))
    found = final_estimates(run)
    for k, p in enumerate(rates):
        name = f"reward/accuracy_prompt_{k + 1}"
        assert run.values[name][0] == pytest.approx(p, rel=1e-12)
        right = 1.0 / (1.0 + np.exp(-run.theta[:, k]))
        np.testing.assert_allclose(run.values[name][-1], right, rtol=1e-12)
        assert found[name].mean == pytest.approx(right.mean(), rel=1e-12)
        assert found[f"change/{name}"].mean == pytest.approx(right.mean() - p, rel=1e-9)
        assert (curve_table([run])["metric"] == name).sum() == len(run.steps)
    mean = sum(run.values[f"reward/accuracy_prompt_{k}"] for k in (1, 2, 3)) / 3
    np.testing.assert_allclose(mean, run.values["reward/accuracy"], rtol=1e-12)
    one_prompt = train(length_classes(), mode("grpo"), seeds=[0])
    assert not any("prompt" in name for name in one_prompt.values)


def test_tables_hold_means_and_student_intervals_over_seeds() -> None:
    run = train(length_classes(), mode("token-mean"), seeds=range(30))
    found = final_estimates(run)["change/length/mean"]
    change = run.values["length/mean"][-1] - run.values["length/mean"][0]
    assert found.mean == pytest.approx(change.mean())
    half = 2.7563859 * change.std(ddof=1) / math.sqrt(30)  # t, 29 degrees of freedom, 99 %
    assert found.high - found.mean == pytest.approx(half, rel=1e-6)
    table = curve_table([run])
    assert list(table.columns) == ["mode", "metric", "unit", "step", "mean", "low", "high", "n"]
    start = table[(table.metric == "length/mean") & (table.step == 0)]
    assert start["mean"].item() == pytest.approx(55.0)
    shares = table[table.unit == "share"]
    assert (shares.low >= 0).all()
    assert (shares.high <= 1).all()


def test_three_paths_are_the_contrasts_of_a_factorial() -> None:
    """The eight corners rebuild from their effects: y = Σ signs·effects/2 + the grand mean."""
    bandit = length_classes()
    base = BASE.model_copy(update={"training": BASE.training.model_copy(update={"n_steps": 5})})
    penalty = OverlongPenalty(cap_tokens=120, buffer_tokens=40)
    found = three_paths(bandit, base, penalty, seeds=range(6))
    assert len(found.effects) == 7
    metric = "length/wrong"
    grand = np.mean([run.change(metric).mean() for run in found.runs.values()])
    for name, run in found.runs.items():
        rebuilt = grand
        for effect, estimates in found.effects.items():
            on = [path in name.split("+") for path in effect.split("×")]
            rebuilt += math.prod(1 if x else -1 for x in on) * estimates[metric].mean / 2
        assert run.change(metric).mean() == pytest.approx(rebuilt, abs=1e-12)
    plain = base.model_copy(
        update={
            "objective": base.objective.model_copy(update={"aggregation": TokenMean()}),
        }
    )
    again = train(bandit, plain, seeds=range(6))
    np.testing.assert_array_equal(found.runs["none"].theta, again.theta)
    with pytest.raises(ValueError, match="two seeds"):
        three_paths(bandit, base, penalty, seeds=[0])


def test_benchmark_rows_have_the_agreed_columns() -> None:
    rows = bandit_benchmarks(n_seeds=3, n_updates=5, n_loop_seeds=1)
    assert len(rows) == 2
    for row in rows:
        assert list(row) == ["name", "value", "unit", "against", "ratio"]
        assert row["ratio"] > 0

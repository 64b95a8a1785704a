"""Field cases of the config checker as whole kinds: B15-B56, and theory E1, E6, A6."""

import math
from collections.abc import Sequence
from statistics import mean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dapolab.check import Finding, check_config, check_text

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
BUFFER = "+reward.reward_kwargs.overlong_buffer_cfg"
SIZES = st.sampled_from([8, 12, 16, 32, 48, 64, 128, 512])
GROUP_SIZES = st.integers(2, 32)


def verl(*overrides: str, launch: str = "", **how: object) -> dict[str, Finding]:
    return named(check_text(" ".join((launch, *overrides)), name="run.sh", **how).findings)


def named(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {f.id: f for f in findings}


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


# ---- B15: does the clip act at all


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Return prompts, prompts per update, group size, passes."""
    B = draw(SIZES)
    return B, draw(st.sampled_from(divisors(B))), draw(GROUP_SIZES), draw(st.integers(1, 3))


@given(batches())
def test_b15_updates_in_verl(sizes: tuple[int, int, int, int]) -> None:
    B, mini, G, passes = sizes
    found = verl(
        f"data.train_batch_size={B}",
        f"{ROLLOUT}.n={G}",
        f"{ACTOR}.ppo_mini_batch_size={mini}",
        f"{ACTOR}.ppo_epochs={passes}",
        f"{ACTOR}.clip_ratio_high=0.28",
    )
    updates = B // mini * passes
    if updates == 1:
        assert found["clip-no-effect"].severity == "warning"
        assert "clip-updates" not in found
    else:
        assert "clip-no-effect" not in found
        assert f"{updates} updates per rollout, {updates - 1} of them" in (
            found["clip-updates"].message
        )
        assert f"{B * G} responses, {mini * G} an update" in found["clip-updates"].message


@given(batches())
def test_b15_the_sampler_as_denominator_is_another_story(sizes: tuple[int, int, int, int]) -> None:
    B, mini, G, passes = sizes
    found = verl(
        f"data.train_batch_size={B}",
        f"{ROLLOUT}.n={G}",
        f"{ACTOR}.ppo_mini_batch_size={mini}",
        f"{ACTOR}.ppo_epochs={passes}",
        "algorithm.rollout_correction.bypass_mode=True",
    )
    assert "clip-no-effect" not in found
    only = "mismatch only" in found["clip-sampler-mismatch"].message
    assert only == (B // mini * passes == 1)


@given(
    window=st.sampled_from([1, 2, 4, 6, 8]),
    generation=st.sampled_from([1, 2, 4, 8, 16]),
    passes=st.integers(1, 3),
)
def test_b15_updates_in_trl(window: int, generation: int, passes: int) -> None:
    text = (
        f"gradient_accumulation_steps: {window}\nsteps_per_generation: {generation}\n"
        f"num_iterations: {passes}\nnum_generations: 8\nper_device_train_batch_size: 8\n"
        "epsilon_high: 0.28\nmax_completion_length: 1000\n"
    )
    found = named(check_text(text).findings)
    uses = generation * passes
    # TRL 1.16 needs no old log-probs exactly when the window is a multiple of a generation's uses.
    assert ("clip-no-effect" in found) == (window % uses == 0)
    if uses % window == 0 and uses > window:
        assert f"{uses // window} updates per rollout" in found["clip-updates"].message
    if window % uses == 0 and window > uses:
        assert f"one update per {window // uses} rollouts" in found["clip-no-effect"].message
    straddles = uses % window != 0 and window % uses != 0
    assert ("clip-updates-straddle" in found) == straddles
    if straddles:
        assert "clip-updates" not in found
        # Walk through the micro-steps: which see another policy than the one that generated them?
        steps = range(window * uses)
        off = sum(m // window != (m - m % uses) // window for m in steps) / len(steps)
        assert f"{100 * off:.3g} % of the micro-batches" in found["clip-updates-straddle"].message


@given(batches())
def test_b15_updates_in_slime_and_openrlhf(sizes: tuple[int, int, int, int]) -> None:
    B, mini, G, _ = sizes
    slime = (
        f"--rollout-batch-size {B} --n-samples-per-prompt {G} --global-batch-size {mini * G} "
        "--eps-clip 0.2 --eps-clip-high 0.28"
    )
    openrlhf = (
        f"--rollout.batch_size {B} --rollout.n_samples_per_prompt {G} "
        f"--train.batch_size {mini * G} --actor.eps_clip_low_high 0.2 0.28"
    )
    for text in (slime, openrlhf):
        found = named(check_text(text).findings)
        assert ("clip-no-effect" in found) == (mini == B)
        assert ("clip-updates" in found) == (mini < B)


def test_b15_and_b55_the_reported_numbers() -> None:
    found = verl(
        "data.train_batch_size=512",
        f"{ROLLOUT}.n=16",
        f"{ACTOR}.ppo_mini_batch_size=32",
        f"{ACTOR}.optim.lr_warmup_steps=20",
    )
    assert "16 updates per rollout, 15 of them off-policy" in found["clip-updates"].message
    assert "320 optimizer updates" in found["batch-warmup-units"].message


# ---- B19: how ε is written


EPS = st.floats(0, 3, allow_nan=False).map(lambda x: round(x, 3))
WAYS = {
    "verl": lambda low, high: f"{ACTOR}.clip_ratio_low={low} {ACTOR}.clip_ratio_high={high}",
    "trl": lambda low, high: f"epsilon: {low}\nepsilon_high: {high}\nnum_generations: 8\n",
    "slime": lambda low, high: f"--eps-clip {low} --eps-clip-high {high} --rm-type math",
    "openrlhf": lambda low, high: f"--actor.eps_clip_low_high {low} {high}",
}


@pytest.mark.parametrize("framework", WAYS)
@given(low=EPS, high=EPS)
def test_b19_range(framework: str, low: float, high: float) -> None:
    found = named(check_text(WAYS[framework](low, high), framework=framework).findings)
    assert ("clip-range-notation" in found) == (high >= 1)
    assert ("clip-low-one-or-more" in found) == (low >= 1)
    assert ("clip-high-below-low" in found) == (high < low)
    assert "clip-range-invalid" not in found
    clip = [f for f in found.values() if f.id.startswith("clip-")]
    assert all(f.severity != "error" for f in clip)
    if 1 < high < 2:
        assert f"{1 + high:.4g}" in found["clip-range-notation"].message
        assert f"did you mean {high - 1:.4g}?" in found["clip-range-notation"].message


def test_b19_the_reported_case() -> None:
    found = named(check_config(f"{ACTOR}.clip_ratio_high=1.28"))
    message = found["clip-range-notation"].message
    assert "2.28" in message
    assert "did you mean 0.28?" in message


@pytest.mark.parametrize("framework", WAYS)
@given(bad=st.sampled_from(["-0.2", "nan", "-1", ".nan"]))
def test_b19_negative_and_nan_are_errors(framework: str, bad: str) -> None:
    found = named(check_text(WAYS[framework](bad, bad), framework=framework).findings)
    assert found["clip-range-invalid"].severity == "error"


@given(ratio=EPS, low=st.none() | EPS, high=st.none() | EPS)
def test_clip_ratio_alone_is_ignored(ratio: float, low: float | None, high: float | None) -> None:
    given_ = [f"{ACTOR}.clip_ratio={ratio}"]
    given_ += [f"{ACTOR}.clip_ratio_low={low}"] if low is not None else []
    given_ += [f"{ACTOR}.clip_ratio_high={high}"] if high is not None else []
    found = verl(*given_)
    lost = ratio != 0.2 and (low is None or high is None)
    assert ("clip-ratio-ignored" in found) == lost


# ---- B18: keys swallowed silently


@given(
    key=st.sampled_from(
        [f"{ACTOR}.clip_ratio_high", f"{ACTOR}.loss_agg_mode", "algorithm.filter_groups.metric"]
    ),
    at=st.integers(1, 8),
)
def test_b18_a_misspelt_key_names_the_right_one(key: str, at: int) -> None:
    leaf = key.rpartition(".")[2]
    cut = len(key) - len(leaf) + min(at, len(leaf) - 1)
    misspelt = key[: cut - 1] + key[cut:]  # one letter left out
    assume(misspelt != key)
    found = verl(f"{misspelt}=1")
    assert found["key-rejected"].severity == "error"
    assert misspelt in found["key-rejected"].message
    assert key in found["key-rejected"].suggestion


# ---- B24: a group of one


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (f"{ROLLOUT}.n=1 algorithm.adv_estimator=grpo", "warning"),
        ("num_generations: 1\nper_device_train_batch_size: 4\n", "error"),
        ("--groups-per-step 4 --group-size 1", "error"),
        ("--rollout.n_samples_per_prompt 1 --algo.advantage.estimator group_norm", "error"),
        ("--rollout-batch-size 4 --n-samples-per-prompt 1 --global-batch-size 4", "error"),
    ],
)
def test_b24_group_of_one(text: str, severity: str) -> None:
    assert named(check_text(text).findings)["advantage-group-of-one"].severity == severity


@given(G=GROUP_SIZES)
def test_b24_larger_groups_are_fine(G: int) -> None:
    assert "advantage-group-of-one" not in verl(f"{ROLLOUT}.n={G}", "algorithm.adv_estimator=grpo")


def test_b24_an_estimator_without_a_group_baseline_may_have_one() -> None:
    assert "advantage-group-of-one" not in verl(f"{ROLLOUT}.n=1", "algorithm.adv_estimator=gae")


# ---- B33, B34: what filters decide


@given(G=st.integers(2, 64), metric=st.sampled_from(["acc", "score", "seq_reward"]))
def test_b33_float_equality(G: int, metric: str) -> None:
    found = verl(
        f"{ROLLOUT}.n={G}",
        "algorithm.filter_groups.enable=True",
        f"algorithm.filter_groups.metric={metric}",
        launch="python -m recipe.dapo.main_dapo",
    )
    exact = G & (G - 1) == 0  # sums of a power of two of equal floats are exact
    assert ("filter-float-equality" in found) == (metric != "acc" and not exact)


@given(
    metric=st.sampled_from(["acc", "reward", "seq_reward", "seq_final_reward", "pred"]),
    overlong=st.booleans(),
    kl=st.booleans(),
)
def test_b34_shaped_reward(metric: str, overlong: bool, kl: bool) -> None:
    found = verl(
        "algorithm.filter_groups.enable=True",
        f"algorithm.filter_groups.metric={metric}",
        f"{BUFFER.removeprefix('+')}.enable={overlong}",
        f"{BUFFER.removeprefix('+')}.len=100",
        "reward.reward_kwargs.max_resp_len=1000",
        f"algorithm.use_kl_in_reward={kl}",
        launch="python -m recipe.dapo.main_dapo",
    )
    moved = metric in ("reward", "seq_reward", "seq_final_reward") and overlong
    moved = moved or (metric == "seq_final_reward" and kl)
    assert ("filter-on-shaped-reward" in found) == moved


@pytest.mark.parametrize(
    ("launch", "found_id"),
    [
        ("python -m verl.trainer.main_ppo", "filter-limit-ignored"),
        ("python -m verl.trainer.main_ppo trainer.use_v1=False", "filter-ignored"),
        ("python -m verl.experimental.fully_async_policy.fully_async_main", "filter-ignored"),
        ("python -m recipe.dapo.main_dapo", None),
    ],
)
def test_which_trainer_reads_the_filter(launch: str, found_id: str | None) -> None:
    found = verl(
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        "algorithm.filter_groups.max_num_gen_batches=10",
        launch=launch,
    )
    both = {"filter-limit-ignored", "filter-ignored"}
    assert both & set(found) == ({found_id} if found_id else set())


@pytest.mark.parametrize("launch", ["python -m recipe.dapo.main_dapo", "python -m verl.main_ppo"])
def test_metric_null(launch: str) -> None:
    found = verl(
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=null",
        launch=launch,
    )
    assert found["filter-metric-null"].severity == "error"


@given(G=GROUP_SIZES, loo=st.booleans(), filtering=st.booleans())
def test_leave_one_out_filter(G: int, loo: bool, filtering: bool) -> None:
    text = (
        f"grpo:\n  num_prompts_per_step: 8\n  num_generations_per_prompt: {G}\n"
        f"  use_leave_one_out_baseline: {str(loo).lower()}\n"
        f"  use_dynamic_sampling: {str(filtering).lower()}\nloss_fn:\n  ratio_clip_max: 0.28\n"
    )
    found = named(check_text(text).findings)
    assert ("filter-leave-one-out" in found) == (loo and filtering)
    if loo and filtering:
        assert (found["filter-leave-one-out"].severity == "error") == (G == 2)


# ---- B39: sizes that never align


@given(B=st.integers(1, 64), G=st.integers(2, 16), gpus=st.sampled_from([1, 2, 4, 8]))
def test_b39_batch_and_ranks(B: int, G: int, gpus: int) -> None:
    found = verl(
        f"data.train_batch_size={B}",
        f"{ROLLOUT}.n={G}",
        f"{ACTOR}.ppo_mini_batch_size={B}",
        f"trainer.n_gpus_per_node={gpus}",
    )
    assert ("batch-not-divisible" in found) == (B * G % gpus != 0)


@given(B=SIZES, mini=st.integers(1, 600))
def test_mini_batch_over_batch(B: int, mini: int) -> None:
    found = verl(f"data.train_batch_size={B}", f"{ACTOR}.ppo_mini_batch_size={mini}")
    assert ("batch-mini-over-batch" in found) == (mini > B)
    assert ("batch-not-divisible" in found) == (mini < B and B % mini != 0)


@given(cap=st.integers(1, 40_000), budget=st.integers(1, 40_000), sp=st.sampled_from([1, 2, 4, 8]))
def test_token_budget(cap: int, budget: int, sp: int) -> None:
    found = verl(
        "data.max_prompt_length=1000",
        f"data.max_response_length={cap}",
        f"{ACTOR}.use_dynamic_bsz=True",
        f"{ACTOR}.ulysses_sequence_parallel_size={sp}",
        f"{ACTOR}.ppo_max_token_len_per_gpu={budget}",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu=60000",
    )
    assert ("batch-token-budget" in found) == (budget * sp < cap + 1000)


@given(limit=st.integers(1, 20_000), prompt=st.integers(1, 8000), cap=st.integers(1, 12_000))
def test_context_limit(limit: int, prompt: int, cap: int) -> None:
    found = verl(
        f"data.max_prompt_length={prompt}",
        f"data.max_response_length={cap}",
        f"{ROLLOUT}.max_model_len={limit}",
    )
    assert ("length-context-limit" in found) == (limit < prompt + cap)


# ---- B41, A6: rounds and the error


def binomial_below(n: int, q: float, B: int) -> float:
    """Return P(Bin(n, q) < B), summed term by term."""
    return math.fsum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(min(B, n + 1)))


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("B", "size", "limit", "G"), [(8, 8, 3, 4), (6, 12, 10, 8), (4, 2, 5, 16)])
def test_a6_rounds(rate: float, B: int, size: int, limit: int, G: int) -> None:
    found = verl(
        f"data.train_batch_size={B}",
        f"data.gen_batch_size={size}",
        f"{ROLLOUT}.n={G}",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        f"algorithm.filter_groups.max_num_gen_batches={limit}",
        launch="python -m recipe.dapo.main_dapo",
        pass_rate=rate,
    )["filter-cost"]
    q = 1 - rate**G - (1 - rate) ** G
    rounds = sum(binomial_below(r * size, q, B) for r in range(limit))
    abort = binomial_below(limit * size, q, B)
    assert f"{100 * q:.3g} % of groups are mixed" in found.message
    assert f"; {rounds:.4g} rounds of {size}" in found.message
    assert f"the run stops) = {abort:.2g} a step" in found.message
    assert (found.severity == "warning") == (abort > 1e-3)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_a4_capped_refill(rate: float) -> None:
    text = "--groups-per-step 4 --group-size 8 --max-candidate-multiplier 2"
    found = named(check_text(text, pass_rate=rate).findings)["filter-cost"]
    q = 1 - rate**8 - (1 - rate) ** 8
    assert f"full with probability {1 - binomial_below(8, q, 4):.3g}" in found.message
    assert f"skipped with {(1 - q) ** 8:.2g}" in found.message


def test_b42_steps_are_rounds_in_the_recipe_alone() -> None:
    settings = (
        "data.train_batch_size=32 data.gen_batch_size=96 algorithm.filter_groups.enable=True "
        "algorithm.filter_groups.metric=acc"
    )
    assert "batch-steps-are-rounds" in verl(settings, launch="python -m recipe.dapo.main_dapo")
    assert "batch-steps-are-rounds" not in verl(settings)


# ---- B56, E1, E6: overlong penalty


@given(cap=st.integers(1, 30_000), buffer=st.integers(0, 40_000), enable=st.booleans())
def test_b56_buffer_and_cap(cap: int, buffer: int, enable: bool) -> None:
    found = verl(
        f"{BUFFER}.enable={enable}",
        f"{BUFFER}.len={buffer}",
        f"{BUFFER}.penalty_factor=1.0",
        f"+reward.reward_kwargs.max_resp_len={cap}",
        f"data.max_response_length={cap}",
        "reward.reward_manager.name=dapo",
    )
    assert ("length-buffer-over-cap" in found) == (enable and buffer > cap)
    assert ("length-buffer-not-positive" in found) == (enable and buffer == 0)
    assert ("length-buffer-is-cap" in found) == (enable and buffer == cap)
    assert "length-cap-mismatch" not in found
    assert "length-cap-unset" not in found


@given(cap=st.integers(1, 20_000), buffer=st.integers(-5, 30_000))
def test_b56_in_06_dapo(cap: int, buffer: int) -> None:
    found = named(
        check_text(f"--groups-per-step 4 --max-tokens {cap} --overlong-cache={buffer}").findings
    )
    assert ("length-buffer-over-cap" in found) == (buffer > cap)
    assert ("length-buffer-not-positive" in found) == (buffer <= 0)


def test_cap_unset_is_an_error_where_the_manager_asks_for_it() -> None:
    found = verl(f"{BUFFER}.enable=True", f"{BUFFER}.len=10", "reward.reward_manager.name=dapo")
    assert found["length-cap-unset"].severity == "error"
    assert "length-penalty-not-read" not in found
    naive = verl(f"{BUFFER}.enable=True", f"{BUFFER}.len=10")
    assert "length-penalty-not-read" in naive


@given(G=st.integers(4, 32), buffer=st.integers(500, 4000))
def test_e1_sign_flips_at_the_stated_length(G: int, buffer: int) -> None:
    """The stated length, tried out: rewards ±1, one wrong, one right that is long."""
    cap = 8000
    found = named(
        check_text(
            f"--groups-per-step 2 --group-size {G} --max-tokens {cap} --overlong-cache {buffer}"
        ).findings
    )
    message = found["length-penalty-flips-sign"].message
    stated = float(message.partition("alone passes ")[2].split()[0])

    def advantage(length: float) -> float:
        penalty = -max(0.0, length - (cap - buffer)) / buffer
        rewards = [1 + penalty, *[1.0] * (G - 2), -1.0]
        return rewards[0] - mean(rewards)

    assert advantage(stated + 1) < 0 < advantage(stated - 1)


@given(factor=st.floats(0.01, 4).map(lambda x: round(x, 2)))
def test_e6_ties(factor: float) -> None:
    """With rewards ±1 a right answer at the cap is not above a wrong one iff 1 − f <= −1."""
    found = verl(
        "data.train_files=dapo-math-17k.parquet",
        "reward.reward_manager.name=dapo",
        f"{BUFFER}.enable=True",
        f"{BUFFER}.len=100",
        f"{BUFFER}.penalty_factor={factor}",
        "+reward.reward_kwargs.max_resp_len=512",
    )
    assert ("length-penalty-ties" in found) == (1 - factor <= -1)


# ---- loss and sampling


@pytest.mark.parametrize("version", ["0.4.0", "0.6.1", "0.7.1", "0.8.0", "0.9.0", "0.9.1"])
def test_b01_token_mean_by_version(version: str) -> None:
    found = verl(f"{ACTOR}.loss_agg_mode=token-mean", version=version)
    old = version in ("0.4.0", "0.6.1", "0.7.1")
    assert ("loss-not-global-token-mean" in found) == old


@given(
    window=st.sampled_from([1, 2, 4, 8]),
    generation=st.sampled_from([1, 2, 4, 8]),
    loss=st.sampled_from(["dapo", "cispo", "vespo", "grpo", "dr_grpo"]),
)
def test_trl_scale_factor(window: int, generation: int, loss: str) -> None:
    text = (
        f"loss_type: {loss}\ngradient_accumulation_steps: {window}\n"
        f"steps_per_generation: {generation}\nnum_generations: 8\n"
    )
    found = named(check_text(text, version="1.10.0").findings)
    wrong = loss in ("dapo", "cispo", "vespo") and window != generation
    assert ("loss-trl-scale" in found) == wrong
    if wrong:
        assert (
            f"{window}/{generation} = {window / generation:.4g}" in found["loss-trl-scale"].message
        )
    assert "loss-trl-scale" not in named(check_text(text).findings)


@given(
    kind=st.sampled_from(["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]),
    coefficient=st.sampled_from([0.0, 0.001]),
    on=st.booleans(),
)
def test_kl_as_a_loss(kind: str, coefficient: float, on: bool) -> None:
    found = verl(
        f"{ACTOR}.use_kl_loss={on}",
        f"{ACTOR}.kl_loss_type={kind}",
        f"{ACTOR}.kl_loss_coef={coefficient}",
    )
    assert ("loss-kl-k1" in found) == (on and kind in ("kl", "k1") and coefficient > 0)
    assert ("loss-kl-coef-zero" in found) == (on and coefficient == 0)


@given(constant=st.none() | st.integers(1, 20_000))
def test_b03_sum_norm_needs_a_constant(constant: int | None) -> None:
    extra = [f"{ACTOR}.loss_scale_factor={constant}"] if constant is not None else []
    found = verl(f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", *extra)
    assert ("loss-sum-norm-no-constant" in found) == (constant is None)


@given(top_p=st.sampled_from([0.7, 0.95, 1.0]), top_k=st.sampled_from([-1, 0, 20]))
def test_sampling_not_matched(top_p: float, top_k: int) -> None:
    findings = check_text(f"{ROLLOUT}.top_p={top_p} {ROLLOUT}.top_k={top_k}").findings
    cut = [f for f in findings if f.id == "sampling-truncated"]
    assert len(cut) == (top_p < 1) + (top_k > 0)

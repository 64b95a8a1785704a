"""Field cases of the config checker, continued: B03, B07, B08, B18, B40, B41, B59, B67."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.check import Finding, check_text

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
BUFFER = "+reward.reward_kwargs.overlong_buffer_cfg"
RECIPE = "python -m recipe.dapo.main_dapo"


def named(text: str, **how: object) -> dict[str, Finding]:
    return {f.id: f for f in check_text(text, **how).findings}


# ---- B07, B08: what a mask does to the denominator


@given(
    version=st.sampled_from(["1.8", "1.9.2", "1.10", "1.16.0"]),
    loss=st.sampled_from(["dapo", "cispo", "vespo", "grpo", "bnpo", "dr_grpo"]),
    masks=st.booleans(),
)
def test_b07_masked_tokens_in_the_denominator(version: str, loss: str, masks: bool) -> None:
    """trl#6369: dapo, cispo and vespo count them before 1.10; nobody else does."""
    text = f"loss_type: {loss}\nnum_generations: 8\nmask_truncated_completions: {masks}\n"
    found = named(text, version=version)
    old = version in ("1.8", "1.9.2")
    expected = masks and old and loss in ("dapo", "cispo", "vespo")
    assert ("loss-masked-tokens-counted" in found) == expected


@given(masks=st.booleans(), nemo=st.booleans())
def test_b08_masks_that_can_empty_an_update(masks: bool, nemo: bool) -> None:
    trl = f"loss_type: dapo\nnum_generations: 8\nmask_truncated_completions: {masks}\n"
    text = f"grpo:\n  num_generations_per_prompt: 8\n  overlong_filtering: {masks}\n"
    found = named(text, framework="nemo-rl") if nemo else named(trl)
    assert ("batch-masks-can-empty" in found) == masks


# ---- B18: the dual clip that nobody asked for


@given(
    c=st.one_of(st.none(), st.sampled_from([0.5, 1.0, 1.5, 3.0, 10.0])),
    loss=st.sampled_from(["vanilla", "gspo", "sapo", "gpg", "cispo", "kl_cov"]),
)
def test_b18_dual_clip(c: float | None, loss: str) -> None:
    """verl: c = 3 unless set, 1 or less is refused; only the vanilla loss reads it."""
    words = [f"{ACTOR}.policy_loss.loss_mode={loss}", "data.train_batch_size=64"]
    if c is not None:
        words.append(f"{ACTOR}.clip_ratio_c={c}")
    found = named(" ".join(words), name="run.sh")
    reads = loss == "vanilla"
    assert ("clip-dual-invalid" in found) == (reads and c is not None and c <= 1)
    assert ("clip-dual-on" in found) == (reads and (c is None or c > 1))
    if reads and c is None:
        assert "by default, c = 3" in found["clip-dual-on"].message


# ---- B40, B41: what the filter costs


@pytest.mark.parametrize(("G", "share"), [(2, 29.8), (4, 55.1), (8, 79.9), (16, 96.0)])
def test_b40_share_of_groups_with_a_signal(G: int, share: float) -> None:
    """CoursIA#10603: pass rate 0.1819; the generation multiplier is 1/q."""
    text = (
        f"python -m verl.trainer.main_ppo data.train_batch_size=64 {ROLLOUT}.n={G} "
        "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc"
    )
    message = named(text, name="run.sh", pass_rate=0.1819)["filter-cost"].message
    assert f"{share:.3g} % of groups are mixed" in message
    q = 1 - 0.1819**G - (1 - 0.1819) ** G
    assert f"at least {64 / q:.4g} candidate groups" in message


@given(
    limit=st.integers(-3, 20),
    rate=st.sampled_from([0.0, 1.0]),
)
def test_b41_hopeless_prompts(limit: int, rate: float) -> None:
    """No group is ever mixed: the run dies after its rounds, or has no limit to die at."""
    text = (
        f"{RECIPE} data.train_batch_size=8 data.gen_batch_size=24 {ROLLOUT}.n=8 "
        "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc "
        f"algorithm.filter_groups.max_num_gen_batches={limit}"
    )
    found = named(text, name="run.sh", pass_rate=rate)
    assert ("filter-no-limit" in found) == (limit <= 0)
    cost = found["filter-cost"]
    assert "0 % of groups are mixed" in cost.message
    assert cost.severity == ("warning" if limit > 0 else "error")
    if limit > 0:
        assert f"short after {limit} rounds: the run stops) = 1 a step" in cost.message


# ---- B59: beyond the cap


@given(cap=st.integers(30, 400), buffer=st.integers(5, 25), longer=st.integers(1, 200))
def test_b59_the_penalty_beyond_its_cap_is_not_clamped(cap: int, buffer: int, longer: int) -> None:
    """verl: answers may be longer than max_resp_len, and −factor is not the worst."""
    found = named(
        f"python -m verl.trainer.main_ppo {BUFFER}.enable=True {BUFFER}.len={buffer} "
        f"{BUFFER}.penalty_factor=1.0 +reward.reward_kwargs.max_resp_len={cap} "
        f"data.max_response_length={cap + longer} reward.reward_manager.name=dapo",
        name="run.sh",
    )
    worst = -(longer + buffer) / buffer
    assert f"is {worst:.3g} at the cap" in found["length-cap-mismatch"].message


def test_b59_the_reported_case() -> None:
    found = named(
        f"python -m verl.trainer.main_ppo {BUFFER}.enable=True {BUFFER}.len=20 "
        f"{BUFFER}.penalty_factor=1.0 +reward.reward_kwargs.max_resp_len=100 "
        "data.max_response_length=150 reward.reward_manager.name=dapo",
        name="run.sh",
    )
    assert "is -3.5 at the cap, not -1" in found["length-cap-mismatch"].message


# ---- B03, B67: each framework's sequence mean is named as one


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("loss_type: grpo\nnum_generations: 8\n", {}, "mean over responses of token means"),
        ("loss_type: dr_grpo\nnum_generations: 8\n", {}, "responses x max_completion_length"),
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", {"name": "a.sh"}, "seq-mean-token-mean"),
        ("--groups-per-step 4 --algorithm grpo", {}, "mean over responses of token means"),
        ("--groups-per-step 4 --algorithm dapo", {}, "token mean over the step"),
    ],
)
def test_b67_whose_tokens_count_less_is_in_the_summary(text: str, how: dict, words: str) -> None:
    assert words in check_text(text, **how).summary

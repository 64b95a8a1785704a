"""Every loss type of TRL at both levels, with δ, accumulation and processes: value and gradient."""

import zlib
from collections.abc import Callable
from dataclasses import replace

import counterparts_trl as pairs
import judges_trl as trl
import pytest
import torch
from agreement import EXACT, FACTOR_IN_SINGLE, disagreement, sum_disagreement
from draws import EQUAL_GROUPS, MICROS, RANKS, WHOLE, Draw, Split, draw

from dapolab.objective import EntropyControl, Status, policy_loss
from dapolab.scenario import (
    GenerationWindow,
    Kl,
    Objective,
    SamplerCorrection,
    SeqMeanTokenMean,
    TokenMean,
    TokenMeanMicro,
)

Note = Callable[..., None]
SPLITS = (WHOLE, MICROS, RANKS)
SPLIT_NAMES = [split.name for split in SPLITS]
DELTAS = {"no δ": None, "δ 1.1": 1.1, "δ 2": 2.0}
TAKES_DELTA = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def seed_of(*names: str) -> int:
    return zlib.crc32("/".join(names).encode())


def batch_of(*names: str) -> Draw:
    seed = seed_of(*names)
    return draw(seed, extreme=bool(seed % 2), groups=EQUAL_GROUPS)


def slack(loss: str, estimator: str = "none") -> float:
    """Return the stated tolerance of a cell."""
    exact = loss != "sapo" and estimator == "none"
    return 4 * EXACT if exact else 2 * FACTOR_IN_SINGLE


def slopes_and_values(
    ours: torch.Tensor, judge: torch.Tensor, logp: torch.Tensor, data: Draw
) -> tuple[float, float]:
    slope, judge_slope = (
        torch.autograd.grad(found, logp, retain_graph=True)[0] for found in (ours, judge)
    )
    inside = data.mask != 0
    assert bool((slope[~inside] == 0).all())
    terms = torch.cat([judge_slope.flatten(), judge.detach().flatten()])
    return (
        sum_disagreement(ours.detach(), judge.detach(), terms=terms),
        disagreement(slope[inside], judge_slope[inside]),
    )


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize("ahead", [1, 2], ids=["spg=GA", "spg=2GA"])
@pytest.mark.parametrize("delta", DELTAS.values(), ids=DELTAS)
@pytest.mark.parametrize(("loss", "level"), pairs.PAIRS)
def test_value_and_gradient(
    loss: str, level: str, delta: float | None, ahead: int, split: Split, cell: Note
) -> None:
    if delta is not None and loss not in TAKES_DELTA:
        delta = None  # TRL ignores it; judged as the case without
    n_accumulate = len(split.rows[0])
    for name in pairs.ESTIMATORS:
        data = batch_of(loss, level, str(delta), str(ahead), split.name, name)
        tokens = float(data.mask.sum()) if ahead == 1 else float(data.mask.sum()) * 2 + 7
        logp = data.logp.clone().requires_grad_()
        judge, _ = pairs.judged_loss(
            loss,
            data,
            pairs.judged_advantage(name, data),
            split,
            logp=logp,
            level=level,
            delta=delta,
            generation_tokens=tokens,
            n_steps=ahead * n_accumulate,
        )
        config = Objective(
            clip=pairs.clip(loss, level, delta),
            aggregation=pairs.aggregation(loss, delta, n_accumulate, ahead * n_accumulate),
        )
        A = pairs.our_advantage(name, data)
        ours = pairs.our_loss(config, data, A, split, logp=logp, generation_tokens=tokens)
        value_error, slope_error = slopes_and_values(ours, judge, logp, data)
        allowed = slack(loss, name)
        assert value_error <= allowed, (name, value_error)
        assert slope_error <= allowed, (name, slope_error)
        shown = loss + ("" if delta is None else f", δ {delta}")
        window = f", generation of {ahead} windows" if loss in WINDOWED else ""
        cell(loss=f"trl:{shown}, {level}", aggregation=loss + window, advantage=name,
             structure=split.name)  # fmt: skip


WINDOWED = ("dapo", "cispo", "vespo")


OLD_WINDOW = GenerationWindow(
    variant="trl-1.10", steps_per_generation=4, gradient_accumulation_steps=2
)


@pytest.mark.parametrize(
    ("loss", "change"),
    [
        ("dapo", {"aggregation": TokenMean()}),  # the window's own tokens instead of its share
        ("dapo", {"aggregation": OLD_WINDOW}),
        ("bnpo", {"aggregation": TokenMean()}),
        ("grpo", {"aggregation": SeqMeanTokenMean(empty_rows="out", micro="mean")}),
        ("grpo", {"clip": pairs.PpoClip(low=0.2, high=0.28 * 1.05)}),
        ("sapo", {"clip": pairs.SapoClip(tau_negative=1.05 * 1.05)}),
        ("vespo", {"clip": pairs.VespoClip(k_positive=2.0 * 1.05)}),
        ("cispo", {"clip": pairs.CispoClip(bounds="absolute", high=3.0 * 1.05)}),
    ],
)
def test_what_is_set_wrong_is_rejected(loss: str, change: dict[str, object]) -> None:
    errors = []
    for seed in range(20):
        data = draw(seed, groups=EQUAL_GROUPS, extreme=seed % 2 == 1)
        logp = data.logp.clone().requires_grad_()
        tokens = 2 * float(data.mask.sum()) + 7
        judge, _ = pairs.judged_loss(
            loss, data, data.advantages, RANKS, logp=logp, generation_tokens=tokens, n_steps=4
        )
        right = Objective(
            clip=pairs.clip(loss, "token", None), aggregation=pairs.aggregation(loss, None, 2, 4)
        )
        twin = right.model_copy(update=change)
        ours = pairs.our_loss(
            twin, data, data.advantages, RANKS, logp=logp, generation_tokens=tokens
        )
        errors.append(slopes_and_values(ours, judge, logp, data)[1])
    assert max(errors) > 1e-3


@pytest.mark.parametrize(
    ("loss", "change"),
    [
        ("cispo", {"level": "token"}),
        ("cispo", {"high": 1.1 * 1.05}),
        ("sapo", {"level": "token"}),
        ("sapo", {"tau_positive": 1.05}),
    ],
)
def test_what_is_set_wrong_at_the_sequence_level_is_rejected(
    loss: str, change: dict[str, object]
) -> None:
    errors = []
    for seed in range(20):
        data = draw(seed, groups=EQUAL_GROUPS, extreme=seed % 2 == 1)
        logp = data.logp.clone().requires_grad_()
        cap = {"epsilon_high": 1.1} if loss == "cispo" else {}
        judge, _ = pairs.judged_loss(
            loss, data, data.advantages, WHOLE, logp=logp, generation_tokens=50.0, n_steps=1,
            level="sequence", **cap,
        )  # fmt: skip
        clip = pairs.clip(loss, "sequence", None).model_copy(
            update=({"high": 1.1} if cap else {}) | change
        )
        twin = Objective(clip=clip, aggregation=pairs.aggregation(loss, None, 1, 1))
        ours = pairs.our_loss(twin, data, data.advantages, WHOLE, logp=logp, generation_tokens=50.0)
        errors.append(slopes_and_values(ours, judge, logp, data)[1])
    assert max(errors) > 1e-3


# ---------------------------------------------------------------------------- other terms


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize("corrected", [False, True], ids=["plain", "bias correction"])
@pytest.mark.parametrize(("loss", "level"), pairs.PAIRS)
def test_kl(loss: str, level: str, corrected: bool, split: Split, cell: Note) -> None:
    data = batch_of("kl", loss, level, split.name)
    n_accumulate = len(split.rows[0])
    logp, tokens = data.logp.clone().requires_grad_(), float(data.mask.sum())
    judge, _ = pairs.judged_loss(
        loss,
        data,
        data.advantages,
        split,
        logp=logp,
        generation_tokens=tokens,
        n_steps=n_accumulate,
        level=level,
        beta=0.3,
        bias_correction_kl=corrected,
        per_row={"reference": data.reference},
    )
    # TRL sums the KL of a response with its surrogate: luspo as a plain sum, which any δ selects.
    delta = 1e9 if loss == "luspo" else None
    config = Objective(
        clip=pairs.clip(loss, level, delta),
        aggregation=pairs.aggregation(loss, delta, n_accumulate, n_accumulate),
        kl=Kl(
            coefficient=0.3,
            ratio_weight="attached" if corrected else "none",
            ratio_level=level,  # type: ignore[arg-type]
        ),
    )
    ours = pairs.our_loss(config, data, data.advantages, split, logp=logp, generation_tokens=tokens)
    # TRL's e^d − d − 1 loses digits near 0; dapolab uses expm1.
    assert max(slopes_and_values(ours, judge, logp, data)) <= max(slack(loss), 1e-11)
    name = "kl, bias correction" if corrected else "kl"
    cell(loss=f"trl:{loss}, {level} + {name}", aggregation=loss, advantage="given",
         structure=split.name)  # fmt: skip


@pytest.mark.parametrize("change", [{"ratio_level": "token"}, {"ratio_weight": "detached"}])
def test_a_kl_that_is_weighed_wrong_is_rejected(change: dict[str, str]) -> None:
    errors = []
    for seed in range(10):
        data = draw(seed, groups=EQUAL_GROUPS)
        logp = data.logp.clone().requires_grad_()
        judge, _ = pairs.judged_loss(
            "grpo", data, data.advantages, WHOLE, logp=logp, generation_tokens=1.0, n_steps=1,
            level="sequence", beta=0.3, bias_correction_kl=True,
            per_row={"reference": data.reference},
        )  # fmt: skip
        right = Kl(coefficient=0.3, ratio_weight="attached", ratio_level="sequence")
        twin = Objective(
            clip=pairs.clip("grpo", "sequence", None),
            aggregation=pairs.aggregation("grpo", None, 1, 1),
            kl=right.model_copy(update=change),
        )
        ours = pairs.our_loss(twin, data, data.advantages, WHOLE, logp=logp, generation_tokens=1.0)
        errors.append(slopes_and_values(ours, judge, logp, data)[1])
    assert max(errors) > 1e-3


MODES = {
    "token_truncate": SamplerCorrection(level="token", action="truncate", upper=1.5),
    "token_mask": SamplerCorrection(level="token", action="band", upper=1.5),
    "sequence_truncate": SamplerCorrection(level="sequence", action="truncate", upper=1.5),
    "sequence_mask": SamplerCorrection(level="sequence", action="band", upper=1.5),
}
LOWER = 0.7


def judged_weights(mode: str, data: Draw, *, low: float | None = None) -> torch.Tensor:
    return trl.vllm_correction(
        old=data.old, sampler=data.sampler, mask=data.mask, mode=mode, low=low, high=1.5
    )


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize("low", [None, LOWER], ids=["cap", "both bounds"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", trl.LOSS_TYPES)
def test_vllm_correction(loss: str, mode: str, low: float | None, split: Split, cell: Note) -> None:
    """The weight multiplies the loss; VESPO takes it into the sequence weight that it gates."""
    data = batch_of("vllm", loss, mode, split.name)
    n_accumulate = len(split.rows[0])
    logp, tokens = data.logp.clone().requires_grad_(), float(data.mask.sum())
    judge, _ = pairs.judged_loss(
        loss,
        data,
        data.advantages,
        split,
        logp=logp,
        generation_tokens=tokens,
        n_steps=n_accumulate,
        per_row={"weights": judged_weights(mode, data, low=low)},
    )
    config = Objective(
        clip=pairs.clip(loss, "token", None),
        aggregation=pairs.aggregation(loss, None, n_accumulate, n_accumulate),
        sampler=MODES[mode].model_copy(
            update={"lower": low, "applies": "enters" if loss == "vespo" else "multiplies"}
        ),
    )
    ours = pairs.our_loss(config, data, data.advantages, split, logp=logp, generation_tokens=tokens)
    assert max(slopes_and_values(ours, judge, logp, data)) <= slack(loss)
    bounds = mode if low is None else f"{mode}, both bounds"
    cell(loss=f"trl:{loss} × {bounds}", aggregation=loss, advantage="given", structure=split.name)


@pytest.mark.parametrize("loss", ["grpo", "vespo"])
@pytest.mark.parametrize("mode", MODES)
def test_a_cap_that_is_set_wrong_is_rejected(mode: str, loss: str) -> None:
    errors = []
    for seed in range(20):
        data = draw(seed, groups=EQUAL_GROUPS)
        logp = data.logp.clone().requires_grad_()
        judge, _ = pairs.judged_loss(
            loss, data, data.advantages, WHOLE, logp=logp, generation_tokens=1.0, n_steps=1,
            per_row={"weights": judged_weights(mode, data)},
        )  # fmt: skip
        applies = "enters" if loss == "vespo" else "multiplies"
        twin = Objective(
            clip=pairs.clip(loss, "token", None),
            aggregation=pairs.aggregation(loss, None, 1, 1),
            sampler=MODES[mode].model_copy(update={"upper": 1.5 * 1.05, "applies": applies}),
        )
        ours = pairs.our_loss(twin, data, data.advantages, WHOLE, logp=logp, generation_tokens=1.0)
        errors.append(slopes_and_values(ours, judge, logp, data)[1])
    assert max(errors) > 1e-3


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dapo", "dr_grpo"])
def test_entropy_bonus(loss: str, split: Split, cell: Note) -> None:
    """TRL's bonus is a token mean of each micro-batch, whatever the loss type."""
    data = batch_of("entropy", loss, split.name)
    n_accumulate = len(split.rows[0])
    logp, tokens = data.logp.clone().requires_grad_(), float(data.mask.sum())
    shape = torch.randn(logp.shape, generator=torch.Generator().manual_seed(0)).double()
    entropy = data.entropy + 0.1 * shape * logp  # the bonus has a gradient of its own
    judge, _ = pairs.judged_loss(
        loss,
        data,
        data.advantages,
        split,
        logp=logp,
        generation_tokens=tokens,
        n_steps=n_accumulate,
        entropy_coef=0.4,
        per_row={"entropy": entropy},
    )
    config = Objective(
        clip=pairs.clip(loss, "token", None),
        aggregation=pairs.aggregation(loss, None, n_accumulate, n_accumulate),
        entropy_coef=0.4,
        entropy_aggregation=TokenMeanMicro(combine="mean"),
    )
    ours = pairs.our_loss(
        config,
        replace(data, entropy=entropy),
        data.advantages,
        split,
        logp=logp,
        generation_tokens=tokens,
    )
    assert max(slopes_and_values(ours, judge, logp, data)) <= 4 * EXACT
    cell(loss=f"trl:{loss} − entropy", aggregation=loss, advantage="given", structure=split.name)


@pytest.mark.parametrize("delta", [0.05, 0.3], ids=["small steps", "steps into the bounds"])
def test_adaptive_entropy(delta: float, setting: Note) -> None:
    """Twelve updates of three micro-batches whose entropy swings around the target."""
    low, high, target = 0.1, 0.5, 0.5
    state = {
        "entropy_coef": 0.2, "_last_world_entropy": float("inf"), "_entropy_window_stats": None,
        "entropy_target": target, "entropy_coef_delta": delta, "entropy_coef_min": low,
        "entropy_coef_max": high,
    }  # fmt: skip
    control = EntropyControl(coef=0.2, target=target, delta=delta, low=low, high=high)
    applied = set()
    for n in range(12):
        data = draw(n, groups=EQUAL_GROUPS)
        logp = data.logp.clone().requires_grad_()
        swing = data.entropy * (1.6 if n % 5 < 2 else 0.7)
        entropy = swing + 0.1 * (logp - logp.detach())  # a gradient, and the value as it was
        judge = torch.zeros((), dtype=logp.dtype)
        for number, micro in enumerate(MICROS.rows[0]):
            rows = list(micro)
            state["sync_gradients"] = number == 2
            value, _ = trl.compute_loss(
                logp=logp[rows], old=data.old[rows], advantages=data.advantages[rows],
                mask=data.mask[rows], loss_type="grpo", generation_tokens=1.0,
                entropy=entropy[rows], adaptive=state,
                gradient_accumulation_steps=3, steps_per_generation=3,
            )  # fmt: skip
            judge = judge + value
        config = Objective(
            clip=pairs.clip("grpo", "token", None),
            aggregation=pairs.aggregation("grpo", None, 3, 3),
            entropy_coef=control.applied,
            entropy_aggregation=TokenMeanMicro(combine="mean"),
        )
        applied.add(control.applied)
        batch = replace(data, entropy=entropy).batch(logp, data.advantages)
        ours = policy_loss(batch, config, structure=MICROS.structure)
        assert max(slopes_and_values(ours.value, judge, logp, data)) <= 4 * EXACT
        control = control.after(ours.metrics["entropy/token_mean"].item())
        assert control.coef == pytest.approx(state["entropy_coef"], abs=1e-12)
        assert control.last_entropy == pytest.approx(state["_last_world_entropy"], rel=1e-12)
        if n == 2:  # a step that is 5 % off is another coefficient
            wrong = replace(control, delta=delta * 1.05, low=-9.0, high=9.0)
            right = replace(control, low=-9.0, high=9.0)
            assert abs(wrong.after(0.0).coef - right.after(0.0).coef) > 1e-3
    assert len(applied) > 2
    setting("trl:adaptive entropy", f"steps of {delta}")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_top_entropy_tokens(share: float, cell: Note) -> None:
    for seed in range(8):
        data = draw(seed, groups=EQUAL_GROUPS)
        # TRL takes the quantile in float32; entropies that float32 holds make both choices equal.
        data = replace(data, entropy=data.entropy.float().double())
        logp = data.logp.clone().requires_grad_()
        judge, _ = pairs.judged_loss(
            "grpo", data, data.advantages, WHOLE, logp=logp, generation_tokens=1.0, n_steps=1,
            top_entropy_quantile=share, per_row={"entropy": data.entropy},
        )  # fmt: skip
        config = Objective(
            clip=pairs.clip("grpo", "token", None),
            aggregation=pairs.aggregation("grpo", None, 1, 1),
            top_entropy_share=share,
        )
        ours = pairs.our_loss(
            config, data, data.advantages, WHOLE, logp=logp, generation_tokens=1.0
        )
        assert max(slopes_and_values(ours, judge, logp, data)) <= 4 * EXACT
    cell(loss="trl:grpo, top entropy", aggregation=f"share {share}", advantage="given",
         structure="whole")  # fmt: skip


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_off_policy_mask(loss: str, split: Split, cell: Note) -> None:
    n_accumulate = len(split.rows[0])
    for seed in range(8):
        data = draw(seed, groups=EQUAL_GROUPS)
        logp, tokens = data.logp.clone().requires_grad_(), float(data.mask.sum())
        judge, _ = pairs.judged_loss(
            loss, data, data.advantages, split, logp=logp, generation_tokens=tokens,
            n_steps=n_accumulate, off_policy_mask_threshold=0.02,
            per_row={"sampler": data.sampler},
        )  # fmt: skip
        config = Objective(
            clip=pairs.clip(loss, "token", None),
            aggregation=pairs.aggregation(loss, None, n_accumulate, n_accumulate),
            off_policy_kl=0.02,
        )
        ours = pairs.our_loss(
            config, data, data.advantages, split, logp=logp, generation_tokens=tokens
        )
        assert max(slopes_and_values(ours, judge, logp, data)) <= 4 * EXACT
    cell(loss=f"trl:{loss}, off-policy mask", aggregation=loss, advantage="given",
         structure=split.name)  # fmt: skip


# ---------------------------------------------------------------------------- metrics


def test_metrics() -> None:
    for seed in range(20):
        data = draw(seed, groups=EQUAL_GROUPS, extreme=seed % 2 == 1)
        _, told = pairs.judged_loss(
            "grpo", data, data.advantages, WHOLE, logp=data.logp, generation_tokens=1.0,
            n_steps=1, beta=0.1, per_row={"entropy": data.entropy, "reference": data.reference},
        )  # fmt: skip
        config = Objective(clip=pairs.clip("grpo", "token", None))
        ours = policy_loss(data.batch(data.logp), config).metrics
        assert told["clip_ratio/high_mean"] == pytest.approx(ours["clip/upper_share"].item())
        assert told["clip_ratio/low_mean"] == pytest.approx(ours["clip/lower_share"].item())
        both = ours["clip/upper_share"] + ours["clip/lower_share"]
        assert told["clip_ratio/region_mean"] == pytest.approx(both.item())
        assert told["entropy"] == pytest.approx(ours["entropy/token_mean"].item(), rel=1e-6)
        if seed % 2 == 0:
            assert told["kl"] == pytest.approx(ours["kl/ref_k3"].item(), rel=1e-6)


def test_with_a_delta_trl_no_longer_counts_what_it_caps() -> None:
    """A deliberate difference: TRL caps r at δ before it counts r > 1 + ε_high."""
    data = draw(3, groups=EQUAL_GROUPS, extreme=True)
    capped = {"logp": data.logp, "generation_tokens": 1.0, "n_steps": 1}
    _, free = pairs.judged_loss("grpo", data, data.advantages, WHOLE, **capped)
    _, told = pairs.judged_loss("grpo", data, data.advantages, WHOLE, delta=1.1, **capped)
    assert free["clip_ratio/high_mean"] > 0
    assert told["clip_ratio/high_mean"] == 0
    config = Objective(clip=pairs.clip("grpo", "token", 1.1))
    ours = policy_loss(data.batch(data.logp), config).metrics
    assert ours["clip/upper_share"] >= free["clip_ratio/high_mean"] - 1e-6


# ---------------------------------------------------------------------------- advantages alone


@pytest.mark.parametrize("name", pairs.ESTIMATORS)
def test_advantages(name: str, setting: Note) -> None:
    for seed in range(20):
        data = draw(seed, groups=EQUAL_GROUPS)
        judge = pairs.judged_advantage(name, data)
        ours = pairs.our_advantage(name, data).squeeze(-1)
        assert disagreement(ours, judge) <= slack("grpo", name)
    setting("trl:advantage", name, "groups of 4")


def test_unscorable_responses_leave_baseline_and_loss(setting: Note) -> None:
    """All rewards of a response missing: TRL takes it out of the group, its advantage is 0."""
    for seed in range(10):
        data = draw(seed, groups=EQUAL_GROUPS)
        missing = torch.zeros(12, dtype=torch.bool)
        missing[[1, 6, 7]] = True
        rewards = data.rewards.masked_fill(missing, float("nan"))
        judge = trl.advantages(
            rewards[:, None], group_size=4, scale_rewards="group", weights=(1.0,), gdpo=False
        )
        status = torch.where(missing, Status.REJECTED, Status.COMPLETED)
        ours = pairs.advantages(
            rewards, pairs.ESTIMATORS["group"], group=data.group, mask=data.mask, status=status
        )
        assert disagreement(ours.value.squeeze(-1), judge) <= slack("grpo", "group")
        assert bool((ours.value[missing] == 0).all())
    setting("trl:advantage", "unscorable", "group", "groups of 4")


def test_an_estimator_that_is_set_wrong_is_rejected() -> None:
    for wrong in ({"ddof": 0}, {"eps": 1e-4 * 100}):
        errors = []
        for seed in range(10):
            data = draw(seed, groups=EQUAL_GROUPS)
            twin = pairs.ESTIMATORS["group"].model_copy(update=wrong)
            ours = pairs.advantages(data.rewards, twin, group=data.group, mask=data.mask).value
            errors.append(disagreement(ours.squeeze(-1), pairs.judged_advantage("group", data)))
        assert max(errors) > 1e-3

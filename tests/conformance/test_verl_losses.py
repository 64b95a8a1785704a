"""Every policy loss of verl, under every aggregation, estimator and split: value and gradient."""

import zlib
from collections.abc import Callable

import counterparts_verl as pairs
import judges_verl as verl
import pytest
import torch
from agreement import COUNT_EPS, EXACT, IN_EXPONENT, SINGLE, disagreement, sum_disagreement
from draws import (
    GROUPS,
    LOCAL,
    MICROS,
    PAIRED_GROUPS,
    RANKS,
    SHUFFLED,
    WHOLE,
    Draw,
    Split,
    draw,
)

from dapolab.objective import kl_estimate, policy_loss, row_scales
from dapolab.objective.aggregation import aggregate
from dapolab.scenario import Aggregation, Kl, Objective, SeqMeanTokenMean, TokenMean, TokenMeanMicro

Note = Callable[..., None]
SPLITS = (LOCAL, WHOLE, MICROS, RANKS, SHUFFLED)
SPLIT_NAMES = [split.name for split in SPLITS]
# Losses with a choice of aggregation under each, the others once.
COMBINATIONS = [
    (loss, mode)
    for loss in pairs.CLIPS
    for mode in (verl.AGGREGATIONS if loss not in pairs.OWN_AGGREGATION else ("token-mean",))
]


def seed_of(*names: str) -> int:
    return zlib.crc32("/".join(names).encode())


def batch_of(estimator: str, *names: str) -> Draw:
    """Return the cell's own batch; half of them have extreme ratios."""
    seed = seed_of(estimator, *names)
    needs_pairs = pairs.ESTIMATORS[estimator].needs_pairs
    return draw(seed, extreme=bool(seed % 2), groups=PAIRED_GROUPS if needs_pairs else GROUPS)


def untied_batch(estimator: str, split: Split, *names: str) -> Draw:
    """Return a batch in which KL-Cov's choice of each micro-batch is no tie, not even nearly.

    Where advantages are constant all covariances are 0: torch.topk takes any, dapolab the earliest.
    """
    for n in range(2000):
        data = batch_of(estimator, *names, str(n))
        A = pairs.judged_advantage(estimator, data)
        if all(is_clear(data, A, list(micro)) for rank in split.rows for micro in rank):
            return data
    raise AssertionError(f"no batch of {estimator} without ties under {split.name}")


def is_clear(data: Draw, A: torch.Tensor, rows: list[int]) -> bool:
    inside = data.mask[rows] != 0
    above, logp = A[rows][inside], data.logp[rows][inside]
    cov = ((above - above.mean()) * (logp - logp.mean())).sort(descending=True).values
    n_chosen = max(1, int(len(cov) * pairs.POLICY_SETTINGS["kl_cov_ratio"]))
    return float(cov[n_chosen - 1] - cov[n_chosen]) > 1e-4 * float(cov.abs().max()) > 0


def slack(loss: str, mode: str, estimator: str) -> float:
    """Return the stated tolerance of a cell."""
    if loss == "geo_mean":
        return max(IN_EXPONENT, 4 * pairs.ESTIMATORS[estimator].tolerance)
    averages = loss == "sapo" or mode == "seq-mean-token-mean"
    return max(COUNT_EPS if averages else EXACT, 4 * pairs.ESTIMATORS[estimator].tolerance)


def compare(
    loss: str, mode: str, estimator: str, split: Split, *, twin: Objective | None = None
) -> tuple[float, float]:
    """Return the errors of value and gradient, of dapolab or of a twin that is set wrong."""
    names = (loss, mode, split.name)
    covariance = loss in pairs.BY_MICRO_BATCH
    data = untied_batch(estimator, split, *names) if covariance else batch_of(estimator, *names)
    logp = data.logp.clone().requires_grad_()
    A_judge = pairs.judged_advantage(estimator, data)
    judge, _ = pairs.judged_loss(loss, mode, data, A_judge, split, logp=logp)
    (judge_slope,) = torch.autograd.grad(judge, logp)
    config = twin or pairs.objective(loss, mode, local=split is LOCAL)
    A_ours = pairs.our_advantage(estimator, data).value
    ours = pairs.our_loss(config, data, A_ours, split, logp=logp, by_micro=covariance)
    (slope,) = torch.autograd.grad(ours, logp)
    inside = data.mask != 0
    assert bool((slope[~inside] == 0).all())
    terms = torch.cat([judge_slope.flatten(), judge.detach().flatten()])
    return (
        sum_disagreement(ours.detach(), judge.detach(), terms=terms),
        disagreement(slope[inside], judge_slope[inside]),
    )


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize(("loss", "mode"), COMBINATIONS)
def test_value_and_gradient(loss: str, mode: str, split: Split, cell: Note) -> None:
    shown = pairs.OWN_AGGREGATION.get(loss, mode)
    for estimator in pairs.ESTIMATORS:
        value_error, slope_error = compare(loss, mode, estimator, split)
        allowed = slack(loss, mode, estimator)
        assert value_error <= allowed, (estimator, value_error)
        assert slope_error <= allowed, (estimator, slope_error)
        cell(loss=f"verl:{loss}", aggregation=shown, advantage=estimator, structure=split.name)


# ---------------------------------------------------------------------------- perturbed twins

WRONG = {
    "vanilla": {"high": 0.28 * 1.05},
    "dppo_tv": {"low": 0.2 * 1.05},
    "dppo_kl": {"cap": 3.0 * 1.05},
    "gspo": {"level": "sequence"},
    "sapo": {"tau_negative": 1.05 * 1.05},
    "clip_cov": {"cov_low": 0.2 * 1.05},
    "kl_cov": {"coef": 0.1 * 1.05},
    "geo_mean": {"low": 0.2 * 1.05},
    "dro": {"beta": 0.5 * 1.05},
    "cispo": {"high": 0.28 * 1.05},
}
"""One setting of each surrogate off by 5 %, or the other level."""


@pytest.mark.parametrize("loss", WRONG)
def test_a_surrogate_that_is_set_wrong_is_rejected(loss: str) -> None:
    right = pairs.objective(loss, "token-mean", local=True)
    clip = type(right.clip)(**(right.clip.model_dump() | WRONG[loss]))
    twin = right.model_copy(update={"clip": clip})
    # The token-level estimator, whose advantages differ inside a response (GSPO's levels do not
    # otherwise); thirty batches, because few tokens lie between a bound and a wrong bound.
    errors = []
    for n in range(30):
        data = draw(1000 + n, extreme=True)
        logp = data.logp.clone().requires_grad_()
        A = data.values.masked_fill(data.mask == 0, 0.0)
        judge, _ = pairs.judged_loss(loss, "token-mean", data, A, LOCAL, logp=logp)
        ours = pairs.our_loss(twin, data, A, LOCAL, logp=logp, by_micro=True)
        slopes = [torch.autograd.grad(loss_, logp)[0] for loss_ in (ours, judge)]
        errors.append(disagreement(*slopes))
    assert max(errors) > 1e-3


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        ("token-mean", SeqMeanTokenMean()),
        ("seq-mean-token-mean", SeqMeanTokenMean(empty_rows="out")),
        ("token-mean", TokenMeanMicro()),
    ],
)
def test_an_aggregation_that_is_set_wrong_is_rejected(mode: str, wrong: Aggregation) -> None:
    twin = pairs.objective("vanilla", mode, local=False).model_copy(update={"aggregation": wrong})
    _, slope_error = compare("vanilla", mode, "grpo", RANKS, twin=twin)
    assert slope_error > 1e-3


# ---------------------------------------------------------------------------- metrics

KEEPS_CLIPFRAC = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "geo_mean", "cispo")
"""Losses whose clip metrics verl fills; the others report 0 or nothing."""


@pytest.mark.parametrize("loss", sorted(pairs.CLIPS))
def test_metrics(loss: str) -> None:
    for seed in range(20):
        data = draw(seed)  # no extreme ratios: verl's KL is clamped with them, dapolab's is not
        A = data.advantages.unsqueeze(-1) * data.mask
        _, (told,) = pairs.judged_loss(loss, "token-mean", data, A, LOCAL, logp=data.logp)
        config = pairs.objective(loss, "token-mean", local=True)
        rng = torch.Generator().manual_seed(0)
        ours = policy_loss(data.batch(data.logp, A), config, generator=rng).metrics
        if loss in KEEPS_CLIPFRAC:
            upper, lower = ours["clip/upper_share"].item(), ours["clip/lower_share"].item()
            dual = ours["clip/dual_share"].item()
            fraction, second = told["actor/pg_clipfrac"], told["actor/pg_clipfrac_lower"]
            if loss == "geo_mean":
                # verl counts both bounds for either sign, whether or not they act.
                assert fraction >= upper * (1 - COUNT_EPS)
                assert second >= lower * (1 - COUNT_EPS)
            else:
                assert fraction == pytest.approx(upper + lower, rel=COUNT_EPS)
            if loss in ("vanilla", "dppo_tv", "dppo_kl"):
                assert second == pytest.approx(dual, rel=COUNT_EPS)
        if loss == "clip_cov":
            chosen = ours["clip/covariance_share"].item()
            assert told["actor/pg_clipfrac"] == pytest.approx(chosen, rel=COUNT_EPS)
        if loss not in ("gpg", "kl_cov"):  # gpg tells nothing, kl_cov a mean |log r|
            assert told["actor/ppo_kl"] == pytest.approx(ours["kl/old_k1"].item(), rel=2e-6)


# ---------------------------------------------------------------------------- aggregation alone


@pytest.mark.parametrize("split", SPLITS, ids=SPLIT_NAMES)
@pytest.mark.parametrize("mode", verl.AGGREGATIONS)
def test_agg_loss(mode: str, split: Split, cell: Note) -> None:
    for seed in range(5):
        data = draw(seed)
        losses = data.values.masked_fill(data.mask == 0, 3.0)
        info = pairs.global_info(data.mask, split)
        judge = torch.zeros((), dtype=torch.float64)
        for rank in split.rows:
            for micro in rank:
                rows = list(micro)
                found = verl.agg_loss(losses[rows], data.mask[rows], mode, **info)
                judge = judge + found / split.n_ranks
        config = pairs.aggregation("any", mode, local=split is LOCAL)
        scales = row_scales(data.mask, config, structure=split.structure)
        ours = aggregate(losses, mask=data.mask, scales=scales)
        allowed = COUNT_EPS if mode == "seq-mean-token-mean" else EXACT
        assert sum_disagreement(ours, judge, terms=losses * data.mask * scales[:, None]) <= allowed
    cell(loss="verl:agg_loss", aggregation=mode, advantage="-", structure=split.name)


def test_a_constant_loss_scale_factor(cell: Note) -> None:
    data = draw(3)
    judge = verl.agg_loss(data.values, data.mask, "seq-mean-token-sum-norm", loss_scale_factor=17)
    config = pairs.SeqMeanTokenSumNorm(constant=17, empty_rows="out")
    ours = aggregate(data.values, mask=data.mask, scales=row_scales(data.mask, config))
    assert sum_disagreement(ours, judge, terms=judge) <= EXACT
    cell(loss="verl:agg_loss", aggregation="norm by a constant", advantage="-", structure="local")


LEGACY = {"fixed micro-batches": "mean", "dynamic batch size": "rows"}


@pytest.mark.parametrize("split", [MICROS, RANKS], ids=["micro", "ranks"])
@pytest.mark.parametrize("weighing", LEGACY)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_legacy_actors_accumulation(mode: str, weighing: str, split: Split, cell: Note) -> None:
    """verl's agg_loss as its actor called it up to 0.7: local counts, then weights w_k."""
    data = draw(11, lengths=(5, 9, 1, 3, 1, 7, 9, 2, 4, 2, 6, 8))
    judge = torch.zeros((), dtype=torch.float64)
    for rank in split.rows:
        n_rows = sum(len(micro) for micro in rank)
        for micro in rank:
            share = len(micro) / n_rows if weighing == "dynamic batch size" else 1 / len(rank)
            rows = list(micro)
            found = verl.agg_loss(data.values[rows], data.mask[rows], mode)
            judge = judge + share * found / split.n_ranks
    combine = LEGACY[weighing]
    config: Aggregation = TokenMeanMicro(combine=combine)  # type: ignore[arg-type]
    if mode == "seq-mean-token-mean":
        config = SeqMeanTokenMean(empty_rows="out", micro=combine)  # type: ignore[arg-type]
    scales = row_scales(data.mask, config, structure=split.structure)
    ours = aggregate(data.values, mask=data.mask, scales=scales)
    assert sum_disagreement(ours, judge, terms=judge) <= COUNT_EPS
    cell(loss="verl:agg_loss", aggregation=f"{mode}, {weighing}", advantage="-",
         structure=split.name)  # fmt: skip


def test_an_empty_update_is_nan_there_and_zero_here() -> None:
    data = draw(1)
    nothing = torch.zeros_like(data.mask)
    for mode in verl.AGGREGATIONS:
        judge = verl.agg_loss(data.values, nothing, mode)
        assert bool(judge.isnan()) == (mode != "token-sum")
        config = pairs.objective("vanilla", mode, local=True)
        empty = Draw(**(vars(data) | {"mask": nothing}))
        found = policy_loss(empty.batch(data.logp), config)
        assert float(found.value) == 0.0
        assert bool(found.is_empty)


# ---------------------------------------------------------------------------- KL and entropy

KL_NAMES = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3",
            "k3": "k3"}  # fmt: skip
KL_CASES = [*KL_NAMES, *(f"{name}+" for name in KL_NAMES)]


@pytest.mark.parametrize("name", KL_CASES)
def test_kl_estimators(name: str, cell: Note) -> None:
    config = Kl(
        estimator=KL_NAMES[name.removesuffix("+")],  # type: ignore[arg-type]
        straight_through=name.endswith("+"),
        log_ratio_clamp=20.0,
        value_clamp=10.0,
    )
    for seed in range(6):
        data = draw(seed, extreme=seed % 2 == 1)
        logp = data.logp.clone().requires_grad_()
        judge = verl.kl_penalty(logp, data.reference, name)
        ours = kl_estimate(logp - data.reference, config)
        slopes = [torch.autograd.grad(found.sum(), logp)[0] for found in (ours, judge)]
        # k3 = e^x − x − 1 loses half its digits near 0 in verl; dapolab uses expm1.
        assert disagreement(ours.detach(), judge.detach()) <= 1e-11
        assert disagreement(*slopes) <= 1e-11
    cell(loss=f"verl:kl {name}", aggregation="per token", advantage="-", structure="local")


@pytest.mark.parametrize("split", [LOCAL, RANKS], ids=["local", "ranks"])
@pytest.mark.parametrize("mode", verl.AGGREGATIONS)
def test_kl_loss_and_entropy_bonus(mode: str, split: Split, cell: Note) -> None:
    """All terms under one aggregation, as in verl's ppo_loss (losses.py:57-144)."""
    data = draw(seed_of("kl", mode))
    logp = data.logp.clone().requires_grad_()
    A = pairs.judged_advantage("grpo", data)
    judge, _ = pairs.judged_loss("vanilla", mode, data, A, split, logp=logp)
    info = pairs.global_info(data.mask, split)
    kl = verl.kl_penalty(logp, data.reference, "low_var_kl")
    for rank in split.rows:
        for micro in rank:
            rows = list(micro)
            for term, factor in ((kl, 0.3), (data.entropy, -0.7)):
                found = verl.agg_loss(term[rows], data.mask[rows], mode, **info)
                judge = judge + factor * found / split.n_ranks
    config = pairs.objective(
        "vanilla",
        mode,
        local=split is LOCAL,
        kl=Kl(estimator="k3", coefficient=0.3, log_ratio_clamp=20.0, value_clamp=10.0),
        entropy_coef=0.7,
    )
    ours = pairs.our_loss(
        config, data, pairs.our_advantage("grpo", data).value, split, logp=logp, by_micro=False
    )
    slopes = [torch.autograd.grad(found, logp)[0] for found in (ours, judge)]
    assert disagreement(*(slope[data.mask != 0] for slope in slopes)) <= slack(
        "vanilla", mode, "grpo"
    )
    assert sum_disagreement(ours.detach(), judge.detach(), terms=slopes[1]) <= slack(
        "vanilla", mode, "grpo"
    )
    cell(loss="verl:vanilla + kl − entropy", aggregation=mode, advantage="grpo",
         structure=split.name)  # fmt: skip


def test_tolerances_are_what_they_are_called() -> None:
    assert EXACT < COUNT_EPS < SINGLE
    assert TokenMean().kind == "token-mean"

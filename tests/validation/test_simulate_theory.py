"""The simulator against closed forms, wherever it can express their assumptions.

Numbers in the tables are those of the theory reference (its golden file), not of this package.
Every comparison allows 4.5 standard errors, and has a twin that is 5 % off and must be rejected.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dapolab.scenario import Scenario, build
from dapolab.sim.run import SimRun, simulate
from dapolab.theory.barrier import expected_barrier_time
from dapolab.theory.sampling import token_utilisation
from dapolab.workload.marginals import marginals
from tests.listed_stream import ListedStream

ALLOWED = 4.5
SHORT = {"kind": "constant", "tokens": 3}


def scenario(
    collector: dict[str, Any] | str,
    *,
    q: float | None = None,
    groups: int = 4,
    size: int = 2,
    steps: int = 2500,
    workload: dict[str, Any] | None = None,
    cap: int = 100_000,
    slots: int = 4096,
    a_s: float = 0.001,
    **hardware: Any,
) -> Scenario:
    known = {"kind": "independent", "lengths": SHORT, "prompts": {"count": 60_000}}
    if q is not None:
        known["pass_rate"] = {"kind": "p_mixed", "p_mixed": q}
    return build(
        {
            "workload": known | (workload or {}),
            "rollout": {"groups_per_step": groups, "group_size": size, "cap_tokens": cap},
            "collector": {"kind": collector} if isinstance(collector, str) else collector,
            "hardware": {
                "law": {"kind": "affine", "a_s": a_s, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
                "slots": slots,
            }
            | hardware,
            "run": {"steps": steps},
        }
    )


def run(settings: Scenario, seed: int = 20) -> SimRun:
    done = simulate(settings, seed=seed)
    assert done.ended == "completed"
    return done


@dataclass(frozen=True)
class Mean:
    """Mean and standard error of independent steps, or a ratio of totals by linearisation."""

    value: float
    se: float

    @classmethod
    def of(cls, over: Any, under: Any = None) -> "Mean":
        x = np.asarray(over, dtype=float)
        d = np.ones_like(x) if under is None else np.asarray(under, dtype=float)
        ratio = x.sum() / d.sum()
        residual = x - ratio * d
        return cls(ratio, math.sqrt(residual @ residual) / d.sum())

    def agrees(
        self, expected: float, *, sd: float = 0.0, n: int = 1, rounding: float = 0.0
    ) -> bool:
        """``sd`` of one of ``n`` steps, where theory knows it: the rare may not have occurred."""
        se = max(self.se, sd / math.sqrt(n))
        return abs(self.value - expected) <= ALLOWED * se + rounding


# q, E[waves], P(5 waves), P(full), P(skip), E[N]/B, E[kept]/B, E[kept/N]; B = 4, M = 2
T1 = {
    0.2: (2.641472, 0.0131072, 0.0562816, 0.16777216, 1.985344, 0.3970688, 0.20374735238),
    0.3: (2.82686, 0.0259308, 0.19410435, 0.05764801, 1.9411535, 0.58234605, 0.312611025),
    0.4: (2.868352, 0.0331776, 0.4059136, 0.01679616, 1.854592, 0.7418368, 0.42540982857),
    0.5: (2.75, 0.03125, 0.63671875, 0.00390625, 1.7265625, 0.86328125, 0.53759300595),
    0.6: (2.494016, 0.0221184, 0.8263296, 0.00065536, 1.569728, 0.9418368, 0.64433554286),
    0.7: (2.149492, 0.0111132, 0.94203235, 6.561e-05, 1.4033515, 0.98234605, 0.742935025),
    0.8: (1.7696, 0.0032768, 0.9895936, 2.56e-06, 1.246336, 0.9970688, 0.83362620952),
    0.9: (1.387352, 0.0002916, 0.99956835, 1e-08, 1.1109845, 0.99988605, 0.91859731071),
}


def disagreements(steps: Any, row: tuple[float, ...]) -> list[str]:
    """Return which of a T1 row's quantities the steps reject."""
    waves, p_five, p_full, p_skip, oversample, fill, ratio = row
    n = len(steps)
    events = {
        "P(5 waves)": (steps["rollout/waves"] == 5, p_five),
        "P(full)": (steps["rollout/effective_groups"] == 4, p_full),
        "P(skip)": (steps["train/update_skipped"], p_skip),
    }
    means = {
        "waves": (steps["rollout/waves"], waves),
        "oversample": (steps["rollout/oversample_ratio"], oversample),
        "fill": (steps["rollout/effective_fill_ratio"], fill),
        "kept/N": (steps["rollout/effective_group_ratio"], ratio),
    }
    bad = [name for name, (x, value) in means.items() if not Mean.of(x).agrees(value)]
    for name, (x, p) in events.items():
        if not Mean.of(x).agrees(p, sd=math.sqrt(p * (1 - p)), n=n):
            bad.append(name)
    return bad


@pytest.mark.parametrize("q", T1)
def test_rows_of_the_seed_configuration(q: float) -> None:
    steps = run(scenario("exact_refill", q=q, size=8)).steps
    assert disagreements(steps, T1[q]) == []
    assert steps["rollout/waves"].max() <= 5
    assert Mean.of(steps["rollout/unbiased_effective_ratio"]).agrees(q)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_rows_of_another_difficulty_are_rejected(factor: float) -> None:
    steps = run(scenario("exact_refill", q=0.5 * factor, size=8, steps=3000)).steps
    assert {"oversample", "fill", "kept/N"} <= set(disagreements(steps, T1[0.5]))
    assert not Mean.of(steps["rollout/unbiased_effective_ratio"]).agrees(0.5)


# q: E[rounds], surplus a step; Bt = 512, Bg = 1536
T4 = {0.333: (1.5015, 256.0), 0.34: (1.2821, 157.6), 0.4: (1.0, 102.4)}


def rounds_agree(q: float, expected: tuple[float, float]) -> tuple[bool, bool]:
    steps = run(scenario("rounds", q=q, groups=512, steps=80)).steps
    rounds, surplus = Mean.of(steps["rollout/waves"]), Mean.of(steps["rollout/surplus_groups"])
    # literals are rounded: rounds to 4 digits, surplus to one
    return (
        rounds.agrees(expected[0], rounding=6e-5),
        surplus.agrees(expected[1], rounding=0.06),
    )


@pytest.mark.parametrize("q", T4)
def test_whole_rounds(q: float) -> None:
    assert rounds_agree(q, T4[q]) == (True, True)


def test_whole_rounds_of_another_difficulty_are_rejected() -> None:
    assert rounds_agree(0.34 * 1.05, T4[0.34]) == (False, False)


@pytest.mark.parametrize(("eta", "p_full"), [(1.0, 0.0625), (1.5, 0.34375), (2.0, 0.63671875)])
def test_over_provision_is_enough_as_often_as_a_binomial(eta: float, p_full: float) -> None:
    """P(Bin(4η, ½) ≥ 4)."""
    settings = {"kind": "over_provision", "eta": eta}
    full = run(scenario(settings, q=0.5)).steps["rollout/effective_groups"] == 4
    assert Mean.of(full).agrees(p_full)


def test_over_provision_at_another_difficulty_is_rejected() -> None:
    settings = scenario({"kind": "over_provision", "eta": 2.0}, q=0.475, steps=5000)
    assert not Mean.of(run(settings).steps["rollout/effective_groups"] == 4).agrees(0.63671875)


@pytest.mark.parametrize(("q", "groups"), [(0.5, 4), (0.3, 4), (0.7, 16)])
def test_replacing_one_for_one_needs_b_over_q_candidates(q: float, groups: int) -> None:
    steps = run(scenario("replenish", q=q, groups=groups, size=8, steps=4000)).steps
    assert Mean.of(steps["rollout/candidate_groups"]).agrees(groups / q)
    assert Mean.of(steps["rollout/unbiased_effective_ratio"]).agrees(q)
    assert not Mean.of(steps["rollout/candidate_groups"]).agrees(groups / (1.05 * q))


# ------------------------------------------------------------------- exponential durations

MEAN_TOKENS = 2000


class Races:
    """Group durations ~ Exp(1) in units of MEAN_TOKENS iterations, validity with chance q."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(
        self, collector: dict[str, Any] | str, *, groups: int, steps: int, valid: str = "any"
    ) -> SimRun:
        q, rng = 0.5, np.random.default_rng(7)
        u = rng.random(80_000)
        chance = {"any": rng.random(len(u)), "short": u, "long": 1 - u}[valid]
        tokens = np.ceil(-np.log1p(-u) * MEAN_TOKENS).astype(np.int64)
        stream = ListedStream(np.stack([tokens, tokens], axis=1), (chance < q).astype(int))
        self._patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
        return run(scenario(collector, groups=groups, steps=steps, a_s=1 / MEAN_TOKENS))


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> Races:
    return Races(monkeypatch)


REFILL = {"kind": "exact_refill", "max_candidate_multiplier": None}
# Exp(1) durations, B = 16, q = ½: one plain wave, slot refill, barrier refill
HIERARCHY = {"none": 3.381, "replenish": 6.761, "exact_refill": 11.136}


@pytest.mark.parametrize("kind", HIERARCHY)
def test_hierarchy_of_policies(races: Races, kind: str) -> None:
    collector = REFILL if kind == "exact_refill" else kind
    time = Mean.of(races(collector, groups=16, steps=1900).steps["time/rollout_seconds"])
    # literals have three decimals; rounding up to whole tokens adds half a token a wave
    assert time.agrees(HIERARCHY[kind], rounding=0.0005 + 4 / MEAN_TOKENS)
    assert not time.agrees(1.05 * HIERARCHY[kind])


def test_streaming_launches_and_prefers_short_groups(races: Races) -> None:
    """K = B = 16, q = ½: 47 launched, Erlang(16, 8) time, completed groups 0.595 of the mean."""
    done = races({"kind": "streaming", "slots": 16}, groups=16, steps=2500)
    launched = Mean.of(done.steps["rollout/candidate_groups"])
    assert launched.agrees(16 / 0.5 + 15)
    assert not launched.agrees((16 / 0.5 + 15) * 1.05)
    seconds = done.steps["time/rollout_seconds"].to_numpy()
    # Kolmogorov–Smirnov at the level of 4.5 standard errors
    law = stats.gamma(16, scale=1 / 8)
    assert stats.kstest(seconds, law.cdf).pvalue > 2 * stats.norm.sf(ALLOWED)
    assert stats.kstest(seconds, stats.gamma(16, scale=1.05 / 8).cdf).pvalue < 1e-5
    completed = done.groups[done.groups["status"] != "aborted"].groupby("step")["n_tokens_mean"]
    length = Mean.of(completed.sum(), completed.size())
    assert length.agrees(0.595 * MEAN_TOKENS, rounding=0.0005 * MEAN_TOKENS + 0.5)
    assert not length.agrees(0.595 * 1.05 * MEAN_TOKENS)


def test_mean_barrier_time_does_not_see_which_lengths_are_valid(races: Races) -> None:
    """B4: the mean stays, the spread moves."""
    spread = {}
    for valid in ("short", "any", "long"):
        seconds = races(REFILL, groups=4, steps=3500, valid=valid).steps["time/rollout_seconds"]
        assert Mean.of(seconds).agrees(5.257, rounding=0.0005 + 4 / MEAN_TOKENS), valid
        assert valid != "long" or not Mean.of(seconds).agrees(5.257 * 1.05)
        spread[valid] = Mean.of((seconds - seconds.mean()) ** 2)
    for one, other in (("short", "any"), ("any", "long")):
        gap = abs(spread[one].value - spread[other].value)
        assert gap > ALLOWED * math.hypot(spread[one].se, spread[other].se)


@pytest.mark.parametrize(("n", "harmonic"), [(8, 2.717857), (32, 4.058495)])
def test_one_answer_a_device(n: int, harmonic: float) -> None:
    """Field case B53: exponential durations, one a device: the barrier is H_n means."""
    workload = {"lengths": {"kind": "exponential", "mean_tokens": float(MEAN_TOKENS)}}
    settings = scenario(
        "none",
        groups=n,
        size=1,
        steps=2500,
        workload=workload,
        slots=1,
        replicas=n,
        a_s=1 / MEAN_TOKENS,
    )
    seconds = Mean.of(run(settings).steps["time/rollout_seconds"])
    assert seconds.agrees(harmonic, rounding=1 / MEAN_TOKENS)
    assert not seconds.agrees(1.05 * harmonic)


# ------------------------------------------------------------------- lengths and difficulty


def test_barrier_time_and_amplification() -> None:
    """B3: B = 4, G = 8, q = ½, lognormal(7, .9) cut at 8192: amplification 2.872."""
    law = stats.lognorm(0.9, scale=math.exp(7))

    def survival(x: Any) -> Any:
        return np.where(np.asarray(x) < 8192, 1 - law.cdf(x) ** 8, 0.0)

    lengths = {"kind": "lognormal", "median_tokens": math.exp(7), "sigma": 0.9}
    settings = {"workload": {"lengths": lengths}, "size": 8, "cap": 8192, "steps": 2500}
    done = run(scenario(REFILL, q=0.5, **settings))
    tokens = Mean.of(done.steps["time/rollout_seconds"] * 1000)
    theory = expected_barrier_time(survival, p_mixed=0.5, n_groups=4, cap=8192, whole_tokens=True)
    assert tokens.agrees(theory.expected_time)
    first = done.waves[done.waves["wave"] == 0].set_index("step")["wave_s"]
    amplification = Mean.of(done.steps["time/rollout_seconds"].to_numpy(), first.to_numpy())
    assert amplification.agrees(2.872, rounding=0.0005)
    twin = run(scenario(REFILL, q=0.525, **settings))
    assert not Mean.of(twin.steps["time/rollout_seconds"] * 1000).agrees(theory.expected_time)


def test_token_utilisation_with_lengths_that_depend_on_difficulty() -> None:
    """A8 for any dependence: q·E[T | mixed]/E[T], as a ratio of totals."""
    joint = {
        "kind": "joint",
        "prompts": {"count": 60_000},
        "median_tokens": 300.0,
        "sigma": 0.8,
        "correlation": -0.9,
        "correct_effect": -0.4,
        "mean_logit": 2.0,
        "loop_share": 0.05,
    }
    settings = scenario("exact_refill", size=8, cap=2000, steps=3000)
    settings = build(settings.model_dump() | {"workload": joint})
    steps = run(settings).steps
    used = Mean.of(steps["rollout/train_completion_tokens"], steps["rollout/completion_tokens"])
    facts = marginals(settings.workload, group_size=8, cap_tokens=2000)
    expected = token_utilisation(
        facts.mixed_probability,
        tokens_per_mixed=facts.mean_tokens_mixed,
        tokens_per_candidate=facts.mean_tokens,
    )
    assert used.agrees(expected)
    assert not used.agrees(1.05 * expected)
    assert abs(expected / facts.mixed_probability - 1) > 0.05  # lengths do depend on validity


@pytest.mark.parametrize(
    ("a", "b", "q", "retained", "kept_accuracy"),
    [(0.3, 0.6, 0.5173, 0.4361, 0.4476), (5.0, 1.0, 0.6146, 0.7743, 0.7301)],
)
def test_what_the_filter_keeps_of_beta_difficulties(
    a: float, b: float, q: float, retained: float, kept_accuracy: float
) -> None:
    """A1, A2, A9 with G = 8: accuracy and pass rate of the kept groups are not the prompts'."""
    workload = {"pass_rate": {"kind": "beta", "a": a, "b": b}}
    settings = scenario("filter_no_refill", groups=32, size=8, steps=1200, workload=workload)
    steps = run(settings).steps
    n_kept = steps["rollout/effective_groups"]
    share = Mean.of(n_kept, steps["rollout/candidate_groups"])
    accuracy = Mean.of(steps["reward/trained_accuracy"] * n_kept, n_kept)
    pass_rate = Mean.of(steps["bias/pass_rate_trained"] * n_kept, n_kept)
    for measured, expected in ((share, q), (accuracy, kept_accuracy), (pass_rate, retained)):
        assert measured.agrees(expected, rounding=5e-5)
        assert not measured.agrees(1.05 * expected)


@pytest.mark.parametrize(("size", "informative"), [(2, 0.298), (4, 0.551), (8, 0.799), (16, 0.960)])
def test_informative_share_of_a_hard_set(size: int, informative: float) -> None:
    """Field case B40: success rate .1819."""
    workload = {"pass_rate": {"kind": "fixed", "p": 0.1819}}
    steps = run(scenario("none", groups=64, size=size, steps=300, workload=workload)).steps
    share = Mean.of(steps["rollout/mixed_share"])
    assert share.agrees(informative, rounding=0.0005)
    assert not share.agrees(0.95 * informative)

"""Which prompts are sampled, and in which order they are dispatched, against plain loops."""

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from dapolab.collectors import Finished
from dapolab.scenario import ConfigError, GresoSelection, MoppsSelection, Scenario, build
from dapolab.sim.dispatch_order import LongestFirst
from dapolab.sim.run import SimRun, simulate
from dapolab.sim.selection import Mopps
from dapolab.workload.model import PromptStream
from dapolab.workload.prompts import BLOCK, BlockDraws
from tests.listed_stream import ListedStream

PROMPTS, SIZE = 40, 4


def scenario(
    *,
    rollout: dict[str, Any],
    collector: dict[str, Any] | None = None,
    steps: int = 30,
    prompts: dict[str, Any] | None = None,
    drift: dict[str, float] | None = None,
    hardware: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
    mean_logit: float = 0.0,
) -> Scenario:
    return build(
        {
            "workload": {
                "kind": "joint",
                "sd_logit": 2.5,
                "mean_logit": mean_logit,
                "median_tokens": 30.0,
                "prompts": {"count": PROMPTS} | (prompts or {}),
                "drift": drift or {},
            },
            "rollout": {"groups_per_step": 5, "group_size": SIZE, "cap_tokens": 100} | rollout,
            "collector": collector or {"kind": "exact_refill"},
            "hardware": {
                "law": {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
            }
            | (hardware or {}),
            "learner": learner or {},
            "run": {"steps": steps},
        }
    )


def outcomes(run: SimRun) -> list[tuple[int, list[tuple[int, int, int, bool]]]]:
    """Return per step (position, prompt, n_correct, ended) of its groups in data order."""
    columns = ["position", "prompt_id", "n_correct"]
    return [
        (int(step), sorted(zip(*(g[c] for c in columns), g["status"] != "aborted", strict=True)))
        for step, g in run.groups.groupby("step")
    ]


def greso_by_hand(run: SimRun, uniforms: np.ndarray, prompt_at: np.ndarray) -> list[list[int]]:
    """Return the places that a plain loop skips, step by step, from the paper's rules.

    The outcomes and the last place of each step are the run's, the decisions are not: z counts
    consecutive all-right (all-wrong) outcomes of a prompt, it is sampled with probability
    max(p^z, .01); after a step whose epoch is not the first, p moves by .01 toward fewer such
    groups than 25 % (1/3 of them easy, 2/3 hard), within [.05, .95]. Every place from one step's
    last to the next one's is either sampled or skipped.
    """
    p = {"easy": 0.5, "hard": 0.5}
    target = {"easy": Fraction(1, 12), "hard": Fraction(1, 6)}
    z = dict.fromkeys(range(PROMPTS), ("easy", 0))
    at, skipped = 0, []
    for _, groups in outcomes(run):
        last, out = groups[-1][0], []
        while at <= last:
            kind, length = z[int(prompt_at[at])]
            if uniforms[at] >= max(p[kind] ** length, 0.01):
                out.append(at)
            at += 1
        skipped.append(out)
        count = {"easy": 0, "hard": 0}
        ended = [(prompt, right) for _, prompt, right, has_ended in groups if has_ended]
        for prompt, right in ended:
            if 0 < right < SIZE:
                z[int(prompt)] = ("easy", 0)
                continue
            kind = "easy" if right else "hard"
            count[kind] += 1
            before, length = z[int(prompt)]
            z[int(prompt)] = (kind, length + 1 if before == kind else 1)
        if last // PROMPTS > 0:
            for kind in p:
                if Fraction(count[kind], len(ended)) >= target[kind]:
                    p[kind] = max(p[kind] - 0.01, 0.05)
                else:
                    p[kind] = min(p[kind] + 0.01, 0.95)
    return skipped


def places(run: SimRun) -> list[list[int]]:
    """Return the places between one step's last group and the next one's that no group has."""
    found, at = [], 0
    for _, groups in outcomes(run):
        taken = {int(position) for position, *_ in groups}
        found.append([place for place in range(at, max(taken) + 1) if place not in taken])
        at = max(taken) + 1
    return found


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Keep the seed and the stream that a run uses."""
    kept: dict[str, Any] = {}

    def stream(scenario: Scenario, *, seed: int) -> PromptStream:
        kept["seed"] = seed
        kept["stream"] = PromptStream(
            scenario.workload, group_size=SIZE, cap_tokens=scenario.rollout.cap_tokens, seed=seed
        )
        return kept["stream"]

    monkeypatch.setattr("dapolab.sim.outset.prompt_stream", stream)
    return kept


POLICIES = (
    {"kind": "exact_refill"},
    {"kind": "none"},
    {"kind": "rounds", "gen_multiplier": 2.0},
    {"kind": "chunked"},
)


@pytest.mark.parametrize("collector", POLICIES, ids=lambda c: c["kind"])
def test_greso_skips_what_a_plain_loop_skips(
    recorded: dict[str, Any], collector: dict[str, Any]
) -> None:
    run = simulate(scenario(rollout={"selection": {"kind": "greso"}}, collector=collector), seed=3)
    n = int(run.groups["position"].max()) + 1
    draws = BlockDraws(recorded["seed"], "selection")
    uniforms = np.concatenate([draws.uniform(b, 1)[0] for b in range(n // BLOCK + 1)])
    prompt_at = recorded["stream"].draw(0, n).prompt_id_P
    # groups cut off at the end of a step came to no end and are not heard of
    assert (run.groups["status"] == "aborted").any() == (collector["kind"] == "chunked")
    by_hand = greso_by_hand(run, uniforms, prompt_at)
    assert places(run) == by_hand
    assert sum(map(len, by_hand)) > 20
    assert run.steps["rollout/skipped_prompts"].tolist() == [len(out) for out in by_hand]


def test_another_step_size_skips_other_prompts(recorded: dict[str, Any]) -> None:
    """The loop above must be able to tell: three times the step of p is another policy."""
    selection = {"kind": "greso", "step": 0.03}
    run = simulate(scenario(rollout={"selection": selection}, steps=60), seed=3)
    n = int(run.groups["position"].max()) + 1
    draws = BlockDraws(recorded["seed"], "selection")
    uniforms = np.concatenate([draws.uniform(b, 1)[0] for b in range(n // BLOCK + 1)])
    assert places(run) != greso_by_hand(run, uniforms, recorded["stream"].draw(0, n).prompt_id_P)


def mopps_by_hand(
    run: SimRun, uniforms: np.ndarray, prompt_at: np.ndarray, *, ratio: int, decay: float
) -> list[list[int]]:
    """Return the places that a plain loop takes, wave by wave, from the recipe's two functions.

    How many each wave asks for and the outcomes are the run's, the choice is not.
    """
    posterior = dict.fromkeys(range(PROMPTS), (1.0, 1.0))
    at, taken = 0, []
    for _, step in run.groups.groupby("step"):
        for _, wave in step.groupby("wave"):
            window = range(at, at + min(ratio * len(wave), PROMPTS))
            rate = {k: beta.ppf(uniforms[k], *posterior[int(prompt_at[k])]) for k in window}
            nearest = sorted(window, key=lambda k: ((rate[k] - 0.5) ** 2, k))[: len(wave)]
            taken.append(sorted(nearest))
            at = window.stop
        for prompt, right in zip(step["prompt_id"], step["n_correct"], strict=True):
            a, b = posterior[int(prompt)]
            a, b = (decay * x + (1 - decay) * 1.0 for x in (a, b))
            posterior[int(prompt)] = a + right, b + SIZE - right
    return taken


@pytest.mark.parametrize(("ratio", "decay"), [(2, 0.5), (8, 1.0)])
def test_mopps_takes_what_a_plain_loop_takes(
    recorded: dict[str, Any], ratio: int, decay: float
) -> None:
    selection = {"kind": "mopps", "candidate_ratio": ratio, "decay": decay}
    run = simulate(scenario(rollout={"selection": selection}, steps=12), seed=3)
    n = run.n_prompts_used
    draws = BlockDraws(recorded["seed"], "selection")
    uniforms = np.concatenate([draws.uniform(b, 1)[0] for b in range(n // BLOCK + 1)])
    prompt_at = recorded["stream"].draw(0, n).prompt_id_P
    waves_ = [sorted(wave["position"].tolist()) for _, wave in run.groups.groupby(["step", "wave"])]
    assert waves_ == mopps_by_hand(run, uniforms, prompt_at, ratio=ratio, decay=decay)
    other = mopps_by_hand(run, uniforms, prompt_at, ratio=ratio, decay=decay / 2)
    assert waves_ != other
    assert run.steps["rollout/skipped_prompts"].sum() == n - len(run.groups)


def test_a_posterior_by_hand() -> None:
    """λ .5: 3 of 4, then 0 of 4: α 1 → 4 → 2.5, β 1 → 2 → 5.5."""
    selector = Mopps(MoppsSelection(decay=0.5), n_prompts=2, seed=0)
    groups = ListedStream([[1] * 4, [1] * 4], [3, 0]).draw(0, 2)
    told = Finished(0, 4, 3, 1.0, 4)
    selector.hear(groups, [(0, told)])
    assert (selector.right_N.tolist(), selector.wrong_N.tolist()) == ([4.0, 1.0], [2.0, 1.0])
    selector.hear(groups, [(0, Finished(0, 4, 0, 0.0, 4))])
    assert (selector.right_N.tolist(), selector.wrong_N.tolist()) == ([2.5, 1.0], [5.5, 1.0])
    assert [selector.n_candidates(n) for n in (1, 2)] == [2, 2]  # an epoch, and never too few


def test_mopps_finds_more_mixed_groups_the_more_candidates_it_has() -> None:
    """Against uniform sampling and a ratio of 2, unpaired, each apart by 4.5 SE."""
    found = []
    for ratio in (None, 2.0, 8.0):
        selection = {"kind": "mopps", "candidate_ratio": ratio} if ratio else {"kind": "uniform"}
        rollout = {"selection": selection}
        run = simulate(scenario(rollout=rollout, collector={"kind": "none"}, steps=240), seed=1)
        mixed = run.steps["rollout/mixed_share"][40:]
        found.append((mixed.mean(), mixed.var(ddof=1) / len(mixed)))
    for (fewer, var_fewer), (more, var_more) in pairwise(found):
        assert more - fewer > 4.5 * np.sqrt(var_fewer + var_more)


def test_a_skipped_place_keeps_all_other_draws() -> None:
    """Common random numbers: a group at a place is the same with and without selection."""
    columns = ["prompt_id", "n_correct", "n_tokens_mean", "pass_rate"]
    plain = simulate(scenario(rollout={}, steps=70), seed=1).groups.set_index("position")[columns]
    for kind in ("greso", "oracle", "solved_out", "mopps"):
        run = simulate(scenario(rollout={"selection": {"kind": kind}}), seed=1)
        chosen = run.groups.set_index("position")[columns]
        both = plain.index.intersection(chosen.index)
        assert len(both) > 50
        assert plain.loc[both].equals(chosen.loc[both])


def test_oracle_samples_the_band_and_nothing_of_it_is_left_out() -> None:
    selection = {"kind": "oracle", "lowest": 0.3, "highest": 0.8}
    made = scenario(rollout={"selection": selection}, drift={"logit_per_step": 0.02})
    run = simulate(made, seed=2)
    assert run.groups["pass_rate"].between(0.3, 0.8).all()
    plain = simulate(scenario(rollout={}, steps=1), seed=2).groups
    last = int(run.groups.loc[run.groups["step"] == 0, "position"].max())
    first = plain[(plain["position"] <= last) & plain["pass_rate"].between(0.3, 0.8)]
    assert set(first["position"]) <= set(run.groups.loc[run.groups["step"] == 0, "position"])


def test_an_empty_band_ends_the_run_as_out_of_data() -> None:
    selection = {"kind": "oracle", "lowest": 0.9999, "highest": 1.0}
    run = simulate(scenario(rollout={"selection": selection}, mean_logit=-4.0), seed=2)
    assert run.ended == "data exhausted"
    assert run.steps.empty


def test_solved_prompts_never_return_and_the_others_do() -> None:
    """Three of four right is solved at .75; one visit decides."""
    selection = {"kind": "solved_out", "pass_rate": 0.75}
    run = simulate(scenario(rollout={"selection": selection}), seed=4)
    steps: dict[int, list[tuple[int, bool]]] = {}
    for step, groups in outcomes(run):
        for _, prompt, right, _ in groups:
            steps.setdefault(int(prompt), []).append((step, right >= 3))
    for visits in steps.values():
        solved = [step for step, done in visits if done]
        assert not solved or max(step for step, _ in visits) == solved[0]
    assert sum(len(visits) > 1 for visits in steps.values()) > 10
    kept = simulate(scenario(rollout={"selection": selection | {"pass_rate": 1.0}}), seed=4)
    assert kept.steps["rollout/skipped_prompts"].sum() < run.steps["rollout/skipped_prompts"].sum()


def test_all_prompts_solved_is_the_end_of_the_data() -> None:
    selection = {"kind": "solved_out", "pass_rate": 0.0}
    made = scenario(rollout={"selection": selection}, collector={"kind": "none"})
    run = simulate(made, seed=0)
    assert run.ended == "data exhausted"
    assert sorted(run.groups["prompt_id"]) == list(range(PROMPTS))


@pytest.mark.parametrize("kind", ["greso", "oracle", "solved_out", "mopps"])
@pytest.mark.parametrize(
    "collector",
    ["none", "filter_no_refill", "exact_refill", "rounds", "replace", "adaptive_wave", "screening",
     "segments", "replenish", "streaming", "chunked", "over_provision", "tail_batching", "verl_v1"],
)  # fmt: skip
def test_every_synchronous_policy_works_on_selected_prompts(kind: str, collector: str) -> None:
    selection = {"kind": kind} | ({"pass_rate": 1.0} if kind == "solved_out" else {})
    table: dict[str, Any] = {"kind": collector}
    table |= {"segments": {"segment_tokens": 40}, "screening": {"screen_samples": 2}}.get(
        collector, {}
    )
    made = scenario(
        rollout={"selection": selection, "order": "longest_first", "predictor_sigma": 0.3},
        collector=table,
        steps=6,
        hardware={"slots": 16},
    )
    run = simulate(made, seed=5)
    again = simulate(made, seed=5) if kind == "greso" else run
    assert run.ended == "completed"
    assert len(run.steps) == 6
    assert run.groups.equals(again.groups)
    assert run.steps.equals(again.steps)
    position = run.groups["position"].dropna()
    # each place is sampled once, or once more where a prompt waits to be sampled afresh
    if collector != "tail_batching":
        assert position.is_unique
    skipped = run.steps["rollout/skipped_prompts"].sum()
    assert 0 <= skipped <= run.n_prompts_used - position.nunique()


def test_uniform_runs_have_no_such_metric() -> None:
    run = simulate(scenario(rollout={}, steps=2), seed=0)
    assert run.steps["rollout/skipped_prompts"].isna().all()


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"prompts": {"drop_last": True}}, "drop_last"),
        ({"learner": {"schedule": {"kind": "fully_async"}, "gpus": 1}}, "fully_async"),
    ],
)
def test_selection_where_it_has_no_meaning_is_refused(
    settings_: dict[str, Any], words: str
) -> None:
    collector = {"kind": "streaming"} if "learner" in settings_ else None
    with pytest.raises(ConfigError, match=words):
        scenario(rollout={"selection": {"kind": "greso"}}, collector=collector, **settings_)


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match="p_min"):
        scenario(rollout={"selection": {"kind": "greso", "p_min": 0.5, "p_max": 0.1}})
    with pytest.raises(ConfigError, match="lowest"):
        scenario(rollout={"selection": {"kind": "oracle", "lowest": 0.5, "highest": 0.1}})
    assert GresoSelection().target_degenerate_share == 0.25


# ------------------------------------------------------------------ longest first


def waves(
    patch: pytest.MonkeyPatch, lengths: list[list[int]], *, slots: int, **rollout: Any
) -> SimRun:
    """One wave of all groups on ``slots`` slots, one second a token."""
    stream = ListedStream(lengths, [1] * len(lengths), 1)
    patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
    made = scenario(
        rollout={"groups_per_step": len(lengths), "group_size": len(lengths[0])} | rollout,
        collector={"kind": "none"},
        steps=1,
        hardware={"slots": slots},
    )
    return simulate(made, seed=0, record_steps=1)


def test_longest_first_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, 1, 4 on two slots: 5 s in this order, 4 s with the long one first."""
    lengths = [[1], [1], [4]]
    plain = waves(monkeypatch, lengths, slots=2)
    sorted_ = waves(monkeypatch, lengths, slots=2, order="longest_first")
    assert plain.steps["time/rollout_seconds"].tolist() == [5.0]
    assert sorted_.steps["time/rollout_seconds"].tolist() == [4.0]
    assert sorted_.groups["end_s"].tolist() == [1.0, 2.0, 4.0]  # rows stay in data order
    assert sorted_.groups["position"].tolist() == [0, 1, 2]
    rows = sorted_.responses.sort_values("admit_s")
    assert rows["group"].tolist()[0] == 2
    # two groups of two: mean log length decides, not the longest answer: √(9·1) < √(4·4)
    tied = waves(monkeypatch, [[9, 1], [4, 4]], slots=2, order="longest_first")
    assert tied.groups["end_s"].tolist() == [13.0, 4.0]


lengths_ = st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=2), min_size=1, max_size=12)


@settings(max_examples=20, deadline=None)
@given(lengths=lengths_, slots=st.integers(1, 6), sigma=st.sampled_from([0.0, 0.5, 50.0]))
def test_any_order_stays_within_grahams_bound(
    lengths: list[list[int]], slots: int, sigma: float
) -> None:
    """List scheduling: makespan ≤ (Σ − max)/slots + max, and ≥ max and ≥ Σ/slots."""
    with pytest.MonkeyPatch.context() as patch:
        run = waves(patch, lengths, slots=slots, order="longest_first", predictor_sigma=sigma)
    total, longest = float(np.sum(lengths)), float(np.max(lengths))
    seconds = float(run.steps["time/rollout_seconds"].iloc[0])
    assert max(longest, total / slots) <= seconds <= (total - longest) / slots + longest
    assert run.steps["rollout/completion_tokens"].tolist() == [total]


def test_the_predictor_errs_by_its_sigma_and_by_place_alone() -> None:
    stream = ListedStream(np.full((400, 2), 50), [1] * 400, None)
    groups = stream.draw(0, 400)
    order = LongestFirst(sigma=0.7, seed=9)
    z = BlockDraws(9, "predicted length")
    noise = np.concatenate([z.normal(0, 1)[0], z.normal(1, 1)[0]])[:400]
    # equal lengths: the noise alone decides
    assert order.order(groups, groups.n_tokens_PG).tolist() == np.argsort(-noise).tolist()
    part = stream.draw(250, 20)
    expected = np.argsort(-noise[250:270]).tolist()
    assert order.order(part, part.n_tokens_PG).tolist() == expected
    # lengths a factor e^(4 sigma) apart are told apart whatever the noise of most places
    apart = np.where(np.arange(400)[:, None] % 2 == 0, 50, int(50 * np.exp(0.7 * 4)))
    apart = np.broadcast_to(apart, (400, 2))
    rank = np.empty(400)
    rank[order.order(groups, apart)] = np.arange(400)
    # P(wrong) of a pair = Φ(−4/√2) = 0.0023
    wrong = (rank[1::2][:, None] > rank[0::2][None, :]).mean()
    assert wrong < 0.0023 + 4.5 * np.sqrt(0.0023 / 200)


def test_a_worse_predictor_wins_less() -> None:
    """Means over 25 waves: oracle ≤ sigma 1 ≤ submission order, each apart by 4.5 SE."""
    rng = np.random.default_rng(3)
    table: dict[str, list[float]] = {"oracle": [], "noisy": [], "plain": []}
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(25):
            lengths = np.ceil(np.exp(rng.normal(2.5, 1.2, (24, 1)))).clip(1, 90).astype(int)
            for name, extra in (
                ("oracle", {"order": "longest_first"}),
                ("noisy", {"order": "longest_first", "predictor_sigma": 1.0}),
                ("plain", {}),
            ):
                run = waves(patch, lengths.tolist(), slots=6, **extra)
                table[name].append(float(run.steps["time/rollout_seconds"].iloc[0]))
    for better, worse in (("oracle", "noisy"), ("noisy", "plain")):
        difference = np.array(table[worse]) - np.array(table[better])
        assert difference.mean() > 4.5 * difference.std(ddof=1) / np.sqrt(len(difference))

"""Scores that take time, calls of tools and failures, against times worked out by hand.

Decoding takes one second an iteration whatever the load, prompts cost nothing: a response of L
tokens takes L seconds. A plain judge plays single waves of whole seconds, response by response.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.scenario import ConfigError, Rollout, Scenario, build
from dapolab.sim.run import SimRun, simulate
from dapolab.sim.service_draws import Draws, Luck
from tests.listed_stream import ListedStream

MIXED, WRONG = 1, 0
NEVER = math.nan


def scenario(
    collector: dict[str, Any] | str,
    *,
    groups: int = 2,
    size: int = 2,
    steps: int = 1,
    hardware: dict[str, Any] | None = None,
    **tables: dict[str, Any],
) -> Scenario:
    return build(
        {
            "workload": {"kind": "independent"},
            "rollout": {
                "groups_per_step": groups,
                "group_size": size,
                "cap_tokens": 1000,
                **tables,
            },
            "collector": {"kind": collector} if isinstance(collector, str) else collector,
            "hardware": {
                "law": {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
            }
            | (hardware or {}),
            "run": {"steps": steps},
        }
    )


class Play:
    """Runs scenarios on listed groups, with listed luck where it is given (by place and member)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(
        self,
        settings: Scenario,
        lengths: Sequence[Sequence[int]],
        n_correct: Sequence[int],
        *,
        score_s: dict[tuple[int, int], float] | None = None,
        call_s: dict[tuple[int, int], Sequence[float]] | None = None,
        fails_at: dict[tuple[int, int], Sequence[float]] | None = None,
    ) -> SimRun:
        stream = ListedStream(lengths, n_correct)
        drawn = Draws.luck

        def luck(draws: Draws, position: int, n: int, *, visit: int = 0) -> Luck:
            found = drawn(draws, position, n, visit=visit)
            for mine, told in (
                (found.score_s_K, score_s),
                (found.call_s_KC, call_s),
                (found.fails_at_KA, fails_at),
            ):
                for (place, member), value in (told or {}).items():
                    if place == position:
                        mine[member] = value
            return found

        self._patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
        self._patch.setattr(Draws, "luck", luck)
        return simulate(settings, seed=0, record_steps=9)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def metrics(run: SimRun, step: int = 0) -> dict[str, Any]:
    return {str(name): value for name, value in run.steps.iloc[step].items()}


# ------------------------------------------------------------------------------------- scores


def test_a_wave_ends_when_its_last_response_is_scored(play: Play) -> None:
    """Wave 1 decodes 0 … 7 and is scored at 9, wave 2 decodes 9 … 11 and is scored at 13."""
    run = play(
        scenario("exact_refill", reward={"median_s": 2.0}),
        [[3, 4], [7, 7], [1, 2]],
        [MIXED, WRONG, MIXED],
    )
    row = metrics(run)
    assert row["time/rollout_seconds"] == 13
    assert row["time/reward_wait_seconds"] == 4
    assert row["time/overhead_seconds"] == 4
    assert row["rollout/wave_seconds"] == 4.5
    assert run.waves["end_s"].tolist() == [9, 13]


def test_scoring_overlaps_decoding_and_waits_for_a_worker(play: Play) -> None:
    """One worker, 2 s a score, last tokens at 1, 2, 7, 7: scores until 3, 5, 9 and 11."""
    run = play(
        scenario("none", reward={"median_s": 2.0, "workers": 1}), [[1, 2], [7, 7]], [MIXED, MIXED]
    )
    row = metrics(run)
    assert row["time/rollout_seconds"] == 11
    assert row["time/reward_wait_seconds"] == 4
    without_limit = play(scenario("none", reward={"median_s": 2.0}), [[1, 2], [7, 7]], [1, 1])
    assert metrics(without_limit)["time/rollout_seconds"] == 9


def test_without_a_barrier_a_group_is_judged_when_it_is_scored(play: Play) -> None:
    """Group 0 (wrong) is known at 3 + 4; its replacement decodes 7 … 9 and is known at 13."""
    run = play(
        scenario("replenish", reward={"median_s": 4.0}), [[3, 1], [5, 5], [2, 2]], [WRONG, 1, 1]
    )
    row = metrics(run)
    assert row["time/rollout_seconds"] == 13
    # nothing decodes from 5 to 7, while group 0 is scored, and from 9 to 13
    assert row["time/reward_wait_seconds"] == 2 + 4


def test_a_late_score_is_a_wrong_answer(play: Play) -> None:
    settings = scenario("none", reward={"median_s": 1.0, "timeout_s": 3.0})
    run = play(settings, [[2, 2], [4, 4]], [MIXED, MIXED], score_s={(1, 0): 50.0})
    row = metrics(run)
    assert row["time/rollout_seconds"] == 4 + 3
    assert row["reward/accuracy"] == 1 / 4
    assert row["rollout/timed_out_responses"] == 1
    assert row["rollout/failed_groups"] == 0
    assert run.groups["n_timed_out"].tolist() == [0, 1]


def test_a_late_score_can_be_a_failure(play: Play) -> None:
    reward = {"median_s": 1.0, "timeout_s": 3.0, "on_timeout": "fail"}
    run = play(
        scenario("none", reward=reward), [[2, 2], [4, 4]], [MIXED, MIXED], score_s={(1, 0): 50.0}
    )
    assert run.groups["status"].tolist() == ["trained", "failed"]
    assert metrics(run)["rollout/failed_tokens"] == 8


def test_of_spare_responses_those_with_the_first_last_tokens_count(play: Play) -> None:
    """Responses end at 2 and 3, the third is cut there; the slow score is still waited for."""
    settings = scenario(
        {"kind": "over_provision", "eta": 1.0, "response_eta": 1.5, "filter": False},
        groups=1,
        reward={"median_s": 1.0},
    )
    run = play(settings, [[2, 9, 3]], [MIXED], score_s={(0, 0): 8.0})
    row = metrics(run)
    assert row["time/rollout_seconds"] == 10
    assert row["rollout/train_completion_tokens"] == 5
    assert row["rollout/completion_tokens"] == 8


# ----------------------------------------------------------------------------------- failures


def test_a_failure_drops_its_group_and_the_policy_refills(play: Play) -> None:
    """Response 0.1 fails after 2 of 4 tokens; 0.0 is cut off there; the refill decodes 7 … 9."""
    run = play(
        scenario("exact_refill", failures={}),
        [[3, 4], [7, 7], [1, 2]],
        [MIXED, MIXED, MIXED],
        fails_at={(0, 1): [0.5]},
    )
    row = metrics(run)
    assert run.groups["status"].tolist() == ["failed", "trained", "trained"]
    assert row["time/rollout_seconds"] == 9
    assert row["rollout/failed_groups"] == 1
    assert row["rollout/failed_samplings"] == 1
    assert row["rollout/failed_tokens"] == 4
    assert row["rollout/completion_tokens"] == 4 + 14 + 3
    assert row["reward/accuracy"] == 0.5  # of the groups that returned
    assert run.groups["n_failed"].tolist() == [1, 0, 0]


def test_a_policy_without_a_filter_trains_fewer_groups(play: Play) -> None:
    run = play(
        scenario("none", failures={}), [[3, 4], [2, 2]], [MIXED, MIXED], fails_at={(0, 1): [0.5]}
    )
    assert run.groups["status"].tolist() == ["failed", "trained"]
    assert metrics(run)["rollout/effective_fill_ratio"] == 0.5


def test_a_retried_response_starts_again_and_its_tokens_are_lost(play: Play) -> None:
    """Response 0.1: 2 tokens lost, then 4 … lost after 1, then 4: done at 2 + 1 + 4."""
    run = play(
        scenario("none", failures={"on_failure": "retry", "max_retries": 2}),
        [[3, 4], [5, 5]],
        [MIXED, MIXED],
        fails_at={(0, 1): [0.5, 0.25, NEVER]},
    )
    row = metrics(run)
    assert row["time/rollout_seconds"] == 7
    assert row["rollout/failed_samplings"] == 2
    assert row["rollout/failed_tokens"] == 3
    assert row["rollout/train_completion_tokens"] == 17
    assert row["rollout/completion_tokens"] == 20
    assert run.groups["status"].tolist() == ["trained", "trained"]
    stays = run.responses[(run.responses["group"] == 0) & (run.responses["member"] == 1)]
    assert stays["generated_tokens"].tolist() == [2, 1, 4]
    assert stays["admit_s"].tolist() == [0, 2, 3]
    assert stays["end_s"].tolist() == [2, 3, 7]
    assert stays["outcome"].tolist() == ["failed", "failed", "finished"]


def test_after_its_last_retry_a_response_takes_its_group_along(play: Play) -> None:
    run = play(
        scenario("none", failures={"on_failure": "retry", "max_retries": 1}),
        [[3, 4], [5, 5]],
        [MIXED, MIXED],
        fails_at={(0, 1): [0.5, 0.5]},
    )
    assert run.groups["status"].tolist() == ["failed", "trained"]
    # 2 + 2 tokens of the failed samplings; 0.0 had finished at 3, before the second failure at 4
    assert metrics(run)["rollout/failed_tokens"] == 7


def test_a_failure_can_end_the_run(play: Play) -> None:
    run = play(
        scenario("none", failures={"on_failure": "fail_run"}, steps=3),
        [[3, 4], [5, 5]],
        [MIXED, MIXED],
        fails_at={(2, 1): [0.5]},  # the second step's first group
    )
    assert run.ended.startswith("failed: a response failed")
    assert len(run.steps) == 1
    assert run.unlearned_s == 2
    assert run.groups["status"].tolist() == ["trained", "trained", "failed", "aborted"]


# -------------------------------------------------------------------------------------- tools


def test_turns_wait_for_their_tools(play: Play) -> None:
    """Of 7 tokens 4 come before the call, 3 after it: 4 + 5 + 3; of 4 tokens 2: 2 + 5 + 2."""
    run = play(scenario("none", groups=1, tools={"median_s": 5.0}), [[7, 4]], [MIXED])
    row = metrics(run)
    assert row["time/rollout_seconds"] == 12
    assert row["time/tool_wait_seconds"] == 7 - 4  # the engine is empty from 4 to 7
    assert row["rollout/completion_tokens"] == 11
    assert sorted(run.responses["outcome"]) == ["finished", "finished", "tool", "tool"]


@pytest.mark.parametrize(("kv", "prefill_s"), [("recomputed", 2.0), ("kept", 0.6)])
def test_a_turn_prefills_prompt_answer_so_far_and_tool_result(
    play: Play, kv: str, prefill_s: float
) -> None:
    """Prompt 10 at 0.1 s a token: 1 s; 4 tokens; call; 10 + 4 + 6 tokens: 2 s; 4 tokens.

    Where KV is kept over the call, the 6 tokens of the result alone. The first token of each stay
    comes with its prefill's iteration, so a stay of m tokens takes m − 1 seconds more than that.
    """
    law = {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0, "prefill_s": 0.1}
    run = play(
        scenario(
            "none",
            groups=1,
            size=1,
            hardware={"law": law, "prefill": True},
            tools={"median_s": 5.0, "result_tokens": 6, "kv": kv},
        ),
        [[8]],
        [MIXED],
    )
    first_s, second_s = (1 + 1) + 3, (1 + prefill_s) + 3
    assert metrics(run)["time/rollout_seconds"] == pytest.approx(first_s + 5 + second_s)
    assert metrics(run)["rollout/completion_tokens"] == 8


@pytest.mark.parametrize("kv", ["recomputed", "kept"])
@pytest.mark.parametrize(
    ("on_timeout", "rollout_s", "status", "n_truncated", "accuracy"),
    [
        ("go_on", 4 + 2 + 4, "trained", 0, 0.5),
        ("truncate", 4 + 2, "trained", 1, 0.0),
        ("fail", 4 + 2, "failed", 0, math.nan),
    ],
)
def test_three_ends_of_a_call_that_takes_too_long(
    play: Play,
    on_timeout: str,
    rollout_s: float,
    status: str,
    n_truncated: int,
    accuracy: float,
    kv: str,
) -> None:
    """Response 0.0 (8 tokens, right) calls at 4 for 99 s; its peer is done at 1 + 1 + 1."""
    settings = scenario(
        "none",
        groups=1,
        tools={"median_s": 1.0, "timeout_s": 2.0, "on_timeout": on_timeout, "kv": kv},
        failures={},
    )
    row = metrics(run := play(settings, [[8, 2]], [MIXED], call_s={(0, 0): [99.0]}))
    assert row["time/rollout_seconds"] == rollout_s
    assert run.groups["status"].tolist() == [status]
    assert run.groups["n_truncated"].tolist() == [n_truncated]
    assert row["rollout/timed_out_responses"] == 1
    assert row["rollout/failed_samplings"] == (on_timeout == "fail")
    np.testing.assert_equal(row["reward/accuracy"], accuracy)
    outcome = {"go_on": "finished", "truncate": "truncated", "fail": "failed"}[on_timeout]
    last = run.responses[run.responses["member"] == 0].iloc[-1]
    assert last["outcome"] == outcome


# ------------------------------------------------------------------------- luck and bad settings


def test_luck_is_named_by_place_and_by_nothing_else() -> None:
    both = {"reward": {"median_s": 2.0, "sigma": 0.5}, "failures": {"probability": 0.4}}
    one = Draws(Rollout.model_validate(both), seed=3).luck(7, 4)
    alone = Draws(Rollout.model_validate({"reward": both["reward"]}), seed=3).luck(7, 9)
    np.testing.assert_array_equal(one.score_s_K, alone.score_s_K[:4])
    assert one.score_s_K[0] != Draws(Rollout.model_validate(both), seed=3).luck(8, 4).score_s_K[0]


def test_seconds_and_failures_follow_their_laws() -> None:
    """20 000 draws: median and σ of log seconds, share of failures, within 4.5 standard errors."""
    n, median, sigma, p = 20_000, 2.0, 0.5, 0.3
    tables = {"reward": {"median_s": median, "sigma": sigma}, "failures": {"probability": p}}
    luck = Draws(Rollout.model_validate(tables), seed=11).luck(0, n)
    logs, failed = np.log(luck.score_s_K), np.isfinite(luck.fails_at_KA[:, 0])

    def agrees(mean: float, share: float) -> tuple[bool, bool]:
        return (
            abs(logs.mean() - mean) < 4.5 * sigma / math.sqrt(n),
            abs(failed.mean() - share) < 4.5 * math.sqrt(share * (1 - share) / n),
        )

    assert agrees(math.log(median), p) == (True, True)
    assert agrees(math.log(1.05 * median), 1.05 * p) == (False, False)
    np.testing.assert_allclose(np.nanmean(luck.fails_at_KA), 0.5, atol=4.5 / math.sqrt(12 * n * p))
    assert np.nanmin(luck.fails_at_KA) >= 0.0
    assert np.nanmax(luck.fails_at_KA) < 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collector": {"kind": "chunked", "leftovers": "resume"}}, "go on in the next step"),
        ({"collector": {"kind": "segments"}}, "go on in the next step"),
    ],
)
def test_what_is_not_modelled_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(build({"rollout": {"reward": {"median_s": 1.0}}, **changes}), seed=0)


@pytest.mark.parametrize(("result_tokens", "fits"), [(190, True), (191, False)])
def test_tool_results_that_never_fit_are_refused(
    play: Play, result_tokens: int, fits: bool
) -> None:
    """The capacity of 1200 holds prompt 10, 1000 tokens and 190 of the tool."""
    settings = scenario(
        "none",
        hardware={"kv_capacity_tokens": 1200},
        tools={"median_s": 1.0, "result_tokens": result_tokens},
    )
    if fits:
        assert metrics(play(settings, [[1000, 1]], [MIXED]))["engine/peak_kv_tokens"] <= 1200
        return
    with pytest.raises(ConfigError, match="result_tokens"):
        play(settings, [[1000, 1]], [MIXED])


# ----------------------------------------------------------------------------------- the judge


def judged_wave(
    lengths: Sequence[int],
    *,
    turns: int,
    call_s: Sequence[int],
    call_timeout_s: int,
    score_s: Sequence[int],
    workers: int | None,
    fails_after: Sequence[Sequence[int | None]],
) -> tuple[int, int, int, int]:
    """Play singletons one by one: end of the wave, tokens, lost tokens, responses cut short.

    Every response is on its own: slots suffice and an iteration takes a second whatever the load.
    A response whose samplings all fail is lost at the last failure.
    """
    ends: list[tuple[int, int]] = []
    at_last, tokens, lost, n_cut = 0, 0, 0, 0
    for i, n_tokens in enumerate(lengths):
        now, is_done = 0, False
        for fail in fails_after[i]:
            made = 0
            while made < n_tokens:
                made += 1
                now += 1
                if made == fail:
                    break
                is_turn = any(made == math.ceil(n_tokens * t / turns) for t in range(1, turns))
                if is_turn and made < n_tokens:
                    now += min(call_s[i], call_timeout_s)
                    if call_s[i] > call_timeout_s:
                        n_cut += 1
                        break
            tokens += made
            if made != fail:
                is_done = True
                break
            lost += made
        at_last = max(at_last, now)
        if is_done:
            ends.append((now, i))
    free = [0] * (workers or len(lengths))
    for end, i in sorted(ends):
        scored = max(end, heapq.heappop(free)) + score_s[i]
        heapq.heappush(free, scored)
        at_last = max(at_last, scored)
    return at_last, tokens, lost, n_cut


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_wave_is_as_the_judge_plays_it(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))

    def several(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    lengths, call_s, score_s = several(1, 12), several(0, 9), several(0, 6)
    turns = data.draw(st.sampled_from([1, 2, 3]))
    workers = data.draw(st.sampled_from([None, 1, 2]))
    call_timeout_s = data.draw(st.sampled_from([4, 99]))
    retries = data.draw(st.integers(0, 2))
    shares = [
        data.draw(st.lists(st.sampled_from([NEVER, NEVER, 0.0, 0.4, 0.9]), min_size=3, max_size=3))[
            : retries + 1
        ]
        for _ in range(n)
    ]
    fails_after = [
        [None if math.isnan(s) else max(1, math.ceil(s * L)) for s in own]
        for own, L in zip(shares, lengths, strict=True)
    ]
    end_s, tokens, lost, n_cut = judged_wave(
        lengths,
        turns=turns,
        call_s=call_s,
        call_timeout_s=call_timeout_s,
        score_s=score_s,
        workers=workers,
        fails_after=fails_after,
    )
    tables: dict[str, Any] = {
        "reward": {"workers": workers} if workers else {},
        "failures": {"on_failure": "retry", "max_retries": retries},
        "singletons": "keep",
    }
    if turns > 1:
        tables["tools"] = {"turns": turns, "timeout_s": call_timeout_s, "on_timeout": "truncate"}
    with pytest.MonkeyPatch.context() as patch:
        run = Play(patch)(
            scenario("none", groups=n, size=1, **tables),
            [[length] for length in lengths],
            [0] * n,
            score_s={(i, 0): score_s[i] for i in range(n)},
            call_s={(i, 0): [call_s[i]] * (turns - 1) for i in range(n)} if turns > 1 else None,
            fails_at={(i, 0): shares[i] for i in range(n)},
        )
    row = metrics(run)
    assert row["time/rollout_seconds"] == end_s
    assert row["rollout/completion_tokens"] == tokens
    assert row["rollout/failed_tokens"] == lost
    assert row["rollout/train_completion_tokens"] == tokens - lost
    assert run.groups["n_truncated"].sum() == n_cut

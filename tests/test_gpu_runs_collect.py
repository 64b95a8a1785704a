"""The real engine under the simulator's collection policies: a second driver is the judge."""

from collections.abc import Iterator

import pytest
import torch
from collector_play import Candidate as Played
from collector_play import play
from tiny_task import CAP, LevelTask, tiny_generator, tiny_model

from dapolab.scenario import (
    AdaptiveWave,
    Budget,
    Chunked,
    Collector,
    ExactRefill,
    FilterNoRefill,
    Length,
    NoFilter,
    OverlongPenalty,
    OverProvision,
    Replenish,
    Rollout,
    Rounds,
    Streaming,
    VerlV1,
)
from gpu_runs.collect import collect_step
from gpu_runs.generate import generate
from gpu_runs.prompts import PromptStream, noise_seed
from gpu_runs.rollout import Rollout as Collected
from gpu_runs.score import Scores
from gpu_runs.slots import Request

B, G, STEP = 5, 4, 2
ROLLOUT = Rollout(groups_per_step=B, group_size=G, cap_tokens=CAP)
KINDS: dict[str, Collector] = {
    "none": NoFilter(),
    "filter_no_refill": FilterNoRefill(),
    "exact_refill": ExactRefill(max_candidate_multiplier=3),
    "rounds": Rounds(gen_groups=7),
    "replenish": Replenish(),
    "streaming": Streaming(slots=6),
    "over_provision": OverProvision(eta=2.0),
    "verl_v1": VerlV1(),
    "adaptive_wave": AdaptiveWave(),
    "chunked": Chunked(),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def _prompts(n: int = 40, **options: int) -> PromptStream:
    return PromptStream(LevelTask().problems("train", n, seed=0), seed=11, **options)


def _scores(**options: object) -> Scores:
    return Scores(LevelTask(), Length(), **options)  # type: ignore[arg-type]


def _collect(config: Collector, *, slots: int = 512, **options: object) -> Collected:
    return collect_step(
        tiny_generator(tiny_model(), slots=slots),
        options.pop("prompts", None) or _prompts(),  # type: ignore[arg-type]
        scores=_scores(),
        collector=config,
        rollout=ROLLOUT,
        step=STEP,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def answers() -> list[Played]:
    """What each candidate of the step will be, generated alone: its noise is its key's."""
    prompts = _prompts()
    taken = prompts.take(60)
    requests = [
        Request((STEP, index, sample), problem.prompt)
        for index, (_, problem) in enumerate(taken)
        for sample in range(G)
    ]
    done = generate(tiny_generator(tiny_model()), requests)
    found = []
    for index, (_, problem) in enumerate(taken):
        own = done[index * G : (index + 1) * G]
        right = [LevelTask().is_right(problem, c.tokens, finished=c.finish == "stop") for c in own]
        lengths = [len(c.tokens) for c in own]
        found.append(
            # with a slot for everyone a group takes as many iterations as its longest answer
            Played(sum(right), float(max(lengths)), G, sum(lengths), 2.0 * (0 < sum(right) < G))
        )
    return found


@pytest.fixture(scope="module")
def played() -> dict[str, Collected]:
    return {kind: _collect(config) for kind, config in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_decides_as_under_an_independent_driver(
    kind: str, answers: list[Played], played: dict[str, Collected]
) -> None:
    real = played[kind]
    judge = play(KINDS[kind], iter(answers), rollout=ROLLOUT)
    assert real.failure == judge.failure
    assert real.kept == (judge.kept if judge.stop is not None and judge.stop.train else [])
    assert len(real.candidates) == len(judge.candidates)
    status = {c.index: c.status for c in real.candidates}
    for index, reason in judge.dropped.items():
        assert status[index] == reason
    # the judge counts groups that return at the instant of the stop among the aborted
    cut = [i for i, s in status.items() if s == "aborted"]
    together = [i for i in judge.aborted if real.candidates[i].finished is not None]
    assert sorted(cut + together) == judge.aborted
    assert all(status[i] in ("surplus", "degenerate") for i in together)
    ends = [max(c.end_s for c in real.candidates[i].completions if c) for i in together]
    assert len(set(ends)) <= 1
    if real.waves:
        assert [wave.last - wave.first for wave in real.waves] == judge.submits


def test_the_step_has_enough_going_on_to_tell_policies_apart(
    answers: list[Played], played: dict[str, Collected]
) -> None:
    kept = {kind: (tuple(r.kept), len(r.candidates)) for kind, r in played.items()}
    assert len(set(kept.values())) >= 6
    assert any(0 < c.n_correct < G for c in answers)
    assert {0, G} <= {c.n_correct for c in answers}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_and_nothing_is_left_in_flight(kind: str) -> None:
    generator = tiny_generator(tiny_model(), slots=7)  # slots are refilled while groups wait
    prompts = _prompts()
    real = collect_step(
        generator, prompts, scores=_scores(), collector=KINDS[kind], rollout=ROLLOUT, step=STEP
    )
    assert generator.n_in_flight == 0
    assert prompts.position == len(real.candidates)
    assert [c.position for c in real.candidates] == list(range(len(real.candidates)))
    for candidate in real.candidates:
        for sample, completion in enumerate(candidate.completions):
            if completion is None:
                assert candidate.status == "aborted"
                continue
            assert completion.request.key == (STEP, candidate.index, sample)
            judged = candidate.scores[sample] is not None
            assert judged == (completion.finish != "abort")
        if candidate.status in ("trained", "degenerate"):
            assert candidate.n_left == 0
    # every iteration gives each busy response one token: the two accounts agree
    generated = sum(len(c.tokens) for g in real.candidates for c in g.completions if c is not None)
    assert generated == sum(iteration.n for iteration in real.iterations)
    assert len(real.kept) <= B
    if kind != "none":
        assert all(len({s.right for s in c.scores if s}) == 2 for c in real.trained)


def test_slots_change_when_answers_come_but_not_what_they_are() -> None:
    wide, narrow = _collect(KINDS["exact_refill"]), _collect(KINDS["exact_refill"], slots=3)
    assert wide.kept == narrow.kept
    texts = [
        [[c.tokens for c in g.completions if c is not None] for g in of.candidates]
        for of in (wide, narrow)
    ]
    assert texts[0] == texts[1]
    assert len(wide.iterations) < len(narrow.iterations)


def test_a_time_budget_ends_the_step_with_what_has_returned() -> None:
    class Clock:
        """Advances by a second a reading."""

        now = 0.0

        def __call__(self) -> float:
            self.now += 1.0
            return self.now

    for config in (
        Streaming(slots=6, budget=Budget(seconds=40)),
        Rounds(gen_groups=8, budget=Budget(seconds=40)),
    ):
        real = _collect(config, clock=Clock(), slots=16)
        assert real.stop is not None
        assert real.stop.reason == "seconds"
        assert real.stop.train == bool(real.kept)
        assert len(real.kept) < B
        assert any(c.status == "aborted" for c in real.candidates)
        free = _collect(config.model_copy(update={"budget": Budget()}), slots=16)
        assert len(real.iterations) < len(free.iterations)


def test_a_limit_on_groups_in_flight_holds_the_rest_back() -> None:
    generator = tiny_generator(tiny_model())
    seen: list[int] = []
    step = generator.step

    def watched() -> object:
        done = step()
        groups = {c.request.key[1] for c in done}
        seen.append(generator.n_in_flight)
        assert len(groups) <= 2
        return done

    generator.step = watched  # type: ignore[assignment, method-assign]
    config = ExactRefill(concurrent_groups=2)
    limited = collect_step(
        generator, _prompts(), scores=_scores(), collector=config, rollout=ROLLOUT, step=STEP
    )
    assert max(seen) <= 2 * G
    assert limited.kept == _collect(ExactRefill()).kept


def test_polls_find_several_groups_together(answers: list[Played]) -> None:
    # verl looks every so often; evicted groups found with the last good one leave no credit
    real = _collect(VerlV1(), poll_iterations=4)
    rounded = [
        Played(c.n_correct, 4.0 * -(-c.duration_s // 4), G, c.n_tokens, c.spread) for c in answers
    ]
    judge = play(VerlV1(), iter(rounded), rollout=ROLLOUT)
    assert real.kept == judge.kept
    assert len(real.candidates) == len(judge.candidates)


def test_the_end_of_the_data_ends_the_step_as_the_policy_says() -> None:
    few = Rounds(gen_groups=4, max_num_gen_batches=0)
    ended = _collect(few, prompts=_prompts(6, n_epochs=1))
    assert ended.stop is not None
    assert (ended.stop.reason, ended.stop.train) == ("data", False)
    assert ended.kept == []
    assert {c.status for c in ended.candidates} <= {"surplus", "degenerate"}
    streamed = _collect(Streaming(slots=4), prompts=_prompts(6, n_epochs=1))
    assert streamed.stop is not None
    assert streamed.stop.reason == "data"
    assert streamed.stop.train == bool(streamed.kept)


def test_a_policy_that_raises_leaves_its_message_and_trains_nothing() -> None:
    hopeless = PromptStream(
        [p for p in LevelTask().problems("train", 40, seed=0) if p.difficulty == 0], seed=1
    )
    failed = _collect(Rounds(gen_groups=4, max_num_gen_batches=2), prompts=hopeless)
    assert failed.failure is not None
    assert "all-wrong 100.0%" in failed.failure
    assert failed.kept == []


def test_prompts_follow_from_seed_and_position_alone() -> None:
    stream, again = _prompts(7), _prompts(7)
    walked = [problem.id for _, problem in stream.take(30)]
    again.position = 21
    assert [problem.id for _, problem in again.take(9)] == walked[21:]
    epochs = [walked[i : i + 7] for i in range(0, 28, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    other = PromptStream(LevelTask().problems("train", 7, seed=0), seed=12)
    assert [problem.id for _, problem in other.take(30)] != walked
    assert noise_seed(0, "rollout") != noise_seed(0, "held-out")


def test_the_filter_sees_raw_or_shaped_rewards() -> None:
    length = Length(penalty=OverlongPenalty(cap_tokens=CAP, buffer_tokens=CAP - 2))
    real = _collect(NoFilter())
    group = next(c for c in real.candidates if {s.right for s in c.scores if s} == {False})
    shaped = Scores(LevelTask(), length, filter_metric="shaped")
    judged = [shaped.judge(group.problem, c) for c in group.completions if c is not None]
    lengths = [len(c.tokens) for c in group.completions if c is not None]
    # DAPO Eq. 13 by hand: −(L − (cap − buffer))/buffer beyond cap − buffer = 2
    expected = [-1.0 - max(0, n - 2) / (CAP - 2) for n in lengths]
    assert [s.reward for s in judged] == pytest.approx(expected, abs=1e-6)
    assert shaped.spread(judged) == pytest.approx(max(expected) - min(expected), abs=1e-6)
    assert shaped.spread(judged) > 0
    raw = Scores(LevelTask(), length, filter_metric="correct")
    assert raw.spread([raw.judge(group.problem, c) for c in group.completions if c]) == 0

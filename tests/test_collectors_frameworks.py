"""Every preset against its framework's rule, written here again as a plain loop.

The loops follow the frameworks' own control flow (sources named in each), over a list of groups
with durations; they share nothing with the policies or their drivers.
"""

import math
from collections.abc import Iterator
from itertools import islice, repeat

import numpy as np
import pytest
from collector_play import MIXED, WRONG, Candidate, Left, Played, play, play_steps
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.scenario import (
    COLLECTOR_KINDS,
    COLLECTOR_PRESETS,
    AdaptiveWave,
    ConfigError,
    Replace,
    Replenish,
    Rollout,
    Rounds,
    build,
)

G = 4
groups = st.builds(
    Candidate,
    n_correct=st.integers(0, G),
    duration_s=st.integers(1, 5).map(float),
    n_samples=st.just(G),
    n_tokens=st.integers(1, 50),
)
streams = st.lists(groups, max_size=40)
targets = st.integers(1, 5)
FILLER = Candidate(1, 1.0, n_samples=G)


def preset(name: str, **changes: object) -> object:
    return COLLECTOR_PRESETS[name].config.model_copy(update=changes)


def rollout_of(n_target: int) -> Rollout:
    return Rollout(groups_per_step=n_target, group_size=G)


def endless(found: list[Candidate], filler: Candidate = FILLER) -> Iterator[Candidate]:
    yield from found
    yield from repeat(filler)


def good(group: Candidate) -> bool:
    return float(np.std([1.0] * group.n_correct + [0.0] * (G - group.n_correct))) > 0


# ---------------------------------------------------------------------------- barriers


def nemo(prompts: Iterator[Candidate], *, n_target: int, most: int) -> tuple[list, int] | None:
    """grpo.py:1699-1828: cache samples with a leave-one-out std; None is the ValueError."""
    cache: list[tuple[int, int]] = []
    n_seen, n_batches = 0, 0
    while True:
        n_batches += 1
        for group in islice(prompts, n_target):
            rewards = [1.0] * group.n_correct + [0.0] * (G - group.n_correct)
            for j in range(G):
                others = rewards[:j] + rewards[j + 1 :]
                if np.std(others, ddof=1) != 0:
                    cache.append((n_seen, j))
            n_seen += 1
        if len(cache) >= n_target * G:
            return cache[: n_target * G], n_batches
        if n_batches > most:
            return None


@given(streams, targets, st.integers(1, 3), st.sampled_from([FILLER, Candidate(0, n_samples=G)]))
def test_nemo_rl_judges_samples_leaving_one_out(
    found: list[Candidate], n_target: int, most: int, filler: Candidate
) -> None:
    config = preset("nemo_rl", max_num_gen_batches=most)
    played = play(config, endless(found, filler), rollout=rollout_of(n_target))
    expected = nemo(endless(found, filler), n_target=n_target, most=most)
    if expected is None:
        assert played.failure is not None
        assert len(played.submits) == most + 1
        return
    samples, n_batches = expected
    assert [(i, j) for i in played.kept for j in played.members[i]] == samples
    assert played.submits == [n_target] * n_batches


def test_nemo_rl_drops_the_odd_one_out_and_keeps_seven() -> None:
    eight = Rollout(groups_per_step=1, group_size=8)
    one_right, one_wrong = Candidate(1), Candidate(7)
    played = play(preset("nemo_rl"), [one_right, one_wrong], rollout=eight)
    # right answers come first: the odd one is response 0, then response 7
    assert played.members == {0: tuple(range(1, 8)), 1: (0,)}
    two = Rollout(groups_per_step=1, group_size=2)
    never = play(preset("nemo_rl"), repeat(Candidate(1, n_samples=2)), rollout=two)
    assert never.failure is not None
    assert len(never.submits) == 11


def test_nemo_rl_without_leave_one_out_judges_groups() -> None:
    never = play(preset("nemo_rl_dapo"), repeat(WRONG), rollout=Rollout(groups_per_step=2))
    assert never.submits == [6] * 11


def ms_swift(
    prompts: Iterator[Candidate], *, n_target: int, max_resample_times: int, ray: bool
) -> tuple[list[int], int]:
    """_dynamic_sampling of grpo_trainer.py: indices trained, batches generated."""
    batches = [list(islice(prompts, n_target))]
    resample_count, valid = 0, list[int]()
    while resample_count < max_resample_times + ray:
        first = resample_count * n_target
        valid += [first + i for i, group in enumerate(batches[-1]) if good(group)]
        if len(valid) >= n_target:
            break
        if ray and resample_count == max_resample_times:
            break
        batches.append(list(islice(prompts, n_target)))
        resample_count += 1
    if len(valid) >= n_target:
        return valid[:n_target], len(batches)
    return list(range(n_target)), len(batches)


@given(streams, targets, st.integers(1, 3), st.booleans())
def test_ms_swift_never_looks_at_the_last_resample(
    found: list[Candidate], n_target: int, most: int, ray: bool
) -> None:
    filler = Candidate(0, n_samples=G)
    config = preset("ms_swift_ray" if ray else "ms_swift", max_num_gen_batches=most)
    played = play(config, endless(found, filler), rollout=rollout_of(n_target))
    trained, n_batches = ms_swift(
        endless(found, filler), n_target=n_target, max_resample_times=most, ray=ray
    )
    assert sorted(played.kept) == trained
    assert len(played.submits) == n_batches
    assert played.failure is None


def test_ms_swift_falls_back_to_the_original_with_its_degenerate_groups() -> None:
    two = Rollout(groups_per_step=2)
    # one good group in each of the first three batches of two would have been enough, but it is
    # only counted over examined batches: w m | w w | w w | m m (never looked at)
    played = play(preset("ms_swift"), [WRONG, MIXED, *[WRONG] * 4, MIXED, MIXED], rollout=two)
    assert played.kept == [0, 1]
    assert played.dropped == dict.fromkeys((2, 3, 4, 5), "degenerate") | {
        6: "surplus",
        7: "surplus",
    }
    ray = play(preset("ms_swift_ray"), [WRONG, MIXED, *[WRONG] * 4, MIXED, MIXED], rollout=two)
    assert ray.kept == [1, 6]


@given(streams, targets)
def test_skyrl_filter_raises_after_thirty_batches(found: list[Candidate], n_target: int) -> None:
    prompts = endless(found, Candidate(0, n_samples=G))
    played = play(preset("skyrl_filter"), prompts, rollout=rollout_of(n_target))
    hits = [i for i, group in enumerate(found[: 30 * n_target]) if good(group)]
    if len(hits) < n_target:
        assert played.failure is not None
        assert played.submits == [n_target] * 30
    else:
        assert played.kept == hits[:n_target]
        assert len(played.submits) == hits[n_target - 1] // n_target + 1
    config = preset("skyrl_filter", max_num_gen_batches=-1)
    unlimited = play(config, [WRONG] * 31 * 2, rollout=Rollout(groups_per_step=2))
    assert unlimited.stop is not None
    assert len(unlimited.submits) == 31


@given(streams, targets, st.integers(1, 4))
def test_skyrl_replace_copies_good_over_bad(
    found: list[Candidate], n_target: int, most: int
) -> None:
    prompts = list(islice(endless(found, Candidate(0, n_samples=G)), most * n_target))
    played = play(Replace(max_sample_batches=most), prompts, rollout=rollout_of(n_target))
    for number in range(most):
        batch = range(number * n_target, (number + 1) * n_target)
        good_ones = [i for i in batch if good(prompts[i])]
        if len(good_ones) > 0.3 * n_target:
            assert played.kept == good_ones
            assert len(played.repeated) == n_target - len(good_ones)
            assert set(played.repeated) <= set(good_ones)
            assert len(played.submits) == number + 1
            return
    assert played.failure is not None
    assert len(played.submits) == most


def test_skyrl_replace_needs_more_than_thirty_percent() -> None:
    ten = Rollout(groups_per_step=10)
    three, four = [MIXED] * 3 + [WRONG] * 7, [MIXED] * 4 + [WRONG] * 6
    played = play(Replace(), [*three, *four], rollout=ten)
    assert played.submits == [10, 10]
    assert played.kept == [10, 11, 12, 13]
    assert [played.dropped[i] for i in (0, 1, 2, 3)] == ["surplus"] * 3 + ["degenerate"]


@given(streams, targets)
def test_tinker_keeps_one_constant_group(found: list[Candidate], n_target: int) -> None:
    prompts = list(islice(endless(found), n_target))
    played = play(preset("tinker"), prompts, rollout=rollout_of(n_target))
    assert played.kept == ([i for i, group in enumerate(prompts) if good(group)] or [0])
    assert played.stop is not None
    assert played.stop.train


@given(streams, targets)
def test_openrlhf_968_uses_the_surplus_in_the_next_step(
    found: list[Candidate], n_target: int
) -> None:
    played = play_steps(
        preset("openrlhf_968"), endless(found), rollout=rollout_of(n_target), n_steps=4
    )
    stream, buffer, n_used = endless(found), list[Candidate](), 0
    for step in played:
        n_batches = 0
        while len(buffer) < n_target:  # the replay buffer, not cleared between steps
            batch = list(islice(stream, n_target))
            buffer += [group for group in batch if good(group)]
            n_used, n_batches = n_used + n_target, n_batches + 1
        assert step.trained == buffer[:n_target]
        assert len(step.submits) == n_batches
        buffer = buffer[n_target:]
        assert [one for one, _ in step.left.held] == buffer


@given(streams, targets, st.integers(1, 12), st.integers(1, 6))
def test_greso_sizes_the_next_wave_by_the_degenerate_share(
    found: list[Candidate], n_target: int, default: int, least: int
) -> None:
    config = AdaptiveWave(gen_groups=default, min_groups=least, max_num_gen_batches=0)
    played = play(config, endless(found), rollout=rollout_of(n_target))
    prompts, seen, n_good, sizes = endless(found), 0, 0, list[int]()
    while n_good < n_target:
        if not sizes or n_good == 0:
            size = default
        else:
            zero_variance = 1 - n_good / seen
            size = math.ceil((n_target - n_good) / (1 - zero_variance) * 1.25 - 1e-9)
            size = max(min(size, default), min(least, default))
        n_good += sum(good(group) for group in islice(prompts, size))
        seen += size
        sizes.append(size)
    assert played.submits == sizes
    assert len(played.kept) == n_target


# ---------------------------------------------------------------------------- races


def slime(
    prompts: Iterator[tuple[int, float, bool]], *, n_target: int, chunk: int, fallback: bool
) -> tuple[list[int], list[int], list[int]]:
    """generate_rollout_async: accepted, dropped by the filter, in flight at the end."""
    remaining, data, dropped, now = 0, list[int](), list[int](), 0.0
    pending: dict[int, tuple[float, bool]] = {}
    while len(data) < n_target:
        while remaining < n_target:
            for index, needs, is_good in islice(prompts, chunk):
                pending[index] = (now + needs, is_good)
            remaining += chunk
        now = min(end for end, _ in pending.values())
        for index in sorted(i for i, (end, _) in pending.items() if end == now):
            _, is_good = pending.pop(index)
            if not is_good and not (fallback and remaining <= n_target):
                dropped.append(index)
                remaining -= 1
            elif len(data) < n_target:
                data.append(index)
    return data, dropped, sorted(pending)


def numbered(found: list[Candidate]) -> Iterator[tuple[int, float, bool]]:
    for index, group in enumerate(endless(found)):
        yield index, group.duration_s, good(group)


@given(streams, targets, st.integers(0, 4), st.booleans())
def test_slime_submits_chunks_and_aborts(
    found: list[Candidate], n_target: int, extra: int, fallback: bool
) -> None:
    chunk = n_target + extra
    config = preset("slime_fallback" if fallback else "slime", over_sampling_batch_size=chunk)
    played = play(config, endless(found), rollout=rollout_of(n_target))
    data, dropped, pending = slime(
        numbered(found), n_target=n_target, chunk=chunk, fallback=fallback
    )
    assert played.kept == data
    assert sorted(i for i, why in played.dropped.items() if why == "degenerate") == sorted(dropped)
    assert played.aborted == pending
    if fallback and extra == 0:
        assert not dropped


def test_slime_puts_two_b_minus_one_in_flight_after_one_drop() -> None:
    four = Rollout(groups_per_step=4)
    prompts = [WRONG, *[Candidate(4, 9.0)] * 3, *[Candidate(4, 20.0)] * 4]
    played = play(preset("slime"), prompts, rollout=four, deadline_s=5.0)
    assert played.submits == [4, 4]
    assert len(played.aborted) == 2 * 4 - 1


@given(streams, targets)
def test_slime_partial_rollout_resumes_the_aborted_first(
    found: list[Candidate], n_target: int
) -> None:
    played = play_steps(
        preset("slime_partial"), endless(found), rollout=rollout_of(n_target), n_steps=4
    )
    source = numbered(found)
    buffer: list[tuple[int, float, bool]] = []

    def data_source() -> Iterator[tuple[int, float, bool]]:
        while True:
            yield buffer.pop(0) if buffer else next(source)

    trained: list[list[int]] = []
    for _ in played:
        now, remaining, data = 0.0, 0, list[int]()
        pending: dict[int, tuple[float, bool]] = {}
        while len(data) < n_target:
            while remaining < n_target:
                for index, needs, is_good in islice(data_source(), n_target):
                    pending[index] = (now + needs, is_good)
                remaining += n_target
            now = min(end for end, _ in pending.values())
            for index in sorted(i for i, (end, _) in pending.items() if end == now):
                _, is_good = pending.pop(index)
                if not is_good:
                    remaining -= 1
                elif len(data) < n_target:
                    data.append(index)
        trained.append(data)
        buffer[:0] = [(i, end - now, ok) for i, (end, ok) in sorted(pending.items())]
    names = _numbers(played)
    assert [[names[s][i] for i in step.kept] for s, step in enumerate(played)] == trained


def _numbers(played: list[Played]) -> list[list[int]]:
    """Return the stream's number of every group of every step, from what steps left."""
    names: list[list[int]] = []
    fresh = 0
    before: list[int] = []
    for step in played:
        own = before + list(range(fresh, fresh + len(step.candidates) - len(before)))
        fresh += len(own) - len(before)
        names.append(own)
        gone = {*step.kept, *step.dropped, *step.aborted}
        rest = [name for i, name in enumerate(own) if i not in gone]
        n_held = len(step.left.held)
        kept_over = _held_first(step, own, rest)
        assert len(kept_over) == n_held + len(step.left.cut)
        before = kept_over
    return names


def _held_first(step: Played, own: list[int], rest: list[int]) -> list[int]:
    held_ids = {id(one) for one, _ in step.left.held}
    index_of = {name: i for i, name in enumerate(own)}
    held = [name for name in rest if id(step.candidates[index_of[name]]) in held_ids]
    return held + [name for name in rest if name not in held]


@given(streams, targets)
def test_verl_partial_rollout_recipe(found: list[Candidate], n_target: int) -> None:
    """prompt_manager.py: B in flight, one for one, stop at B done; the done queue lives on."""
    distinct = [Candidate(g.n_correct, g.duration_s, G, 100 + i) for i, g in enumerate(found)]
    fill = (Candidate(1, 1.0 + i % 3, G, 1000 + i) for i in range(10_000))
    prompts = [*distinct, *islice(fill, 200)]
    played = play_steps(
        preset("verl_partial"), iter(prompts), rollout=rollout_of(n_target), n_steps=5
    )
    source, pending = iter(prompts), list[tuple[Candidate, float, int]]()
    done: list[tuple[Candidate, int]] = []
    for version, step in enumerate(played):
        now = 0.0
        ongoing: list[tuple[float, Candidate, int]] = []

        def pull(now: float, version: int, ongoing: list) -> None:
            one, needs, began = pending.pop(0) if pending else (next(source), -1.0, version)
            ongoing.append((now + (one.duration_s if needs < 0 else needs), one, began))

        if len(done) < n_target:
            for _ in range(n_target):
                pull(now, version, ongoing)
            while len(done) < n_target:
                now = min(end for end, _, _ in ongoing)
                back = [entry for entry in ongoing if entry[0] == now]
                ongoing = [entry for entry in ongoing if entry[0] != now]
                done += [(one, began) for _, one, began in back if version - began < 10]
                if len(done) < n_target:
                    for _ in back:
                        pull(now, version, ongoing)
        assert {id(one) for one in step.trained} == {id(one) for one, _ in done[:n_target]}
        done = done[n_target:]
        pending[:0] = [(one, end - now, began) for end, one, began in ongoing]


@given(streams, targets, st.integers(0, 6))
def test_roll_keeps_running_plus_completed_at_b_and_sixteen_running(
    found: list[Candidate], n_target: int, least: int
) -> None:
    """ReplayBuffer: _check_send_new_request, _commit_prompt, _abort_prompt, counter by counter."""
    config = Replenish(min_in_flight=least, at_data_end="train")
    played = play(config, endless(found), rollout=rollout_of(n_target))
    prompts, now = numbered(found), 0.0
    running = extra = completed = 0
    pending: dict[int, tuple[float, bool]] = {}
    data: list[int] = []

    def send() -> bool:
        nonlocal running, extra
        if running + completed < n_target:
            running += 1
        elif running + extra < least:
            extra += 1
        else:
            return False
        index, needs, is_good = next(prompts)
        pending[index] = (now + needs, is_good)
        return True

    while len(data) < n_target:
        while send():
            pass
        index = min(pending, key=lambda i: (pending[i][0], i))
        now, is_good = pending.pop(index)
        if is_good:
            data.append(index)
            running, extra = (running - 1, extra) if running else (running, extra - 1)
            completed += 1
        else:
            running, extra = (running - 1, extra) if running else (running, extra - 1)
    assert played.kept == data


def test_openrlhf_loses_all_at_the_end_of_the_data_and_pull_1312_does_not() -> None:
    prompts = [MIXED, WRONG, Candidate(4, 5.0), Candidate(4, 6.0)]
    four = Rollout(groups_per_step=4)
    older = play(Replenish(), prompts, rollout=four)
    assert (older.trained, older.end_s) == ([], 1.0)
    newer = play(Replenish(at_data_end="train"), prompts, rollout=four)
    assert (newer.kept, newer.end_s) == ([0, 2, 3], 6.0)


def test_open_instruct_drops_what_is_too_old() -> None:
    two = Rollout(groups_per_step=1, group_size=8)
    config = preset("open_instruct", slots=2, max_age=2)
    # one slow group is begun in step 0; fast ones fill every step
    prompts = endless([Candidate(4, 3.5)], Candidate(4, 1.0))
    played = play_steps(config, prompts, rollout=two, n_steps=5)
    slow = [i for i, step in enumerate(played) if "stale" in step.dropped.values()]
    assert slow == [3]
    assert all(step.trained[0].duration_s == 1.0 for step in played)


# ---------------------------------------------------------------------------- presets as data


@pytest.mark.parametrize("name", COLLECTOR_PRESETS)
def test_a_preset_is_a_kind_that_can_be_asked_for(name: str) -> None:
    found = build({"collector": {"kind": name}}).collector
    assert found == COLLECTOR_PRESETS[name].config
    assert found.kind in COLLECTOR_KINDS
    assert len(COLLECTOR_PRESETS[name].about) > 30


def test_settings_lie_over_a_preset() -> None:
    found = build({"collector": {"kind": "ms_swift", "max_num_gen_batches": 7}}).collector
    assert isinstance(found, Rounds)
    assert (found.max_num_gen_batches, found.at_max, found.examine_last) == (7, "original", False)
    with pytest.raises(ConfigError, match="nearest: 'ms_swift'"):
        build({"collector": {"kind": "ms_swit"}})
    with pytest.raises(ConfigError, match=r"unknown key 'collector\.slot'"):
        build({"collector": {"kind": "verl_partial", "slot": 3}})


def test_every_kind_says_who_runs_it_and_what_it_costs() -> None:
    kinds = {kind: build({"collector": {"kind": kind}}).collector for kind in COLLECTOR_KINDS}
    for kind, config in kinds.items():
        about = config.ABOUT
        for text in (about.who, about.rule, about.wins, about.bias, about.staleness):
            assert text.endswith("."), kind
            assert "  " not in text, kind


@settings(max_examples=30)
@given(streams, targets, st.sampled_from(sorted(COLLECTOR_PRESETS)))
def test_steps_hand_over_everything_exactly_once(
    found: list[Candidate], n_target: int, name: str
) -> None:
    """Every submitted group is trained, dropped or aborted once, or still there at the end."""
    played = play_steps(preset(name), iter(found), rollout=rollout_of(n_target), n_steps=6)
    n_new = 0
    before = Left()
    for step in played:
        n_new += len(step.candidates) - len(before.held) - len(before.cut)
        before = step.left
    settled = sum(len(s.kept) + len(s.dropped) + len(s.aborted) for s in played)
    assert n_new == settled + len(before.held) + len(before.cut) or played[-1].failure
    assert n_new <= len(found)

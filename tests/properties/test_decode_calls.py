"""Stays with calls between them, KV held or not: the kernel against the judge, and nothing leaks.

``python tests/properties/test_decode_calls.py CASES SEED SCALE`` checks many random ones.
"""

import heapq
import itertools
import math
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from judge_decode import Judge
from properties.test_decode_judge import build_case, close, merged, sweep_from_arguments

from dapolab.sim import decode
from dapolab.sim.replica import STATUS_NAMES, Engine


class Turn(NamedTuple):
    """Tokens of one stay and the call after it; ``then``: go on, end there, or start anew."""

    n_tokens: int
    call_s: float
    is_held: bool
    result_tokens: int
    then: str


def build_calls(pick, dyadic, scale=1):
    """Return (hardware, law, groups, breaks): groups are (prompt, turns of each member)."""
    hardware, law, _, _ = build_case(pick, dyadic, scale)
    if not dyadic and not hardware.lockstep:
        hardware = hardware.model_copy(update={"replicas": 1})
    step = 1 / 64 if dyadic else math.e / 170
    most, prompt_cap, result_cap = pick(1, 10 * scale), pick(0, 8 * scale), pick(0, 6 * scale)
    thens = ("go_on", "go_on", "go_on", "end", "anew")

    serial = itertools.count(1)

    def call_s():
        steps = pick(0, 40 * scale)
        # no two calls alike under an arbitrary law: what ends together would differ in the last bit
        return (steps + (0 if dyadic or steps == 0 else next(serial) / 97)) * step

    def turns():
        return [
            Turn(
                pick(1, most),
                call_s(),
                pick(0, 3) > 0,
                pick(0, result_cap),
                thens[pick(0, 4)],
            )
            for _ in range(pick(1, 3))
        ]

    def group():
        return pick(0, prompt_cap), [turns() for _ in range(pick(1, 3))]

    groups = [group() for _ in range(pick(1, 6))]
    if hardware.kv_capacity_tokens is not None:
        room = prompt_cap + 3 * most + 2 * result_cap + pick(0, 12 * scale)
        hardware = hardware.model_copy(update={"kv_capacity_tokens": room})
    breaks, at = [], 0.0
    for _ in range(pick(0, 2)):
        at += pick(0, 80 * scale) * step
        breaks.append((at, ("cut", "pause")[pick(0, 1)], pick(1, 3), pick(0, 1) == 1))
    return hardware, law, groups, breaks


class Driver:
    """Plays one case on an engine or a judge; ``state`` tells (status, end) of a member."""

    def __init__(self, engine, state, groups, breaks):
        self.engine, self.state, self.groups = engine, state, groups
        self.timers, self.going, self.cut = [], [], set()
        self.finishes, self.n_held = [], 0
        self.turn = {(g, m): 0 for g, (_, own) in enumerate(groups) for m in range(len(own))}
        self.base = dict.fromkeys(self.turn, 0)
        self.heard = dict.fromkeys(self.turn, -1)
        self.engine.submit(
            at_s=0.0,
            group_P=list(range(len(groups))),
            prompt_tokens_P=[prompt for prompt, _ in groups],
            n_tokens_PG=[turns[0].n_tokens for _, own in groups for turns in own],
            members_P=[len(own) for _, own in groups],
            enough=1,
        )
        for at, kind, every, keeps in breaks:
            self.run(at)  # a pause before it may have lasted longer
            if kind == "cut":
                some = list(range(0, len(groups), every))
                self.cut |= set(some)
                self.engine.abort(at_s=self.engine.now_s, groups=some, keep_kv=keeps)
            else:
                self.pause(keeps)
        self.run(math.inf)
        self.engine.abort(at_s=self.engine.now_s, groups=list(range(len(groups))))
        self.run(math.inf)

    def run(self, until):
        while True:
            self.advance(until)
            if self.ring():
                groups = sorted({g for g, _ in self.going})
                self.going.clear()
                if groups:
                    self.engine.resume(at_s=self.engine.now_s, groups=groups)
            elif self.engine.now_s >= until or not self.timers:
                return

    def pause(self, keeps):
        """Interrupt everything, then let it go on with whoever's call is over by then."""
        self.engine.abort(at_s=self.engine.now_s, keep_kv=keeps)
        self.advance(math.inf, rings=False)
        self.ring()
        self.going.clear()
        groups = [int(g) for g in self.engine.resumable() if g not in self.cut]
        if groups:
            self.engine.resume(at_s=self.engine.now_s, groups=groups, front=True)

    def advance(self, until, *, rings=True):
        """Move to ``until``, or to the end of the first call before it."""
        while True:
            ring = self.timers[0][0] if rings and self.timers else math.inf
            found = self.engine.advance(max(self.engine.now_s, min(until, ring)))
            if found is None:
                return
            at, groups = found
            self.finishes.append((at, [int(g) for g in groups]))
            for g in groups:
                self.hear(int(g), at)

    def hear(self, g, at):
        members = self.groups[g][1]
        for m, turns in enumerate(members):
            status, end = self.state(self.engine, g, m)
            now = self.turn[g, m]
            if status != "finished" or end != at or self.heard[g, m] == now:
                continue
            self.heard[g, m] = now
            if now + 1 < len(turns) and g not in self.cut:
                if turns[now].is_held:
                    self.engine.hold(g, m)
                    self.n_held += 1
                heapq.heappush(self.timers, (at + turns[now].call_s, g, m))
        if any(self.heard[g, m] < self.turn[g, m] for m in range(len(members))):
            self.engine.tell_next(g)

    def ring(self):
        has_rung = False
        while self.timers and self.timers[0][0] <= self.engine.now_s:
            _, g, m = heapq.heappop(self.timers)
            has_rung = True
            if g in self.cut:
                continue
            turn = self.groups[g][1][m][self.turn[g, m]]
            if turn.then != "go_on":
                self.engine.release(g, m)
            if turn.then == "end":
                continue
            self.turn[g, m] += 1
            gained = turn.n_tokens + turn.result_tokens
            self.base[g, m] = 0 if turn.then == "anew" else self.base[g, m] + gained
            n_tokens = self.base[g, m] + self.groups[g][1][m][self.turn[g, m]].n_tokens
            self.engine.go_on(g, m, n_context=self.base[g, m], n_tokens=n_tokens)
            self.going.append((g, m))
        return has_rung


def engine_state(engine, g, m):
    ends, status = engine.spans([g])
    return STATUS_NAMES[status[m]], ends[m]


def judge_state(judge, g, m):
    return judge.groups[g][m].status, judge.groups[g][m].end_s


def check(case):
    hardware, law, groups, breaks = case
    engine, judge = Engine(hardware, law), Judge(hardware, law)
    got = Driver(engine, engine_state, groups, breaks)
    want = Driver(judge, judge_state, groups, breaks)
    assert [g for _, g in merged(got.finishes)] == [g for _, g in merged(want.finishes)]
    close([at for at, _ in merged(got.finishes)], [at for at, _ in merged(want.finishes)])
    facts, rs = engine.facts(), judge.responses
    assert facts.generated_tokens.tolist() == [x.generated for x in rs]
    assert [STATUS_NAMES[k] for k in facts.status] == [x.status for x in rs]
    assert facts.n_preemptions.tolist() == [x.preemptions for x in rs]
    close(facts.admit_s, [x.admit_s for x in rs])
    close(facts.end_s, [x.end_s for x in rs])
    assert facts.iterations.tolist() == [r.iterations for r in judge.replicas]
    assert facts.peak_kv_tokens.tolist() == [r.peak_kv for r in judge.replicas]
    close(facts.busy_s, [r.busy_s for r in judge.replicas])
    close(facts.prefill_s, [r.prefill_s for r in judge.replicas])
    close(facts.concurrency_s, [r.concurrency_s for r in judge.replicas])
    if hardware.kv_capacity_tokens is not None:
        assert facts.peak_kv_tokens.max() <= hardware.kv_capacity_tokens
    nothing_leaks(engine)
    assert not any(replica.stored for replica in judge.replicas)
    return got, judge


def nothing_leaks(engine):
    """Once all is over, nobody holds a slot, KV or a group's prompt."""
    state = engine._state
    counters = [decode.N, decode.DECODING, decode.CONTEXT, decode.STORE]
    counters += [decode.N_PREFILLING, decode.N_GROUPS, decode.N_WAITING]
    if not state.setting[decode.SHARED]:  # nobody asks for the load of a shared queue's replicas
        counters.append(decode.LOAD)
    assert (state.replica[:-1][:, counters] == 0).all()
    assert (state.replica[:, [decode.HEAD, decode.ABORTS]] == -1).all()
    if state.setting[decode.TRACK_STORE]:
        assert (state.replica[:, decode.NEWEST] == -1).all()
    n = int(state.setting[decode.N_RESPONSES])
    assert (state.response[:n, decode.STORED] == 0).all()
    assert (state.group[:, decode.N_STORED :] == 0).all()
    assert engine.n_responses_in_flight == engine.n_groups_in_flight == 0


@pytest.mark.parametrize("dyadic", [True, False])
@settings(max_examples=120)
@given(data=st.data())
def test_kernel_and_judge_agree_on_stays_with_calls(data, dyadic):
    check(build_calls(lambda low, high: data.draw(st.integers(low, high)), dyadic))


def features(case):
    """Check a case; return its features."""
    hardware, breaks = case[0], case[3]
    got, judge = check(case)
    named = {
        "held": got.n_held > 0,
        "yielded": judge.n_yielded > 0,
        "preempted": any(x.preemptions for x in judge.responses),
        "lockstep": hardware.lockstep,
        "breaks": bool(breaks),
        "kv limit": hardware.kv_capacity_tokens is not None,
    }
    return {hardware.dispatch} | {name for name, is_there in named.items() if is_there}


if __name__ == "__main__":
    sweep_from_arguments(build=build_calls, seen_in=features)

"""The judge of the decode engine: plain Python, one iteration a loop, written from the contract.

It shares no code with the kernel: everything (context sums, stored tokens, groups in flight) is
counted afresh at each iteration from lists of plain objects. It has the engine's face (submit,
abort, resume, resumable, advance, facts), so that one script drives both.
"""

import math
from dataclasses import dataclass, field

MASK64 = (1 << 64) - 1


@dataclass(eq=False)
class Response:
    index: int
    group: int
    prompt: int
    length: int
    replica: int | None
    generated: int = 0
    status: str = "new"
    holds_kv: bool = False
    decoding: bool = False
    to_prefill: int = 0
    pays: bool = False
    waits: bool = False  # its KV is held for a later stay, without the last ``missing`` tokens
    missing: int = 0
    admit_s: float = math.nan
    first_s: float = math.nan
    end_s: float = math.nan
    preemptions: int = 0
    abort: str = ""  # "", "keep", "drop"


@dataclass(eq=False)
class Replica:
    index: int
    queue: list = field(default_factory=list)
    stored: list = field(default_factory=list)  # holders of KV, by admission
    prompt_ready: dict = field(default_factory=dict)  # group -> its prompt is computed
    iterations: int = 0
    busy_s: float = 0.0
    prefill_s: float = 0.0
    concurrency_s: float = 0.0
    peak_kv: int = 0
    peak_running: int = 0
    evicted: bool = False
    load: int = 0
    chunk: dict = field(default_factory=dict)
    pre_s: float = 0.0

    def running(self):
        return [x for x in self.stored if x.status == "running"]


@dataclass(eq=False)
class Clock:
    replicas: list
    state: str = "idle"  # idle, boundary, iterating
    at_s: float = math.inf  # of the boundary, or the end of the iteration
    began_s: float = 0.0


def mix64(key):
    key = (key + 0x9E3779B97F4A7C15) & MASK64
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & MASK64
    return key ^ (key >> 31)


class Judge:
    def __init__(self, hardware, law):
        self.h, self.law = hardware, law
        self.replicas = [Replica(r) for r in range(hardware.replicas)]
        if hardware.lockstep:
            self.clocks = [Clock(self.replicas)]
        else:
            self.clocks = [Clock([replica]) for replica in self.replicas]
        self.shared = []
        self.responses, self.groups = [], []
        self.submit_s = []
        self.external = []  # (time, kind, group), in order of calls
        self.now_s = 0.0
        self.finished_now = []
        self.group_end = {}
        self.cycle = self.offset = self.n_speculated = self.n_yielded = 0
        self.tells_each = False  # of every end, not of whole groups alone

    # ------------------------------------------------------------------ what the caller does

    def submit(self, *, at_s, group_P, prompt_tokens_P, n_tokens_PG, members_P, enough=None):
        self.tells_each = enough == 1
        lengths = iter(n_tokens_PG)
        n_groups, n_responses = len(group_P), sum(members_P)
        units = n_responses if self.h.dispatch_by == "response" else n_groups
        places = iter(self._places(units, group_P, members_P))
        for label, prompt, size in zip(group_P, prompt_tokens_P, members_P, strict=True):
            g = len(self.groups)
            members = []
            place = None if self.h.dispatch_by == "response" else next(places)
            for _ in range(size):
                where = next(places) if self.h.dispatch_by == "response" else place
                response = Response(len(self.responses), g, prompt, next(lengths), where)
                self.responses.append(response)
                members.append(response)
            self.groups.append(members)
            self.submit_s.append(at_s)
            self.external.append((at_s, "submit", g))
            del label

    def _places(self, units, labels, sizes):
        R, how = self.h.replicas, self.h.dispatch
        if how in ("shared", "least_loaded"):
            return [None] * units
        if how == "round_robin":
            found = [(self.cycle + k) % R for k in range(units)]
            self.cycle = (self.cycle + units) % R
            return found
        if how == "chunks":
            sizes_of_parts = [units // R] * R
            for k in range(units % R):
                sizes_of_parts[(self.offset + k) % R] += 1
            self.offset = (self.offset + units % R) % R
            return [r for r in range(R) for _ in range(sizes_of_parts[r])]
        if self.h.dispatch_by == "group":
            return [mix64(label) % R for label in labels]
        return [
            mix64((label * 0x9E3779B97F4A7C15 + k) & MASK64) % R
            for label, size in zip(labels, sizes, strict=True)
            for k in range(size)
        ]

    def abort(self, *, at_s, groups=None, keep_kv=False):
        if groups is None:
            flying = ("queued", "running")
            groups = [
                g
                for g, members in enumerate(self.groups)
                if any(x.status in flying or x.waits for x in members)
            ]
        ahead = {g for _, _, g in self.external}
        groups = [g for g in groups if g not in ahead]
        for g in groups:
            for x in self.groups[g]:
                self._abort(x, at_s, keep_kv)

    def _abort(self, x, at_s, keep):
        if x.abort:
            x.abort = x.abort if keep else "drop"
        elif x.status in ("queued", "running"):
            if x.replica is not None:
                self.replicas[x.replica].load -= 1
            if x.holds_kv:
                x.abort = "keep" if keep else "drop"
                self._wake(self.replicas[x.replica], at_s)
            else:
                self._leave_queue(x)
                x.status, x.end_s = "aborted", at_s
                for replica in self.replicas:
                    self._wake(replica, at_s)
        elif x.holds_kv and not keep:
            x.abort = "drop"
            self._wake(self.replicas[x.replica], at_s)

    def resumable(self):
        ahead = {g for _, _, g in self.external}
        return [
            g
            for g, members in enumerate(self.groups)
            if any(x.status == "aborted" for x in members)
            and not any(x.abort for x in members)
            and g not in ahead
        ]

    def resume(self, *, at_s, groups, front=False):
        for g in reversed(groups) if front else groups:
            self.external.append((at_s, "front" if front else "back", g))

    def advance(self, until_s=math.inf):
        while True:
            time, order, what = self._next()
            if self.finished_now and (order != 0 or time > self.now_s):
                found, self.finished_now = sorted(self.finished_now), []
                return self.now_s, found
            if time == math.inf or time > until_s or (order > 0 and time >= until_s):
                if until_s < math.inf:
                    self.now_s = until_s
                return None
            self.now_s = max(self.now_s, time)
            if order == 0:
                self._end_iteration(what, time)
            elif order == 1:
                self.external.pop(0)
                self._release(what, time)
            else:
                self._begin(what, time)

    def _next(self):
        found = (math.inf, 3, None)
        for clock in self.clocks:
            if clock.state != "idle":
                key = (clock.at_s, 0 if clock.state == "iterating" else 2)
                if key < found[:2]:
                    found = (*key, clock)
        if self.external and (self.external[0][0], 1) < found[:2]:
            found = (self.external[0][0], 1, self.external[0])
        return found

    # ------------------------------------------------------------------ stays

    def tell_next(self, group):
        """Every end is told of where the caller wants the first."""

    def hold(self, group, member):
        x = self.groups[group][member]
        replica = self.replicas[x.replica]
        x.holds_kv = x.waits = True
        x.missing = 0
        replica.stored.append(x)
        replica.prompt_ready.setdefault(group, True)

    def release(self, group, member):
        x = self.groups[group][member]
        if x.waits:
            self._drop(self.replicas[x.replica], x)
            self._wake(self.replicas[x.replica], self.now_s)

    def go_on(self, group, member, *, n_context, n_tokens):
        x = self.groups[group][member]
        x.status, x.length, x.preemptions = "aborted", n_tokens, 0
        x.missing = n_context - x.generated if x.waits else 0
        x.generated = n_context
        x.admit_s = x.first_s = x.end_s = math.nan

    # ------------------------------------------------------------------ queues

    def _leave_queue(self, x):
        queues = [self.shared, *(replica.queue for replica in self.replicas)]
        next(queue for queue in queues if x in queue).remove(x)

    def _queue_of(self, x):
        if self.h.dispatch == "shared" and not x.holds_kv:
            return self.shared
        return self.replicas[x.replica].queue

    def _wake(self, replica, at_s):
        for clock in self.clocks:
            if replica in clock.replicas and clock.state == "idle":
                clock.state, clock.at_s = "boundary", at_s

    def _release(self, event, at_s):
        _, kind, g = event
        wanted = "new" if kind == "submit" else "aborted"
        members = [x for x in self.groups[g] if x.status == wanted]
        if kind == "front":
            members.reverse()
        lightest = None
        for x in members:
            x.end_s = math.nan
            if x.replica is None and self.h.dispatch == "least_loaded":
                if lightest is None or self.h.dispatch_by == "response":
                    lightest = min(self.replicas, key=lambda r: (r.load, r.index)).index
                x.replica = lightest
            if x.replica is not None:
                self.replicas[x.replica].load += 1
            x.status = "queued"
            queue = self._queue_of(x)
            queue.insert(0 if kind == "front" else len(queue), x)
            for replica in self.replicas:
                if queue is self.shared or queue is replica.queue:
                    self._wake(replica, at_s)

    # ------------------------------------------------------------------ one iteration

    def stored_tokens(self, replica):
        tokens = sum(x.generated - x.missing for x in replica.stored)
        if self.h.prefix_cache:
            return tokens + sum({x.group: x.prompt for x in replica.stored}.values())
        return tokens + sum(x.prompt for x in replica.stored)

    def _has_prompt(self, replica, x):
        return self.h.prefix_cache and any(y.group == x.group for y in replica.stored)

    def _need(self, replica, x):
        if x.holds_kv:
            return x.missing
        return x.generated + (0 if self._has_prompt(replica, x) else x.prompt)

    def _fits(self, replica, x):
        running = replica.running()
        if len(running) >= self.h.slots:
            return False
        groups = {y.group for y in running}
        limit = self.h.max_groups_in_flight
        if limit is not None and x.group not in groups and len(groups) >= limit:
            return False
        if self.h.kv_capacity_tokens is None or (x.holds_kv and not x.waits):
            return True
        return self.stored_tokens(replica) + self._need(replica, x) <= self.h.kv_capacity_tokens

    def _can_take(self, replica, x):
        """Whether x fits once all that waits on the replica, but for x itself, is gone."""
        everything = replica.stored
        replica.stored = [y for y in everything if y is x or not y.waits]
        answer = self._fits(replica, x)
        replica.stored = everything
        return answer

    def _yield_to(self, replica, x):
        """Drop what waits, of what ended first first, until x fits; nothing if that is in vain."""
        if self._can_take(replica, x):
            while not self._fits(replica, x):
                self._drop(replica, next(y for y in replica.stored if y.waits and y is not x))
                self.n_yielded += 1

    def _drop(self, replica, x):
        replica.stored.remove(x)
        x.holds_kv = x.decoding = x.pays = x.waits = False
        x.to_prefill = x.missing = 0
        if not any(y.group == x.group for y in replica.stored):
            replica.prompt_ready.pop(x.group, None)

    def _evict(self, replica):
        x = replica.stored[-1]
        x.preemptions += not x.waits
        if x.status == "running":
            x.status = "queued"
            self._drop(replica, x)
            self._queue_of(x).insert(0, x)
        else:
            self._drop(replica, x)

    def _admit(self, replica, x, at_s):
        x.status, x.replica = "running", replica.index
        if math.isnan(x.admit_s):
            x.admit_s = at_s
        if x.holds_kv:
            replica.stored.remove(x)
            replica.stored.append(x)
            x.to_prefill = x.missing if self.h.prefill else 0
            x.missing, x.waits = 0, False
        else:
            cached = self._has_prompt(replica, x)
            cost = x.generated + (0 if cached else x.prompt)
            x.to_prefill = cost if self.h.prefill else 0
            if self.h.prefix_cache and not cached:
                x.pays = x.to_prefill > 0
                replica.prompt_ready[x.group] = not x.pays
            x.holds_kv = True
            replica.stored.append(x)
        x.decoding = x.to_prefill == 0 and self._prompt_ready(replica, x)
        replica.peak_running = max(replica.peak_running, len(replica.running()))

    def _prompt_ready(self, replica, x):
        return not self.h.prefix_cache or replica.prompt_ready[x.group]

    def _begin(self, clock, at_s):
        if self.h.dispatch == "shared":
            due = [
                c
                for c in self.clocks
                if c.state == "idle" or (c.state == "boundary" and c.at_s == at_s)
            ]
        else:
            due = [clock]
        for c in due:
            c.state, c.at_s = "boundary", at_s
        replicas = [r for c in due for r in c.replicas]
        for replica in replicas:
            self._clear(replica, at_s)
        while True:
            self._admissions(replicas, at_s)
            empty = [
                c
                for c in due
                if not any(r.running() for r in c.replicas) and any(r.evicted for r in c.replicas)
            ]
            if not empty:
                break
            for c in empty:
                for r in c.replicas:
                    r.evicted = False
        for c in due:
            self._iterate(c, at_s)

    def _clear(self, replica, at_s):
        for x in [x for x in self.responses if x.abort and x.replica == replica.index]:
            keep = x.abort == "keep"
            x.abort = ""
            if x.status == "finished":
                if x.waits and not keep:
                    self._drop(replica, x)
                continue
            if x.status == "queued":
                self._leave_queue(x)
            elif x.status == "running":
                keep = keep and x.decoding
            if x.status != "aborted":
                x.status, x.end_s = "aborted", at_s
            x.decoding = False
            if not keep:
                self._drop(replica, x)
        replica.evicted = False
        if self.h.kv_capacity_tokens is not None:
            while self.stored_tokens(replica) > self.h.kv_capacity_tokens:
                waiting = [y for y in replica.stored if y.waits]
                if waiting:
                    self._drop(replica, waiting[0])
                    self.n_yielded += 1
                    continue
                self._evict(replica)
                replica.evicted = True

    def _admissions(self, replicas, at_s):
        for replica in replicas:
            while not replica.evicted and replica.queue:
                if not self._room(replica, replica.queue[0]):
                    break
                self._admit(replica, replica.queue.pop(0), at_s)
        while self.shared:
            open_ = [
                r
                for r in replicas
                if not r.evicted
                and not r.queue
                and (not r.running() or self._can_take(r, self.shared[0]))
            ]
            if not open_:
                break
            best = min(open_, key=lambda r: (len(r.running()), r.index))
            assert self._room(best, self.shared[0])
            self._admit(best, self.shared.pop(0), at_s)

    def _room(self, replica, x):
        self._yield_to(replica, x)
        while not replica.running() and not self._fits(replica, x):
            self._evict(replica)
        return self._fits(replica, x)

    def batch_s(self, n):
        x, y = self.law.n_knots, self.law.b_knots_s
        k = 0
        while k < len(x) - 2 and n >= x[k + 1]:
            k += 1
        return max(0.0, y[k] + (y[k + 1] - y[k]) / (x[k + 1] - x[k]) * (n - x[k]))

    def speculative_s(self, n, K, table):
        """Seconds of one token each: those of a draft and a verification over their mean yield.

        The yield is summed over what may happen: the first j of k drafted tokens are accepted and
        the next is not, or all are; the verification adds a token of its own.
        """
        k, alpha = table.draft_tokens, table.acceptance
        mean = sum((j + 1) * alpha**j * (1 - alpha) for j in range(k)) + (k + 1) * alpha**k
        verification = self.law.a_s + self.batch_s(n * (k + 1)) + self.law.c_s * K + table.verify_s
        return (k * table.draft_s + verification) / mean

    def _iterate(self, clock, at_s):
        longest = -1.0
        table = self.h.speculation
        speculates = table is not None and all(
            x.decoding for replica in clock.replicas for x in replica.running()
        )
        speculates = speculates and all(
            len(replica.running()) <= table.max_batch for replica in clock.replicas
        )
        for replica in clock.replicas:
            running = replica.running()
            if not running:
                continue
            replica.peak_kv = max(replica.peak_kv, self.stored_tokens(replica))
            decoding = [x for x in running if x.decoding]
            rest = math.inf
            if self.h.token_budget is not None:
                rest = max(0, self.h.token_budget - len(decoding))
            replica.chunk = {}
            attention = 0
            for x in running:
                if x.to_prefill > 0 and rest > 0:
                    take = min(x.to_prefill, rest)
                    rest -= take
                    replica.chunk[x.index] = take
                    held = x.prompt + x.generated - (x.to_prefill - take)
                    attention += take * held
            total = sum(replica.chunk.values())
            law = self.law
            replica.pre_s = max(0.0, law.prefill_s * total - law.prefill_slack_s)
            replica.pre_s += law.prefill_context_s * attention
            K = sum(x.prompt + x.generated for x in decoding)
            took = law.a_s + self.batch_s(len(decoding)) + law.c_s * K + replica.pre_s
            if speculates:
                took = self.speculative_s(len(decoding), K, table)
                self.n_speculated += 1
            longest = max(longest, took)
        if longest < 0:
            clock.state, clock.at_s = "idle", math.inf
            return
        clock.state, clock.began_s, clock.at_s = "iterating", at_s, at_s + longest

    def _end_iteration(self, clock, at_s):
        for replica in clock.replicas:
            running = replica.running()
            if not running:
                continue
            took = at_s - clock.began_s
            replica.iterations += 1
            replica.busy_s += took
            replica.concurrency_s += took * len(running)
            replica.prefill_s += replica.pre_s
            gained = [x for x in running if x.decoding]
            for x in running:
                if not x.decoding:
                    x.to_prefill -= replica.chunk.get(x.index, 0)
                    if x.pays and x.to_prefill == 0:
                        replica.prompt_ready[x.group] = True
            for x in running:
                if not x.decoding and x.to_prefill == 0 and self._prompt_ready(replica, x):
                    x.decoding = True
                    gained.append(x)
            for x in gained:
                x.generated += 1
                if math.isnan(x.first_s):
                    x.first_s = at_s
            for x in gained:
                if x.generated == x.length:
                    self._finish(replica, x, at_s)
        clock.state = "boundary"

    def _finish(self, replica, x, at_s):
        replica.load -= 0 if x.abort else 1
        self._drop(replica, x)
        x.status, x.end_s = "finished", at_s
        is_whole = all(y.status == "finished" for y in self.groups[x.group])
        if is_whole:
            self.group_end[x.group] = at_s
        if (is_whole or self.tells_each) and x.group not in self.finished_now:
            self.finished_now.append(x.group)

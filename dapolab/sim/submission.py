"""How groups of a step enter the engine and leave it: new, resumed, continued or sampled afresh."""

import math
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from dapolab.collectors import Continue, Finished, Submit
from dapolab.sim.backlog import Backlog, Left, notice
from dapolab.sim.collection import CARRIED, IN_FLIGHT, Collection, Part, Serviced, Wave
from dapolab.sim.cursor import AnyCursor
from dapolab.sim.dispatch_order import LongestFirst
from dapolab.sim.replica import Engine, FinishedGroups
from dapolab.sim.score import ScoredStream
from dapolab.sim.service import Service
from dapolab.sim.service_state import as_it_came_out
from dapolab.workload.model import Groups, joined

Ints = NDArray[np.int64]


class Submission:
    """The traffic between one step's groups and the engine's, with the books of both in ``result``.

    ``ready`` are resumed groups that turned out to be complete: they return at once.
    """

    def __init__(
        self,
        result: Collection,
        *,
        engine: Engine,
        stream: ScoredStream,
        cursor: AnyCursor,
        group_size: int,
        backlog: Backlog,
        with_metrics: bool,
        keep_rows: bool,
        longest_first: LongestFirst | None = None,
        service: Service | None = None,
        resumed_last: bool = False,
    ) -> None:
        self._resumed_last = resumed_last
        self._result = result
        self._engine = engine
        self._stream = stream
        self._cursor = cursor
        self._size = group_size
        self._backlog = backlog
        self._with_metrics = with_metrics
        self._service = service
        self._keep_rows = keep_rows or service is not None
        self._longest_first = longest_first
        self._rows: dict[int, tuple[Groups, int]] = {}
        self._enough: dict[int, int] = {}
        self._n_held = len(backlog.held)
        self._next_cut = self._n_held
        self.ready: list[int] = []
        self._take_over()
        if service is not None:
            result.service = Serviced()
            result.is_plain = False

    def _take_over(self) -> None:
        result, version = self._result, self._result.trained_steps
        result.left = self._backlog.left
        for index, left in enumerate(result.left):
            result.finished.append(notice(left, index=index, version=version))
            result.status.append(CARRIED)
            self._rows[index] = (left.group, 0)
        self._index_of = list(range(self._n_held, len(result.left)))
        result.is_plain = not result.left

    # ------------------------------------------------------------------ into the engine

    def send(self, action: Submit | Continue, *, at_s: float) -> bool:
        """Carry out a submission; returns whether there was anything to submit."""
        if isinstance(action, Continue):
            self._continue(action, at_s=at_s)
            return True
        first = self._next_cut
        self._next_cut = min(first + action.n, len(self._result.left))
        indices = range(first, self._next_cut)
        n_new = action.n - len(indices)
        if self._resumed_last:
            n_sent = self._fresh(action, n_new, at_s=at_s)
            self._resume(indices, action, at_s=at_s)
        else:
            self._resume(indices, action, at_s=at_s)
            n_sent = self._fresh(action, n_new, at_s=at_s)
        return len(indices) + n_sent > 0

    def _fresh(self, action: Submit, n: int, *, at_s: float) -> int:
        """Submit ``n`` groups that start from their prompts; returns how many there are."""
        if n == 0:
            return 0
        return self._again(n, at_s=at_s) if action.waiting else self._new(action, n, at_s)

    def _resume(self, indices: range, action: Submit, *, at_s: float) -> None:
        if not indices:
            return
        engine, result = self._engine, self._result
        if at_s > engine.now_s:
            engine.advance(at_s)  # nothing decodes yet: it only waits
        if action.segment_tokens is not None:
            for index in indices:
                left = result.left[index]
                full_G = left.group.n_tokens_PG[0]
                limit_G = np.minimum(full_G, left.tokens_G + action.segment_tokens)
                result.limits[index] = limit_G
                engine.extend([index - self._n_held], limit_G[None, :])
        resumable = set(engine.resumable().tolist())
        going = [i - self._n_held for i in indices if i - self._n_held in resumable]
        self.ready += [i for i in indices if i - self._n_held not in resumable]
        if going:
            engine.resume(at_s=engine.now_s, groups=going)
        for index in indices:
            result.status[index] = IN_FLIGHT
            result.parts.append(Part(index - self._n_held, index, 0, self._size, at_s))

    def _new(self, action: Submit, n: int, at_s: float) -> int:
        result = self._result
        runs = self._cursor.take_runs(n, trained_steps=result.trained_steps)
        if not runs:
            return 0
        first = len(result.status)
        groups, finished = self._drawn(runs, first_index=first)
        available = len(groups)
        samples = action.samples or self._size
        lengths_PG = groups.n_tokens_PG
        if samples != lengths_PG.shape[1]:
            lengths_PG = lengths_PG[:, :samples]
            result.is_plain = False
        told = samples if action.enough is None else action.enough
        if self._with_metrics or told != groups.n_tokens_PG.shape[1]:
            finished = [self._note(groups, i, first + i, told) for i in range(available)]
        if action.segment_tokens is not None:
            full_PG, lengths_PG = lengths_PG, np.minimum(lengths_PG, action.segment_tokens)
            result.is_plain = False
            for i in np.flatnonzero((full_PG > lengths_PG).any(axis=1)).tolist():
                result.limits[first + i] = lengths_PG[i]
        for start, number in runs:
            result.enter(start, number)
        self._enter(groups, lengths_PG, finished, at_s=at_s, enough=action.enough)
        return available

    def _drawn(
        self, runs: list[tuple[int, int]], *, first_index: int
    ) -> tuple[Groups, list[Finished]]:
        """Return the groups of these places of the stream, and what a policy hears of them."""
        draw, version = self._stream.draw, self._result.trained_steps
        if len(runs) == 1:
            return draw(*runs[0], first_index=first_index, trained_steps=version)
        parts: list[Groups] = []
        notes: list[Finished] = []
        for run in runs:
            groups, finished = draw(
                *run, first_index=first_index + len(notes), trained_steps=version
            )
            parts.append(groups)
            notes += finished
        return joined(parts), notes

    def _again(self, n: int, *, at_s: float) -> int:
        """Sample waiting prompts afresh: their last G draws, which no first attempt uses."""
        waiting = self._backlog.waiting
        positions, waiting[:n] = waiting[:n], []
        if not positions:
            return 0
        drawn = [
            self._stream.stream.draw(p, 1, trained_steps=self._result.trained_steps)
            for p in positions
        ]
        groups = _last_columns(joined(drawn), self._size)
        self._result.again.append(groups)
        self._result.is_plain = False
        first = len(self._result.status)
        finished = [self._note(groups, i, first + i, self._size) for i in range(len(groups))]
        lengths_PG = groups.n_tokens_PG[:, : self._size]
        self._enter(groups, lengths_PG, finished, at_s=at_s, enough=None, visit=1)
        return len(positions)

    def _enter(
        self,
        groups: Groups,
        lengths_PG: Ints,
        finished: Sequence[Finished],
        *,
        at_s: float,
        enough: int | None,
        visit: int = 0,
    ) -> None:
        result, n, samples = self._result, len(groups), lengths_PG.shape[1]
        first = len(result.status)
        result.finished += finished
        result.status += [IN_FLIGHT] * n
        indices = range(first, first + n)
        entering: Sequence[int] = indices
        prompt_P, prompt_tokens_P = groups.prompt_id_P, groups.prompt_tokens_P
        position_P = groups.position_P
        if self._longest_first is not None:
            order_P = self._longest_first.order(groups, lengths_PG)
            prompt_P, prompt_tokens_P = prompt_P[order_P], prompt_tokens_P[order_P]
            lengths_PG, position_P = lengths_PG[order_P], position_P[order_P]
            entering = (first + order_P).tolist()
            result.is_plain = False
        engine_group = self._run(
            at_s=at_s,
            group_P=prompt_P,
            position_P=position_P,
            prompt_tokens_P=prompt_tokens_P,
            n_tokens_PG=lengths_PG,
            enough=enough,
            visit=visit,
        )
        self._index_of += entering
        engine_groups = range(engine_group, engine_group + n)
        result.parts += map(Part, engine_groups, entering, repeat(0), repeat(samples), repeat(at_s))
        if self._keep_rows:
            self._rows |= {index: (groups, i) for i, index in enumerate(indices)}
        if enough is not None:
            result.is_plain = False
            self._enough |= dict.fromkeys(indices, enough)
        if samples < self._size:
            result.members |= {index: tuple(range(samples)) for index in indices}

    def _run(
        self,
        *,
        at_s: float,
        group_P: Ints,
        position_P: Ints,
        prompt_tokens_P: Ints,
        n_tokens_PG: Ints,
        first: int = 0,
        enough: int | None = None,
        visit: int = 0,
    ) -> int:
        """Submit to the engine, by way of the service where answers need one."""
        if self._service is None:
            return self._engine.submit(
                at_s=at_s,
                group_P=group_P,
                prompt_tokens_P=prompt_tokens_P,
                n_tokens_PG=n_tokens_PG,
                enough=enough,
            )
        return self._service.submit(
            at_s=at_s,
            group_P=group_P,
            position_P=position_P,
            prompt_tokens_P=prompt_tokens_P,
            n_tokens_PG=n_tokens_PG,
            first=first,
            enough=enough,
            visit=visit,
        )

    def _continue(self, action: Continue, *, at_s: float) -> None:
        index, result = action.index, self._result
        groups, row = self._rows[index]
        first = result.finished[index].n_samples
        last = first + action.samples
        lengths_PG = groups.n_tokens_PG[row : row + 1, first:last]
        engine_group = self._run(
            at_s=at_s,
            group_P=groups.prompt_id_P[row : row + 1],
            position_P=groups.position_P[row : row + 1],
            prompt_tokens_P=groups.prompt_tokens_P[row : row + 1],
            n_tokens_PG=lengths_PG,
            first=first,
        )
        self._index_of.append(index)
        result.parts.append(Part(engine_group, index, first, action.samples, at_s))
        result.members[index] = tuple(range(last))
        result.finished[index] = self._note(groups, row, index, last)
        result.status[index] = IN_FLIGHT
        result.is_plain = False

    def _note(self, groups: Groups, row: int, index: int, n: int) -> Finished:
        """Return what a policy hears of a group with its first ``n`` responses."""
        return self._stream.scores.note(
            groups.n_tokens_PG[row, :n],
            groups.correct_PG[row, :n],
            index=index,
            with_metrics=self._with_metrics,
        )

    # ------------------------------------------------------------------ out of the engine

    @property
    def n_in_flight(self) -> int:
        """Groups of the step that have not returned."""
        return self._service.n_live if self._service else self._engine.n_groups_in_flight

    @property
    def is_waiting(self) -> bool:
        """Whether a group has not returned, or a response that was cut off still runs."""
        return self.n_in_flight > 0 or self._engine.n_groups_in_flight > 0

    def advance(self, until_s: float) -> FinishedGroups | None:
        """Move to the next instant at which groups return; as ``Engine.advance``."""
        if self._service is None:
            return self._engine.advance(until_s)
        done = self._service.advance(until_s)
        for engine_group in done.groups.tolist() if done else ():
            self._hear(self._service, engine_group)
        self._result.failure = self._service.failure
        return done

    def abort(self, *, keep_kv: bool) -> None:
        """Cut off all that is in flight at the next iteration boundary."""
        if self._service is not None:
            self._service.abort(at_s=self._engine.now_s)
        else:
            self._engine.abort(at_s=self._engine.now_s, keep_kv=keep_kv)

    def decode_end_s(self, wave: Wave) -> float:
        """Return the last end of the wave's responses in the engine, be they scored or not."""
        if self._service is None:
            return self._engine.now_s
        parts = self._result.parts[wave.first : wave.last]
        ends_s, _ = self._engine.spans([part.engine_group for part in parts])
        return float(np.max(ends_s, initial=wave.decode_start_s, where=np.isfinite(ends_s)))

    def _hear(self, service: Service, engine_group: int) -> None:
        """Note how a group came out: failed, or with responses that are not as they were drawn."""
        index, books = self._index_of[engine_group], self._result.service
        assert books is not None, "there is a service"
        groups, row = self._rows[index]
        changed = service.ends(engine_group)
        if changed:
            groups, row = as_it_came_out(groups.slice(row, row + 1), changed), 0
            books.changed[index] = groups
            self._rows[index] = groups, row
        told = self._result.finished[index]
        if service.has_failed(engine_group):
            books.failed.add(index)
            books.failed_members.append((index, service.failed_place(engine_group)))
            nan = math.nan
            n, n_tokens = told.n_samples, self._tokens_now(service, engine_group)
            metrics = (nan,) * n if self._with_metrics else ()
            self._result.finished[index] = Finished(index, n, 0, nan, n_tokens, metrics)
        elif changed:
            self._result.finished[index] = self._note(groups, row, index, told.n_samples)

    def _tokens_now(self, service: Service, engine_group: int) -> int:
        """Return the tokens that a group has generated so far, those of failed samplings lost."""
        _, generated, _ = self._engine.progress(engine_group)
        added = service.added_tokens(engine_group)
        return int((generated[: len(added)] - added).sum())

    def take_ready(self) -> list[int]:
        """Return the groups that were complete when they were resumed, once."""
        ready, self.ready = self.ready, []
        return ready

    def indices(self, engine_groups: Ints) -> list[int]:
        """Return the step's groups that returned; what they no longer need is cut off."""
        found = [self._index_of[g] for g in engine_groups.tolist()]
        if self._enough:
            for engine_group, index in zip(engine_groups.tolist(), found, strict=True):
                if index in self._enough:
                    self._choose(engine_group, index)
        return found

    def _choose(self, engine_group: int, index: int) -> None:
        """Make a group of the responses that ended first; cut the others off at this instant."""
        if self._service is not None:
            if self._service.has_failed(engine_group):
                return
            members = np.array(self._service.members(engine_group), dtype=np.int64)
        else:
            ends_s, _ = self._engine.spans([engine_group])
            order = np.argsort(ends_s, kind="stable")  # NaN, still running, comes last
            members = np.sort(order[: self._enough[index]])
            self._engine.abort(at_s=self._engine.now_s, groups=[engine_group])
        groups, row = self._rows[index]
        self._result.members[index] = tuple(members.tolist())
        self._result.finished[index] = self._stream.scores.note(
            groups.n_tokens_PG[row, members],
            groups.correct_PG[row, members],
            index=index,
            with_metrics=self._with_metrics,
        )

    def returned(self, wave: Wave, *, all_returned: bool) -> list[int]:
        """Return the groups of a wave that are complete, by submission."""
        parts = self._result.parts[wave.first : wave.last]
        limits, left = self._result.limits, self._rows
        found = []
        if not all_returned:
            parts = self._complete(parts)
        self.ready.clear()
        if not limits:
            return sorted([part.group for part in parts])
        for part in parts:
            limit_G = limits.get(part.group)
            if limit_G is not None:
                groups, row = left[part.group]
                if (limit_G < groups.n_tokens_PG[row]).any():
                    continue
            found.append(part.group)
        return sorted(found)

    def _complete(self, parts: list[Part]) -> list[Part]:
        if self._service is not None:
            return [part for part in parts if self._service.has_returned(part.engine_group)]
        engine_groups = np.array([part.engine_group for part in parts], dtype=np.int64)
        ends_s = self._engine.group_end_s(engine_groups).tolist()
        return [part for part, end in zip(parts, ends_s, strict=True) if end == end]

    # ------------------------------------------------------------------ to the next step

    def leave(self, *, restart: bool, step: int) -> None:
        """Hand over what the next step starts from."""
        result, backlog = self._result, self._backlog
        backlog.n_steps += 1
        if self._service is not None:
            self._close_books(self._service)
        if not result.has_memory:
            return
        if restart:
            backlog.waiting += [
                int(self._rows[index][0].position_P[self._rows[index][1]]) for index in result.lost
            ]
        tokens = self._generated()
        self._at_s = {part.group: part.at_s for part in result.parts}
        held: list[tuple[int, Left]] = []
        cut: list[tuple[int, Left]] = []
        for index, status in enumerate(result.status):
            if status != CARRIED:
                continue
            left = self._left(index, tokens.get(index), step=step)
            is_held = index in result.holds or index < self._n_held
            (held if is_held else cut).append((index, left))
        backlog.held = [left for _, left in held]
        backlog.cut = [left for _, left in cut]
        engine_of = {part.group: part.engine_group for part in result.parts}
        engine_of |= {i: i - self._n_held for i in range(self._n_held, len(result.left))}
        result.keep = [engine_of[index] for index, _ in cut]

    def _close_books(self, service: Service) -> None:
        books = self._result.service
        assert books is not None, "there is a service"
        books.stays = service.stays
        books.score_wait_s, books.call_wait_s = service.score_wait_s, service.call_wait_s
        for engine_group, index in enumerate(self._index_of):
            books.last.append((engine_group, service.stays_from(engine_group)))
            for counts, heard in (
                (books.n_failures, service.failed),
                (books.n_timeouts, service.timed_out),
            ):
                if n := heard.get(engine_group, 0):
                    counts[index] = counts.get(index, 0) + n

    def _generated(self) -> dict[int, Ints]:
        """Return the tokens that each response of the groups in the engine has so far."""
        facts = self._engine.facts()
        n_groups = len(self._index_of)
        if self._service is not None:
            added = [self._service.added_tokens(g) for g in range(n_groups)]
            ends = np.cumsum([len(a) for a in added], dtype=np.int64)
            return {
                self._index_of[g]: facts.generated_tokens[end - len(a) : end] - a
                for g, (a, end) in enumerate(zip(added, ends.tolist(), strict=True))
            }
        tokens = facts.generated_tokens.reshape(n_groups, -1) if n_groups else np.empty((0, 0))
        return {index: tokens[g] for g, index in enumerate(self._index_of)}

    def _left(self, index: int, tokens_G: Ints | None, *, step: int) -> Left:
        result, version = self._result, self._result.trained_steps
        groups, row = self._rows[index]
        before = result.left[index] if index < len(result.left) else None
        if tokens_G is None:
            tokens_G = groups.n_tokens_PG[row]
        by_version = dict(before.by_version) if before else {}
        now = int(tokens_G.sum()) - sum(by_version.values())
        if now:
            by_version[version] = by_version.get(version, 0) + now
        return Left(
            group=before.group if before else groups.slice(row, row + 1),
            finished=result.finished[index],
            begun_step=before.begun_step if before else step,
            begun_version=before.begun_version if before else version,
            tokens_G=tokens_G.copy(),
            by_version=by_version,
            submit_s=before.submit_s if before else self._at_s[index],
            end_s=result.end_s,
        )


def _last_columns(groups: Groups, size: int) -> Groups:
    """Return the groups with their last ``size`` responses first, the rest empty."""

    def moved(array_PG: NDArray[np.generic]) -> NDArray[np.generic]:
        out = np.zeros_like(array_PG)
        out[:, :size] = array_PG[:, -size:]
        return out

    return Groups(
        groups.position_P,
        groups.prompt_id_P,
        groups.epoch_P,
        groups.pass_rate_P,
        groups.prompt_tokens_P,
        np.asarray(moved(groups.n_tokens_PG), dtype=np.int64),
        np.asarray(moved(groups.correct_PG), dtype=np.bool_),
        np.asarray(moved(groups.truncated_PG), dtype=np.bool_),
    )

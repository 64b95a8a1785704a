"""Requests, completions, and the host's mirror of the slots in which responses grow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpu_runs.noise import Array, uniforms

Key = tuple[int, int, int]
Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Request:
    """A prompt to answer; ``key`` = (step, group, sample) names its noise."""

    key: Key
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """A response, whole or (``abort``) as far as it got.

    Attributes
    ----------
    tokens : the response, the stop token included.
    logprobs : of each token under the distribution it was drawn from (temperature included), nats.
    submit_s, start_s, end_s : on the generator's clock; where it was resumed, the first submission,
        the first start and the last end. start_s = end_s where it never started.
    """

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    submit_s: float
    start_s: float
    end_s: float


@dataclass
class Entry:
    """A request on its way, with what it wrote in earlier lives."""

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    submit_s: float
    start_s: float | None = None

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and response so far."""
        return self.request.prompt + self.tokens

    def complete(self, finish: Finish, now_s: float) -> Completion:
        """Return what it has become."""
        start_s = now_s if self.start_s is None else self.start_s
        return Completion(
            self.request, self.tokens, self.logprobs, finish, self.submit_s, start_s, now_s
        )


class Slots:
    """Busy slots 0 … n−1 as arrays.

    Attributes
    ----------
    n, n_long : busy slots; those at the front that :meth:`release` found long.
    context, written, last : by slot: tokens of prompt and response, of the response, the newest.
    """

    def __init__(self, n_slots: int, *, cap_tokens: int, seed: int) -> None:
        self.n = self.n_long = 0
        self.size, self.cap_tokens, self.seed = n_slots, cap_tokens, seed
        self.entries: list[Entry] = []
        self.context = np.zeros(n_slots, np.int64)
        self.written = np.zeros(n_slots, np.int64)
        self.last = np.zeros(n_slots, np.int64)
        self._tokens = np.zeros((n_slots, cap_tokens), np.int64)
        self._logprobs = np.zeros((n_slots, cap_tokens))
        self._noise = np.zeros((n_slots, cap_tokens))

    def add(self, entries: Sequence[Entry], now_s: float) -> None:
        """Give the next free slots to ``entries``."""
        for slot, entry in enumerate(entries, start=self.n):
            if entry.start_s is None:
                entry.start_s = now_s
            written = len(entry.tokens)
            self.context[slot] = len(entry.request.prompt) + written
            self.written[slot] = written
            self.last[slot] = entry.context[-1]
            self._tokens[slot, :written] = entry.tokens
            self._logprobs[slot, :written] = entry.logprobs
        if entries:
            keys = [entry.request.key for entry in entries]
            new = slice(self.n, self.n + len(entries))
            self._noise[new] = uniforms(self.seed, keys, self.cap_tokens)
        self.entries.extend(entries)
        self.n += len(entries)

    def noise(self) -> Array:
        """Return the uniform of each busy slot's next token."""
        picked: Array = self._noise[np.arange(self.n), self.written[: self.n]]
        return picked

    def append(self, tokens: Array, logprobs: Array) -> None:
        """Add one token to each busy slot."""
        rows = np.arange(self.n)
        written = self.written[: self.n]
        self._tokens[rows, written] = tokens
        self._logprobs[rows, written] = logprobs
        self.last[: self.n] = tokens
        self.written[: self.n] += 1
        self.context[: self.n] += 1

    def bands(self, *, least: int) -> tuple[tuple[int, int], ...]:
        """Return how far the slots look: the long ones and the rest apart, or together.

        Two bands where each has at least ``least`` slots; a band's cost is slots × keys, and a
        call costs something too.
        """
        context, first = self.context[: self.n], self.n_long
        if min(first, self.n - first) < least:
            return ((self.n, int(context.max())),)
        return ((first, int(context[:first].max())), (self.n, int(context[first:].max())))

    def release(
        self, leaving: Array, finish: Sequence[Finish], now_s: float, *, long_from: int
    ) -> tuple[list[Completion], Array, Array]:
        """Take slots out; close the holes, contexts of ``long_from`` tokens and more first.

        Parameters
        ----------
        leaving : slot numbers, ascending; ``finish`` says how each ended.

        Returns
        -------
        completions, and which slot moved where: ``targets``, ``sources``. Only those move that
        stand in a hole's place or among the others.
        """
        out = []
        for slot, how in zip(leaving.tolist(), finish, strict=True):
            entry, written = self.entries[slot], self.written[slot]
            entry.tokens = tuple(self._tokens[slot, :written].tolist())
            entry.logprobs = tuple(self._logprobs[slot, :written].tolist())
            out.append(entry.complete(how, now_s))
        left = self.n - len(leaving)
        stays = np.ones(self.n, dtype=bool)
        stays[leaving] = False
        is_long = self.context[: self.n] >= long_from
        self.n_long = int((stays & is_long).sum())
        targets, sources = [], []
        for kind, begin, end in ((is_long, 0, self.n_long), (~is_long, self.n_long, left)):
            inside = np.zeros(self.n, dtype=bool)
            inside[begin:end] = True
            targets.append(np.flatnonzero(inside & ~(stays & kind)))
            sources.append(np.flatnonzero(stays & kind & ~inside))
        self._move(*(moved := (np.concatenate(targets), np.concatenate(sources))))
        del self.entries[left:]
        self.n = left
        return out, *moved

    def _move(self, targets: Array, sources: Array) -> None:
        columns = (self.context, self.written, self.last)
        for column in (*columns, self._tokens, self._logprobs, self._noise):
            column[targets] = column[sources]
        moved = [self.entries[source] for source in sources.tolist()]
        for target, entry in zip(targets.tolist(), moved, strict=True):
            self.entries[target] = entry

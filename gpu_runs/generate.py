"""Generation by continuous batching on a static KV cache.

Slots 0 … n−1 are always the busy ones: responses that end leave their slots to the last ones, and
the queue fills what is free. A token is the inverse CDF at one uniform that depends on (seed, step,
group, sample, position) alone, so slot numbers, batch mates and the order of submission do not
matter (but for the last bits of a matrix product: two runs differ where a uniform falls within
about 1e-7 of a step of the CDF). The host mirrors every position; in an iteration one array goes to
the device and one comes back.
"""

import copy
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from dapolab.errors import ConfigError
from gpu_runs.model import Contexts, Decoder, KvCache
from gpu_runs.sampling import draw
from gpu_runs.slots import Completion, Entry, Finish, Key, Request, Slots
from gpu_runs.task import Vocabulary

MAX_PREFILL_TOKENS = 2**16
"""Most padded prompt tokens of one prefill call; more are split."""

LEAST_BAND = 32
"""Fewest slots that are worth a product of their own."""


class Iteration(NamedTuple):
    """One iteration: ``n`` responses gained a token each in ``seconds``, admission included.

    ``sum_context`` counts the tokens attended to, each response's newest included. At its start
    ``admitted`` responses took a slot, which took ``admit_seconds``; the ``prefill_tokens`` of
    their contexts (a prompt that several of them share counts once) ride on the decode's pass.
    """

    n: int
    sum_context: int
    seconds: float
    admitted: int
    prefill_tokens: int
    admit_seconds: float


class Generator:
    """Answers requests with a model; see the module's docstring.

    Parameters
    ----------
    slots : most responses decoded at once.
    cap_tokens : a response that reaches it is cut (finish ``length``).
    seed : of the sampling noise.
    temperature : logits are divided by it; log-probs are of the divided ones.
    dtype : of weights and cache; other than the model's, the generator keeps a copy of the weights
        and :meth:`refresh` brings it up to date. Softmax is fp32 whatever the dtype.
    clock : seconds.

    Attributes
    ----------
    iterations : what each iteration did, since the start or the last ``iterations.clear()``.
    """

    def __init__(
        self,
        model: Decoder,
        task: Vocabulary,
        *,
        slots: int,
        cap_tokens: int,
        seed: int,
        temperature: float = 1.0,
        dtype: torch.dtype | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if slots < 1 or cap_tokens < 1 or temperature <= 0:
            raise ConfigError(
                f"{slots} slots, a cap of {cap_tokens} tokens and temperature {temperature}: "
                "all must be positive"
            )
        self.cap_tokens, self.temperature, self.task = cap_tokens, temperature, task
        self.iterations: list[Iteration] = []
        weight = model.model.embed_tokens.weight
        self._device, self._source, self._clock = weight.device, model, clock
        self._dtype = weight.dtype if dtype is None else dtype
        own = self._dtype == weight.dtype
        self.model = model if own else copy.deepcopy(model).to(self._dtype).requires_grad_(False)
        self._queue: deque[Entry] = deque()
        self._slots = Slots(slots, cap_tokens=cap_tokens, seed=seed)
        self._keys: set[Key] = set()
        self._cache = self._allocate(0)

    def _allocate(self, n_positions: int) -> KvCache:
        return KvCache(
            self.model.config, self._slots.size, n_positions, device=self._device, dtype=self._dtype
        )

    @property
    def n_in_flight(self) -> int:
        """Requests submitted and not yet returned, queued ones included."""
        return len(self._keys)

    def refresh(self) -> None:
        """Take the model's weights anew; needed after an update where ``dtype`` is another."""
        if self.model is not self._source:
            with torch.no_grad():
                pairs = zip(self.model.parameters(), self._source.parameters(), strict=True)
                for mine, theirs in pairs:
                    mine.copy_(theirs)

    # ------------------------------------------------------------------ requests in and out

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests, first come first served.

        Raises
        ------
        ConfigError
            If a prompt is empty or does not fit the model's positions together with the cap.
        ValueError
            If a request of the same key is in flight.
        """
        now = self._clock()
        self._enqueue([Entry(request, (), (), now) for request in requests])

    def resume(self, completions: Iterable[Completion]) -> None:
        """Queue aborted responses; each goes on where it stopped, its log-probs kept.

        Raises
        ------
        ConfigError
            As :meth:`submit`.
        ValueError
            If a response has ended, has the cap's length or is in flight.
        """
        entries = []
        for c in completions:
            if c.finish != "abort" or len(c.tokens) >= self.cap_tokens:
                raise ValueError(f"the response to {c.request.key} has ended: nothing to resume")
            start_s = c.start_s if c.tokens else None
            entries.append(Entry(c.request, c.tokens, c.logprobs, c.submit_s, start_s))
        self._enqueue(entries)

    def _enqueue(self, entries: Sequence[Entry]) -> None:
        keys = {entry.request.key for entry in entries}
        if len(keys) < len(entries) or keys & self._keys:
            raise ValueError("a key (step, group, sample) is in flight already")
        most = self.model.config.max_positions
        lengths = [len(entry.request.prompt) for entry in entries]
        if lengths and (min(lengths) < 1 or max(lengths) + self.cap_tokens > most):
            raise ConfigError(
                f"prompts of {min(lengths)} to {max(lengths)} tokens and a cap of "
                f"{self.cap_tokens}: a prompt needs a token, and the model has {most} positions"
            )
        self._reserve(max(lengths, default=0) + self.cap_tokens)
        self._keys |= keys
        self._queue.extend(entries)

    def _reserve(self, n_positions: int) -> None:
        """Let the cache hold that many tokens a slot."""
        if n_positions > self._cache.n_positions:
            rounded = min(-(-n_positions // 16) * 16, self.model.config.max_positions)
            old, self._cache = self._cache, self._allocate(rounded)
            self._cache.store[..., : old.n_positions, :] = old.store

    def abort(self, keys: Collection[Key] | None = None) -> list[Completion]:
        """Take requests (all, or those named) out and return them as far as they got."""
        now = self._clock()
        wanted = set(self._keys if keys is None else keys)
        busy = [i for i, e in enumerate(self._slots.entries) if e.request.key in wanted]
        out = self._release(busy, ["abort"] * len(busy), now)
        out += [e.complete("abort", now) for e in self._queue if e.request.key in wanted]
        self._queue = deque(e for e in self._queue if e.request.key not in wanted)
        self._keys -= wanted
        return out

    def _release(
        self, leaving: Sequence[int], finish: Sequence[Finish], now: float
    ) -> list[Completion]:
        slots, long_from = self._slots, self._cache.n_positions // 2
        if not leaving and long_from not in slots.context[: slots.n]:
            return []
        out, targets, sources = slots.release(
            np.asarray(leaving, dtype=np.int64), finish, now, long_from=long_from
        )
        if len(targets):
            self._cache.move(
                torch.from_numpy(sources).to(self._device),
                torch.from_numpy(targets).to(self._device),
                n_positions=int(slots.context[targets].max()),
            )
        self._keys -= {completion.request.key for completion in out}
        return out

    # ------------------------------------------------------------------ one iteration

    @torch.no_grad()
    def step(self) -> list[Completion]:
        """Run one iteration: admit, give every busy slot a token, return what ended.

        With nothing in flight it returns at once and records nothing.
        """
        started = self._clock()
        admitted, prefill_tokens, contexts = self._admit(started)
        admit_seconds = self._clock() - started if admitted else 0.0
        slots = self._slots
        if not slots.n:
            return []
        n, context = slots.n, slots.context[: slots.n]
        sum_context, bands = int(context.sum()), slots.bands(least=LEAST_BAND)
        inputs = torch.from_numpy(np.stack((slots.last[:n], context - 1, slots.noise())))
        last, positions, noise = inputs.to(self._device)
        logits = self.model.decode(
            last.long(), self._cache, positions.long(), bands=bands, contexts=contexts
        )
        tokens, logprobs = draw(logits, noise, self.temperature)
        drawn = torch.stack((tokens.double(), logprobs.double())).cpu().numpy()
        slots.append(drawn[0].astype(np.int64), drawn[1])
        stopped = slots.last[:n] == self.task.stop_token
        ended = np.flatnonzero(stopped | (slots.written[:n] >= self.cap_tokens)).tolist()
        finish: list[Finish] = ["stop" if stopped[slot] else "length" for slot in ended]
        now = self._clock()
        done = self._release(ended, finish, now)
        self.iterations.append(
            Iteration(
                n, sum_context, self._clock() - started, admitted, prefill_tokens, admit_seconds
            )
        )
        return done

    def _admit(self, now: float) -> tuple[int, int, Contexts | None]:
        """Fill the free slots from the queue.

        Returns
        -------
        responses admitted, tokens of their contexts (shared ones once), and the contexts that the
        iteration's decode is to compute. Those beyond ``MAX_PREFILL_TOKENS`` are computed here.
        """
        slots, first = self._slots, self._slots.n
        new = [self._queue.popleft() for _ in range(min(len(self._queue), slots.size - first))]
        slots.add(new, now)
        rows: dict[tuple[int, ...], list[int]] = {}
        for slot, entry in enumerate(new, start=first):
            # the newest token is the decode's
            rows.setdefault(entry.context[:-1], []).append(slot)
        rows.pop((), None)
        left, contexts = sorted(rows, key=len), None
        while left:
            if contexts is not None:
                self.model.prefill(contexts, self._cache)
            size = max(1, MAX_PREFILL_TOKENS // len(left[-1]))
            chunk, left = left[-size:], left[:-size]
            contexts = self._contexts({context: rows[context] for context in chunk})
        return len(new), sum(map(len, rows)), contexts

    def _contexts(self, rows: dict[tuple[int, ...], list[int]]) -> Contexts:
        padded = np.full((len(rows), max(map(len, rows))), self.task.pad_token)
        for row, context in enumerate(rows):
            padded[row, : len(context)] = context
        copies = [(row, slot) for row, slots in enumerate(rows.values()) for slot in slots]
        rows_M, slots_M = torch.tensor(copies).T.contiguous().to(self._device)
        return Contexts(torch.from_numpy(padded).to(self._device), slots_M=slots_M, rows_M=rows_M)


def generate(generator: Generator, requests: Sequence[Request]) -> list[Completion]:
    """Submit, run to the end, and return completions in the order of the requests."""
    generator.submit(requests)
    done: dict[Key, Completion] = {}
    while generator.n_in_flight:
        done.update((c.request.key, c) for c in generator.step())
    return [done[request.key] for request in requests]


__all__ = ["Completion", "Finish", "Generator", "Iteration", "Key", "Request", "generate"]

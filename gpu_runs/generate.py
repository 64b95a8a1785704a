"""Generation by continuous batching on a static KV cache.

Slots 0 … n−1 are always the busy ones: a response that ends leaves its slot to the last, and the
queue fills what is free. A token is the inverse CDF at one uniform that depends on (seed, step,
group, sample, position) alone, so slot numbers, batch mates and the order of submission do not
matter (but for the last bits of a matrix product: two runs differ where a uniform falls within
about 1e-7 of a step of the CDF).
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dapolab.errors import ConfigError
from gpu_runs.model import Decoder, KvCache
from gpu_runs.task import Task

Key = tuple[int, int, int]
Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Request:
    """A prompt to answer; ``key`` = (step, group, sample) names its noise and must be unique."""

    key: Key
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """A response, whole or (``abort``) as far as it got.

    Attributes
    ----------
    tokens : the response, the stop token included.
    logprobs : of each token under the distribution it was drawn from (temperature included), nats.
    submit_s, start_s, end_s : on the generator's clock; an aborted request that never started
        has start_s = end_s.
    """

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    submit_s: float
    start_s: float
    end_s: float


class Iteration(NamedTuple):
    """One iteration: ``n`` responses gained a token in ``seconds``, admission included.

    ``sum_context`` counts the tokens attended to, the new one included; ``admitted`` responses
    were admitted at its start, with ``prefill_tokens`` written to the cache in ``admit_seconds``.
    """

    n: int
    sum_context: int
    seconds: float
    admitted: int
    prefill_tokens: int
    admit_seconds: float


def uniforms(seed: int, key: Key, positions: np.ndarray) -> np.ndarray:
    """Return one uniform in (0, 1) per position, a function of its arguments alone."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for word in (seed, *key):
            state = _mix(state ^ np.uint64(word & 0xFFFFFFFFFFFFFFFF))
        bits = _mix(_mix(state ^ positions.astype(np.uint64)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """Scramble 64 bits: splitmix64 (Steele, Lea, Flood 2014), increment and finaliser."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass
class _Slot:
    """A request on its way: queued, or in a slot."""

    request: Request
    tokens: list[int]
    logprobs: list[float]
    noise: np.ndarray
    submit_s: float
    start_s: float | None = None

    @property
    def context(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.tokens)


class Generator:
    """Answers requests with a model; see the module's docstring.

    Attributes
    ----------
    iterations : what each iteration did, since the start or the last ``iterations.clear()``.
    """

    def __init__(
        self,
        model: Decoder,
        task: Task,
        *,
        slots: int,
        cap_tokens: int,
        seed: int,
        temperature: float = 1.0,
    ) -> None:
        self.model, self.task = model, task
        self.slots, self.cap_tokens = slots, cap_tokens
        self.seed, self.temperature = seed, temperature
        self.iterations: list[Iteration] = []
        self._device = model.model.embed_tokens.weight.device
        self._queue: deque[_Slot] = deque()
        self._busy: list[_Slot] = []
        self._cache = self._allocate(cap_tokens + 16)

    def _allocate(self, n_positions: int) -> KvCache:
        dtype = self.model.model.embed_tokens.weight.dtype
        return KvCache(self.model.config, self.slots, n_positions, device=self._device, dtype=dtype)

    @property
    def n_in_flight(self) -> int:
        """Requests submitted and not yet returned, queued ones included."""
        return len(self._queue) + len(self._busy)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests, first come first served.

        Raises
        ------
        ConfigError
            If a prompt is empty or does not fit the model's positions together with the cap.
        """
        now = time.perf_counter()
        self._enqueue(_Slot(r, [], [], self._noise(r), now) for r in requests)

    def resume(self, completions: Iterable[Completion]) -> None:
        """Queue aborted responses; they go on where they stopped, log-probs kept."""
        self._enqueue(
            _Slot(
                c.request,
                list(c.tokens),
                list(c.logprobs),
                self._noise(c.request),
                c.submit_s,
                c.start_s if c.tokens else None,
            )
            for c in completions
        )

    def _noise(self, request: Request) -> np.ndarray:
        return uniforms(self.seed, request.key, np.arange(self.cap_tokens))

    def _enqueue(self, slots: Iterable[_Slot]) -> None:
        slots = list(slots)
        for slot in slots:
            room = len(slot.request.prompt) + self.cap_tokens
            if not slot.request.prompt or room > self.model.config.max_positions:
                raise ConfigError(
                    f"a prompt of {len(slot.request.prompt)} tokens and a cap of "
                    f"{self.cap_tokens} do not fit the model's {self.model.config.max_positions} "
                    "positions"
                )
            if room > self._cache.n_positions:
                old, self._cache = self._cache, self._allocate(room)
                self._cache.store[..., : old.n_positions, :] = old.store
        self._queue.extend(slots)

    @torch.no_grad()
    def step(self) -> list[Completion]:
        """Run one iteration: admit, give every busy slot a token, return what ended."""
        started = time.perf_counter()
        admitted, prefill_tokens = self._admit(started)
        after_admit = time.perf_counter()
        if not self._busy:
            return []
        context = [len(s.request.prompt) + len(s.tokens) for s in self._busy]
        last = torch.tensor([s.context[-1] for s in self._busy], device=self._device)
        positions = torch.tensor(context, device=self._device) - 1
        logits = self.model.decode(last, self._cache, positions, n_keys=max(context))
        noise = torch.tensor([s.noise[len(s.tokens)] for s in self._busy], device=self._device)
        tokens, logprobs = draw(logits, noise, self.temperature)
        for slot, token, logp in zip(self._busy, tokens.tolist(), logprobs.tolist(), strict=True):
            slot.tokens.append(token)
            slot.logprobs.append(logp)
        done = self._collect()
        seconds = time.perf_counter() - started
        self.iterations.append(
            Iteration(
                len(context), sum(context), seconds, admitted, prefill_tokens, after_admit - started
            )
        )
        return done

    def _admit(self, now: float) -> tuple[int, int]:
        first = len(self._busy)
        while self._queue and len(self._busy) < self.slots:
            slot = self._queue.popleft()
            slot.start_s = now if slot.start_s is None else slot.start_s
            self._busy.append(slot)
        new = self._busy[first:]
        written = [slot.context[:-1] for slot in new]
        longest = max((len(w) for w in written), default=0)
        if longest:
            padded = torch.full((len(new), longest), self.task.pad_token, device=self._device)
            for row, tokens in zip(padded, written, strict=True):
                row[: len(tokens)] = torch.tensor(tokens)
            where = torch.arange(first, len(self._busy), device=self._device)
            self.model.prefill(padded, self._cache, where)
        return len(new), sum(map(len, written))

    def _collect(self) -> list[Completion]:
        now = time.perf_counter()
        done: list[Completion] = []
        for index in reversed(range(len(self._busy))):
            slot = self._busy[index]
            stopped = slot.tokens[-1] == self.task.stop_token
            if stopped or len(slot.tokens) >= self.cap_tokens:
                done.append(_completion(slot, "stop" if stopped else "length", now))
                self._free(index)
        return done

    def _free(self, index: int) -> None:
        """Give the slot to the last busy one."""
        last = len(self._busy) - 1
        if index < last:
            self._busy[index] = self._busy[last]
            self._cache.store[:, :, index] = self._cache.store[:, :, last]
        self._busy.pop()

    def abort(self, keys: Collection[Key] | None = None) -> list[Completion]:
        """Take requests (all, or those named) out and return them as far as they got."""
        now = time.perf_counter()
        out: list[Completion] = []
        for index in reversed(range(len(self._busy))):
            if keys is None or self._busy[index].request.key in keys:
                out.append(_completion(self._busy[index], "abort", now))
                self._free(index)
        kept: deque[_Slot] = deque()
        for slot in self._queue:
            if keys is None or slot.request.key in keys:
                out.append(_completion(slot, "abort", now))
            else:
                kept.append(slot)
        self._queue = kept
        return out

    def refresh(self) -> None:
        """Take the model's weights anew; call it after each optimizer step."""


def _completion(slot: _Slot, finish: Finish, now: float) -> Completion:
    start = now if slot.start_s is None else slot.start_s
    return Completion(
        slot.request, tuple(slot.tokens), tuple(slot.logprobs), finish, slot.submit_s, start, now
    )


def draw(logits_NV: Tensor, noise_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the token at each uniform by inverse CDF (fp32 softmax, summed in fp64), and log p."""
    p_NV = torch.softmax(logits_NV / temperature, dim=-1)
    cdf_NV = p_NV.double().cumsum(-1)
    tokens = torch.searchsorted(cdf_NV, (noise_N * cdf_NV[:, -1])[:, None], right=True)
    tokens = tokens.clamp(max=logits_NV.shape[-1] - 1)
    return tokens[:, 0], p_NV.gather(-1, tokens)[:, 0].log()


def generate(generator: Generator, requests: Sequence[Request]) -> list[Completion]:
    """Submit, run to the end, and return completions in the order of the requests."""
    generator.submit(requests)
    done: dict[Key, Completion] = {}
    while generator.n_in_flight:
        done.update((c.request.key, c) for c in generator.step())
    return [done[request.key] for request in requests]

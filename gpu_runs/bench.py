"""How fast the engine is, as ratios measured in one run, on the shipped toy's own lengths.

Against a padded static batch: the same decoder and cache, batches of as many slots, each running
until its last response ends. Against Hugging Face ``generate`` in static batches with the same
weights, where transformers is installed. Times are CPU seconds on one thread, the best of
interleaved repeats, so that a busy machine shows little.
"""

import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gpu_runs.generate import Generator, Request, generate
from gpu_runs.model import Contexts, Decoder, KvCache
from gpu_runs.noise import uniforms
from gpu_runs.sampling import draw
from gpu_runs.task import DigitSum
from gpu_runs.weights import load_model

N_RESPONSES = 512
CAP_TOKENS = 64
Row = Mapping[str, Any]


def requests(n: int = N_RESPONSES) -> list[Request]:
    """Return one request for each of ``n`` training prompts."""
    problems = DigitSum().problems("train", n, seed=0)
    return [Request((0, i, 0), problem.prompt) for i, problem in enumerate(problems)]


def static_batch(
    model: Decoder, asked: Sequence[Request], *, slots: int, seed: int = 0
) -> list[list[int]]:
    """Answer in batches of ``slots``; whoever has ended is decoded on as padding.

    Same weights, kernels, noise and cap as the engine's; prompts of a batch start together.
    """
    task, out = DigitSum(), []
    for first in range(0, len(asked), slots):
        batch = asked[first : first + slots]
        lengths = np.array([len(r.prompt) for r in batch])
        padded = np.full((len(batch), lengths.max()), task.pad_token)
        for row, request in enumerate(batch):
            padded[row, : lengths[row]] = request.prompt
        noise = uniforms(seed, [r.key for r in batch], CAP_TOKENS)
        dtype = model.model.embed_tokens.weight.dtype
        size = int(lengths.max()) + CAP_TOKENS
        cache = KvCache(model.config, len(batch), size, dtype=dtype)
        rows = torch.arange(len(batch))
        last = torch.from_numpy(padded[np.arange(len(batch)), lengths - 1])
        model.prefill(Contexts(torch.from_numpy(padded[:, :-1]), rows, rows), cache)
        tokens = np.full((len(batch), CAP_TOKENS), task.pad_token)
        done = np.zeros(len(batch), dtype=bool)
        for step in range(CAP_TOKENS):
            at = torch.from_numpy(lengths - 1 + step)
            logits = model.decode(last, cache, at, bands=[(len(batch), int(lengths.max()) + step)])
            last, _ = draw(logits, torch.from_numpy(noise[:, step]), 1.0)
            tokens[:, step] = np.where(done, task.pad_token, last.numpy())
            done |= tokens[:, step] == task.stop_token
            if done.all():
                break
        out += [row[row != task.pad_token].tolist() for row in tokens]
    return out


def hugging_face(model: Decoder, asked: Sequence[Request], *, slots: int) -> Callable[[], int]:
    """Return a call of transformers' ``generate`` on the same weights; it returns its tokens.

    Left-padded static batches sorted as they come, sampling from the whole distribution, the same
    cap and stop token.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    from gpu_runs.hf import write_hf

    task = DigitSum()
    with tempfile.TemporaryDirectory() as folder:
        theirs = AutoModelForCausalLM.from_pretrained(write_hf(model, folder)).eval()
    settings = GenerationConfig(
        max_new_tokens=CAP_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=task.stop_token,
        pad_token_id=task.pad_token,
    )

    def call() -> int:
        n_tokens = 0
        for first in range(0, len(asked), slots):
            batch = asked[first : first + slots]
            longest = max(len(r.prompt) for r in batch)
            padded = [[task.pad_token] * (longest - len(r.prompt)) + [*r.prompt] for r in batch]
            tokens = torch.tensor(padded)
            out = theirs.generate(
                tokens, attention_mask=(tokens != task.pad_token).long(), generation_config=settings
            )
            n_tokens += int((out[:, longest:] != task.pad_token).sum())
        return n_tokens

    return call


def generate_benchmarks(
    *, slots: Sequence[int] = (64, 256, 512), n_repeats: int = 3, n_responses: int = N_RESPONSES
) -> list[Row]:
    """Return rows {name, value, unit, against, ratio}: useful tokens per CPU second.

    The ratio is the engine's rate over the other's; rows against transformers only where it is
    installed.
    """
    torch.set_num_threads(1)
    model, asked = load_model(), requests(n_responses)
    with_hf = importlib.util.find_spec("transformers") is not None
    rows: list[Row] = []
    for n in slots:

        def engine(n: int = n) -> int:
            generator = Generator(model, DigitSum(), slots=n, cap_tokens=CAP_TOKENS, seed=0)
            return sum(len(c.tokens) for c in generate(generator, asked))

        def static(n: int = n) -> int:
            with torch.no_grad():
                return sum(map(len, static_batch(model, asked, slots=n)))

        calls: dict[str, Callable[[], int]] = {"engine": engine, "a padded static batch": static}
        if with_hf:
            calls["Hugging Face generate"] = hugging_face(model, asked, slots=n)
        rates = _rates(calls, n_repeats)
        rows += [
            {
                "name": f"gpu_runs: {len(asked)} responses, {n} slots",
                "value": rates["engine"],
                "unit": "tokens/s",
                "against": f"{name}, {rates[name]:,.0f} tokens/s",
                "ratio": rates["engine"] / rates[name],
            }
            for name in calls
            if name != "engine"
        ]
    return rows


def _rates(calls: Mapping[str, Callable[[], int]], n_repeats: int) -> dict[str, float]:
    """Return the best rate of each call, tokens per CPU second; calls take turns."""
    best = dict.fromkeys(calls, 0.0)
    for _ in range(n_repeats):
        for name, call in calls.items():
            started = time.process_time()
            n_tokens = call()
            best[name] = max(best[name], n_tokens / (time.process_time() - started))
    return best


if __name__ == "__main__":
    for row in generate_benchmarks():
        print(f"{row['name']}: {row['value']:,.0f} against {row['against']}: {row['ratio']:.2f}")  # noqa: T201

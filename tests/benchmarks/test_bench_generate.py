"""Rates of the generation engine (``pytest tests/benchmarks --benchmark-only``); none gated."""

import pytest
import torch

from gpu_runs import bench
from gpu_runs.generate import Generator, generate
from gpu_runs.task import DigitSum
from gpu_runs.weights import load_model


def engine(model, asked, slots):
    generator = Generator(model, DigitSum(), slots=slots, cap_tokens=bench.CAP_TOKENS, seed=0)
    return [list(c.tokens) for c in generate(generator, asked)]


def test_the_static_batch_gives_the_same_answers():
    # float64, so that no uniform falls between two roundings of one CDF
    model, asked = load_model().double(), bench.requests(24)
    with torch.no_grad():
        assert bench.static_batch(model, asked, slots=10) == engine(model, asked, 10)


@pytest.mark.parametrize("slots", [64, 256, 512])
@pytest.mark.parametrize("way", ["engine", "static"])
def test_rate(benchmark, way, slots):
    model, asked = load_model(), bench.requests()
    call = engine if way == "engine" else bench.static_batch
    with torch.no_grad():
        answers = benchmark(call, model, asked, slots=slots)
    benchmark.extra_info["tokens"] = sum(map(len, answers))

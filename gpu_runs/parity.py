"""``python -m gpu_runs.parity``: whether the engine on this device computes what it should.

Three comparisons a model: the engine's log-probs with those of a full forward pass in the same
dtype, fp32 on the device with fp32 on the CPU, and (on CUDA) bf16 with fp32, the mismatch between
sampler and trainer that a run will see. The first two are checked, the third is reported.
"""

import argparse
import copy
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapolab.store import atomic_write
from gpu_runs.generate import Generator, Request, generate
from gpu_runs.model import Decoder, ModelConfig
from gpu_runs.run_folder import describe
from gpu_runs.setup import choose_device
from gpu_runs.slots import Completion
from gpu_runs.task import DigitSum
from gpu_runs.weights import load_model

ENGINE_TOLERANCE = 1e-4
"""Nats, fp32: decoding on a cache against the full forward (5e-6 on a CPU)."""
DEVICE_TOLERANCE = 2e-3
"""Nats, fp32: two devices' kernels sum in other orders; CUDA may use TF32."""
N_PROMPTS = 64


def compare(model: Decoder, device: torch.device, *, n_prompts: int = N_PROMPTS) -> dict[str, Any]:
    """Return the largest and mean differences of one model, in nats a token.

    Parameters
    ----------
    model : fp32 on the CPU.
    """
    task = DigitSum()
    prompts = task.problems("train", n_prompts, seed=0)
    asked = [Request((0, i, 0), problem.prompt) for i, problem in enumerate(prompts)]
    there = copy.deepcopy(model).to(device)
    engine = Generator(there, task, slots=max(1, n_prompts // 3), cap_tokens=48, seed=0)
    done = generate(engine, asked)
    tokens, wanted, reported = _laid_out(done, pad=task.pad_token)
    n_tokens = int(wanted.sum())
    full = _logprobs(there, tokens, wanted, device)
    on_cpu = _logprobs(model, tokens, wanted, torch.device("cpu"))
    row: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": n_tokens,
        "engine_max": _largest(reported - full),
        "device_max": _largest(full - on_cpu),
    }
    if device.type == "cuda":
        half = _logprobs(there, tokens, wanted, device, dtype=torch.bfloat16)
        row["bf16_max"] = _largest(half - full)
        row["bf16_mean"] = float((half - full).abs().sum()) / n_tokens
        row["bf16_ratio_max"] = math.exp(row["bf16_max"])
    within = row["engine_max"] <= ENGINE_TOLERANCE and row["device_max"] <= DEVICE_TOLERANCE
    return row | {"passed": bool(within)}


def _laid_out(done: Sequence[Completion], *, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    width = max(len(c.request.prompt) + len(c.tokens) for c in done)
    tokens = torch.full((len(done), width), pad, dtype=torch.int64)
    wanted = torch.zeros((len(done), width), dtype=torch.bool)
    reported = torch.zeros((len(done), width))
    for row, completion in enumerate(done):
        start, n = len(completion.request.prompt), len(completion.tokens)
        tokens[row, : start + n] = torch.tensor(completion.request.prompt + completion.tokens)
        wanted[row, start : start + n] = True
        reported[row, start : start + n] = torch.tensor(completion.logprobs)
    return tokens, wanted, reported


@torch.no_grad()
def _logprobs(
    model: Decoder,
    tokens: Tensor,
    wanted: Tensor,
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        return model.logprobs(tokens.to(device), wanted_BT=wanted.to(device))[0].cpu()


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the toy and a larger random model; 1 where a tolerance is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runs.parity", description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--smoke", action="store_true", help="the toy alone")
    parser.add_argument("-o", "--output", type=Path, help="file for the table, JSON")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    rows = {"digit_sum": compare(load_model(), device)}
    if not options.smoke:
        torch.manual_seed(0)
        larger = ModelConfig(
            vocab_size=DigitSum().vocab_size,
            d_model=384,
            n_layers=6,
            n_heads=6,
            n_kv_heads=2,
            d_mlp=1024,
        )
        rows["random_10m"] = compare(Decoder(larger), device)
    document = {"device": describe(device), "torch": torch.__version__, "models": rows}
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    if options.output is not None:
        atomic_write(options.output, text)
    sys.stdout.write(text)
    return 0 if all(row["passed"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

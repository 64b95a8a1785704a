"""Warm start of the toy: imitate demonstrations until some answers are right, many are not.

``python -m gpu_runs.sft -o FILE`` makes the shipped checkpoint again (some minutes on one thread).
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dapolab.rng import stream
from gpu_runs.demonstrations import Demonstration, Style, demonstrations
from gpu_runs.generate import Generator, Request, generate
from gpu_runs.model import Decoder, ModelConfig
from gpu_runs.task import DigitSum
from gpu_runs.weights import TOY, load_model, save_model


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The warm start's settings: AdamW, warm-up, then linear decay to a tenth."""

    n_steps: int = 2000
    batch: int = 64
    learning_rate: float = 3e-3
    n_warmup: int = 50
    style: Style = field(default_factory=Style)


def warm_start(
    task: DigitSum,
    config: ModelConfig,
    recipe: Recipe,
    *,
    seed: int,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    device: torch.device | str = "cpu",
) -> Decoder:
    """Return a model that imitates the demonstrations; a function of its arguments on one CPU.

    ``on_step`` gets the step and the mean loss per response token, in nats. On CUDA matrix products
    are bf16.
    """
    torch.manual_seed(seed)
    model = Decoder(config).to(device)
    kind = torch.device(device).type
    rng = stream(seed, "warm-start")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.99), weight_decay=0.01
    )
    for step in range(recipe.n_steps):
        progress = (step - recipe.n_warmup) / max(1, recipe.n_steps - recipe.n_warmup)
        scale = min((step + 1) / recipe.n_warmup, 1 - 0.9 * max(0.0, progress))
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * scale
        shown = demonstrations(task, recipe.batch, rng=rng, style=recipe.style)
        tokens_BT, wanted_BT = (x.to(device) for x in _batch(shown, pad=task.pad_token))
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            logp_BT, _ = model.logprobs(tokens_BT, wanted_BT=wanted_BT)
        loss = -logp_BT.sum() / wanted_BT.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_step(step, loss.item())
    return model


def _batch(
    demonstrations: Sequence[Demonstration], *, pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right-padded tokens and where the responses are."""
    texts = [d.prompt + d.response for d in demonstrations]
    tokens = np.full((len(texts), max(map(len, texts))), pad)
    wanted = np.zeros(tokens.shape, dtype=bool)
    for row, (text, shown) in enumerate(zip(texts, demonstrations, strict=True)):
        tokens[row, : len(text)] = text
        wanted[row, len(shown.prompt) : len(text)] = True
    return torch.from_numpy(tokens), torch.from_numpy(wanted)


def profile(
    model: Decoder,
    task: DigitSum,
    *,
    n_prompts: int,
    group_size: int = 8,
    cap_tokens: int = 64,
    seed: int,
) -> pd.DataFrame:
    """Return what the model does on held-out prompts, by stratum and over all (row ``all``).

    Returns
    -------
    Columns ``prompts, accuracy, tokens, tokens_right, tokens_wrong, filler, truncated`` and the
    shares of groups ``all_right, mixed, all_wrong``.
    """
    problems = task.problems("heldout", n_prompts, seed=seed)
    generator = Generator(model, task, slots=256, cap_tokens=cap_tokens, seed=seed)
    requests = [
        Request((0, g, s), problem.prompt)
        for g, problem in enumerate(problems)
        for s in range(group_size)
    ]
    rows = []
    for done in generate(generator, requests):
        problem = problems[done.request.key[1]]
        stopped = done.finish == "stop"
        rows.append(
            {
                "stratum": problem.stratum,
                "difficulty": problem.difficulty if problem.stratum != "masked" else 99,
                "group": done.request.key[1],
                "right": task.is_right(problem, done.tokens, finished=stopped),
                "tokens": len(done.tokens),
                "filler": task.filler_count(done.tokens),
                "truncated": not stopped,
            }
        )
    table = pd.DataFrame(rows)
    strata = [part for _, part in table.groupby("difficulty")]
    parts = {part["stratum"].iloc[0]: part for part in strata}
    return pd.DataFrame({name: _summary(p) for name, p in {**parts, "all": table}.items()}).T


def _summary(table: pd.DataFrame) -> dict[str, float]:
    p = table.groupby("group")["right"].mean()
    return {
        "prompts": float(len(p)),
        "accuracy": float(table["right"].mean()),
        "tokens": float(table["tokens"].mean()),
        "tokens_right": float(table.loc[table["right"], "tokens"].mean()),
        "tokens_wrong": float(table.loc[~table["right"], "tokens"].mean()),
        "filler": float(table["filler"].mean()),
        "truncated": float(table["truncated"].mean()),
        "all_right": float((p == 1).mean()),
        "mixed": float(((p > 0) & (p < 1)).mean()),
        "all_wrong": float((p == 0).mean()),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Warm-start the toy, write it and print its profile."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runs.sft", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=TOY, help="file to write")
    parser.add_argument("--steps", type=int, default=Recipe.n_steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=600, help="held-out prompts of the profile")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    task = DigitSum()
    started = time.perf_counter()

    def report(step: int, loss: float) -> None:
        if step % 50 == 0 or step + 1 == options.steps:
            seconds = time.perf_counter() - started
            print(f"step {step:5d}  loss {loss:.4f}  {seconds:6.1f} s", flush=True)  # noqa: T201

    model = warm_start(
        task,
        ModelConfig(vocab_size=task.vocab_size),
        Recipe(n_steps=options.steps),
        seed=options.seed,
        on_step=report,
    )
    save_model(model, options.output, dtype=torch.float16)
    table = profile(load_model(options.output), task, n_prompts=options.prompts, seed=options.seed)
    print(table.to_string(float_format="{:.3f}".format))  # noqa: T201


if __name__ == "__main__":
    main()

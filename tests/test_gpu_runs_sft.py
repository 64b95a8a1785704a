"""The warm start, and what the shipped toy does on held-out prompts."""

import numpy as np
import pytest
import torch

from gpu_runs.demonstrations import Demonstration
from gpu_runs.model import ModelConfig
from gpu_runs.sft import Recipe, _batch, main, profile, warm_start
from gpu_runs.task import VOCAB_SIZE, DigitSum
from gpu_runs.weights import load_model

SMALL = ModelConfig(vocab_size=VOCAB_SIZE, d_model=32, n_layers=1, n_heads=2, n_kv_heads=2)


def test_batches_train_the_response_alone():
    shown = [Demonstration((1, 40, 2), (3, 5)), Demonstration((1, 2), (7, 8, 9, 5))]
    tokens, wanted = _batch(shown, pad=0)
    assert tokens.tolist() == [[1, 40, 2, 3, 5, 0], [1, 2, 7, 8, 9, 5]]
    assert wanted.tolist() == [[False] * 3 + [True] * 2 + [False], [False] * 2 + [True] * 4]


def test_a_warm_start_is_repeatable_and_learns():
    losses = []
    recipe = Recipe(n_steps=20, batch=16, n_warmup=3)
    one = warm_start(
        DigitSum(), SMALL, recipe, seed=0, on_step=lambda step, loss: losses.append(loss)
    )
    two = warm_start(DigitSum(), SMALL, recipe, seed=0)
    other = warm_start(DigitSum(), SMALL, Recipe(n_steps=2, batch=16), seed=1)
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, two.state_dict()[name])
    assert not torch.equal(
        one.state_dict()["model.norm.weight"], other.state_dict()["model.norm.weight"]
    )
    assert losses[0] == pytest.approx(np.log(VOCAB_SIZE), rel=0.05)  # every token equally likely
    assert np.mean(losses[-5:]) < 0.9 * losses[0]


def test_the_shipped_toy_leaves_all_three_kinds_of_groups():
    table = profile(load_model(), DigitSum(), n_prompts=160, seed=5)
    total = table.loc["all"]
    assert total["prompts"] == 160
    assert 0.3 < total["accuracy"] < 0.5
    assert total["mixed"] > 0.7
    assert total["all_right"] > 0
    assert total["all_wrong"] > 0.04
    # where they come from: the shortest prompts, and those that nobody can solve
    assert table.loc["n=2", "all_right"] > 0.2
    assert table.loc["masked", "all_wrong"] > 0.6
    assert table.loc["n=2", "accuracy"] > 0.8 > 0.4 > table.loc["n=12", "accuracy"]
    # n = 10 to 12 are beyond the warm start and still sometimes right
    assert table.loc["n=10", "accuracy"] > 0.1
    assert total["tokens_wrong"] > total["tokens_right"] + 4
    assert 0.02 < total["truncated"] < 0.15
    assert total["filler"] > 4
    shares = table[["all_right", "mixed", "all_wrong"]].sum(axis=1)
    assert np.allclose(shares, 1)


def test_the_command_writes_a_model_and_its_profile(tmp_path, capsys):
    path = tmp_path / "toy.pt"
    main(["-o", str(path), "--steps", "2", "--prompts", "30"])
    assert load_model(path).config == load_model().config
    out = capsys.readouterr().out
    assert "step     1" in out
    assert "masked" in out

"""gpu_runs' decoder judged by transformers: random tiny Qwen2 and Llama, saved and read back."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gpu_runs.generate import Generator, Request, generate
from gpu_runs.hf import read_hf, write_hf
from gpu_runs.model import Contexts, KvCache
from gpu_runs.task import DigitSum

SHAPE = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 96,
}
MODELS = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 2}),
    "qwen2-tied": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"num_key_value_heads": 3, "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    ),
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 6}),
    "llama-grouped": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
    ),
}


def saved(name, folder, **how):
    """Return a random transformers model whose every weight matters, saved to ``folder``."""
    config_class, model_class, extra = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**SHAPE, **extra)).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in key else 0.0, 0.2)
    model.save_pretrained(folder, **how)
    return model


@pytest.fixture
def tokens():
    return torch.randint(0, 120, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_to_1e_5(name, tmp_path, tokens, setting):
    judge = saved(name, tmp_path)
    mine = read_hf(tmp_path)
    with torch.no_grad():
        expected = judge(tokens).logits
        logits = mine(tokens)
        # relative to the size of a logit, about 8 here
        assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
        assert (logits * 1.05 - expected).abs().max() > 1e-2
        cache = KvCache(mine.config, 3, 40)
        every = torch.arange(3)
        mine.prefill(Contexts(tokens[:, :30], every, every), cache)
        for at in range(30, 40):
            step = mine.decode(tokens[:, at], cache, torch.full((3,), at), bands=[(3, at + 1)])
            assert (step - expected[:, at]).abs().max() < 1e-5 * expected.abs().max()
    setting("gpu_runs", "logits and cached decode", name)


def test_left_padding_agrees(tmp_path, tokens, setting):
    judge, mask = saved("qwen2", tmp_path), torch.ones(3, 40, dtype=torch.bool)
    mask[0, :7] = mask[1, :19] = False
    with torch.no_grad():
        expected = judge(
            tokens,
            attention_mask=mask.long(),
            position_ids=(mask.long().cumsum(1) - 1).clamp(min=0),
        ).logits
        error = (read_hf(tmp_path)(tokens, mask_BT=mask) - expected).abs()[mask]
    assert error.max() < 1e-5 * expected.abs().max()
    setting("gpu_runs", "left padding", "qwen2")


def test_shards_and_the_old_rotary_spelling_are_read(tmp_path, tokens, setting):
    judge = saved("llama-grouped", tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    path = tmp_path / "config.json"
    described = json.loads(path.read_text())
    described["rope_theta"] = described.pop("rope_parameters")["rope_theta"]  # transformers 4
    path.write_text(json.dumps(described))
    with torch.no_grad():
        expected = judge(tokens).logits
        assert (read_hf(tmp_path)(tokens) - expected).abs().max() < 1e-5 * expected.abs().max()
    setting("gpu_runs", "shards", "llama")


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_what_is_written_transformers_reads(name, tmp_path, tokens, setting):
    judge = saved(name, tmp_path / "there")
    write_hf(read_hf(tmp_path / "there"), tmp_path / "back")
    again = MODELS[name][1].from_pretrained(tmp_path / "back")
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, judge(tokens).logits)
    setting("gpu_runs", "writing", name)


def test_sampled_log_probs_are_those_of_the_judge(tmp_path, setting):
    judge = saved("qwen2", tmp_path)
    generator = Generator(read_hf(tmp_path), DigitSum(), slots=3, cap_tokens=20, seed=0)
    asked = [Request((0, i, 0), tuple(range(1, 3 + i))) for i in range(8)]
    for done in generate(generator, asked):
        text = torch.tensor([done.request.prompt + done.tokens])
        with torch.no_grad():
            logp = torch.log_softmax(judge(text).logits, -1)[0, len(done.request.prompt) - 1 : -1]
        expected = logp.gather(-1, torch.tensor(done.tokens)[:, None])[:, 0]
        assert torch.allclose(expected, torch.tensor(done.logprobs), atol=1e-4)
    setting("gpu_runs", "sampled log-probs", "qwen2")

"""The decoder against a plain numpy one, its log-probs, its files."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from dapolab.errors import ConfigError
from gpu_runs import model as model_module
from gpu_runs.hf import model_config, read_hf, write_hf
from gpu_runs.layers import RmsNorm
from gpu_runs.model import Contexts, Decoder, KvCache, ModelConfig
from gpu_runs.weights import TOY, load_model, save_model

TINY = ModelConfig(
    vocab_size=23, d_model=24, n_layers=2, n_heads=6, n_kv_heads=2, d_mlp=40, max_positions=32
)
SHAPES = {
    "toy": replace(TINY, n_kv_heads=6),
    "llama": replace(TINY, tied_embeddings=False, rope_theta=500.0),
    "qwen2": replace(TINY, qkv_bias=True),
    "gelu": replace(TINY, mlp="gelu"),
}


def made(config, *, seed=0):
    """Return a decoder whose every weight matters (biases and norms included)."""
    torch.manual_seed(seed)
    model = Decoder(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model


def plain_logits(model, tokens):
    """Compute logits of one sequence in float64 numpy, one query at a time: the judge."""
    c = model.config
    w = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
    size = c.d_model // c.n_heads

    def norm(x, weight):
        return x / np.sqrt((x * x).mean() + c.norm_eps) * weight

    def turned(x, position):
        out = np.empty(size)
        for i in range(size // 2):
            angle = position / c.rope_theta ** (2 * i / size)
            a, b = x[i], x[i + size // 2]
            out[i] = a * np.cos(angle) - b * np.sin(angle)
            out[i + size // 2] = b * np.cos(angle) + a * np.sin(angle)
        return out

    def gelu(x):
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))

    states = [w["model.embed_tokens.weight"][t] for t in tokens]
    for layer in range(c.n_layers):
        at = f"model.layers.{layer}."

        def project(kind, x, at=at):
            bias = w.get(f"{at}self_attn.{kind}_proj.bias", 0.0)
            return (w[f"{at}self_attn.{kind}_proj.weight"] @ x + bias).reshape(-1, size)

        normed = [norm(x, w[f"{at}input_layernorm.weight"]) for x in states]
        keys = [[turned(h, t) for h in project("k", x)] for t, x in enumerate(normed)]
        values = [project("v", x) for x in normed]
        for t, x in enumerate(normed):
            heads = []
            for h, q in enumerate(project("q", x)):
                kv = h // (c.n_heads // c.n_kv_heads)
                scores = np.array(
                    [turned(q, t) @ keys[s][kv] / np.sqrt(size) for s in range(t + 1)]
                )
                share = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                heads.append(sum(share[s] * values[s][kv] for s in range(t + 1)))
            states[t] = states[t] + w[f"{at}self_attn.o_proj.weight"] @ np.concatenate(heads)
            y = norm(states[t], w[f"{at}post_attention_layernorm.weight"])
            up = w[f"{at}mlp.up_proj.weight"] @ y
            if c.mlp == "swiglu":
                gate = w[f"{at}mlp.gate_proj.weight"] @ y
                inner = gate / (1 + np.exp(-gate)) * up
            else:
                inner = gelu(up)
            states[t] = states[t] + w[f"{at}mlp.down_proj.weight"] @ inner
    head = w["model.embed_tokens.weight" if c.tied_embeddings else "lm_head.weight"]
    return np.array([head @ norm(x, w["model.norm.weight"]) for x in states])


@pytest.mark.parametrize("name", SHAPES)
def test_forward_is_the_plain_transformer(name):
    model = made(SHAPES[name])
    tokens = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(1))
    logits = model.double()(tokens).detach().numpy()
    expected = np.array([plain_logits(model, row) for row in tokens.tolist()])
    assert np.abs(logits - expected).max() < 2e-5 * np.abs(expected).max()
    assert np.abs(logits - 1.05 * expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_decode_on_a_cache_is_the_forward(name, together):
    model = made(SHAPES[name])
    tokens = torch.randint(0, 23, (3, 10), generator=torch.Generator().manual_seed(2))
    starts = torch.tensor([2, 7, 4])  # prompts of different lengths side by side
    rows = torch.tensor([1, 2, 0, 0])  # which sequence lies in slots 0 to 3
    with torch.no_grad():
        full = model(tokens)
        cache = KvCache(model.config, 5, 12)
        cache.store.normal_()  # what earlier responses left there
        contexts = Contexts(
            tokens[:, :7], slots_M=torch.tensor([2, 3, 0, 1]), rows_M=rows[[2, 3, 0, 1]]
        )
        if not together:
            model.prefill(contexts, cache)
        for ahead in range(3):
            at = starts[rows] + ahead
            logits = model.decode(
                tokens[rows, at],
                cache,
                at,
                bands=[(1, int(at[0]) + 1), (4, int(at.max()) + 1)],
                contexts=contexts if together and not ahead else None,
            )
            assert torch.allclose(logits, full[rows, at], atol=1e-4)


def test_left_padding_changes_nothing():
    model = made(SHAPES["qwen2"])
    tokens = torch.randint(0, 23, (1, 6), generator=torch.Generator().manual_seed(3))
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), tokens), 1)
    mask = torch.tensor([[False] * 3 + [True] * 6])
    assert torch.allclose(model(padded, mask_BT=mask)[:, 3:], model(tokens), atol=1e-4)
    assert not torch.allclose(model(padded)[:, 3:], model(tokens), atol=1e-2)


def test_logprobs_and_entropy_are_of_the_softmax():
    model = made(SHAPES["llama"])
    tokens = torch.randint(0, 23, (4, 8), generator=torch.Generator().manual_seed(4))
    wanted = torch.rand(4, 8, generator=torch.Generator().manual_seed(5)) < 0.5
    logp, entropy = model.logprobs(tokens, wanted_BT=wanted, temperature=0.7)
    p = torch.softmax(model(tokens).double() / 0.7, -1)
    for b in range(4):
        for t in range(8):
            if wanted[b, t] and t:
                before = p[b, t - 1]
                assert logp[b, t].item() == pytest.approx(
                    before[tokens[b, t]].log().item(), abs=1e-4
                )
                shannon = -(before * before.log()).sum().item()
                assert entropy[b, t].item() == pytest.approx(shannon, abs=1e-4)
            else:
                assert logp[b, t] == entropy[b, t] == 0


def test_chunks_change_neither_values_nor_gradients_and_stay_small(monkeypatch):
    tokens = torch.randint(0, 23, (3, 11), generator=torch.Generator().manual_seed(6))
    rows, results = [], []
    original = Decoder.logits

    def noted(self, hidden):
        rows.append(len(hidden))
        return original(self, hidden)

    monkeypatch.setattr(Decoder, "logits", noted)
    for limit in (2**27, 7 * 23):  # all at once; 7 tokens at a time
        monkeypatch.setattr(model_module, "MAX_LOGITS", limit)
        model = made(TINY)
        logp, entropy = model.logprobs(tokens)
        (logp.sum() + entropy.sum()).backward()
        results.append((logp, entropy, [p.grad for p in model.parameters()]))
    assert rows[0] == 30
    assert max(rows[1:]) == 7
    (logp_a, entropy_a, grads_a), (logp_b, entropy_b, grads_b) = results
    assert torch.allclose(logp_a, logp_b, atol=1e-6)
    assert torch.allclose(entropy_a, entropy_b, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(grads_a, grads_b, strict=True))


def test_bf16_states_are_normalised_and_scored_in_fp32():
    norm = RmsNorm(64, 1e-6).to(torch.bfloat16)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    exact = x.double() / x.double().pow(2).mean(-1, keepdim=True).sqrt()
    assert norm(x).dtype == torch.bfloat16
    assert ((norm(x).double() - exact).abs() <= exact.abs() * 2**-8).all()  # one rounding
    model = made(TINY).to(torch.bfloat16)
    assert model(torch.zeros(1, 3, dtype=torch.long)).dtype == torch.float32


def test_half_a_billion_parameters_are_qwens():
    # Qwen2.5-0.5B: 494,032,768 parameters (its safetensors index), the tied head counted once
    with torch.device("meta"):
        model = Decoder(
            ModelConfig(
                vocab_size=151936,
                d_model=896,
                n_layers=24,
                n_heads=14,
                n_kv_heads=2,
                d_mlp=4864,
                max_positions=32768,
                qkv_bias=True,
            )
        )
    assert sum(p.numel() for p in model.parameters()) == 494_032_768


@pytest.mark.parametrize(
    "wrong", [{"d_model": 25}, {"n_kv_heads": 4}, {"n_layers": 0}, {"d_model": 6}]
)
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(ConfigError):
        replace(TINY, **wrong)


# ---------------------------------------------------------------------------- files


def test_a_model_file_comes_back(tmp_path):
    model = made(SHAPES["llama"])
    again = load_model(save_model(model, tmp_path / "m.pt"))
    assert again.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)
    half = load_model(save_model(model, tmp_path / "h.pt", dtype=torch.float16))
    for name, weight in model.state_dict().items():
        assert torch.equal(half.state_dict()[name], weight.half().float())


class _Runs:
    def __reduce__(self):
        return (print, ("a model file ran code",))


def test_files_that_are_no_models_are_refused(tmp_path, capsys):
    (tmp_path / "text.pt").write_text("weights")
    (tmp_path / "code.pt").write_bytes(pickle.dumps(_Runs()))
    torch.save(_Runs(), tmp_path / "zip.pt")
    torch.save({"config": {"vocab": 3}, "weights": {}}, tmp_path / "config.pt")
    for name in ("text", "code", "zip", "config", "absent"):
        with pytest.raises(ConfigError) as caught:
            load_model(tmp_path / f"{name}.pt")
        assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_the_shipped_toy_is_small_and_fits_its_task():
    assert TOY.stat().st_size < 2**20
    assert load_model().config == ModelConfig(vocab_size=100)


@pytest.mark.parametrize("name", ["toy", "llama", "qwen2"])
def test_hugging_face_folder_comes_back(tmp_path, name):
    model = made(SHAPES[name])
    again = read_hf(write_hf(model, tmp_path))
    assert again.config == model.config
    tokens = torch.arange(6)[None]
    assert torch.equal(again(tokens), model(tokens))
    assert read_hf(tmp_path, max_positions=16).config.max_positions == 16


def test_hugging_face_folders_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_hf(tmp_path)
    write_hf(made(SHAPES["llama"]), tmp_path)
    described = (tmp_path / "config.json").read_text()
    for old, new, said in (
        ('"llama"', '"gpt2"', "gpt2"),
        ('"rope_type": "default"', '"rope_type": "yarn"', "yarn"),
        ('"silu"', '"gelu"', "hidden_act"),
        ('"num_hidden_layers": 2', '"num_hidden_layers": 3', "missing"),
        ('"intermediate_size": 40', '"intermediate_size": 44', "another shape"),
        ('"hidden_size": 24,', "", "hidden_size"),
    ):
        (tmp_path / "config.json").write_text(described.replace(old, new))
        with pytest.raises(ConfigError, match=said):
            read_hf(tmp_path)
    (tmp_path / "config.json").write_text(described)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="cannot read"):
        read_hf(tmp_path)
    with pytest.raises(ConfigError, match="without a gate"):
        write_hf(made(SHAPES["gelu"]), tmp_path)


def test_both_spellings_of_the_rotary_base_are_read():
    base = {
        "model_type": "qwen2",
        "vocab_size": 8,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    old = model_config({**base, "rope_theta": 1e6})
    new = model_config({**base, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    assert old == new
    assert old.rope_theta == 1e6
    with pytest.raises(ConfigError, match="head_dim"):
        model_config({**base, "head_dim": 8})

"""Hugging Face checkpoints of Qwen2, Qwen2.5 and Llama: read, and written back.

Needs ``safetensors`` (extra ``hf``); the tokenizer also needs ``transformers``. What the decoder
does not compute (scaled rotary positions, sliding windows, biases elsewhere) is refused by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.store import atomic_write
from gpu_runs.model import Decoder, ModelConfig

NEEDS_EXTRA = "needs the extra hf: pip install 'dapolab[hf]'"


def read_hf(
    folder: Path | str, *, device: torch.device | str = "cpu", max_positions: int | None = None
) -> Decoder:
    """Return the model in a local folder (``config.json``, ``*.safetensors``), weights in fp32.

    Parameters
    ----------
    max_positions : fewer positions than the checkpoint allows, None for all.

    Raises
    ------
    ConfigError
        If a file is missing or unreadable, the architecture is another, a weight is missing, left
        over or of the wrong shape, or safetensors is not installed.
    """
    folder = Path(folder)
    found = _json(folder / "config.json")
    config = model_config(found, max_positions=max_positions)
    with torch.device("meta"):
        model = Decoder(config)
    weights = {name: w.float() for name, w in _weights(folder).items()}
    if config.tied_embeddings:
        weights.pop("lm_head.weight", None)  # some writers store the tied head once more
    weights = {name: w for name, w in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    expected = {name: w.shape for name, w in model.state_dict().items()}
    wrong = sorted(expected.keys() ^ weights.keys())
    wrong += [name for name, w in weights.items() if w.shape != expected.get(name, w.shape)]
    if wrong:
        raise ConfigError(
            f"{folder}: weight {wrong[0]} is missing, left over or of another shape than "
            f"config.json says ({len(wrong)} such)"
        )
    model.load_state_dict(weights, assign=True)
    return model.to(device)


def model_config(found: Mapping[str, Any], *, max_positions: int | None = None) -> ModelConfig:
    """Return the shape that a ``config.json`` describes.

    Both spellings of the rotary base are read: ``rope_theta`` (transformers 4) and
    ``rope_parameters`` (transformers 5).

    Raises
    ------
    ConfigError
        If the model is not of Qwen2's or Llama's kind, or uses what the decoder does not have.
    """
    kind = found.get("model_type")
    if kind not in ("qwen2", "llama"):
        raise ConfigError(f"config.json: model_type {kind!r} is not read; qwen2 and llama are")
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    rope_kind = rope.get("rope_type", rope.get("type", "default"))
    refused = {
        f"rope_type {rope_kind!r}": rope_kind != "default",
        "a sliding window": bool(found.get("use_sliding_window")),
        f"hidden_act {found.get('hidden_act')!r}": found.get("hidden_act", "silu") != "silu",
        "attention_bias": kind == "llama" and bool(found.get("attention_bias")),
        "mlp_bias": bool(found.get("mlp_bias")),
    }
    for name, present in refused.items():
        if present:
            raise ConfigError(f"config.json: {name} is not supported by the decoder of gpu_runs")
    try:
        d_model, n_heads = int(found["hidden_size"]), int(found["num_attention_heads"])
        config = ModelConfig(
            vocab_size=int(found["vocab_size"]),
            d_model=d_model,
            n_layers=int(found["num_hidden_layers"]),
            n_heads=n_heads,
            n_kv_heads=int(found.get("num_key_value_heads") or n_heads),
            mlp="swiglu",
            d_mlp=int(found["intermediate_size"]),
            max_positions=min(
                max_positions or 2**31, int(found.get("max_position_embeddings", 2048))
            ),
            rope_theta=float(rope.get("rope_theta", found.get("rope_theta", 10000.0))),
            tied_embeddings=bool(found.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2",
            norm_eps=float(found.get("rms_norm_eps", 1e-6)),
        )
    except KeyError as error:
        raise ConfigError(f"config.json: {error.args[0]} is missing") from None
    if (found.get("head_dim") or config.head_dim) != config.head_dim:
        raise ConfigError(
            f"config.json: head_dim {found['head_dim']} is not hidden_size / num_attention_heads"
        )
    return config


def write_hf(model: Decoder, folder: Path | str) -> Path:
    """Write a model as transformers reads it (``config.json``, ``model.safetensors``, fp32).

    Raises
    ------
    ConfigError
        If it has no counterpart there (a GELU without gate), or safetensors is not installed.
    """
    config = model.config
    if config.mlp != "swiglu":
        raise ConfigError("neither Qwen2 nor Llama has an MLP without a gate: nothing to write")
    described = {
        "architectures": ["Qwen2ForCausalLM" if config.qkv_bias else "LlamaForCausalLM"],
        "model_type": "qwen2" if config.qkv_bias else "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "intermediate_size": config.d_mlp,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied_embeddings,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "dtype": "float32",
    }
    weights = {name: w.detach().cpu().contiguous() for name, w in model.state_dict().items()}
    folder = Path(folder)
    content = _safetensors().save(weights, metadata={"format": "pt"})
    atomic_write(folder / "model.safetensors", content)
    atomic_write(folder / "config.json", json.dumps(described, indent=2) + "\n")
    return folder


def read_tokenizer(folder: Path | str) -> Any:
    """Return the tokenizer in a local folder; code that lies beside it is never run.

    Raises
    ------
    ConfigError
        If there is none, it names no end token, or transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError(f"a tokenizer {NEEDS_EXTRA}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(f"{folder}: no tokenizer found there ({reason})") from None
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"{folder}: the tokenizer names no end token, so no response could end")
    return tokenizer


def _weights(folder: Path) -> dict[str, Tensor]:
    """Read one file, or the shards that the index lists."""
    load_file = _safetensors().load_file
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(_json(index).get("weight_map", {}).values()))
    out: dict[str, Tensor] = {}
    for name in names:
        path = folder / Path(name).name  # an index cannot point out of its folder
        try:
            out.update(load_file(path))
        except Exception as error:  # SafetensorError derives from Exception alone
            raise ConfigError(f"cannot read {path}: {str(error)[:120]}") from None
    return out


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return found


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ConfigError(f"reading safetensors {NEEDS_EXTRA}") from None
    return safetensors.torch

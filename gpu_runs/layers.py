"""The parts of the decoder: shape, KV cache, norm, rotary attention, MLP.

Parameter names are those of Hugging Face's Qwen2 and Llama (modeling_qwen2.py, modeling_llama.py of
transformers 5.10), so their checkpoints load as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dapolab.errors import ConfigError

Turns = tuple[Tensor, Tensor]
"""Cosine and signed sine of each position: what :func:`rotate` takes."""


Bands = Sequence[tuple[int, int]]
"""(end, n_keys): the slots up to ``end`` and from the band before look at ``n_keys`` positions."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder; the defaults are the toy's.

    Attributes
    ----------
    n_kv_heads : heads of keys and values; each serves ``n_heads / n_kv_heads`` query heads.
    mlp, d_mlp : SwiGLU, or GELU without a gate, and its inner width.
    max_positions : prompt and response together.
    """

    vocab_size: int
    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 4
    mlp: Literal["gelu", "swiglu"] = "swiglu"
    d_mlp: int = 176
    max_positions: int = 128
    rope_theta: float = 10000.0
    tied_embeddings: bool = True
    qkv_bias: bool = False
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.d_model, self.n_layers, self.n_heads, self.n_kv_heads)
        if min(*sizes, self.d_mlp, self.max_positions) < 1:
            raise ConfigError(f"every size of a model must be positive: {self}")
        if self.d_model % self.n_heads or self.n_heads % self.n_kv_heads or self.head_dim % 2:
            raise ConfigError(
                f"d_model {self.d_model} must divide into {self.n_heads} heads of even size, and "
                f"the heads into {self.n_kv_heads} equal groups"
            )

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.d_model // self.n_heads


class KvCache:
    """Keys and values of ``n_slots`` responses of up to ``n_positions`` tokens, allocated once.

    ``keys[layer]`` and ``values[layer]`` are views [slot, kv head, position, head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        n_slots: int,
        n_positions: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (config.n_layers, 2, n_slots, config.n_kv_heads, n_positions, config.head_dim)
        # zeros, not empty: masked keys are multiplied by 0, and 0 · NaN is NaN
        self.store = torch.zeros(shape, device=device, dtype=dtype)
        self.keys = [self.store[layer, 0] for layer in range(config.n_layers)]
        self.values = [self.store[layer, 1] for layer in range(config.n_layers)]

    @property
    def n_positions(self) -> int:
        """Tokens that a slot holds at most."""
        return self.store.shape[4]

    def rows(self, positions_N: Tensor) -> Tensor:
        """Return where slot i's vectors at ``positions_N[i]`` lie in ``view(-1, head_dim)``."""
        n_heads = self.store.shape[3]
        heads = torch.arange(len(positions_N) * n_heads, device=positions_N.device)
        return heads * self.n_positions + positions_N.repeat_interleave(n_heads)

    def move(self, sources: Tensor, targets: Tensor, *, n_positions: int) -> None:
        """Copy slots over others, as far as ``n_positions`` tokens."""
        part = self.store[..., :n_positions, :]
        part.index_copy_(2, targets, part.index_select(2, sources))


@dataclass(frozen=True)
class Contexts:
    """Right-padded contexts to compute, and the slots that get a copy each.

    Attributes
    ----------
    tokens_RT : int64. Padding leaves rubbish behind a context's end, which decoding overwrites
        before it looks there.
    slots_M, rows_M : slot ``slots_M[i]`` gets row ``rows_M[i]``.
    """

    tokens_RT: Tensor
    slots_M: Tensor
    rows_M: Tensor

    def write(self, vectors_RHTD: Tensor, store: Tensor) -> None:
        """Copy keys (or values) of the rows to the slots of a layer's cache."""
        part = store[:, :, : vectors_RHTD.shape[2]]
        part.index_copy_(0, self.slots_M, vectors_RHTD.index_select(0, self.rows_M))


class RmsNorm(nn.Module):
    """x / rms(x) · weight, in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        shape = self.weight.shape
        normed = functional.rms_norm(x.float(), shape, self.weight.float(), self.eps)
        return normed.to(x.dtype)


def turns(n_positions: int, *, head_dim: int, theta: float) -> Turns:
    """Return cosine and signed sine [position, head_dim] of rotary embedding, fp32."""
    share = torch.arange(0, head_dim, 2).double() / head_dim
    angles = torch.arange(n_positions).double()[:, None] / theta**share
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, by: Turns) -> Tensor:
    """Turn the pairs (i, i + head_dim/2) of the last dimension, as Llama's code pairs them."""
    cos, sin = by
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, kv_width = config.d_model, config.n_kv_heads * config.head_dim
        self.head_dim, self.n_kv_heads = config.head_dim, config.n_kv_heads
        self.grouped = config.n_kv_heads < config.n_heads
        self.q_proj = nn.Linear(width, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(width, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(width, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, width, bias=False)

    def heads(self, proj: nn.Linear, x_BTC: Tensor) -> Tensor:
        """Project whole sequences and part the heads: [B, head, T, head_dim]."""
        projected: Tensor = proj(x_BTC)
        return projected.view(*projected.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Let whole sequences attend, causally where there is no mask; [B, T, d_model]."""
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.grouped
        )
        return out.transpose(1, 2).flatten(2)

    def look_up(
        self, q_NHD: Tensor, keys: Tensor, values: Tensor, bias_N11K: Tensor, bands: Bands
    ) -> Tensor:
        """Let one query a slot attend to a layer's cache; [N, d_model].

        Plain products rather than ``scaled_dot_product_attention``: for one query they take
        0.6 times as long on a CPU, and they serve grouped heads without copying keys.

        Parameters
        ----------
        q_NHD : rotated, times 1/√head_dim.
        bias_N11K : 0 where a key is seen, −inf elsewhere.
        """
        parts, begin = [], 0
        for end, n_keys in bands:
            q = q_NHD[begin:end].view(end - begin, self.n_kv_heads, -1, self.head_dim)
            scores = torch.matmul(q, keys[begin:end, :, :n_keys].transpose(2, 3))
            scores += bias_N11K[begin:end, ..., :n_keys]
            shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
            mixed = torch.matmul(shares, values[begin:end, :, :n_keys])
            parts.append(mixed.reshape(end - begin, -1))
            begin = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Mlp(nn.Module):
    """SwiGLU, or GELU without a gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.mlp == "swiglu"
        if self.gated:
            self.gate_proj = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.up_proj = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.down_proj = nn.Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        up: Tensor = self.up_proj(x)
        inner = functional.silu(self.gate_proj(x)) * up if self.gated else functional.gelu(up)
        out: Tensor = self.down_proj(inner)
        return out


class Layer(nn.Module):
    """Attention and MLP, each on a normalised copy of the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.d_model, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.d_model, config.norm_eps)
        self.mlp = Mlp(config)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Add the MLP's part."""
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

"""A decoder-only transformer: pre-RMSNorm, RoPE, grouped-query attention, SwiGLU or GELU.

Parameter names are those of Hugging Face's Qwen2 and Llama, so their checkpoints load as they are.
The same code serves a CPU in fp32 and CUDA in bf16; softmax and log-softmax are fp32 throughout.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dapolab.errors import ConfigError

MAX_LOGITS = 2**27
"""Most fp32 logits held at once by :meth:`Decoder.logprobs` (0.5 GB)."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a :class:`Decoder`; the defaults are the toy's."""

    vocab_size: int
    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 4
    mlp: Literal["gelu", "swiglu"] = "gelu"
    d_mlp: int = 256
    max_positions: int = 128
    rope_theta: float = 10000.0
    tied_embeddings: bool = True
    qkv_bias: bool = False
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.d_model % self.n_heads or self.n_heads % self.n_kv_heads or self.head_dim % 2:
            raise ConfigError(
                f"d_model {self.d_model} must divide into {self.n_heads} heads of even size, and "
                f"the heads into {self.n_kv_heads} groups"
            )

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.d_model // self.n_heads


class KvCache:
    """Keys and values of ``n_slots`` responses of up to ``n_positions`` tokens, allocated once.

    ``keys[layer]`` and ``values[layer]`` are [slot, kv head, position, head_dim].
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
        self.store = torch.zeros(shape, device=device, dtype=dtype)
        self.keys = [self.store[layer, 0] for layer in range(config.n_layers)]
        self.values = [self.store[layer, 1] for layer in range(config.n_layers)]

    @property
    def n_positions(self) -> int:
        """Tokens that a slot holds at most."""
        return self.store.shape[4]


class RmsNorm(nn.Module):
    """x / rms(x) · weight, computed in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return (
            functional.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype)
            * self.weight
        )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each half-split pair of the last dimension (RoPE as Llama's code pairs it)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kv = config.n_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.grouped = config.n_kv_heads < config.n_heads
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.d_model, kv, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.d_model, kv, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.d_model, config.d_model, bias=False)

    def project(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, rotated keys and values, each [B, head, T, head_dim]."""

        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        q, k, v = (heads(f(x_BTC)) for f in (self.q_proj, self.k_proj, self.v_proj))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend, causally where there is no mask, and project back to [B, T, d_model]."""
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.grouped
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU, or GELU without a gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.mlp == "swiglu":
            self.gate_proj = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.gated = config.mlp == "swiglu"
        self.up_proj = nn.Linear(config.d_model, config.d_mlp, bias=False)
        self.down_proj = nn.Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        up = self.up_proj(x)
        return self.down_proj(
            functional.silu(self.gate_proj(x)) * up if self.gated else functional.gelu(up)
        )


class Layer(nn.Module):
    """Attention and MLP, each on a normalised copy of the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.d_model, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.d_model, config.norm_eps)
        self.mlp = Mlp(config)


class Body(nn.Module):
    """Everything but the head; named ``model`` in checkpoints."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RmsNorm(config.d_model, config.norm_eps)


class Decoder(nn.Module):
    """The language model; ``config`` holds its shape."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        if not config.tied_embeddings:
            self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        half = torch.arange(0, config.head_dim, 2).double() / config.head_dim
        angles = torch.arange(config.max_positions).double()[:, None] / config.rope_theta**half
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.apply(_initialise)

    def _turns(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = self.get_buffer("cos"), self.get_buffer("sin")
        return cos[positions].to(dtype), sin[positions].to(dtype)

    def hidden(self, tokens_BT: Tensor, *, mask_BT: Tensor | None = None) -> Tensor:
        """Return the final normalised states [B, T, d_model]; see :meth:`forward`."""
        n_tokens = tokens_BT.shape[1]
        attention_mask = None
        positions = torch.arange(n_tokens, device=tokens_BT.device)[None]
        if mask_BT is not None:
            mask_BT = mask_BT.bool()
            positions = (mask_BT.cumsum(1) - 1).clamp(min=0)
            causal = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=tokens_BT.device)
            own = torch.eye(n_tokens, dtype=torch.bool, device=tokens_BT.device)
            # a padding row sees itself: an empty row would be NaN
            attention_mask = ((causal.tril() & mask_BT[:, None]) | own)[:, None]
        x = self.model.embed_tokens(tokens_BT)
        cos, sin = (turn[:, None] for turn in self._turns(positions, x.dtype))
        for layer in self.model.layers:
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            x = x + layer.self_attn.attend(q, k, v, attention_mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return fp32 logits of final states."""
        head = self.model.embed_tokens if self.config.tied_embeddings else self.lm_head
        return functional.linear(hidden, head.weight).float()

    def forward(self, tokens_BT: Tensor, *, mask_BT: Tensor | None = None) -> Tensor:
        """Return fp32 logits [B, T, V] of the next token.

        Parameters
        ----------
        tokens_BT : int64. Padding to the right needs no mask: nothing looks ahead.
        mask_BT : True at real tokens, where padding is to the left or inside; positions count real
            tokens. Outputs at padding have no meaning.
        """
        return self.logits(self.hidden(tokens_BT, mask_BT=mask_BT))

    def logprobs(
        self,
        tokens_BT: Tensor,
        *,
        wanted_BT: Tensor | None = None,
        temperature: float = 1.0,
        mask_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probability of each token given those before it, and the entropy there.

        The whole [tokens, V] matrix never exists where it would exceed ``MAX_LOGITS``: chunks are
        recomputed in the backward pass.

        Parameters
        ----------
        tokens_BT : int64, right-padded, prompt and response.
        wanted_BT : bool, the tokens asked for (the response); None asks for all.
        temperature : logits are divided by it.

        Returns
        -------
        logp_BT, entropy_BT : fp32, nats; 0 where not wanted and at the first token.
        """
        wanted = torch.ones_like(tokens_BT, dtype=torch.bool) if wanted_BT is None else wanted_BT
        wanted = wanted[:, 1:].bool()
        states = self.hidden(
            tokens_BT[:, :-1], mask_BT=None if mask_BT is None else mask_BT[:, :-1]
        )
        states, targets = states[wanted], tokens_BT[:, 1:][wanted]
        n_chunk = max(1, MAX_LOGITS // self.config.vocab_size)
        parts = [
            self._logprobs_of(x, y, temperature, recompute=len(targets) > n_chunk)
            for x, y in zip(states.split(n_chunk), targets.split(n_chunk), strict=True)
        ]
        shape = tokens_BT.shape
        out = []
        for flat in (torch.cat([p[i] for p in parts]) for i in range(2)):
            full = flat.new_zeros(shape[0], shape[1] - 1).masked_scatter(wanted, flat)
            out.append(functional.pad(full, (1, 0)))
        return out[0], out[1]

    def _logprobs_of(
        self, states: Tensor, targets: Tensor, temperature: float, *, recompute: bool
    ) -> tuple[Tensor, Tensor]:
        def compute(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            logp = torch.log_softmax(self.logits(states) / temperature, dim=-1)
            entropy = -(logp.exp() * logp).sum(-1)
            return logp.gather(-1, targets[:, None])[:, 0], entropy

        if recompute and torch.is_grad_enabled():
            return checkpoint(compute, states, targets, use_reentrant=False)
        return compute(states, targets)

    def prefill(self, tokens_NT: Tensor, cache: KvCache, slots_N: Tensor) -> None:
        """Write keys and values of right-padded prompts to the cache; no logits.

        Padding leaves rubbish behind a prompt's end, which :meth:`decode` overwrites before it
        looks there.
        """
        n_tokens = tokens_NT.shape[1]
        x = self.model.embed_tokens(tokens_NT)
        cos, sin = self._turns(torch.arange(n_tokens, device=tokens_NT.device), x.dtype)
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            cache.keys[index][slots_N, :, :n_tokens] = k
            cache.values[index][slots_N, :, :n_tokens] = v
            if index < last:
                x = x + layer.self_attn.attend(q, k, v, None)
                x = x + layer.mlp(layer.post_attention_layernorm(x))

    def decode(
        self, tokens_N: Tensor, cache: KvCache, positions_N: Tensor, *, n_keys: int
    ) -> Tensor:
        """Take one token a slot (slots 0 … N−1) and return fp32 logits [N, V] of the next.

        Parameters
        ----------
        positions_N : where each token stands; its key and value are written there.
        n_keys : 1 + the largest position, known on the host so that nothing waits for the device.
        """
        n = tokens_N.shape[0]
        rows = torch.arange(n, device=tokens_N.device)
        seen = torch.arange(n_keys, device=tokens_N.device) <= positions_N[:, None]
        x = self.model.embed_tokens(tokens_N)[:, None]
        cos, sin = (turn[:, None, None] for turn in self._turns(positions_N, x.dtype))
        for index, layer in enumerate(self.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            keys, values = cache.keys[index], cache.values[index]
            keys[rows, :, positions_N] = k[:, :, 0]
            values[rows, :, positions_N] = v[:, :, 0]
            x = x + layer.self_attn.attend(
                q, keys[:n, :, :n_keys], values[:n, :, :n_keys], seen[:, None, None]
            )
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.logits(self.model.norm(x)[:, 0])


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

"""A decoder-only transformer of Qwen2's and Llama's shape, 0.1 M to 0.5 B parameters.

The same code serves a CPU in fp32 and CUDA in bf16; softmax and log-softmax are fp32 throughout.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpu_runs.layers import KvCache, Layer, ModelConfig, RmsNorm, Turns, turns

MAX_LOGITS = 2**27
"""Most fp32 logits held at once by :meth:`Decoder.logprobs` (0.5 GB)."""


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
        self._turns: Turns | None = None
        self.apply(_initialise)

    @property
    def layers(self) -> list[Layer]:
        """The layers, typed."""
        return cast(list[Layer], list(self.model.layers))

    def _turns_at(self, positions: Tensor, dtype: torch.dtype) -> Turns:
        found = self._turns
        if found is None or found[0].device != positions.device:
            config = self.config
            made = turns(config.max_positions, head_dim=config.head_dim, theta=config.rope_theta)
            found = self._turns = (made[0].to(positions.device), made[1].to(positions.device))
        return found[0][positions].to(dtype), found[1][positions].to(dtype)

    def hidden(self, tokens_BT: Tensor, *, mask_BT: Tensor | None = None) -> Tensor:
        """Return the final normalised states [B, T, d_model]; see :meth:`forward`."""
        n_tokens = tokens_BT.shape[1]
        seen = None
        positions = torch.arange(n_tokens, device=tokens_BT.device)[None]
        if mask_BT is not None:
            positions = (mask_BT.bool().cumsum(1) - 1).clamp(min=0)
            seen = _seen(mask_BT.bool())
        x: Tensor = self.model.embed_tokens(tokens_BT)
        cos, sin = self._turns_at(positions, x.dtype)
        by = (cos[:, None], sin[:, None])
        for layer in self.layers:
            normed = layer.input_layernorm(x)
            keys, values = layer.self_attn.keys_values(normed, by)
            x = layer.feed_forward(x + layer.self_attn.attend(normed, by, keys, values, seen))
        out: Tensor = self.model.norm(x)
        return out

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

        Logits are computed where wanted only, and never more than ``MAX_LOGITS`` at once: where one
        chunk does not do, each is computed again in the backward pass.

        Parameters
        ----------
        tokens_BT : int64, prompt and response, right-padded.
        wanted_BT : bool, the tokens asked for (the response); None asks for all.
        temperature : logits are divided by it.
        mask_BT : as in :meth:`forward`.

        Returns
        -------
        logp_BT, entropy_BT : fp32, nats; 0 where not wanted and at the first token.
        """
        wanted = torch.ones_like(tokens_BT) if wanted_BT is None else wanted_BT
        wanted = wanted[:, 1:].bool()
        before = None if mask_BT is None else mask_BT[:, :-1]
        states = self.hidden(tokens_BT[:, :-1], mask_BT=before)[wanted]
        targets = tokens_BT[:, 1:][wanted]
        size = max(1, MAX_LOGITS // self.config.vocab_size)

        def score(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            logp = torch.log_softmax(self.logits(states) / temperature, dim=-1)
            entropy = -(logp.exp() * logp).sum(-1)
            return logp.gather(-1, targets[:, None])[:, 0], entropy

        again = len(targets) > size and torch.is_grad_enabled()
        parts = [
            checkpoint(score, *chunk, use_reentrant=False) if again else score(*chunk)
            for chunk in zip(torch.split(states, size), torch.split(targets, size), strict=True)
        ]
        logp, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
        return _spread(logp, wanted), _spread(entropy, wanted)

    def prefill(
        self, tokens_RT: Tensor, cache: KvCache, *, slots_N: Tensor, rows_N: Tensor
    ) -> None:
        """Write keys and values of right-padded contexts to the cache; no logits.

        Slot ``slots_N[i]`` gets row ``rows_N[i]``. Padding leaves rubbish behind a context's end,
        which :meth:`decode` overwrites before it looks there.
        """
        n_tokens = tokens_RT.shape[1]
        x: Tensor = self.model.embed_tokens(tokens_RT)
        by = self._turns_at(torch.arange(n_tokens, device=tokens_RT.device), x.dtype)
        for index, layer in enumerate(self.layers):
            normed = layer.input_layernorm(x)
            keys, values = layer.self_attn.keys_values(normed, by)
            cache.keys[index][:, :, :n_tokens].index_copy_(0, slots_N, keys[rows_N])
            cache.values[index][:, :, :n_tokens].index_copy_(0, slots_N, values[rows_N])
            if index + 1 < self.config.n_layers:  # nobody reads what the last layer would add
                x = layer.feed_forward(x + layer.self_attn.attend(normed, by, keys, values, None))

    def decode(
        self, tokens_N: Tensor, cache: KvCache, positions_N: Tensor, *, n_keys: int
    ) -> Tensor:
        """Take one token a slot (slots 0 … N−1) and return fp32 logits [N, V] of the next.

        Parameters
        ----------
        positions_N : where each token stands; its key and value are written there.
        n_keys : 1 + the largest position, known on the host so that nothing waits for the device.
        """
        x: Tensor = self.model.embed_tokens(tokens_N)
        cos, sin = self._turns_at(positions_N[:, None], x.dtype)
        scale = self.config.head_dim**-0.5
        rows = cache.rows(positions_N)
        unseen = torch.arange(n_keys, device=x.device) > positions_N[:, None]
        bias = torch.zeros(unseen.shape, device=x.device, dtype=x.dtype)
        bias = bias.masked_fill_(unseen, float("-inf"))[:, None, None]
        for index, layer in enumerate(self.layers):
            x = x + layer.self_attn.decode(
                layer.input_layernorm(x),
                (cos, sin),
                (cos * scale, sin * scale),
                keys=cache.keys[index],
                values=cache.values[index],
                rows=rows,
                bias_N11K=bias,
            )
            x = layer.feed_forward(x)
        return self.logits(self.model.norm(x))


def _seen(mask_BT: Tensor) -> Tensor:
    """Return [B, 1, T, T], True where a query sees a key; padding sees itself, lest it be NaN."""
    n_tokens = mask_BT.shape[1]
    square = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=mask_BT.device)
    own = torch.eye(n_tokens, dtype=torch.bool, device=mask_BT.device)
    return ((square.tril() & mask_BT[:, None]) | own)[:, None]


def _spread(flat: Tensor, wanted: Tensor) -> Tensor:
    """Put values where they were wanted, zeros elsewhere and at the first token."""
    full = flat.new_zeros(wanted.shape).masked_scatter(wanted, flat)
    return functional.pad(full, (1, 0))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


__all__ = ["MAX_LOGITS", "Decoder", "KvCache", "ModelConfig"]

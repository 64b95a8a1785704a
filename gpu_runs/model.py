"""A decoder-only transformer of Qwen2's and Llama's shape, 0.1 M to 0.5 B parameters.

The same code serves a CPU in fp32 and CUDA in bf16; softmax and log-softmax are fp32 throughout.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpu_runs.layers import (
    Bands,
    Contexts,
    KvCache,
    Layer,
    ModelConfig,
    RmsNorm,
    Turns,
    rotate,
    turns,
)

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
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            q = rotate(attention.heads(attention.q_proj, normed), by)
            k = rotate(attention.heads(attention.k_proj, normed), by)
            v = attention.heads(attention.v_proj, normed)
            x = layer.feed_forward(x + attention.o_proj(attention.attend(q, k, v, seen)))
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

    def prefill(self, contexts: Contexts, cache: KvCache) -> None:
        """Write keys and values of contexts to the cache; no logits."""
        n_tokens = contexts.tokens_RT.shape[1]
        x: Tensor = self.model.embed_tokens(contexts.tokens_RT)
        by = self._turns_at(torch.arange(n_tokens, device=x.device), x.dtype)
        for index, layer in enumerate(self.layers):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            k = rotate(attention.heads(attention.k_proj, normed), by)
            v = attention.heads(attention.v_proj, normed)
            contexts.write(k, cache.keys[index])
            contexts.write(v, cache.values[index])
            if index + 1 < self.config.n_layers:  # nobody reads what the last layer would add
                q = rotate(attention.heads(attention.q_proj, normed), by)
                x = layer.feed_forward(x + attention.o_proj(attention.attend(q, k, v, None)))

    def decode(
        self,
        tokens_N: Tensor,
        cache: KvCache,
        positions_N: Tensor,
        *,
        bands: Bands,
        contexts: Contexts | None = None,
    ) -> Tensor:
        """Take one token a slot (slots 0 … N−1) and return fp32 logits [N, V] of the next.

        Parameters
        ----------
        positions_N : where each token stands; its key and value are written there.
        bands : runs of slots that look equally far, at least 1 + their largest position; known on
            the host, so that nothing waits for the device.
        contexts : to be written to the cache first, in the same pass (what :meth:`prefill` does,
            but their tokens share the decode's matrix products).
        """
        n, device = len(tokens_N), tokens_N.device
        shape = (0, 0) if contexts is None else contexts.tokens_RT.shape
        tokens, positions = tokens_N, positions_N
        if contexts is not None:
            tokens = torch.cat((tokens, contexts.tokens_RT.flatten()))
            positions = torch.cat(
                (positions, torch.arange(shape[1], device=device).repeat(shape[0]))
            )
        x: Tensor = self.model.embed_tokens(tokens)
        by = self._turns_at(positions[:, None], x.dtype)
        rows, scale = cache.rows(positions_N), self.config.head_dim**-0.5
        n_keys = max(n_keys for _, n_keys in bands)
        unseen = torch.arange(n_keys, device=device) > positions_N[:, None]
        bias = torch.zeros(unseen.shape, device=device, dtype=x.dtype)
        bias = bias.masked_fill_(unseen, float("-inf"))[:, None, None]
        for index, layer in enumerate(self.layers):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            keys, values = cache.keys[index], cache.values[index]
            size = (len(x), -1, self.config.head_dim)
            k = rotate(attention.k_proj(normed).view(size), by)
            v = attention.v_proj(normed).view(size)
            if contexts is not None:
                own_k, own_v = (y[n:].view(*shape, *y.shape[1:]).transpose(1, 2) for y in (k, v))
                contexts.write(own_k, keys)  # first: its padding reaches into the new tokens' place
                contexts.write(own_v, values)
                if index + 1 == self.config.n_layers:  # nobody reads more of the contexts
                    x, normed, by, contexts = x[:n], normed[:n], (by[0][:n], by[1][:n]), None
            keys.view(-1, size[2]).index_copy_(0, rows, k[:n].reshape(-1, size[2]))
            values.view(-1, size[2]).index_copy_(0, rows, v[:n].reshape(-1, size[2]))
            q = rotate(attention.q_proj(normed).view(len(x), -1, size[2]), by)
            mixed = attention.look_up(q[:n] * scale, keys, values, bias, bands)
            if contexts is not None:
                own_q = q[n:].view(*shape, *q.shape[1:]).transpose(1, 2)
                own = attention.attend(own_q, own_k, own_v, None)
                mixed = torch.cat((mixed, own.flatten(0, 1)))
            x = layer.feed_forward(x + attention.o_proj(mixed))
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


__all__ = ["MAX_LOGITS", "Contexts", "Decoder", "KvCache", "ModelConfig"]

"""Log-probs of laid-out responses under a policy, computed in pieces of similar length."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_runs.batch import TrainBatch, chunks
from gpu_runs.model import Decoder


@dataclass(frozen=True)
class Policy:
    """A model with the temperature and the arithmetic that its log-probs are taken at.

    Attributes
    ----------
    autocast : dtype of the matrix products; None: that of the weights.
    """

    model: Decoder
    temperature: float = 1.0
    autocast: torch.dtype | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.model.embed_tokens.weight.device

    def __call__(self, batch: TrainBatch, rows: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (rows, width), nats; 0 outside the responses."""
        rows = rows.to(self.device)
        dtype = self.autocast
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            return self.model.logprobs(
                batch.tokens_NT[rows, :width],
                wanted_BT=batch.mask_NT[rows, :width] > 0,
                temperature=self.temperature,
            )

    @torch.no_grad()
    def of_rows(self, batch: TrainBatch, rows: Tensor, *, most_tokens: int) -> Tensor:
        """Return log-probs of rows in their order, (rows, T), without gradient."""
        out = batch.mask_NT.new_zeros((len(rows), batch.mask_NT.shape[1]))
        for at in chunks(batch.length_N[rows], most_tokens=most_tokens):
            width = int(batch.length_N[rows[at]].max())
            out[at.to(out.device), :width] = self(batch, rows[at], width=width)[0]
        return out

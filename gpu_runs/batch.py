"""From the groups that a step kept to the tensors that its updates read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.objective import Status
from gpu_runs.rollout import Candidate
from gpu_runs.slots import Completion


@dataclass(frozen=True)
class TrainBatch:
    """Responses in the order of their groups; prompt and response in one right-padded row.

    Axes: N responses, T tokens of the longest row.
    """

    tokens_NT: Tensor
    mask_NT: Tensor
    """fp32, 1 at response tokens."""
    sampler_logp_NT: Tensor
    """As the engine reported them; 0 elsewhere."""
    reward_N: Tensor
    """Raw: what the verifier says; the objective shapes it."""
    group_N: Tensor
    status_N: Tensor
    length_N: Tensor
    """Tokens of prompt and response, on the host."""

    @property
    def n_rows(self) -> int:
        """N."""
        return self.tokens_NT.shape[0]

    @classmethod
    def of(
        cls, groups: Sequence[Candidate], *, pad_token: int, device: torch.device | str = "cpu"
    ) -> "TrainBatch":
        """Lay out complete groups."""
        rows = [
            (group, completion, score)
            for group in groups
            for completion, score in zip(group.completions, group.scores, strict=True)
            if completion is not None and score is not None
        ]
        prompts = [len(completion.request.prompt) for _, completion, _ in rows]
        totals = [p + len(c.tokens) for p, (_, c, _) in zip(prompts, rows, strict=True)]
        shape = (len(rows), max(totals))
        tokens = torch.full(shape, pad_token, dtype=torch.int64)
        mask = torch.zeros(shape)
        logp = torch.zeros(shape)
        for row, ((_, completion, _), start, total) in enumerate(
            zip(rows, prompts, totals, strict=True)
        ):
            tokens[row, :total] = torch.tensor(completion.request.prompt + completion.tokens)
            mask[row, start:total] = 1.0
            logp[row, start:total] = torch.tensor(completion.logprobs)
        return cls(
            tokens_NT=tokens.to(device),
            mask_NT=mask.to(device),
            sampler_logp_NT=logp.to(device),
            reward_N=torch.tensor([score.raw for _, _, score in rows], device=device),
            group_N=torch.tensor([group.index for group, _, _ in rows], device=device),
            status_N=torch.tensor([_status(c) for _, c, _ in rows], device=device),
            length_N=torch.tensor(totals),
        )


def _status(completion: Completion) -> int:
    return int(Status.TRUNCATED if completion.finish == "length" else Status.COMPLETED)


def chunks(lengths: Tensor, *, most_tokens: int) -> list[Tensor]:
    """Cut rows of these lengths into pieces of at most so many tokens with padding; their places.

    Sorted by length, so that a short response is not computed as wide as the longest; a single row
    above the limit is a piece of its own. Within a piece rows keep their order.
    """
    order = lengths.argsort(stable=True)
    pieces: list[list[int]] = []
    for place, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if pieces and (len(pieces[-1]) + 1) * length <= most_tokens:
            pieces[-1].append(place)
        else:
            pieces.append([place])
    return [torch.tensor(sorted(piece)) for piece in pieces]

"""A step's dumped answers put through the objective again: who was trained with which advantage."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dapolab.objective import Signal, Status, learning_signal
from gpu_runs.preset import Preset
from gpu_runs.score import RIGHT, WRONG

COLUMNS = ("step", "group_id", "n_tokens", "correct", "truncated", "kept", "reward")
"""Of the dump that ``signal_of`` and its callers read."""


@dataclass(frozen=True)
class Dumped:
    """The learning signal of some answers, in their order."""

    signal: Signal
    group_N: Tensor

    @property
    def trained(self) -> Tensor:
        """(N,) whether an answer has a token in the loss."""
        return self.signal.mask.sum(dim=-1) > 0


def signal_of(preset: Preset, rows: pd.DataFrame) -> Dumped:
    """Return what the objective makes of one step's trained groups, in double precision."""
    lengths = torch.tensor(rows["n_tokens"].to_numpy(np.int64))
    mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)).to(torch.float64)
    right = rows["correct"].to_numpy(bool)
    status = np.where(rows["truncated"].to_numpy(bool), Status.TRUNCATED, Status.COMPLETED)
    group = torch.from_numpy(pd.factorize(rows["group_id"])[0].astype(np.int64))
    signal = learning_signal(
        torch.from_numpy(np.where(right, RIGHT, WRONG)),
        preset.objective,
        group=group,
        mask=mask,
        status=torch.from_numpy(status.astype(np.int64)),
    )
    return Dumped(signal, group)

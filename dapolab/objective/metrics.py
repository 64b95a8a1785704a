"""What an update tells about itself; every metric is a tensor over the replica axes."""

from torch import Tensor

from dapolab.objective.batch import Batch
from dapolab.objective.clipping import Tokens
from dapolab.objective.sampler import Correction
from dapolab.scenario import Objective


def update_metrics(
    batch: Batch, tokens: Tokens, correction: Correction | None, config: Objective
) -> dict[str, Tensor]:
    return {"update/tokens": tokens.mask.sum(dim=(-2, -1))}

"""The objective in torch: advantages, surrogates, aggregation, and the loss they make.

Every function takes leading replica dimensions and a mask of token multiplicities, and reads
nothing outside the mask. The settings are the frozen models of ``dapolab.scenario``.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError(
        "dapolab.objective needs torch; install the extra: pip install 'dapolab[train]'",
        name="torch",
    ) from missing

from dapolab.objective.advantages import Advantages, Status, advantages
from dapolab.objective.aggregation import aggregate, row_scales
from dapolab.objective.batch import Batch, Loss, Structure
from dapolab.objective.entropy_control import EntropyControl
from dapolab.objective.gradient import gradient_weights
from dapolab.objective.groups import Groups
from dapolab.objective.kl import kl_estimate
from dapolab.objective.length import (
    filter_truncated,
    lengths_of,
    overlong_penalty,
    shape_rewards,
)
from dapolab.objective.loss import policy_loss, select_tokens
from dapolab.objective.metrics import present_mean
from dapolab.objective.quantiles import sampled_quantiles
from dapolab.objective.sampler import Correction, correct
from dapolab.objective.signal import Signal, learning_signal
from dapolab.objective.token_baseline import TokenEnergy

__all__ = [
    "Advantages",
    "Batch",
    "Correction",
    "EntropyControl",
    "Groups",
    "Loss",
    "Signal",
    "Status",
    "Structure",
    "TokenEnergy",
    "advantages",
    "aggregate",
    "correct",
    "filter_truncated",
    "gradient_weights",
    "kl_estimate",
    "learning_signal",
    "lengths_of",
    "overlong_penalty",
    "policy_loss",
    "present_mean",
    "row_scales",
    "sampled_quantiles",
    "select_tokens",
    "shape_rewards",
]

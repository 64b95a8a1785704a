"""The exact expected gradient of the end-of-sequence bandit, whose lengths are not enumerable.

An answer's token weight depends on its own length alone (sequence means and sums) or on the tokens
of its whole group (token means). Given how many of a group are right, the first needs one
length law, the second a convolution of them; advantages and weights come from the objective's code.
"""

import math

import numpy as np
import torch
from torch import Tensor

from dapolab.bandit.hazard import HazardBandit
from dapolab.bandit.settings import Mode
from dapolab.errors import ConfigError
from dapolab.objective import advantages, row_scales

_OWN_LENGTH = (
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "token-sum",
)
_GROUP_TOKENS = ("token-mean", "prompt-mean")
_SURROGATES_AT_ONE = ("none", "ppo", "gpg", "cispo", "sapo", "gspo", "dppo_tv", "dppo_kl")


@torch.no_grad()
def expected_hazard_gradient(bandit: HazardBandit, mode: Mode) -> Tensor:
    """Return E[−∂loss/∂θ] of the first update of one group, (3,), exact to rounding.

    Raises
    ------
    ConfigError
        For an aggregation that splits the update, a surrogate whose slope at ratio 1 is not −A, an
        advantage that reads lengths, a filter, a KL, a length rule or a sampler correction.
    """
    _check(mode)
    group_size = mode.training.group_size
    p, h_right, h_wrong = bandit.start.sigmoid().tolist()
    advantage_KG = _advantages(bandit, mode, group_size)
    binomial = [
        math.comb(group_size, k) * p**k * (1.0 - p) ** (group_size - k)
        for k in range(group_size + 1)
    ]
    laws = {True: _length_law(h_right), False: _length_law(h_wrong)}
    total = torch.zeros(3, dtype=torch.float64)
    for n_right, chance in enumerate(binomial):
        for right, h in ((True, h_right), (False, h_wrong)):
            n = n_right if right else group_size - n_right
            if n == 0:
                continue
            A = float(advantage_KG[n_right, 0 if right else -1])
            others = (n_right - right, group_size - n_right - (not right))
            scale_L = _scales(mode, laws, others, len(laws[right]), group_size)
            length_L = np.arange(1, len(laws[right]) + 1)
            weighted = laws[right] * scale_L
            slope_v = (1.0 - p) if right else -p
            total[0] += chance * n * A * slope_v * float(weighted.sum())
            total[1 if right else 2] += (
                chance * n * A * float((weighted * (1 - h * length_L)).sum())
            )
    return total


def _check(mode: Mode) -> None:
    o, t = mode.objective, mode.training
    fits = (
        o.aggregation.kind in _OWN_LENGTH + _GROUP_TOKENS
        and getattr(o.aggregation, "micro", "global") == "global"
        and o.clip.kind in _SURROGATES_AT_ONE
        and o.advantage.kind in ("grpo", "mean_only", "rloo", "leave_one_out", "max_rl")
        and (t.filter, t.micro_rows, t.n_groups) == ("none", None, 1)
        and (o.kl, o.entropy_coef, o.sampler.level) == (None, 0.0, "none")
        and o.length == type(o.length)()
        and o.degenerate_groups == "in"
    )
    if not fits:
        raise ConfigError(
            f"mode {mode.name!r} has no exact expectation on the hazard bandit; sample the gradient"
        )


def _advantages(bandit: HazardBandit, mode: Mode, group_size: int) -> Tensor:
    """Return (G + 1, G): of groups with 0 to G right answers, the right ones first."""
    right = torch.arange(group_size) < torch.arange(group_size + 1).unsqueeze(-1)
    gap = bandit.reward_right - bandit.reward_wrong
    rewards = bandit.reward_wrong + gap * right.to(torch.float64)
    found = advantages(
        rewards,
        mode.objective.advantage,
        group=torch.zeros(group_size, dtype=torch.int64),
        mask=torch.ones((*rewards.shape, 1), dtype=torch.float64),
    )
    return found.value.squeeze(-1)


def _length_law(h: float) -> np.ndarray:
    """Return P(L = 1, 2, …) until the tail is below 1e-16."""
    longest = max(1, math.ceil(math.log(1e-16) / math.log1p(-h)))
    law: np.ndarray = h * (1.0 - h) ** np.arange(longest)
    return law


def _scales(
    mode: Mode,
    laws: dict[bool, np.ndarray],
    others: tuple[int, int],
    longest: int,
    group_size: int,
) -> np.ndarray:
    """Return the expected token weight of an answer of 1 … ``longest`` tokens."""
    aggregation = mode.objective.aggregation
    if aggregation.kind in _OWN_LENGTH:
        mask = torch.ones((longest, group_size, 1), dtype=torch.float64)
        mask[:, 0, 0] = torch.arange(1, longest + 1)
        return row_scales(mask, aggregation)[:, 0].numpy()
    rest = np.ones(1)
    for right, n in zip((True, False), others, strict=True):
        for _ in range(n):
            rest = np.convolve(rest, laws[right])
    shortest = sum(others)
    n_totals = longest + shortest + len(rest)
    mask = torch.zeros((n_totals, 1, 1), dtype=torch.float64)
    mask[:, 0, 0] = torch.arange(n_totals)
    group = torch.zeros(1, dtype=torch.int64)
    per_total = row_scales(mask, aggregation, group=group)[:, 0].numpy()
    # An answer of L tokens beside others of s + j tokens: Σ_j rest_j · scale(L + s + j).
    windows = np.lib.stride_tricks.sliding_window_view(per_total[1 + shortest :], len(rest))
    expected: np.ndarray = windows[:longest] @ rest
    return expected

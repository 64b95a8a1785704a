"""From logits and a uniform to a token."""

import torch
from torch import Tensor


def draw(logits_NV: Tensor, noise_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the token at each uniform by inverse CDF, and its log-probability.

    The softmax is fp32, its running sum fp64: token v is drawn where
    cdf(v − 1) ≤ u·cdf(V − 1) < cdf(v), so one of probability 0 never is.

    Parameters
    ----------
    logits_NV : fp32. noise_N : fp64, in (0, 1).
    """
    p_NV = torch.softmax(logits_NV / temperature, dim=-1)
    cdf_NV = p_NV.cumsum(-1, dtype=torch.float64)
    total_N1 = cdf_NV[:, -1:]
    below_N1 = torch.minimum(noise_N[:, None] * total_N1, total_N1.nextafter(-total_N1))
    tokens_N1 = torch.searchsorted(cdf_NV, below_N1, right=True)
    tokens_N1 = tokens_N1.clamp(max=logits_NV.shape[-1] - 1)  # NaN logits stay inside, too
    return tokens_N1[:, 0], p_NV.gather(-1, tokens_N1)[:, 0].log()

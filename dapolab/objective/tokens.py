"""Inputs of a surrogate, clean, and the ratio that it looks at."""

from dataclasses import dataclass

from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.masking import keep_valid, row_mean
from dapolab.scenario import CispoClip, Clip, GspoClip, LuspoClip, SapoClip

SequenceClip = GspoClip | LuspoClip | CispoClip | SapoClip
"""Surrogates that look at the ratio of a token or of its whole response."""


@dataclass(frozen=True)
class Tokens:
    """Inputs of a surrogate, 0 outside the mask; shapes (..., N, T) or (..., N, 1)."""

    raw_logp: Tensor
    """Not clean yet: most surrogates only read the ratio."""
    log_ratio: Tensor | None
    """Current less old; None where the surrogate reads no old policy."""
    advantages: Tensor
    mask: Tensor
    sampler_log_weight: Tensor | None = None
    """(..., N, 1): logarithm of what the sampler's correction adds to VESPO's sequence weight."""

    @property
    def logp(self) -> Tensor:
        """Clean log π of the current policy."""
        return keep_valid(self.raw_logp, mask=self.mask)

    def ratio_of(self, clip: Clip) -> Tensor:
        """Return log r, clamped where the clip asks for it."""
        if self.log_ratio is None:
            raise ConfigError(f'clip "{clip.kind}" needs old_logp')
        bound = getattr(clip, "log_ratio_clamp", None)
        return self.log_ratio if bound is None else self.log_ratio.clamp(-bound, bound)


def clean_tokens(logp: Tensor, *, old: Tensor | None, advantages: Tensor, mask: Tensor) -> Tokens:
    """Build the inputs of a surrogate with everything outside the mask replaced by 0.

    Advantages that are one a response are cleaned by response: an empty one may hold NaN.
    """
    per_row = advantages.shape[-1] == 1 and mask.shape[-1] != 1
    advantage_mask = mask.sum(dim=-1, keepdim=True) if per_row else mask
    return Tokens(
        raw_logp=logp,
        log_ratio=None if old is None else keep_valid(logp - old.detach(), mask=mask),
        advantages=keep_valid(advantages, mask=advantage_mask).detach(),
        mask=mask,
    )


def is_shared(clip: Clip) -> bool:
    """Say whether the tokens of a response share one ratio and its gradient."""
    return isinstance(clip, GspoClip | LuspoClip | SapoClip) and clip.level == "sequence"


def sequence_log_ratio(tokens: Tokens, clip: SequenceClip) -> Tensor:
    """Return log s: the mean log ratio of the response, (..., N, 1), or (..., N, T) per token.

    Per token (GSPO-token, Eq. 14) the value is that of the response without gradient, the gradient
    the token's own.
    """
    log_ratio = tokens.ratio_of(clip)
    if clip.level == "token":
        return log_ratio
    s = row_mean(log_ratio, mask=tokens.mask)
    if clip.level == "sequence_token":
        s = s.detach() + (log_ratio - log_ratio.detach())
    cap = getattr(clip, "log_ratio_cap", None)
    return s if cap is None else s.clamp(max=cap)

"""The toy policies: what each can do, and what it cannot."""

import torch
from torch import Tensor

from dapolab.bandit.arms import ArmBandit
from dapolab.bandit.hazard import HazardBandit
from dapolab.errors import ConfigError
from dapolab.rng import stream


def length_classes(
    *,
    short_tokens: float = 10.0,
    long_tokens: float = 100.0,
    p_right: float = 0.3,
    p_long: float = 0.5,
) -> ArmBandit:
    """Return {right, wrong} × {short, long}, one free logit each (theory.md C4).

    Arms in order: right short, right long, wrong short, wrong long.
    """
    _check_shares(p_right=p_right, p_long=p_long)
    pi = [p * q for p in (p_right, 1.0 - p_right) for q in (1.0 - p_long, p_long)]
    return ArmBandit(
        length_PA=_row(short_tokens, long_tokens, short_tokens, long_tokens),
        success_PA=_row(1.0, 1.0, 0.0, 0.0),
        start=_row(*pi)[0].log(),
    )


def shared_length(
    *,
    short_tokens: float = 10.0,
    long_tokens: float = 100.0,
    p_right: float = 0.3,
    p_long: float = 0.3,
) -> ArmBandit:
    """Return the same four arms with two parameters: right or not, long or not (theory.md C3).

    Length cannot depend on correctness: both answers share the length parameter.
    """
    _check_shares(p_right=p_right, p_long=p_long)
    feature = torch.tensor([[1.0, 0], [1, 1], [0, 0], [0, 1]], dtype=torch.float64)
    return ArmBandit(
        length_PA=_row(short_tokens, long_tokens, short_tokens, long_tokens),
        success_PA=_row(1.0, 1.0, 0.0, 0.0),
        start=_row(p_right, p_long)[0].logit(),
        feature_PAD=feature.unsqueeze(0),
    )


def two_lengths(
    *,
    short_tokens: float = 10.0,
    long_tokens: float = 100.0,
    accuracy_short: float = 0.4,
    accuracy_long: float = 0.6,
    p_long: float = 0.1,
) -> ArmBandit:
    """Return two lengths of different accuracy and one parameter (theory.md C3, second row)."""
    _check_shares(p_long=p_long)
    return ArmBandit(
        length_PA=_row(short_tokens, long_tokens),
        success_PA=_row(accuracy_short, accuracy_long),
        start=_row(p_long)[0].logit(),
        feature_PAD=torch.tensor([[[0.0], [1.0]]], dtype=torch.float64),
    )


def eos_hazard(
    *, p_right: float = 0.3, hazard_right: float = 0.02, hazard_wrong: float = 0.02
) -> HazardBandit:
    """Return geometric lengths, their rate learned apart for right and wrong (theory.md C5)."""
    return HazardBandit(p_right=p_right, hazard_right=hazard_right, hazard_wrong=hazard_wrong)


def rare_token(*, p_rare: float = 0.01, n_arms: int = 2) -> ArmBandit:
    """Return one rare right arm beside ``n_arms − 1`` equal wrong ones (theory.md D2, D3)."""
    _check_shares(p_rare=p_rare)
    _check_arms(n_arms)
    pi = [p_rare, *[(1.0 - p_rare) / (n_arms - 1)] * (n_arms - 1)]
    return ArmBandit(
        length_PA=_row(*[1.0] * n_arms),
        success_PA=_row(1.0, *[0.0] * (n_arms - 1)),
        start=_row(*pi)[0].log(),
    )


def many_arms(*, case: str = "likely_right", p_likely: float = 0.5, n_arms: int = 30) -> ArmBandit:
    """Return one likely arm beside many rare ones (theory.md D4, D5, D7).

    ``case``: ``likely_right``: the likely arm alone is right; ``likely_wrong``: it is wrong and one
    rare arm is right; ``random``: every arm is right half the time.

    Raises
    ------
    ConfigError
        For another case.
    """
    _check_shares(p_likely=p_likely)
    _check_arms(n_arms)
    success = {
        "likely_right": [1.0] + [0.0] * (n_arms - 1),
        "likely_wrong": [0.0, 1.0] + [0.0] * (n_arms - 2),
        "random": [0.5] * n_arms,
    }
    if case not in success:
        raise ConfigError(f"case {case!r} is unknown; choose from {', '.join(success)}")
    pi = [p_likely, *[(1.0 - p_likely) / (n_arms - 1)] * (n_arms - 1)]
    return ArmBandit(
        length_PA=_row(*[1.0] * n_arms), success_PA=_row(*success[case]), start=_row(*pi)[0].log()
    )


def difficulty_ladder(
    *, pass_rates: tuple[float, ...] = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
) -> ArmBandit:
    """Return one prompt a pass rate, each with its own logit of being right (theory.md C6, C7)."""
    _check_shares(**{f"pass rate {k + 1}": p for k, p in enumerate(pass_rates)})
    n = len(pass_rates)
    feature = torch.zeros((n, 2, n), dtype=torch.float64)
    feature[range(n), 0, range(n)] = 1.0
    return ArmBandit(
        length_PA=torch.ones((n, 2), dtype=torch.float64),
        success_PA=torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(n, 1),
        start=torch.tensor(pass_rates, dtype=torch.float64).logit(),
        feature_PAD=feature,
    )


def mismatch(
    *,
    n_arms: int = 6,
    temperature: float = 1.0,
    noise: float = 0.8,
    noise_seed: int = 0,
    spread: float = 1.0,
) -> ArmBandit:
    """Return arms whose sampler has other logits: over a temperature, plus fixed Gaussian noise.

    ``spread`` is the standard deviation of the policy's own logits; the first half of the arms, in
    random order of likelihood, is right.

    Raises
    ------
    ConfigError
        For a temperature that is not positive or a negative noise.
    """
    _check_arms(n_arms)
    if temperature <= 0 or noise < 0:
        raise ConfigError("temperature must be positive and noise at least 0")
    rng = stream(noise_seed, "bandit", "mismatch")
    start = torch.from_numpy(spread * rng.standard_normal(n_arms))
    shift = torch.from_numpy(noise * rng.standard_normal(n_arms))
    right = [1.0] * (n_arms // 2) + [0.0] * (n_arms - n_arms // 2)
    return ArmBandit(
        length_PA=_row(*[1.0] * n_arms),
        success_PA=_row(*right),
        start=start,
        sampler_temperature=temperature,
        sampler_shift_PA=shift.unsqueeze(0),
    )


OVERLONG_CAP, OVERLONG_BUFFER = 100, 40


def overlong(
    *,
    right: tuple[float, ...] = (0.40, 0.15),
    wrong: tuple[float, ...] = (0.15, 0.10, 0.20),
    short_tokens: float = 40.0,
    buffer_tokens: float = 85.0,
) -> ArmBandit:
    """Return lengths against a cap of 100 tokens (theory.md E).

    Arms in order: right short, right in the buffer; wrong short, wrong in the buffer, truncated at
    the cap (and therefore wrong).
    """
    pi = _row(*right, *wrong)
    if pi.shape[-1] != 5 or abs(float(pi.sum()) - 1.0) > 1e-9 or bool((pi <= 0).any()):
        raise ConfigError("overlong needs 2 shares of right and 3 of wrong answers that add to 1")
    lengths = (short_tokens, buffer_tokens, short_tokens, buffer_tokens, float(OVERLONG_CAP))
    return ArmBandit(
        length_PA=_row(*lengths),
        success_PA=_row(1.0, 1.0, 0.0, 0.0, 0.0),
        truncated_PA=torch.tensor([[False] * 4 + [True]]),
        start=pi[0].log(),
        reward_right=1.0,
        reward_wrong=-1.0,
    )


def _row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0.0 < share < 1.0:
            raise ConfigError(f"{name} must lie between 0 and 1, not {share}")


def _check_arms(n_arms: int) -> None:
    if n_arms < 2:
        raise ConfigError(f"n_arms must be at least 2, not {n_arms}")

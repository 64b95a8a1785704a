"""Soft overlong punishment: verl's two DAPO reward managers and TRL's reward function."""

from collections.abc import Callable

import judges_trl as trl
import judges_verl as verl
import pytest
import torch

from dapolab.objective import shape_rewards
from dapolab.rules import overlong_penalty
from dapolab.scenario import Length, OverlongPenalty

Note = Callable[..., None]
CASES = [(8, 3, 1.0), (8, 8, 1.0), (8, 1, 1.0), (20, 5, 0.5), (20, 7, 2.0)]
MANAGERS = {"legacy": verl.dapo_reward_legacy, "reward loop": verl.dapo_reward_loop}
FLOAT32 = 3e-7
"""verl's managers divide in float32."""


def ours(lengths: list[int], score: float, config: OverlongPenalty) -> list[float]:
    shaped = shape_rewards(
        torch.full((len(lengths),), score, dtype=torch.float64),
        lengths=torch.tensor(lengths, dtype=torch.float64),
        truncated=None,
        config=Length(penalty=config),
    )
    return shaped.tolist()


@pytest.mark.parametrize(("cap", "buffer", "factor"), CASES)
@pytest.mark.parametrize("manager", MANAGERS)
def test_dapo_reward_managers(
    manager: str, cap: int, buffer: int, factor: float, setting: Note
) -> None:
    lengths = list(range(1, cap + 4))  # beyond the cap too: verl goes on falling
    config = OverlongPenalty(
        cap_tokens=cap, buffer_tokens=buffer, factor=factor, beyond="unclamped"
    )
    for score in (1.0, -1.0, 0.0):
        shaped = ours(lengths, score, config)
        for length, reward in zip(lengths, shaped, strict=True):
            judge = MANAGERS[manager](length, cap=cap, buffer=buffer, factor=factor, score=score)
            assert reward == pytest.approx(judge, rel=FLOAT32, abs=FLOAT32)
            plain = score + overlong_penalty(
                length, cap_tokens=cap, buffer_tokens=buffer, factor=factor, clamp=False
            )
            assert plain == pytest.approx(judge, rel=FLOAT32, abs=FLOAT32)
    setting(f"verl:DAPO reward, {manager}", f"cap {cap}, buffer {buffer}", f"factor {factor}")


@pytest.mark.parametrize("manager", MANAGERS)
def test_disabled_or_impossible_settings(manager: str) -> None:
    free = MANAGERS[manager](9, cap=8, buffer=3, factor=1.0, score=0.5, enable=False)
    assert free == 0.5
    with pytest.raises(AssertionError):
        MANAGERS[manager](5, cap=3, buffer=4, factor=1.0, score=0.0)
    with pytest.raises(ValueError, match="buffer"):
        OverlongPenalty(cap_tokens=3, buffer_tokens=4)
    with pytest.raises(AssertionError):
        MANAGERS[manager](5, cap=3, buffer=0, factor=1.0, score=0.0)


def test_a_factor_that_is_set_wrong_is_rejected() -> None:
    config = OverlongPenalty(cap_tokens=8, buffer_tokens=3, factor=1.05, beyond="unclamped")
    judge = verl.dapo_reward_legacy(7, cap=8, buffer=3, factor=1.0, score=0.0)
    assert abs(ours([7], 0.0, config)[0] - judge) > 1e-3


@pytest.mark.parametrize(("cap", "buffer"), [(8, 3), (8, 8), (8, 1), (8, 0), (16384, 4096)])
def test_trl_punishment(cap: int, buffer: int, setting: Note) -> None:
    step = max(1, cap // 50)
    lengths = [*range(0, cap + 4, step), cap - buffer, cap - buffer + 1, cap, cap + 1]
    config = OverlongPenalty(cap_tokens=cap, buffer_tokens=buffer, beyond="clamped")
    judge = trl.overlong(lengths, cap=cap, buffer=buffer)
    assert ours(lengths, 0.0, config) == pytest.approx(judge, rel=1e-14, abs=1e-14)
    plain = [
        overlong_penalty(n, cap_tokens=cap, buffer_tokens=buffer, factor=1.0, clamp=True)
        for n in lengths
    ]
    assert plain == pytest.approx(judge, rel=1e-14, abs=1e-14)
    setting("trl:overlong", f"cap {cap}, buffer {buffer}")

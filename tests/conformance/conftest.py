"""One thread, silent judges, and the count of distinct cells at the end of the session."""

import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable

import pytest

# Set before the judges import ray, transformers and verl.
os.environ.update(
    VERL_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)

with warnings.catch_warnings():
    # Imported here once: what they warn of on import (absent engines) is not ours to judge.
    warnings.simplefilter("ignore")
    import judges_openrlhf  # noqa: F401
    import judges_trl  # noqa: F401
    import judges_verl  # noqa: F401
    import torch

logging.disable(logging.WARNING)
torch.set_num_threads(1)


@pytest.fixture
def cell(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Note a cell (loss, aggregation, advantage, structure) as judged."""

    def note(*, loss: str, aggregation: str, advantage: str, structure: str) -> None:
        record_property("cell", (loss, aggregation, advantage, structure))

    return note


@pytest.fixture
def setting(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Note one setting of a judge that is no loss: advantages, weights, rewards, sampling."""

    def note(*names: str) -> None:
        record_property("setting", names)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many distinct cells agree: cells, not draws, and only of tests that passed."""
    cells = _noted(terminalreporter, "cell")
    others = _noted(terminalreporter, "setting")
    by_judge = Counter(loss.split(":")[0] for loss, *_ in cells)
    shares = ", ".join(f"{judge} {n}" for judge, n in sorted(by_judge.items()))
    terminalreporter.write_line(
        f"conformance: {len(cells)} distinct cells (loss × aggregation × advantage × structure) "
        f"agree with the real packages ({shares or 'none'}); so do {len(others)} settings of "
        "advantages, sampler weights, rewards and sampling"
    )


def _noted(terminalreporter: pytest.TerminalReporter, kind: str) -> set[tuple[str, ...]]:
    reports = terminalreporter.stats.get("passed", ())
    return {tuple(value) for r in reports for name, value in r.user_properties if name == kind}

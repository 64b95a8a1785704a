"""Fixtures shared by all tests: hypothesis profiles and the folder of real data."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("dev", max_examples=200, deadline=None)
settings.register_profile("nightly", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("DAPOLAB_HYPOTHESIS", "ci"))

# A background job of a shell ignores ctrl-C, and so would what a test begins there and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def shared_folder() -> Path:
    """Return the folder of shared data, beside the checkout unless told otherwise."""
    beside = Path(__file__).resolve().parents[1].parent / "shared"
    return Path(os.environ.get("DAPOLAB_SHARED", beside))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data, or skip with a reason where it is absent."""
    folder = shared_folder() / "data"
    if not folder.is_dir():
        pytest.skip("real data are not beside this checkout (set DAPOLAB_SHARED)")
    return folder

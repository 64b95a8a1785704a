"""Fully asynchronous."""

from dapolab.errors import ConfigError
from dapolab.scenario import Scenario
from dapolab.sim.outset import SimRun


def run_pipeline(
    scenario: Scenario, *, seed: int, replication: int, record_steps: int, keep_groups: bool
) -> SimRun:
    """Run."""
    raise ConfigError("fully async is not there yet")

"""The whole experiment: one Scenario of the tables beside this file."""

import hashlib
import json
from typing import Self

from pydantic import Field, model_validator

from dapolab.scenario.collector import Collector, ExactRefill, Rollout
from dapolab.scenario.config import Config, Count, NonNegative
from dapolab.scenario.hardware import Hardware
from dapolab.scenario.learner import Learner
from dapolab.scenario.workload import JointWorkload, Workload


class Run(Config):
    """How much of it to run."""

    steps: Count = Field(20, description="training steps of one replication")
    replications: int = Field(20, ge=2, description="independent repetitions behind an interval")
    usd_per_gpu_hour: NonNegative | None = None


class Scenario(Config):
    """One experiment: what is sampled, by which policy, on which hardware, for how long."""

    name: str = Field("scenario", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = Field("", description="where its numbers come from")
    assumptions: tuple[str, ...] = Field((), description="what was assumed, printed with results")
    workload: Workload = JointWorkload()
    rollout: Rollout = Rollout()
    collector: Collector = ExactRefill()
    alternatives: dict[str, Collector] = Field(
        {}, description="further policies for compare, by name"
    )
    hardware: Hardware = Hardware()
    learner: Learner = Learner()
    run: Run = Run()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        capacity = self.hardware.kv_capacity_tokens
        prompt = int(self.workload.prompts.tokens_median)
        if capacity is not None and prompt + self.rollout.cap_tokens > capacity:
            raise ValueError(
                f"hardware.kv_capacity_tokens {capacity} cannot hold one response of "
                f"prompt {prompt} + cap {self.rollout.cap_tokens} tokens; raise the capacity or "
                "lower rollout.cap_tokens"
            )
        filters = self.collector.kind != "none"
        # kept groups of one are what verl does; nobody should get them without having said so
        said = "singletons" in self.rollout.model_fields_set and self.rollout.singletons == "keep"
        if filters and self.rollout.group_size == 1 and not said:
            raise ValueError(
                "rollout.group_size 1 with a filter: a group of one never has spread; use "
                'collector.kind = "none", a larger group_size, or say rollout.singletons = "keep"'
            )
        self._check_selection()
        return self

    def _check_selection(self) -> None:
        selects = self.rollout.selection.kind != "uniform"
        if self.learner.schedule.kind == "fully_async":
            if selects or self.rollout.order != "submission":
                raise ValueError(
                    "rollout.selection and rollout.order act on the submissions of a step; a "
                    "fully_async learner has none: leave them out"
                )
        elif selects and self.workload.prompts.drop_last:
            raise ValueError(
                f"rollout.selection {self.rollout.selection.kind} skips prompts one by one, so an "
                "epoch has no last batch: use workload.prompts.drop_last = false"
            )

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when any setting changes."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

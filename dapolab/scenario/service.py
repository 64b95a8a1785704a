"""What a response needs besides its tokens: a score, calls of tools, and luck. All are optional.

Three ends stay apart: *finished* by the task, *truncated* by the cap or by the time limit of a
tool, *failed* by the system.
"""

from typing import Literal

from pydantic import Field

from dapolab.scenario.config import Config, Count, NonNegative, Positive, Share


class Seconds(Config):
    """Lognormal seconds, named by (seed, prompt, response); constant where ``sigma`` is 0."""

    median_s: NonNegative = 0.0
    sigma: NonNegative = Field(0.0, description="of log seconds; 0: always the median")
    timeout_s: Positive | None = Field(None, description="cut off after so long")


class RewardService(Seconds):
    """Scores that take time: a policy hears of a group when its last response is scored.

    Scoring begins at a response's last token, beside what still decodes.
    """

    workers: Count | None = Field(None, description="scored at once, first come; absent: no limit")
    on_timeout: Literal["wrong", "fail"] = Field(
        "wrong", description="counted as a wrong answer, or a failure of the system"
    )


class Failures(Config):
    """Failures of the system: a response breaks off, at a token drawn uniformly from its length."""

    probability: Share = Field(0.0, description="of each sampling of a response")
    on_failure: Literal["fail_run", "drop_group", "retry"] = Field(
        "drop_group",
        description="the run dies (06-dapo); the group is thrown away and its other responses "
        "aborted; or the response is sampled again and its tokens are lost",
    )
    max_retries: int = Field(3, ge=0, description="of a response; after that its group is dropped")


class ToolCalls(Seconds):
    """Turns with a call of a tool or an environment in between.

    A response of L tokens has equal turns. While a tool runs, it has no slot; then it queues again,
    last. Kept KV stays on its replica and in its capacity, as in the prefix caches of vLLM and
    SGLang. It yields, the one that called first before the others, to what decodes and grows
    (before that is preempted), and to a queue head that fits then.
    """

    turns: int = Field(2, ge=2, description="of a response; one of fewer tokens has fewer")
    result_tokens: int = Field(0, ge=0, description="context that a call adds; not generated")
    kv: Literal["recomputed", "kept"] = Field(
        "recomputed",
        description="given up during a call, so that prompt, answer and result are prefilled after "
        "it; or kept, so that the result alone is",
    )
    on_timeout: Literal["go_on", "truncate", "fail"] = Field(
        "go_on",
        description="the model reads of the timeout and goes on; the response ends there as "
        "truncated and wrong; or a failure of the system",
    )

"""Lengths for runs that publish none: four laws, and a prediction is the range over them."""

from collections.abc import Mapping

from dapolab.scenario import JointWorkload

UNPUBLISHED: dict[str, dict[str, float]] = {
    "median 800, sigma 0.8": {"median": 800.0, "sigma": 0.8, "loop_share": 0.0},
    "median 800, sigma 1.1": {"median": 800.0, "sigma": 1.1, "loop_share": 0.0},
    "median 1500, sigma 0.8": {"median": 1500.0, "sigma": 0.8, "loop_share": 0.0},
    "median 800, sigma 0.8, 0.5 % never stop": {
        "median": 800.0,
        "sigma": 0.8,
        "loop_share": 0.005,
    },
}
"""Of a 7B on mathematics: means of 1,100 to 2,100 tokens, tails from mild to loops."""


def workload_of(values: Mapping[str, float]) -> JointWorkload:
    """Return the workload of one of these laws; loops cluster in prompts as in Qwen3-1.7B's."""
    return JointWorkload(
        median_tokens=values["median"],
        sigma=values["sigma"],
        loop_share=values["loop_share"],
        loop_sd_logit=2.06 if values["loop_share"] else 0.0,
    )

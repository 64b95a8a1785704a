"""KL to the reference policy: twice, idle, on without being asked for, or without a pull."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.run import Run


def k1_loss(run: Run) -> Iterator[Finding]:
    """Flag: k1 as a loss: the gradient of log π − log π_ref has expectation 0."""
    if run.kl_loss_estimator not in ("k1", "kl") or not run.kl_loss_coef:
        return
    if run.facts.get("unbiased_kl"):
        return
    yield run.finding(
        "loss-kl-k1",
        "warning",
        "kl_loss_estimator",
        f"{run.kl_loss_estimator} as a KL loss: its gradient is the score, expectation 0 "
        "on-policy, so it adds noise and no pull towards the reference",
        suggestion="k2 (mse), or k3 (low_var_kl)",
        source="theory C: E[∇ log π] = 0; verl 0.9.1 core_algos.py:2187-2250",
    )


def zero_loss(run: Run) -> Iterator[Finding]:
    """Flag: a KL loss with coefficient 0: the reference model runs and nothing comes of it."""
    if run.kl_loss_estimator is None or run.kl_loss_coef != 0 or run.framework == "trl":
        return
    yield run.finding(
        "loss-kl-coef-zero",
        "note",
        "kl_loss_coef",
        "the KL loss is on with coefficient 0: the reference model is loaded and run for a metric",
        suggestion="switch the KL loss off if the metric is not wanted",
        source="verl workers/utils/losses.py, slime ppo_utils.py: loss += coefficient · KL",
    )


def twice(run: Run) -> Iterator[Finding]:
    """Flag: KL in the reward and as a loss at once."""
    if not run.kl_loss_coef or not run.kl_reward_coef:
        return
    stops = run.framework == "slime"
    yield run.finding(
        "kl-twice",
        "error" if stops else "warning",
        "kl_reward_coef",
        f"KL to the reference is in the reward ({run.kl_reward_coef:g}) and a loss "
        f"({run.kl_loss_coef:g}): "
        + ("AssertionError at start" if stops else "the policy is held back twice"),
        suggestion="one of the two; DAPO and Dr. GRPO have neither",
        source=_TWICE.get(run.framework, "both terms are added"),
    )


_TWICE = {
    "verl": "verl 0.9.1 ray_trainer.py:78-117 and workers/utils/losses.py:131-142",
    "slime": "slime utils/arguments.py: only one of kl_coef and kl_loss_coef",
}


def by_default(run: Run) -> Iterator[Finding]:
    """Flag: a KL term that the file does not set and the framework has on."""
    for what, where in (("kl_loss_coef", "as a loss"), ("kl_reward_coef", "in the reward")):
        coefficient = run.kl_loss_coef if what == "kl_loss_coef" else run.kl_reward_coef
        if not coefficient or run.given(what) or run.framework not in ("openrlhf", "nemo-rl"):
            continue
        estimator = run.kl_loss_estimator if what == "kl_loss_coef" else run.kl_reward_estimator
        yield run.finding(
            "kl-on-by-default",
            "note",
            what,
            f"KL to the reference, {estimator} x {coefficient:g} {where}, is on by default: a "
            "reference model is run; DAPO and Dr. GRPO have no KL",
            suggestion=f"{run.written(what)} 0, if it is not wanted",
            source="DAPO §2.3; OpenRLHF 0.11.2 cli/train_ppo_ray.py:438; NeMo RL 7ea279a "
            "loss_functions.py",
        )


def switched_off(run: Run) -> Iterator[Finding]:
    """Flag: slime: a coefficient of the KL loss without the switch that adds it."""
    if run.framework != "slime" or run.reading.flag("use_kl_loss") is not False:
        return
    coefficient = run.reading.number("kl_loss_coef")
    if not coefficient:
        return
    stops = bool(run.kl_reward_coef)
    yield run.finding(
        "kl-twice" if stops else "kl-loss-off",
        "error" if stops else "warning",
        "kl_loss_coef",
        f"--kl-loss-coef {coefficient:g} without --use-kl-loss: "
        + (
            f"beside --kl-coef {run.kl_reward_coef:g} it is an AssertionError at start all the same"
            if stops
            else "no KL loss is added"
        ),
        suggestion="--use-kl-loss, or leave the coefficient out",
        source="slime 002fa9d utils/arguments.py (slime_validate_args)",
    )


def other_aggregation(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: the KL loss keeps the token mean under a loss averaged over responses."""
    if run.framework != "openrlhf" or not run.kl_loss_coef:
        return
    if not run.aggregation.startswith("mean over responses"):
        return
    yield run.finding(
        "loss-kl-aggregation",
        "note",
        "kl_loss_coef",
        "the policy loss is a mean over responses, the KL loss stays a mean over all tokens: a "
        "long answer is held to the reference more than a short one",
        source="OpenRLHF 0.11.2 trainer/ray/ppo_actor.py:318-331 (aggregate_loss without a mode)",
    )


RULES = (k1_loss, zero_loss, twice, by_default, switched_off, other_aggregation)

"""Theory F beside the simulator: cycles of rollout and training that overlap.

The closed forms are for one stage time each: rollout without load or prefill, and a learner whose
seconds do not depend on the tokens that it trains (fixed, or with Gamma noise).
"""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from dapolab.compare.quantity import Measure, Quantity
from dapolab.scenario import (
    Admission,
    AffineLaw,
    AgeDrop,
    FilterNoRefill,
    FullyAsync,
    IndependentWorkload,
    NoFilter,
    OneStepOff,
    Pacing,
    Scenario,
)
from dapolab.sim.hardware import resolve
from dapolab.sim.learner import at_gpus, learner_gpus
from dapolab.theory.pipeline import (
    exponential_step_rate,
    fixed_cycle_s,
    one_step_off_cycle_s,
    streaming_staleness,
)
from dapolab.theory.quadrature import FloatArray
from dapolab.theory.tails import expected_max_tokens, survival_of_max
from dapolab.workload.marginals import Marginals

CYCLE = "cycle (time/step_seconds)"
_STEP_S = "time/step_seconds"


def pipeline_quantities(
    scenario: Scenario, facts: Marginals, left_out: list[str]
) -> list[Quantity]:
    """Return the cycle of a scenario whose learner works beside the rollout, if theory has it."""
    found, reason = _cycle(scenario, facts)
    if reason:
        left_out.append(f"{CYCLE}: {reason}")
    return [] if found is None else [found]


def _cycle(scenario: Scenario, facts: Marginals) -> tuple[Quantity | None, str]:
    schedule, reason = scenario.learner.schedule, _why_no_stages(scenario)
    if reason:
        return None, reason
    if isinstance(schedule, OneStepOff):
        return _one_step_off(scenario, facts)
    assert isinstance(schedule, FullyAsync)
    control = schedule.control
    if isinstance(control, Admission | Pacing) and control.max_running_groups is None:
        return _gated(scenario, schedule, control.staleness)
    if isinstance(control, AgeDrop) and control.counts == "running":
        return _always_busy(scenario, schedule, control, facts)
    return None, f"no closed form for control {control.kind!r} with these settings"


def _why_no_stages(scenario: Scenario) -> str:
    hardware, learner, law = scenario.hardware, scenario.learner, resolve(scenario.hardware)
    if not isinstance(hardware.law, AffineLaw) or hardware.law.c_s or hardware.law.b_s:
        return "needs an affine law with b_s = c_s = 0: one time for a rollout, whatever runs"
    if hardware.prefill or hardware.replicas > 1 or hardware.poll_s or law.a_s == 0.0:
        return "needs one replica, --hardware.prefill false and poll_s = 0"
    if hardware.kv_capacity_tokens or hardware.token_budget or hardware.max_groups_in_flight:
        return "needs an engine without KV, token or group limits"
    if hardware.speculation:
        return "needs an engine that does not speculate"
    rates = (
        learner.old_logprob_s_per_token,
        learner.reference_s_per_token,
        learner.update_s_per_token,
        learner.reward_s_per_response,
    )
    if any(rates) or learner.validation_every or learner.checkpoint_every:
        return "needs a learner whose seconds do not depend on the step (update_fixed_s, fixed_s)"
    if learner.noise_cv and learner.fixed_s:
        return "needs noise on all of the learner's seconds: fixed_s = 0"
    if scenario.collector.kind not in ("none", "filter_no_refill"):
        return "needs one wave of known size: a filter with refill has no law of the batch's time"
    return ""


def _train_s(scenario: Scenario) -> float:
    learner = at_gpus(scenario.learner, learner_gpus(scenario))
    return learner.update_fixed_s * learner.updates_per_step + learner.fixed_s


def _training_survival(scenario: Scenario) -> Callable[[FloatArray], FloatArray]:
    train_s, cv = _train_s(scenario), scenario.learner.noise_cv
    if cv == 0.0:
        return lambda x: np.asarray(np.asarray(x) < train_s, dtype=np.float64)
    law = stats.gamma(1.0 / cv**2, scale=train_s * cv**2)
    return lambda x: np.asarray(law.sf(x), dtype=np.float64)


def _between(first: int, period: int = 1) -> Measure:
    """Read the mean seconds of whole periods of steps from ``first`` on, the last step left out."""

    def measure(rows: pd.DataFrame) -> tuple[float, float]:
        seconds = rows.sort_values("step")[_STEP_S].to_numpy()[first:-1]
        n = len(seconds) // period * period
        return (float(seconds[:n].sum()), float(n)) if n > 0 else (0.0, 0.0)

    return measure


def _one_step_off(scenario: Scenario, facts: Marginals) -> tuple[Quantity | None, str]:
    wanted, rollout = scenario.rollout.groups_per_step, scenario.rollout
    assert isinstance(scenario.collector, NoFilter | FilterNoRefill)
    if wanted * rollout.group_size > scenario.hardware.slots:
        return None, "needs a slot for every response of a wave"
    a_s, overhead_s = resolve(scenario.hardware).a_s, scenario.hardware.call_overhead_s

    def rollout_survival(x: FloatArray) -> FloatArray:
        # an answer of L tokens takes a·L: it lasts beyond x where L > floor(x/a)
        tokens = np.floor((np.asarray(x) - overhead_s) / a_s + 1e-9)
        late = survival_of_max(facts.group_survival(np.maximum(tokens, 0.0)), n=wanted)
        return np.where(tokens < 0.0, 1.0, late)

    longest_s = a_s * rollout.cap_tokens + overhead_s
    train = _training_survival(scenario)
    if scenario.learner.noise_cv == 0.0:
        value = _with_fixed_training(rollout_survival, _train_s(scenario), longest_s)
    else:
        value = one_step_off_cycle_s(rollout_survival, train_survival=train)
    value += scenario.learner.sync_s
    return Quantity(CYCLE, "s", value, "F1: E[max(D, T)]", _between(1)), ""


def _with_fixed_training(
    rollout_survival: Callable[[FloatArray], FloatArray], train_s: float, longest_s: float
) -> float:
    """Return T + ∫P(D > x)dx from T on: the survival is a staircase, so sum its steps."""
    if longest_s <= train_s:
        return train_s
    edges = np.linspace(train_s, longest_s, 400_001)
    middle = (edges[1:] + edges[:-1]) / 2
    return train_s + float(rollout_survival(middle).sum() * (edges[1] - edges[0]))


def _gated(scenario: Scenario, schedule: FullyAsync, staleness: int) -> tuple[Quantity | None, str]:
    rollout, learner, workload = scenario.rollout, scenario.learner, scenario.workload
    n = rollout.groups_per_step * rollout.group_size
    slots, a_s = scenario.hardware.slots, resolve(scenario.hardware).a_s
    if learner.sync_s or schedule.weights == "drained" or schedule.fetches_per_step > 1:
        return None, "needs sync_s = 0, weights in flight, one fetch"
    lengths = workload.lengths if isinstance(workload, IndependentWorkload) else None
    if lengths is not None and lengths.kind == "constant" and learner.noise_cv == 0.0:
        serial, free = slots == n, slots >= (staleness + 1) * n
        if not (serial or free):
            return None, "needs slots for exactly one batch, or for all that may run"
        rollout_s = a_s * min(lengths.tokens, rollout.cap_tokens)
        value = fixed_cycle_s(
            rollout_s, train_s=_train_s(scenario), staleness=staleness, serial_rollout=serial
        )
        source = "F2: max(T, D, (D+T)/(η+1))" if serial else "F2: max(T, (D+T)/(η+1))"
        measure = _between(2 * (staleness + 1), staleness + 1)
        return Quantity(CYCLE, "s", value, source, measure), ""
    exponential = lengths is not None and lengths.kind in ("exponential", "geometric")
    if exponential and learner.noise_cv == 1.0 and n == slots == 1:
        assert isinstance(workload, IndependentWorkload)
        mean_s = a_s * getattr(workload.lengths, "mean_tokens", math.nan)
        rate = exponential_step_rate(
            1.0 / mean_s, train_per_s=1.0 / _train_s(scenario), staleness=staleness
        )
        source = "F3: closed network of η+1 permits"
        return Quantity(CYCLE, "s", 1.0 / rate, source, _between(0)), ""
    return None, "needs constant lengths and a fixed learner (F2), or one exponential answer (F3)"


def _always_busy(
    scenario: Scenario, schedule: FullyAsync, control: AgeDrop, facts: Marginals
) -> tuple[Quantity | None, str]:
    """K groups always run: if the learner keeps up, a batch comes every B·E[longest]/K seconds."""
    rollout, learner = scenario.rollout, scenario.learner
    K = control.ahead_groups or rollout.groups_per_step * max(control.max_age, 1)
    if rollout.group_size * K > scenario.hardware.slots:
        return None, "needs a slot for every response of the groups that always run"
    if learner.sync_s or schedule.weights == "drained" or schedule.kv == "recomputed":
        return (
            None,
            "needs sync_s = 0 and weights in flight with kept KV",
        )
    group_s = resolve(scenario.hardware).a_s * expected_max_tokens(
        facts.group_survival, n=1, cap_tokens=rollout.cap_tokens, whole_tokens=True
    )
    rate = streaming_staleness(
        n_slots=K, batch_responses=rollout.groups_per_step, mean_duration_s=group_s
    ).rollout_bound_step_rate
    batch_s = 1.0 / rate
    # a version lasts the batch's time at least; what is older than the limit is dropped
    if _train_s(scenario) > 0.9 * batch_s:
        return None, "needs a learner that keeps up with the rollout (T below .9·B·E[L]/K)"
    longest = rollout.cap_tokens * resolve(scenario.hardware).a_s
    if control.max_age < 2 * longest / batch_s + 2:
        return None, "needs max_age beyond the longest answer: what is dropped is not random"
    return Quantity(CYCLE, "s", batch_s, "F4: B·E[L]/K", _between(scenario.run.steps // 4)), ""

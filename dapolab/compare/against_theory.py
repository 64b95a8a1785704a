"""The closed forms beside the simulator, wherever a scenario meets their assumptions.

``theory`` takes plain numbers and survival functions; this adapter gets them from the scenario's
workload and settings, and says which quantities it leaves out and why. The simulator's numbers come
from a run of the same scenario. They agree where the theory lies within 4.5 standard errors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dapolab.compare.comparison import Comparison
from dapolab.scenario import (
    AffineLaw,
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    OverProvision,
    Replenish,
    Rounds,
    Scenario,
    Streaming,
)
from dapolab.sim.hardware import resolve
from dapolab.stats import LEVEL, Estimate, mean_estimate
from dapolab.theory.barrier import expected_barrier_time, expected_capped_barrier_time
from dapolab.theory.capped import capped_refill
from dapolab.theory.collection import streaming
from dapolab.theory.decode import expected_affine_time_s
from dapolab.theory.sampling import (
    expected_candidates,
    expected_kept_ratio,
    expected_waves,
    p_enough,
    rounds,
    token_utilisation,
)
from dapolab.theory.tails import expected_max_tokens
from dapolab.workload.marginals import Marginals, marginals

STANDARD_ERRORS = 4.5

Measure = Callable[[pd.DataFrame], float]


@dataclass(frozen=True)
class Quantity:
    """One closed form and how to read the same quantity off a replication's step rows."""

    name: str
    unit: str
    value: float
    source: str
    measure: Measure

    @property
    def is_event(self) -> bool:
        """Whether the quantity is a probability, counted once a step or more."""
        return self.unit == "share" and 0.0 <= self.value <= 1.0


@dataclass(frozen=True)
class Checked:
    """A closed form beside the simulator."""

    name: str
    unit: str
    theory: float
    simulator: Estimate
    agrees: bool
    source: str


@dataclass(frozen=True)
class AgainstTheory:
    """All quantities of one scenario, and what was left out with the reason."""

    rows: tuple[Checked, ...]
    left_out: tuple[str, ...]


def check_against_theory(comparison: Comparison) -> AgainstTheory:
    """Return the closed forms of the comparison's first policy beside its simulated rows."""
    scenario, policy = comparison.scenario, comparison.policies[0]
    quantities, left_out = quantities_of(scenario)
    steps = comparison.steps[comparison.steps["policy"] == policy]
    replications = [rows for _, rows in steps.groupby("replication")]
    rows = []
    for quantity in quantities:
        values = np.array([quantity.measure(one) for one in replications])
        values = values[np.isfinite(values)]
        if len(values) < 2:
            left_out.append(f"{quantity.name}: the simulated run has no value for it")
            continue
        se = float(values.std(ddof=1)) / math.sqrt(len(values))
        if quantity.is_event:
            # an event too rare for the run has no spread in it: use the binomial one
            n_steps = sum(len(one) for one in replications)
            se = max(se, math.sqrt(max(quantity.value * (1 - quantity.value), 0.0) / n_steps))
        allowed = max(STANDARD_ERRORS * se, 1e-9 * max(abs(quantity.value), 1.0))
        rows.append(
            Checked(
                name=quantity.name,
                unit=quantity.unit,
                theory=quantity.value,
                simulator=mean_estimate(values, level=LEVEL, unit=quantity.unit),
                agrees=abs(float(values.mean()) - quantity.value) <= allowed,
                source=quantity.source,
            )
        )
    return AgainstTheory(tuple(rows), tuple(left_out))


def quantities_of(scenario: Scenario) -> tuple[list[Quantity], list[str]]:
    """Return the closed forms whose assumptions the scenario meets, and what was left out."""
    left_out: list[str] = []
    rollout = scenario.rollout
    if scenario.collector.budget != type(scenario.collector.budget)():
        return [], ["everything: a budget ends steps in ways that no closed form covers"]
    if rollout.filter_metric == "shaped" and rollout.overlong is not None:
        return [], ["everything: the filter on shaped reward has no closed form here (theory E3)"]
    drift = getattr(scenario.workload, "drift", None)
    if drift is not None and (drift.logit_per_step or drift.log_tokens_per_step):
        return [], ["everything: the workload drifts, the closed forms are for one state of it"]
    facts = marginals(
        scenario.workload, group_size=rollout.group_size, cap_tokens=rollout.cap_tokens
    )
    found = _policy_quantities(scenario, facts, left_out)
    found += _rollout_seconds(scenario, facts, left_out)
    return found, left_out


def _mean(column: str) -> Measure:
    return lambda rows: float(rows[column].mean())


def _ratio(over: str, under: str) -> Measure:
    return lambda rows: float(rows[over].sum() / rows[under].sum())


def _share(test: Callable[[pd.DataFrame], pd.Series]) -> Measure:
    return lambda rows: float(test(rows).mean())


CANDIDATES, KEPT = "rollout/candidate_groups", "rollout/effective_groups"


def _groups_quantity(name: str, value: float, column: str, source: str, unit: str) -> Quantity:
    return Quantity(name, unit, value, source, _mean(column))


def _composition(facts: Marginals) -> list[Quantity]:
    """Shares over all candidates: ratio of totals, which no stopping rule biases (A7, A8)."""
    source = "A1, averaged over prompts"

    def share(name: str) -> Measure:
        return lambda rows: float((rows[name] * rows[CANDIDATES]).sum() / rows[CANDIDATES].sum())

    return [
        Quantity(f"rollout/{name}", "share", value, source, share(f"rollout/{name}"))
        for name, value in (
            ("mixed_share", facts.mixed_probability),
            ("all_right_share", facts.all_right_probability),
            ("all_wrong_share", facts.all_wrong_probability),
        )
    ]


def _policy_quantities(scenario: Scenario, facts: Marginals, left_out: list[str]) -> list[Quantity]:
    q, wanted = facts.mixed_probability, scenario.rollout.groups_per_step
    match scenario.collector:
        case NoFilter():
            found = [Quantity(KEPT, "groups", wanted, "every group is kept", _mean(KEPT))]
            return _composition(facts) + found
        case FilterNoRefill():
            found = [Quantity(KEPT, "groups", wanted * q, "Bin(B, q)", _mean(KEPT))]
            return _composition(facts) + found
        case ExactRefill() as collector:
            multiplier = collector.max_candidate_multiplier
            if multiplier is None:
                return _composition(facts) + _uncapped(q, wanted)
            if collector.at_cap == "error":
                left_out.append("step means: at_cap = error ends runs, survivors are selected")
                return _composition(facts)
            return _composition(facts) + _capped(q, wanted, multiplier, facts)
        case Rounds() as collector:
            return _composition(facts) + _rounds(q, wanted, collector)
        case Replenish():
            value = expected_candidates(q, n_groups=wanted)
            source = "A11: every slot its own geometric race"
            return [Quantity(CANDIDATES, "groups", value, source, _mean(CANDIDATES))]
        case Streaming() as collector:
            return _streaming(scenario, q, collector, left_out)
        case OverProvision() as collector:
            if not collector.filter:
                left_out.append("P(full): without a filter every step is full")
                return []
            launched = math.ceil(collector.eta * wanted - 1e-9)
            value = p_enough(launched, p_mixed=q, n_groups=wanted)
            return [Quantity("P(full)", "share", value, "A12", _share(_full(wanted)))]


def _full(wanted: int) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[KEPT] >= wanted


def _uncapped(q: float, wanted: int) -> list[Quantity]:
    waves = expected_waves(q, n_groups=wanted)
    candidates = expected_candidates(q, n_groups=wanted)
    ratio = expected_kept_ratio(q, n_groups=wanted)
    return [
        Quantity("rollout/waves", "waves", waves, "A3", _mean("rollout/waves")),
        Quantity(CANDIDATES, "groups", candidates, "A3", _mean(CANDIDATES)),
        Quantity("E[kept/N]", "share", ratio, "A7", _mean("rollout/effective_group_ratio")),
        Quantity(
            "rollout/unbiased_effective_ratio",
            "share",
            q,
            "A7",
            _mean("rollout/unbiased_effective_ratio"),
        ),
    ]


def _capped(q: float, wanted: int, multiplier: int, facts: Marginals) -> list[Quantity]:
    law = capped_refill(q, n_groups=wanted, max_candidates=multiplier * wanted)
    tokens = law.expected_candidates * facts.group_size * facts.mean_tokens
    found = [
        Quantity("rollout/waves", "waves", law.expected_waves, "A4", _mean("rollout/waves")),
        Quantity(
            f"P({law.max_waves} waves)",
            "share",
            law.p_worst,
            "A5: 1+(M−1)B waves",
            _share(lambda rows: rows["rollout/waves"] == law.max_waves),
        ),
        Quantity(CANDIDATES, "groups", law.expected_candidates, "A4", _mean(CANDIDATES)),
        Quantity(KEPT, "groups", law.expected_kept, "A4", _mean(KEPT)),
        Quantity("P(full)", "share", law.p_full, "A4", _share(_full(wanted))),
        Quantity("train/update_skipped", "share", law.p_skip, "A4", _mean("train/update_skipped")),
        Quantity(
            "rollout/oversample_ratio",
            "ratio",
            law.expected_candidates / wanted,
            "A4",
            _mean("rollout/oversample_ratio"),
        ),
        Quantity(
            "rollout/effective_fill_ratio",
            "share",
            law.expected_kept / wanted,
            "A4",
            _mean("rollout/effective_fill_ratio"),
        ),
        Quantity(
            "E[kept/N]",
            "share",
            law.expected_kept_ratio,
            "A7: biased up from q",
            _mean("rollout/effective_group_ratio"),
        ),
        Quantity(
            "rollout/unbiased_effective_ratio",
            "share",
            q,
            "A7",
            _mean("rollout/unbiased_effective_ratio"),
        ),
        Quantity(
            "rollout/completion_tokens",
            "tokens",
            tokens,
            "A8 (Wald)",
            _mean("rollout/completion_tokens"),
        ),
    ]
    if q > 0:
        found.append(
            Quantity(
                "token utilisation (totals)",
                "share",
                token_utilisation(
                    q,
                    tokens_per_mixed=facts.mean_tokens_mixed,
                    tokens_per_candidate=facts.mean_tokens,
                ),
                "A8",
                _ratio("rollout/train_completion_tokens", "rollout/completion_tokens"),
            )
        )
    return found


def _rounds(q: float, wanted: int, collector: Rounds) -> list[Quantity]:
    gen = collector.gen_groups or 3 * wanted
    most = collector.max_num_gen_batches
    law = rounds(q, n_groups=wanted, gen_groups=gen, max_rounds=most if most > 0 else None)
    if law.p_abort > 1e-6 and collector.at_max == "error":
        return []
    return [
        Quantity("rollout/waves", "waves", law.expected_rounds, "A6", _mean("rollout/waves")),
        Quantity(
            "rollout/surplus_groups",
            "groups",
            law.expected_surplus,
            "A6: q·Bg·E[R] − Bt",
            _mean("rollout/surplus_groups"),
        ),
        Quantity(
            "candidate utilisation (totals)",
            "share",
            law.candidate_utilisation,
            "A6",
            _ratio(KEPT, CANDIDATES),
        ),
    ]


def _streaming(
    scenario: Scenario, q: float, collector: Streaming, left_out: list[str]
) -> list[Quantity]:
    if scenario.workload.kind != "independent":
        left_out.append(
            f"{CANDIDATES}: lengths depend on correctness, so the first to finish are not a "
            "random sample of validity (A10 needs independence)"
        )
        return []
    wanted = scenario.rollout.groups_per_step
    slots = collector.slots or 2 * wanted
    value = streaming(q, n_groups=wanted, n_slots=slots, mean_duration=1.0)
    return [Quantity(CANDIDATES, "groups", value.expected_launched, "A10", _mean(CANDIDATES))]


def _rollout_seconds(scenario: Scenario, facts: Marginals, left_out: list[str]) -> list[Quantity]:
    """Barrier time with affine decode: a·E[Σ wave max] + b·E[tokens] (B3, B5)."""
    reason = _why_no_seconds(scenario)
    if reason:
        left_out.append(f"time/rollout_seconds: {reason}")
        return []
    law, wanted = resolve(scenario.hardware), scenario.rollout.groups_per_step
    q, cap = facts.mixed_probability, scenario.rollout.cap_tokens
    b_s = scenario.hardware.law.b_s if isinstance(scenario.hardware.law, AffineLaw) else 0.0
    overhead_s = scenario.hardware.call_overhead_s
    match scenario.collector:
        case ExactRefill(max_candidate_multiplier=None):
            time = expected_barrier_time(
                facts.group_survival, p_mixed=q, n_groups=wanted, cap=cap, whole_tokens=True
            )
            waves, groups = time.expected_waves, expected_candidates(q, n_groups=wanted)
        case ExactRefill(max_candidate_multiplier=int() as multiplier):
            chain = capped_refill(q, n_groups=wanted, max_candidates=multiplier * wanted)
            time = expected_capped_barrier_time(
                facts.group_survival, refill=chain, cap=cap, whole_tokens=True
            )
            waves, groups = chain.expected_waves, chain.expected_candidates
        case _:
            return _single_size_seconds(scenario, facts, b_s)
    tokens = groups * facts.group_size * facts.mean_tokens
    seconds = overhead_s * waves + expected_affine_time_s(
        latency_tokens=time.expected_time,
        load_tokens=tokens,
        step_s=law.a_s,
        per_response_s=b_s,
    )
    return [Quantity("time/rollout_seconds", "s", seconds, "B3, B5", _mean("time/rollout_seconds"))]


def _single_size_seconds(scenario: Scenario, facts: Marginals, b_s: float) -> list[Quantity]:
    """Policies whose waves all have one size: E[rounds] × one wave (A14)."""
    law, wanted, size = resolve(scenario.hardware), scenario.rollout.groups_per_step, 0
    n_rounds = 1.0
    match scenario.collector:
        case NoFilter() | FilterNoRefill():
            size = wanted
        case Rounds() as collector:
            size = collector.gen_groups or 3 * wanted
            most = collector.max_num_gen_batches
            n_rounds = rounds(
                facts.mixed_probability,
                n_groups=wanted,
                gen_groups=size,
                max_rounds=most if most > 0 else None,
            ).expected_rounds
        case _:
            return []
    longest = expected_max_tokens(
        facts.group_survival, n=size, cap_tokens=scenario.rollout.cap_tokens, whole_tokens=True
    )
    tokens = size * facts.group_size * facts.mean_tokens
    one_wave = law.a_s * longest + b_s * tokens + scenario.hardware.call_overhead_s
    return [
        Quantity(
            "time/rollout_seconds",
            "s",
            n_rounds * one_wave,
            "A14, B1, B5",
            _mean("time/rollout_seconds"),
        )
    ]


def _why_no_seconds(scenario: Scenario) -> str | None:
    hardware, collector = scenario.hardware, scenario.collector
    if collector.kind in ("replenish", "streaming", "over_provision"):
        return "a race of groups that share the engine has no closed form"
    if collector.kind == "exact_refill" and getattr(collector, "at_cap", "") == "error":
        return "at_cap = error ends runs, survivors are selected"
    if not isinstance(hardware.law, AffineLaw) or hardware.law.c_s != 0:
        return "needs an affine law with c_s = 0 (try --hardware.law.kind affine)"
    if hardware.prefill:
        return "needs --hardware.prefill false"
    if hardware.replicas > 1:
        return "needs one replica"
    gen = getattr(collector, "gen_groups", None) or scenario.rollout.groups_per_step * (
        3 if collector.kind == "rounds" else 1
    )
    if gen * scenario.rollout.group_size > hardware.slots:
        return "needs a slot for every response of a wave"
    if hardware.kv_capacity_tokens or hardware.token_budget or hardware.max_groups_in_flight:
        return "needs an engine without KV, token or group limits"
    if getattr(collector, "concurrent_groups", None):
        return "needs collector.concurrent_groups absent"
    if hardware.poll_s:
        return "needs poll_s = 0"
    return None


def document(checked: AgainstTheory) -> dict[str, object]:
    """Return DESIGN.md §8's JSON body of ``theory``."""
    return {
        "quantities": {
            row.name: {
                "theory": row.theory if math.isfinite(row.theory) else None,
                "simulator": row.simulator.to_json(),
                "agrees": row.agrees,
            }
            for row in checked.rows
        },
        "left_out": list(checked.left_out),
    }

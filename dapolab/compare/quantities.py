"""Closed forms of a scenario, each with how to read the same quantity off simulated step rows.

``theory`` takes plain numbers and survival functions; this adapter gets them from the scenario's
workload and settings, and says which quantities it leaves out and why.
"""

import math

import numpy as np

from dapolab.collectors import round_size, rounds_allowed
from dapolab.compare.pipeline_quantities import pipeline_quantities
from dapolab.compare.quantity import (
    KEPT,
    Quantity,
    event,
    full,
    mean_of,
    ratio_of,
    share_of,
    weighted,
)
from dapolab.scenario import (
    AffineLaw,
    Collector,
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    OverProvision,
    Replenish,
    Rounds,
    Scenario,
    Streaming,
    VerlV1,
)
from dapolab.sim.hardware import resolve
from dapolab.theory.barrier import expected_barrier_time, expected_capped_barrier_time
from dapolab.theory.capped import CappedRefill, capped_refill
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

CANDIDATES = "rollout/candidate_groups"
# Theory draws candidates afresh; a run walks a finite pool. Fewer prompts than these show.
_FEWEST_PROMPTS, _FEWEST_PROMPTS_PER_BATCH = 1000, 20


def quantities_of(scenario: Scenario) -> tuple[list[Quantity], list[str]]:
    """Return the closed forms whose assumptions the scenario meets, and what was left out."""
    reason = _why_nothing(scenario)
    if reason:
        return [], [f"everything: {reason}"]
    left_out: list[str] = []
    rollout = scenario.rollout
    facts = marginals(
        scenario.workload, group_size=rollout.group_size, cap_tokens=rollout.cap_tokens
    )
    n_prompts = scenario.workload.prompts.count
    if scenario.workload.kind == "replay":
        n_prompts = len(facts.weight_N)
    if n_prompts < max(_FEWEST_PROMPTS, _FEWEST_PROMPTS_PER_BATCH * rollout.groups_per_step):
        reason = f"{n_prompts} prompts come round again; theory draws every candidate afresh"
        return [], [f"everything: {reason}"]
    beside = scenario.learner.schedule.kind
    if beside == "fully_async":
        if _lengths_say_nothing(scenario):
            found = _composition(facts)
        else:
            found = []
            left_out.append(
                "shares of outcomes: lengths depend on correctness, and the long ones "
                "of a run are still under way at its end"
            )
    else:
        found = _policy_quantities(scenario, facts, left_out)
    if rollout.reward is not None or rollout.tools is not None:
        left_out.append("seconds: scores and calls of tools take their own, beside the tokens")
        return found, left_out
    if beside != "fully_async":
        found += _rollout_seconds(scenario, facts, left_out)
    if beside != "sync":
        found += pipeline_quantities(scenario, facts, left_out)
    return found, left_out


def _why_nothing(scenario: Scenario) -> str | None:
    rollout = scenario.rollout
    if not _in_theory(scenario.collector):
        return "no closed form is known for this policy"
    if scenario.collector.budget != type(scenario.collector.budget)():
        return "a budget ends steps in ways that no closed form covers"
    if rollout.filter_metric == "shaped" and rollout.overlong is not None:
        return "the filter on shaped reward has no closed form here (theory E3)"
    if rollout.failures is not None and rollout.failures.probability > 0:
        return "responses fail, and their groups are thrown away or sampled again"
    if any(law is not None and law.timeout_s for law in (rollout.reward, rollout.tools)):
        return "a time limit changes what comes back"
    if rollout.group_size == 1 and scenario.collector.kind != "none":
        return "groups of one have no spread; whether they are kept is a setting, not a chance"
    drift = getattr(scenario.workload, "drift", None)
    if drift is not None and drift.moves:
        return "the workload drifts, the closed forms are for one state of it"
    if scenario.rollout.selection.kind != "uniform":
        return "prompts are selected, the closed forms draw them as they come"
    return None


def _in_theory(collector: Collector) -> bool:
    """Say whether the closed forms speak of this policy with these settings."""
    match collector:
        case NoFilter() | ExactRefill() | VerlV1():
            return True
        case FilterNoRefill(keep_one=keep_one):
            return not keep_one
        case Rounds():
            whole = collector.judge == "group" and collector.surplus == "drop"
            return whole and collector.examine_last and collector.at_max != "original"
        case Replenish(min_in_flight=min_in_flight):
            return min_in_flight == 0
        case Streaming():
            forgets = collector.leftovers == "abort" and collector.surplus == "drop"
            return forgets and collector.filter
        case OverProvision(response_eta=response_eta):
            return response_eta == 1
        case _:
            return False


# ---------------------------------------------------------------- counts


def _composition(facts: Marginals) -> list[Quantity]:
    """Shares over all candidates: ratio of totals, which no stopping rule biases (A7, A8)."""
    shares = {
        "rollout/mixed_share": facts.mixed_probability,
        "rollout/all_right_share": facts.all_right_probability,
        "rollout/all_wrong_share": facts.all_wrong_probability,
    }
    source = "A1, averaged over prompts"
    return [event(name, p, source, weighted(name, CANDIDATES)) for name, p in shares.items()]


def _kept_accuracy(facts: Marginals) -> list[Quantity]:
    """Accuracy of mixed groups, (E[r] − P(all right))/q: not the pass rate (A9)."""
    q = facts.mixed_probability
    if q <= 0:
        return []
    value = (facts.accuracy - facts.all_right_probability) / q
    # E[(K/G)²]: binomial given the prompt; replay draws without replacement and spreads less
    right_N, size = facts.right_N, facts.group_size
    square = float(facts.weight_N @ (right_N * (1.0 - right_N) / size + right_N**2))
    variance = (square - facts.all_right_probability) / q - value**2
    name = "reward/trained_accuracy"
    sd = math.sqrt(max(variance, 0.0))
    return [Quantity(name, "share", value, "A9", weighted(name, KEPT), sd)]


def _policy_quantities(scenario: Scenario, facts: Marginals, left_out: list[str]) -> list[Quantity]:
    q, wanted = facts.mixed_probability, scenario.rollout.groups_per_step
    match scenario.collector:
        case NoFilter():
            found = [Quantity(KEPT, "groups", wanted, "every group is kept", mean_of(KEPT))]
            return _composition(facts) + found
        case FilterNoRefill():
            sd = math.sqrt(max(wanted * q * (1.0 - q), 0.0))
            found = [Quantity(KEPT, "groups", wanted * q, "Bin(B, q)", mean_of(KEPT), sd)]
            return _composition(facts) + found + _kept_accuracy(facts)
        case ExactRefill() as collector:
            return _composition(facts) + _exact_refill(q, wanted, collector, facts, left_out)
        case Rounds() as collector:
            return _composition(facts) + _rounds(q, wanted, collector, facts, left_out)
        case Replenish():
            value = expected_candidates(q, n_groups=wanted)
            source = "A11: every slot its own geometric race"
            found = [Quantity(CANDIDATES, "groups", value, source, mean_of(CANDIDATES))]
            return found + _kept_accuracy(facts)
        case Streaming() as collector:
            return _streaming(scenario, q, collector, left_out)
        case OverProvision() as collector:
            if not collector.filter:
                left_out.append("P(full): without a filter every step is full")
                return []
            launched = math.ceil(round(collector.eta * wanted, 9))
            value = p_enough(launched, p_mixed=q, n_groups=wanted)
            return [event("P(full)", value, "A12", share_of(full(wanted)))]
        case VerlV1():
            source = "credits refill until B groups are kept"
            found = [Quantity(KEPT, "groups", wanted, source, mean_of(KEPT))]
            return _composition(facts) + found + _kept_accuracy(facts)
        case _:
            return []


def _exact_refill(
    q: float, wanted: int, collector: ExactRefill, facts: Marginals, left_out: list[str]
) -> list[Quantity]:
    multiplier = collector.max_candidate_multiplier
    if multiplier is not None and collector.at_cap == "error":
        left_out.append("step means: at_cap = error ends runs, survivors are selected")
        return []
    if multiplier is None:
        return _uncapped(q, wanted) + _kept_accuracy(facts)
    law = capped_refill(q, n_groups=wanted, max_candidates=multiplier * wanted)
    return _capped(law, facts) + _kept_accuracy(facts)


def _unbiased(q: float) -> Quantity:
    name = "rollout/unbiased_effective_ratio"
    return Quantity(name, "share", q, "A7", mean_of(name))


def _uncapped(q: float, wanted: int) -> list[Quantity]:
    waves = expected_waves(q, n_groups=wanted)
    candidates = expected_candidates(q, n_groups=wanted)
    ratio = expected_kept_ratio(q, n_groups=wanted)
    return [
        Quantity("rollout/waves", "waves", waves, "A3", mean_of("rollout/waves")),
        Quantity(CANDIDATES, "groups", candidates, "A3", mean_of(CANDIDATES)),
        Quantity("E[kept/N]", "share", ratio, "A7", mean_of("rollout/effective_group_ratio")),
        _unbiased(q),
    ]


def _capped(law: CappedRefill, facts: Marginals) -> list[Quantity]:
    """Return the law of waves, candidates and kept groups, and what it means for tokens (A4–A8)."""
    wanted = law.n_groups
    tokens = law.expected_candidates * facts.group_size * facts.mean_tokens
    sd_waves, sd_candidates, sd_kept = map(_sd, (law.waves_pmf, law.candidates_pmf, law.kept_pmf))

    def mean(name: str, unit: str, value: float, sd: float, source: str = "A4") -> Quantity:
        return Quantity(name, unit, value, source, mean_of(name), sd)

    n, oversample = law.expected_candidates, law.expected_candidates / wanted
    at_most = law.max_waves
    found = [
        mean("rollout/waves", "waves", law.expected_waves, sd_waves),
        event(
            f"P({at_most} waves)",
            law.p_worst,
            "A5: 1+(M−1)B waves",
            share_of(lambda rows: rows["rollout/waves"] == at_most),
        ),
        mean(CANDIDATES, "groups", n, sd_candidates),
        mean(KEPT, "groups", law.expected_kept, sd_kept),
        event("P(full)", law.p_full, "A4", share_of(full(wanted))),
        event("train/update_skipped", law.p_skip, "A4", mean_of("train/update_skipped")),
        mean("rollout/oversample_ratio", "ratio", oversample, sd_candidates / wanted),
        mean("rollout/effective_fill_ratio", "share", law.expected_kept / wanted, sd_kept / wanted),
        Quantity(
            "E[kept/N]",
            "share",
            law.expected_kept_ratio,
            "A7: biased up from q",
            mean_of("rollout/effective_group_ratio"),
        ),
        _unbiased(law.p_mixed),
        mean("rollout/completion_tokens", "tokens", tokens, 0.0, "A8 (Wald)"),
    ]
    return found + _utilisation(law.p_mixed, facts)


def _utilisation(q: float, facts: Marginals) -> list[Quantity]:
    if q <= 0:
        return []
    value = token_utilisation(
        q, tokens_per_mixed=facts.mean_tokens_mixed, tokens_per_candidate=facts.mean_tokens
    )
    measure = ratio_of("rollout/train_completion_tokens", "rollout/completion_tokens")
    return [Quantity("token utilisation (totals)", "share", value, "A8", measure)]


def _sd(pmf: np.ndarray) -> float:
    """Return the standard deviation of a law on the whole numbers from 0."""
    k = np.arange(len(pmf))
    mean = float(pmf @ k)
    return math.sqrt(max(float(pmf @ (k - mean) ** 2), 0.0))


def _rounds(
    q: float, wanted: int, collector: Rounds, facts: Marginals, left_out: list[str]
) -> list[Quantity]:
    gen = round_size(collector, n_wanted=wanted)
    law = rounds(q, n_groups=wanted, gen_groups=gen, max_rounds=rounds_allowed(collector))
    if law.p_abort > 1e-6 and collector.at_max == "error":
        left_out.append("step means: at_max = error ends runs, survivors are selected")
        return []
    # a batch that is partial at the limit is trained too (at_max = stop)
    utilisation = q - law.expected_surplus / law.expected_candidates
    surplus = "rollout/surplus_groups"
    return [
        Quantity("rollout/waves", "waves", law.expected_rounds, "A6", mean_of("rollout/waves")),
        Quantity(surplus, "groups", law.expected_surplus, "A6: q·Bg·E[R] − Bt", mean_of(surplus)),
        Quantity(
            "candidate utilisation (totals)", "share", utilisation, "A6", ratio_of(KEPT, CANDIDATES)
        ),
        *_kept_accuracy(facts),
    ]


def _lengths_say_nothing(scenario: Scenario) -> bool:
    """Say whether who finishes first is a random sample of right and wrong answers."""
    workload = scenario.workload
    return workload.kind == "independent" and workload.p_correct_if_truncated is None


def _streaming(
    scenario: Scenario, q: float, collector: Streaming, left_out: list[str]
) -> list[Quantity]:
    if not _lengths_say_nothing(scenario):
        left_out.append(
            f"{CANDIDATES}: lengths depend on correctness, so the first to finish are not a "
            "random sample of validity (A10 needs independence)"
        )
        return []
    wanted = scenario.rollout.groups_per_step
    slots = collector.slots or collector.slots_per_target * wanted
    value = streaming(q, n_groups=wanted, n_slots=slots, mean_duration=1.0)
    return [Quantity(CANDIDATES, "groups", value.expected_launched, "A10", mean_of(CANDIDATES))]


# ---------------------------------------------------------------- seconds


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
    return [
        Quantity("time/rollout_seconds", "s", seconds, "B3, B5", mean_of("time/rollout_seconds"))
    ]


def _single_size_seconds(scenario: Scenario, facts: Marginals, b_s: float) -> list[Quantity]:
    """Policies whose waves all have one size: E[rounds] × one wave (A14)."""
    law, wanted, size = resolve(scenario.hardware), scenario.rollout.groups_per_step, 0
    n_rounds = 1.0
    match scenario.collector:
        case NoFilter() | FilterNoRefill():
            size = wanted
        case Rounds() as collector:
            size = round_size(collector, n_wanted=wanted)
            n_rounds = rounds(
                facts.mixed_probability,
                n_groups=wanted,
                gen_groups=size,
                max_rounds=rounds_allowed(collector),
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
            mean_of("time/rollout_seconds"),
        )
    ]


def _why_no_seconds(scenario: Scenario) -> str | None:
    hardware, collector = scenario.hardware, scenario.collector
    if isinstance(collector, Replenish | Streaming | OverProvision | VerlV1):
        return "a race of groups that share the engine has no closed form"
    if collector.kind == "exact_refill" and getattr(collector, "at_cap", "") == "error":
        return "at_cap = error ends runs, survivors are selected"
    if not isinstance(hardware.law, AffineLaw) or hardware.law.c_s != 0:
        return "needs an affine law with c_s = 0 (try --hardware.law.kind affine)"
    if hardware.prefill:
        return "needs --hardware.prefill false"
    if hardware.replicas > 1:
        return "needs one replica"
    gen = scenario.rollout.groups_per_step
    if isinstance(collector, Rounds):
        gen = round_size(collector, n_wanted=gen)
    if gen * scenario.rollout.group_size > hardware.slots:
        return "needs a slot for every response of a wave"
    if hardware.kv_capacity_tokens or hardware.token_budget or hardware.max_groups_in_flight:
        return "needs an engine without KV, token or group limits"
    if hardware.speculation:
        return "needs an engine that does not speculate"
    if getattr(collector, "concurrent_groups", None):
        return "needs collector.concurrent_groups absent"
    if hardware.poll_s:
        return "needs poll_s = 0"
    return None

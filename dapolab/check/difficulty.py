"""What the group filter costs at a given difficulty: rounds, the error, the surplus."""

from collections.abc import Iterator
from dataclasses import dataclass

from dapolab.check.findings import Finding
from dapolab.check.run import Run

LIKELY_ERROR = 1e-3
MOST_EXACT_GROUPS = 512


@dataclass(frozen=True)
class Difficulty:
    """Share of mixed groups ``p_mixed``, and in words where it comes from."""

    p_mixed: float
    words: str


def filter_cost(run: Run, difficulty: Difficulty) -> Iterator[Finding]:
    """Yield what a step costs under the run's own filter and refill (theory A3-A6)."""
    f, B = run.filter, run.batch_groups
    if f is None or not B:
        return
    if f.refill == "rounds" and f.round_groups:
        yield _rounds(run, difficulty, B, f.round_groups, f.max_rounds)
    elif f.refill == "exact" and f.max_candidates:
        yield _capped(run, difficulty, B, f.max_candidates)
    elif f.refill == "none":
        q = difficulty.p_mixed
        yield _note(
            run,
            difficulty,
            f"{B * q:.3g} of {B} groups are trained on average, none with probability "
            f"{(1 - q) ** B:.2g}",
            "warning" if (1 - q) ** B > LIKELY_ERROR else "note",
        )
    elif f.refill in ("credit", "one-for-one", "chunks"):
        yield _endless(run, difficulty, B)


def _rounds(run: Run, difficulty: Difficulty, B: int, size: int, limit: int | None) -> Finding:
    from dapolab.theory.sampling import rounds

    if difficulty.p_mixed == 0 and limit is None:
        return _note(
            run, difficulty, "no group is ever mixed: the step ends with the data alone", "error"
        )
    law = rounds(difficulty.p_mixed, n_groups=B, gen_groups=size, max_rounds=limit)
    error = ""
    if limit is not None:
        error = f"; P(still short after {limit} rounds: the run stops) = {law.p_abort:.2g} a step"
    return _note(
        run,
        difficulty,
        f"{law.expected_rounds:.4g} rounds of {size} prompts a step{error}; "
        f"{law.expected_surplus:.4g} kept groups a step are dropped as surplus",
        "warning" if law.p_abort > LIKELY_ERROR else "note",
    )


def _capped(run: Run, difficulty: Difficulty, B: int, most: int) -> Finding:
    from dapolab.theory.sampling import p_enough

    q = difficulty.p_mixed
    waves = ""
    if B <= MOST_EXACT_GROUPS:
        from dapolab.theory.capped import capped_refill

        law = capped_refill(q, n_groups=B, max_candidates=most)
        waves = f"{law.expected_waves:.4g} waves, {law.expected_candidates:.4g} candidates a step; "
    full = p_enough(most, p_mixed=q, n_groups=B)
    skipped = (1 - q) ** most
    return _note(
        run,
        difficulty,
        f"{waves}the batch is full with probability {full:.3g}, the update is skipped with "
        f"{skipped:.2g}; between them a smaller batch is trained",
        "warning" if skipped > LIKELY_ERROR else "note",
    )


def _endless(run: Run, difficulty: Difficulty, B: int) -> Finding:
    q = difficulty.p_mixed
    if q == 0:
        return _note(run, difficulty, "no group is ever mixed: the step never ends", "error")
    n, lost = B / q, "dropped"
    if run.filter and run.filter.refill == "chunks" and n < (run.filter.round_groups or 0):
        n, lost = float(run.filter.round_groups or 0), "dropped or aborted"
    return _note(
        run,
        difficulty,
        f"at least {n:.4g} candidate groups a step for {B} trained, {n - B:.4g} of them {lost}; "
        "no error, no limit",
        "note",
    )


def _note(run: Run, difficulty: Difficulty, cost: str, severity: str) -> Finding:
    return run.finding(
        "filter-cost",
        "error" if severity == "error" else "warning" if severity == "warning" else "note",
        "filter",
        f"{difficulty.words}: {100 * difficulty.p_mixed:.3g} % of groups are mixed; {cost}",
        suggestion="prompts of fitting difficulty, or larger groups" if severity != "note" else "",
        source="theory A1, A3-A6: q = 1 − p^G − (1−p)^G, groups independent",
        certain=False,
    )

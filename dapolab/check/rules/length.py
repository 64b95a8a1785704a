"""Length: the overlong penalty, the cap, the context limit, the truncation metric."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.run import Run

MAX_RESP = "reward.reward_kwargs.max_resp_len"
MANAGER = "reward.reward_manager.name"
VERL_DAPO = "verl 0.9.1 experimental/reward_loop/reward_manager/dapo.py:39-50"


def buffer_over_cap(run: Run) -> Iterator[Finding]:
    """Flag: Buffer longer than the cap: the threshold is negative (field case B56)."""
    o = run.overlong
    if o is None or o.buffer_tokens is None or o.cap_tokens is None:
        return
    if o.buffer_tokens > o.cap_tokens:
        yield run.finding(
            "length-buffer-over-cap",
            "error",
            "buffer_tokens",
            f"buffer {o.buffer_tokens:g} is longer than the cap {o.cap_tokens:g}: the threshold "
            f"would be {o.cap_tokens - o.buffer_tokens:g}, every answer punished"
            + ("" if run.framework == "nemo-rl" else "; the run refuses"),
            suggestion=f"a buffer of about a fifth of the cap, {o.cap_tokens / 5:.0f} (the paper)",
            source=f"verl#2107; {VERL_DAPO}; 06-dapo reward.py; OpenRLHF length_penalty.py",
        )
    elif o.buffer_tokens == o.cap_tokens:
        yield run.finding(
            "length-buffer-is-cap",
            "warning",
            "buffer_tokens",
            f"the buffer is the whole cap, {o.cap_tokens:g} tokens: every answer is punished from "
            "its first token",
            suggestion=f"a buffer of about a fifth of the cap, {o.cap_tokens / 5:.0f} (the paper)",
            source=f"DAPO Eq. 13; {VERL_DAPO}",
        )


def buffer_not_positive(run: Run) -> Iterator[Finding]:
    """Flag: a penalty without a buffer."""
    o = run.overlong
    if o is None or o.buffer_tokens is None or o.buffer_tokens > 0:
        return
    if run.framework not in ("verl", "06-dapo"):
        return
    yield run.finding(
        "length-buffer-not-positive",
        "error",
        "buffer_tokens",
        f"the overlong penalty is on with a buffer of {o.buffer_tokens:g}: the run refuses",
        suggestion="a positive buffer, or switch the penalty off",
        source=f"{VERL_DAPO} (since 21f4e490c, 2026-02-06); 06-dapo reward.py:61-81",
    )


def cap_unset(run: Run) -> Iterator[Finding]:
    """Flag: verl: the reward manager does not know the cap unless max_resp_len is set."""
    if run.framework != "verl" or run.overlong is None or run.overlong.cap_tokens is not None:
        return
    if run.reading.given(MAX_RESP) and run.reading.value(MAX_RESP) is not None:
        return  # given, and not a value that the file tells
    yield run.finding(
        "length-cap-unset",
        "error",
        "overlong",
        "the overlong penalty is on and max_resp_len is not set: AssertionError at start; since "
        "0.8 it no longer follows data.max_response_length",
        suggestion=f"+{MAX_RESP}={run.cap_tokens or '<data.max_response_length>'}",
        source=VERL_DAPO,
    )


def cap_mismatch(run: Run) -> Iterator[Finding]:
    """Flag: verl and NeMo RL: a cap of the penalty that is not the response cap moves it."""
    o = run.overlong
    if run.framework not in ("verl", "nemo-rl") or o is None:
        return
    if o.cap_tokens is None or run.cap_tokens is None:
        return
    if o.cap_tokens == run.cap_tokens or o.buffer_tokens is None or o.factor is None:
        return
    start = o.cap_tokens - o.buffer_tokens
    if start >= run.cap_tokens:
        effect = f"the penalty starts at {start:g}, which no answer reaches"
    else:
        worst = -(run.cap_tokens - start) / max(o.buffer_tokens, 1) * o.factor
        effect = f"the penalty starts at {start:g} and is {worst:.3g} at the cap, not {-o.factor:g}"
    yield run.finding(
        "length-cap-mismatch",
        "warning",
        "penalty_cap",
        f"{run.name('penalty_cap').rpartition('.')[2]} {o.cap_tokens:g} is not "
        f"{run.name('cap_tokens')} {run.cap_tokens}: {effect}",
        suggestion=f"{run.cap_tokens}",
        source="verl 0.9.1 reward_manager/dapo.py:108-117"
        if run.framework == "verl"
        else "NeMo RL 7ea279a reward_functions.py:160-170",
    )


def wrong_manager(run: Run) -> Iterator[Finding]:
    """Flag: verl: only the dapo reward manager knows the overlong penalty."""
    if run.framework != "verl" or run.overlong is None:
        return
    manager = run.reading.text(MANAGER)
    if manager is None or manager == "dapo":
        return
    yield run.finding(
        "length-penalty-not-read",
        "warning",
        MANAGER if run.reading.given(MANAGER) else "overlong",
        f"the overlong penalty is configured but the reward manager is {manager}, which does not "
        "read it: no answer is punished",
        suggestion=f"{MANAGER}=dapo",
        source="verl 0.9.1 experimental/reward_loop/reward_manager/: only dapo.py reads it",
        certain=manager == "naive",
    )


def flips_sign(run: Run) -> Iterator[Finding]:
    """Flag: a right answer that is long enough gets A < 0 beside one wrong answer (E1)."""
    o, G = run.overlong, run.group_size
    if o is None or G is None or G < 3 or not o.factor or o.factor < 0:
        return
    if o.buffer_tokens is None or o.cap_tokens is None or not 0 < o.buffer_tokens <= o.cap_tokens:
        return
    gap = o.gap or 2.0
    share = gap / (o.factor * (G - 1))
    if share >= 1:
        return
    length = o.cap_tokens - o.buffer_tokens + share * o.buffer_tokens
    yield run.finding(
        "length-penalty-flips-sign",
        "note",
        "factor",
        f"in a group of {G} with one wrong answer, a right answer that alone passes {length:.0f} "
        f"tokens gets a negative advantage (penalty share > {share:.3f})",
        source="theory E1: f(u − Ū) > Δ(1 − K/G) with K = G−1, Δ = " + f"{gap:g}",
        certain=o.gap is not None,
    )


def ties(run: Run) -> Iterator[Finding]:
    """Flag: a factor not below the reward gap ties long right answers with wrong ones (E6)."""
    o = run.overlong
    if o is None or o.factor is None:
        return
    gap = o.gap if o.gap is not None else 1.0
    if o.factor < gap:
        return
    known = o.gap is not None
    if known or o.factor >= 2:
        what = f"factor {o.factor:g} is not below right − wrong = {o.gap or 2:g}"
    else:
        what = f"if the reward is 0/1, factor {o.factor:g} is not below right − wrong = 1"
    yield run.finding(
        "length-penalty-ties",
        "warning" if known or o.factor >= 2 else "note",
        "factor",
        f"{what}: a right answer at the cap scores no more than a short wrong one, and a mixed "
        "group can have equal rewards",
        suggestion="rewards +1/−1 with factor 1 (the paper), or a factor below the gap",
        source="theory E6: the order is kept iff Δ > f; DAPO Eq. 7, 13",
        certain=known,
    )


def context_limit(run: Run) -> Iterator[Finding]:
    """Flag: a context limit below prompt + response: answers end earlier, unseen by the metric."""
    if run.context_tokens is None or run.cap_tokens is None:
        return
    need = run.cap_tokens + (run.prompt_tokens or 0)
    if run.context_tokens >= need:
        return
    parts = f"prompt {run.prompt_tokens} + response {run.cap_tokens} = {need}"
    if run.prompt_tokens is None:
        parts = f"the response cap {need} alone"
    yield run.finding(
        "length-context-limit",
        "warning",
        "context_tokens",
        f"context limit {run.context_tokens} is below {parts}: answers after a long prompt end "
        f"early, at {run.context_tokens} − prompt tokens, and never reach the cap, so the "
        "truncation rate reads 0 and the overlong penalty is not fully charged",
        suggestion=f"at least {need}",
        source="verl#7823",
    )


def v1_metric(run: Run) -> Iterator[Finding]:
    """Flag: verl V1: response_length/clip_ratio compares with the longest row of the batch."""
    if run.framework != "verl" or not str(run.facts.get("trainer")).startswith("v1"):
        return
    yield run.finding(
        "length-clip-ratio-metric",
        "note",
        "cap_tokens",
        "the metric response_length/clip_ratio is no truncation rate in the V1 trainer: it counts "
        "the rows as long as the batch's longest row, and is never 0",
        source="verl#7817 (fix #7821 not in 0.9.1)",
    )


def cap_default(run: Run) -> Iterator[Finding]:
    """Flag: the response cap is the framework's small default."""
    if run.framework not in ("verl", "trl") or run.given("cap_tokens"):
        return
    if run.cap_tokens is None or not _is_launch(run):
        return
    yield run.finding(
        "length-cap-default",
        "note",
        "cap_tokens",
        f"the response cap is not set: the default is {run.cap_tokens} tokens",
        suggestion="set it to what the task needs",
        source="verl data/legacy_data.yaml; TRL GRPOConfig",
    )


def _is_launch(run: Run) -> bool:
    return run.reading.source.entry is not None


RULES = (
    buffer_over_cap,
    buffer_not_positive,
    cap_unset,
    cap_mismatch,
    wrong_manager,
    flips_sign,
    ties,
    context_limit,
    v1_metric,
    cap_default,
)

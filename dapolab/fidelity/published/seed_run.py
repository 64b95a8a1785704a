"""The seed run took 4.17 h for 35 steps: the mixed shares q and speeds that reproduce it.

agentic-rl-lab 06-dapo @5fc44d85: B = 4 groups of G = 8, at most M = 2 times B candidates, cap 8192,
exact refill; a hosted service, so neither its speed nor q is published. Two unknowns and one
number: the answer is a curve of pairs. The whole step is taken as rollout. Lengths are a Qwen3-8B
run on the same prompts, or the same with 2 % of answers that never stop (the real run met its cap
in every step).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dapolab.scenario import (
    AffineLaw,
    ExactRefill,
    Hardware,
    JointWorkload,
    Rollout,
    Run,
    Scenario,
)
from dapolab.sim.run import simulate
from dapolab.workload.marginals import marginals

SOURCE = "KMnO4-zx/agentic-rl-lab @5fc44d85, 06-dapo"
STEPS, HOURS, GROUPS, SIZE, MULTIPLIER, CAP_TOKENS = 35, 4.17, 4, 8, 2, 8192
STEP_S = HOURS * 3600 / STEPS


@dataclass(frozen=True)
class _Lengths:
    name: str
    loop_share: float


_LENGTHS = (_Lengths("as Qwen3-8B", 0.0), _Lengths("2 % never stop", 0.02))


def _workload(q: float, loop_share: float) -> JointWorkload:
    """Return a workload whose groups of G are mixed with probability q at accuracy one half."""

    def at(sd: float) -> JointWorkload:
        return JointWorkload(
            median_tokens=1326,
            sigma=0.693,
            mean_logit=0.0,
            sd_logit=sd,
            loop_share=loop_share,
            # a cut answer is judged as it would have been, so that q stays what it is
            p_correct_if_truncated=0.5,
        )

    low, high = 0.3, 30.0
    for _ in range(18):
        middle = np.sqrt(low * high)
        found = marginals(at(middle), group_size=SIZE, cap_tokens=CAP_TOKENS)
        mixed = 1 - found.all_right_probability - found.all_wrong_probability
        low, high = (middle, high) if mixed > q else (low, middle)
    return at(float(np.sqrt(low * high)))


def seed_pairs(
    shares: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7), *, replications: int = 12
) -> pd.DataFrame:
    """Return a row a (lengths, q): waves of a step, and the speeds that give 4.17 h.

    Columns: lengths, q, waves, candidates, tokens_per_step, tok_per_s_response (of one answer while
    it decodes, iterations a second), tok_per_s_total.
    """
    rows = []
    for lengths in _LENGTHS:
        for q in shares:
            scenario = Scenario(
                workload=_workload(q, lengths.loop_share),
                rollout=Rollout(groups_per_step=GROUPS, group_size=SIZE, cap_tokens=CAP_TOKENS),
                collector=ExactRefill(max_candidate_multiplier=MULTIPLIER, at_cap="partial"),
                # one second an iteration: seconds are then the sum of the waves' longest answers
                hardware=Hardware(
                    law=AffineLaw(a_s=1.0, b_s=0.0, c_s=0.0, prefill_s=0.0), prefill=False
                ),
                run=Run(steps=STEPS),
            )
            steps = pd.concat(
                [
                    simulate(scenario, seed=0, replication=r, keep_groups=False).steps
                    for r in range(replications)
                ]
            )
            tokens = float(steps["rollout/completion_tokens"].mean())
            rows.append(
                {
                    "lengths": lengths.name,
                    "q": q,
                    "waves": float(steps["rollout/waves"].mean()),
                    "candidates": float(steps["rollout/candidate_groups"].mean()),
                    "tokens_per_step": tokens,
                    "tok_per_s_response": float(steps["time/rollout_seconds"].mean()) / STEP_S,
                    "tok_per_s_total": tokens / STEP_S,
                }
            )
    return pd.DataFrame(rows)

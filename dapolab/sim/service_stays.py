"""Stays in the engine, where a response has more than one: as rows beside the engine's own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dapolab.sim.decode import FINISHED
from dapolab.sim.replica import Facts, Stay


def with_stays(
    facts: Facts, stays: Sequence[Stay], *, last: Sequence[tuple[int, list[tuple[float, int]]]]
) -> Facts:
    """Return the engine's facts by stay: the last one of every response, then the earlier ones.

    ``last`` are, by engine group, when each last stay was submitted and the context it began with.
    """
    submit_s, generated = facts.submit_s.copy(), facts.generated_tokens.copy()
    first = np.searchsorted(facts.group, [g for g, _ in last]).tolist()
    for row, (_, own) in zip(first, last, strict=True):
        submit_s[row : row + len(own)] = [since_s for since_s, _ in own]
        generated[row : row + len(own)] -= [n_context for _, n_context in own]
    columns = list(zip(*stays, strict=True)) or [()] * len(Stay._fields)
    by_name = dict(zip(Stay._fields, columns, strict=True))

    def joined(own: np.ndarray, name: str) -> np.ndarray:
        return np.concatenate([own, np.array(by_name[name], dtype=own.dtype)])

    return replace(
        facts,
        group=joined(facts.group, "engine_group"),
        replica=joined(facts.replica, "replica"),
        submit_s=joined(submit_s, "submit_s"),
        admit_s=joined(facts.admit_s, "admit_s"),
        first_token_s=joined(facts.first_token_s, "first_token_s"),
        end_s=joined(facts.end_s, "end_s"),
        generated_tokens=joined(generated, "n_tokens"),
        n_preemptions=joined(facts.n_preemptions, "n_preemptions"),
        status=np.concatenate([facts.status, np.full(len(stays), FINISHED)]),
    )

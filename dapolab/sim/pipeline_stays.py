"""A pipeline's responses where each may have several stays in the engine: by response, by stay."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.account import FAILED_OUTCOME, TOOL_OUTCOME
from dapolab.sim.collection import Serviced
from dapolab.sim.pipeline_record import Update
from dapolab.sim.replica import Facts
from dapolab.sim.service_stays import with_stays

Float = NDArray[np.float64]
Int = NDArray[np.int64]


@dataclass(frozen=True)
class Stays:
    """One row a stay in the engine, in the order responses × time.

    ``row`` is the response, ``is_lost`` whether its tokens are, ``is_last`` whether no other stay
    follows; ``facts`` are the engine's, by stay.
    """

    row: Int
    is_lost: NDArray[np.bool_]
    is_last: NDArray[np.bool_]
    facts: Facts

    @property
    def first_kept(self) -> Int:
        """The first stay of each response's sampling that counts."""
        kept = np.flatnonzero(~self.is_lost)
        return kept[np.flatnonzero(np.diff(self.row[kept], prepend=-1))]

    def outcomes(self, last_outcome: Int) -> Int:
        """Return how each stay ended, given how each response did."""
        before = np.where(self.is_lost, FAILED_OUTCOME, TOOL_OUTCOME)
        return np.where(self.is_last, last_outcome[self.row], before)

    def rows_of(self, responses: Int) -> tuple[Int, Int]:
        """Return the stays of these responses, one after another, and whose each is.

        Returns
        -------
        Places in ``responses``, and rows here.
        """
        first = np.searchsorted(self.row, responses)
        n = np.searchsorted(self.row, responses, side="right") - first
        place = np.repeat(np.arange(len(responses)), n)
        return place, np.repeat(first - (np.cumsum(n) - n), n) + np.arange(n.sum())

    def lost_tokens(self) -> Int:
        """Return the tokens of failed samplings of each response."""
        lost = np.where(self.is_lost, self.facts.generated_tokens, 0)
        n = int(self.is_last.sum())
        return np.bincount(self.row, weights=lost, minlength=n).astype(np.int64)


def stays_of(facts: Facts, books: Serviced, *, size: int) -> Stays:
    """Return all stays; ``facts`` are the engine's, one row a response."""
    n, n_stays = len(facts.group), len(books.stays)
    rows = [stay.engine_group * size + stay.member for stay in books.stays]
    row = np.concatenate([np.arange(n), np.array(rows, dtype=np.int64)])
    is_last = np.arange(n + n_stays) < n
    failed = np.array([stay.has_failed for stay in books.stays], dtype=np.bool_)
    is_lost = np.concatenate([np.zeros(n, dtype=np.bool_), failed])
    order = np.lexsort((np.arange(n + n_stays), is_last, row))
    return Stays(row[order], is_lost[order], is_last[order], _rows(facts, books, order))


def by_response(facts: Facts, books: Serviced, stays: Stays) -> Facts:
    """Return one row a response: begun with its first stay, ended with its last one.

    Tokens and the first of them are of the sampling that counts; results of tools are no tokens.
    """
    assert books.added_tokens is not None, "the books are closed"
    first = np.flatnonzero(np.diff(stays.row, prepend=-1))
    preemptions = np.bincount(stays.row, weights=stays.facts.n_preemptions)
    return replace(
        facts,
        admit_s=stays.facts.admit_s[first],
        first_token_s=stays.facts.first_token_s[stays.first_kept],
        generated_tokens=facts.generated_tokens - books.added_tokens,
        n_preemptions=preemptions.astype(np.int64),
    )


def of_what_counts(updates: Sequence[Update], facts: Facts, stays: Stays) -> list[Update]:
    """Return the updates without the tokens of samplings that failed afterwards.

    Nor do they count what had its last token, though its group was given up only later.

    Parameters
    ----------
    facts : by response.
    """
    lost_rows = np.unique(stays.row[stays.is_lost])
    begun_s = np.full(len(facts.group), -np.inf)
    begun_s[lost_rows] = stays.facts.submit_s[stays.first_kept][lost_rows]
    found = []
    for update in updates:
        rows = slice(update.first, update.first + len(update.generated))
        counts = (begun_s[rows] < update.at_s) & ~(facts.end_s[rows] <= update.at_s)
        found.append(replace(update, generated=np.where(counts, update.generated, 0)))
    return found


def _rows(facts: Facts, books: Serviced, order: Int) -> Facts:
    joined = with_stays(facts, books.stays, last=books.last)
    columns = (
        "group",
        "replica",
        "submit_s",
        "admit_s",
        "first_token_s",
        "end_s",
        "generated_tokens",
        "n_preemptions",
        "status",
    )
    return replace(joined, **{name: getattr(joined, name)[order] for name in columns})

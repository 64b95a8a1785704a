"""How old, in weight versions, the tokens of trained groups are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.pipeline_record import Update
from dapolab.sim.replica import Facts

Float = NDArray[np.float64]
Int = NDArray[np.int64]


@dataclass(frozen=True)
class TokenAges:
    """Per response, in submission order; 0 where it was not trained.

    ``aged_tokens`` is Σ over its tokens of the versions between a token's generation and its
    training, ``off_policy_tokens`` how many of its tokens are older than the version that learns,
    ``oldest`` the age of its first token.
    """

    aged_tokens: Float
    off_policy_tokens: Float
    oldest: Int


def token_ages(facts: Facts, *, updates: list[Update], trained_at: Int) -> TokenAges:
    """Return the ages of the tokens of trained responses.

    An update ages every token that exists by then: those of responses that have finished, and of
    the others what the update's snapshot says. A response has ended before it trains, so later
    updates leave it alone. A token whose iteration ends at an update's very instant is older.

    Parameters
    ----------
    trained_at : version that learned from each response, −1 where none did.
    """
    update_s = np.array([update.at_s for update in updates])
    trained = trained_at >= 0
    ended = np.searchsorted(update_s, facts.end_s, side="left")
    first = np.searchsorted(update_s, np.nan_to_num(facts.first_token_s), side="left")
    aged = np.where(trained, facts.generated_tokens * (trained_at - ended), 0).astype(np.float64)
    off = np.where(trained & (trained_at > ended), facts.generated_tokens, 0).astype(np.float64)
    for number, update in enumerate(updates, start=1):
        rows = slice(update.first, update.first + len(update.generated))
        aged[rows] += np.where(trained[rows], update.generated, 0)
        # of a response that runs through the last update before it trains, the rest is fresh
        through = (trained_at[rows] == number) & (ended[rows] == number)
        off[rows] = np.where(through, update.generated, off[rows])
    return TokenAges(aged, off, np.where(trained, trained_at - first, 0))

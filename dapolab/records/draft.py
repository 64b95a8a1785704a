"""What passes between a reader and the common finish: the reading's context and its result."""

from dataclasses import dataclass, field

import pandas as pd

from dapolab.records.builder import TableBuilder
from dapolab.records.options import ReadOptions, Selection
from dapolab.records.tokens import TokenCounter
from dapolab.records.where import RowFilter

REAL_SAMPLE = "a real sample"
DESCRIPTION = "the format's description"


@dataclass
class Reading:
    """One call of a reader: what the user asked, and where rows and findings go."""

    options: ReadOptions
    where: str
    counter: TokenCounter
    filter: RowFilter
    builder: TableBuilder = field(default_factory=TableBuilder)
    notes: list[str] = field(default_factory=list)

    def table(self) -> pd.DataFrame:
        """Return all rows, and note what the filter left out and what the builder found."""
        self.notes += self.filter.notes(where=self.where)
        frame = self.builder.frame()
        self.notes += self.builder.notes()
        return frame


@dataclass
class Draft:
    """What a reader knows about a file: its rows, and how they came to be there.

    ``selection`` is what the format declares (None: look at the groups) and ``why`` the reason;
    ``estimated`` says that lengths come from text; ``reward_name`` is the file's word for reward.
    """

    frame: pd.DataFrame
    selection: Selection | None = None
    why: str = ""
    cap_tokens: int | None = None
    estimated: bool = False
    reward_name: str = "reward"
    built_from: str = REAL_SAMPLE

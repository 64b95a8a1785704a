"""Whether a table sorts by each of its heads, judged by what its cells show."""

import itertools
import re
from decimal import Decimal

from conftest import Opened
from playwright.sync_api import Locator

EMPTY = ("", "—")
_NUMBER = re.compile(r"([−+-]?)([\d,]+(?:\.(\d+))?)(?:e([−+-]?\d+))?(\s*%)?")


def shown_range(text: str) -> tuple[Decimal, Decimal] | None:
    """Return the numbers that round to the one which a cell begins with, None for an empty cell.

    Raises
    ------
    ValueError : the cell begins with no number.
    """
    if text in EMPTY:
        return None
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} begins with no number")
    sign, digits, decimals, power, share = match.groups()
    exponent = int((power or "0").replace("−", "-")) - (2 if share else 0)
    value = Decimal(digits.replace(",", "")).scaleb(exponent) * (-1 if sign in ("−", "-") else 1)
    # half a unit in the last digit; a whole number may be one of three digits, but never coarser
    half = Decimal("0.5").scaleb(exponent - len(decimals or ""))
    return value - half, value + half


def misplaced(texts: list[str], *, falling: bool) -> list[str]:
    """Return the cells of a column of numbers that stand before a lower one, or after an empty one.

    With ``falling`` those that stand before a higher one. Empty cells belong last in both orders.
    """
    found = []
    ranges = [shown_range(text) for text in texts]
    for i, (before, after) in enumerate(itertools.pairwise(ranges)):
        if before is None:
            wrong = after is not None
        elif after is None:
            wrong = False
        else:
            wrong = after[0] > before[1] if falling else before[0] > after[1]
        if wrong:
            found.append(f"{texts[i]} before {texts[i + 1]}")
    return found


def unsorted(it: Opened) -> list[str]:
    """Click every head of every table, twice; return what is not as it should be."""
    return [
        fault for table in it.page.locator("table").all() for fault in _faults_of_table(it, table)
    ]


def _faults_of_table(it: Opened, table: Locator) -> list[str]:
    before: list[list[str]] = table.evaluate("table => seen.rowsOf(table)")
    # a real click on the first head: it is in sight, and nothing lies over it
    table.locator("thead button").first.click()
    first = table.locator("thead th").first.get_attribute("aria-sort")
    found = [] if first == "ascending" else [f"a click sets aria-sort to {first}"]
    for state in table.evaluate("table => seen.sortedByEach(table)"):
        column, falling = state["column"], state["order"] == "descending"
        texts = [row[column] for row in state["rows"]]
        faults = []
        wanted = [state["order"] if i == column else None for i in range(len(state["said"]))]
        if state["said"] != wanted:
            faults.append(f"aria-sort is {state['said']}")
        if sorted(state["rows"]) != sorted(before):
            faults.append("rows were lost")
        if state["number"]:
            faults += misplaced(texts, falling=falling)
        elif not state["in_order"]:
            faults.append(f"out of order: {texts}")
        found += [f"{state['head']} ({state['order']}): {fault}" for fault in faults]
    return found

"""Keys that no table here holds: the nearest one that is known, or that they were not judged."""

import difflib
from collections.abc import Collection, Iterator

from dapolab.check import keys
from dapolab.check.findings import Finding
from dapolab.check.run import Run, same


def is_newest(run: Run) -> bool:
    """Say whether the version is the one that was read."""
    return same(run.version_text, keys.NEWEST[run.framework])


def not_judged(run: Run) -> Iterator[Finding]:
    """Say that the version's keys were not checked, because another one's are known."""
    newest = keys.NEWEST[run.framework]
    yield run.finding(
        "keys-not-judged",
        "note",
        "version",
        f"which keys {run.framework} {run.version_text} knows was not checked: the table here is "
        f"that of {newest}",
        source=f"keys/{run.framework}-{newest}.json",
    )


def outside(run: Run, known: Collection[str], *, whose: str) -> Iterator[Finding]:
    """Say how many settings lie outside the table, and whose they would be."""
    given = {s.key: s for s in run.reading.source.settings}
    others = [key for key in given if key not in known]
    if not is_newest(run):
        yield run.finding(
            "keys-not-judged",
            "note",
            "version",
            f"settings are read as {run.framework} {keys.NEWEST[run.framework]} reads them; what "
            f"{run.version_text} does with them was not checked",
            source=f"{run.framework} {keys.NEWEST[run.framework]}",
        )
    if not others:
        return
    stored = keys.table(run.framework)
    yield run.finding(
        "keys-not-judged",
        "note",
        others[0],
        f"{len(others)} of {len(given)} settings, the first here, are not judged: no table of "
        f"{whose} is kept here",
        source=f"keys/{run.framework}-{stored['version']}.json",
    )


def like(key: str, known: Collection[str], *, cutoff: float) -> str | None:
    """Return the known key that ``key`` is all but spelt like, None where none is."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=cutoff)
    return close[0] if close else None


def nearest(key: str, known: set[str]) -> str:
    """Return the known key that looks most like ``key``, its last part weighing most."""
    leaf = key.rpartition(".")[2]
    same = sorted(k for k in known if k.rpartition(".")[2] == leaf)
    pool = same or sorted(k for k in known if not k.endswith("_target_"))
    close = difflib.get_close_matches(key, pool, n=1, cutoff=0.0)
    return close[0] if close else ""

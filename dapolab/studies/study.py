"""A study: what is measured into tables, and the page that is drawn from the tables alone.

The tables are stored beside the page, as text. A page can so be drawn again without measuring, and
equal tables give equal bytes: nothing in it comes from a clock, a host or a commit.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dapolab import __version__
from dapolab.errors import ConfigError
from dapolab.report import Document
from dapolab.store import atomic_write

Tables = Mapping[str, pd.DataFrame]
Tick = Callable[[], object]


@dataclass(frozen=True)
class Study:
    """One generated page.

    Attributes
    ----------
    name : file name of the page.
    question : what it answers, one line.
    needs_torch : whether measuring needs the extra ``train``.
    n_parts : how often ``measure`` calls its ``tick``, for the progress display.
    measure : (seed, quick, tick) -> tables; ``quick`` means fewer seeds, for tests.
    document : (tables, provenance) -> page; reads nothing else.
    """

    name: str
    question: str
    n_parts: int
    measure: Callable[[int, bool, Tick], Tables]
    document: Callable[[Tables, Mapping[str, str]], Document]
    needs_torch: bool = False


@dataclass(frozen=True)
class Stored:
    """Tables as they lie on disk, and how they were made."""

    tables: Tables
    seed: int
    quick: bool
    version: str
    sha256: str

    def provenance(self, study: Study) -> dict[str, str]:
        """Return what repeats the page."""
        words = ["dapolab report", study.name, f"--measure --seed {self.seed}"]
        return {
            "command": " ".join([*words, *(["--quick"] if self.quick else [])]),
            "drawn again": f"dapolab report {study.name}",
            "version": self.version,
            "seed": str(self.seed),
            "tables sha256": self.sha256[:16],
        }


def save(study: Study, folder: Path, tables: Tables, *, seed: int, quick: bool) -> Stored:
    """Write the tables under ``folder/tables/NAME`` and return them as a reader will find them."""
    place = _place(study, folder)
    texts = {name: table.to_csv(index=False, lineterminator="\n") for name, table in tables.items()}
    for name, text in texts.items():
        atomic_write(place / f"{name}.csv", text)
    about = {
        "study": study.name,
        "version": __version__,
        "seed": seed,
        "quick": quick,
        "tables": list(texts),
        "sha256": _digest(texts),
    }
    atomic_write(place / "study.json", json.dumps(about, indent=1) + "\n")
    return read(study, folder)


def read(study: Study, folder: Path) -> Stored:
    """Read stored tables.

    Raises
    ------
    ConfigError
        There are none, or they are not those that were written.
    """
    place = _place(study, folder)
    about_file = place / "study.json"
    try:
        about: dict[str, Any] = json.loads(about_file.read_text(encoding="utf-8"))
        texts = {
            name: (place / f"{name}.csv").read_text(encoding="utf-8") for name in about["tables"]
        }
        made = (int(about["seed"]), bool(about["quick"]), str(about["version"]))
        digest = str(about["sha256"])
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename}: not there; measure first: dapolab report {study.name} --measure"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{about_file}: not a study's record; measure again") from None
    if _digest(texts) != digest:
        raise ConfigError(f"{place}: a table was changed after it was measured; measure again")
    tables = {name: pd.read_csv(io.StringIO(text)) for name, text in texts.items()}
    seed, quick, version = made
    return Stored(tables, seed, quick, version, digest)


def _place(study: Study, folder: Path) -> Path:
    return folder / "tables" / study.name


def _digest(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\0{texts[name]}\0".encode())
    return digest.hexdigest()

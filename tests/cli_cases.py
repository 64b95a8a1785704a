"""The command line in process: a tiny experiment in a folder of its own, and what a call gave."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dapolab.cli import main

TINY = """\
name = "tiny"

[workload]
kind = "independent"
lengths = { kind = "constant", tokens = 20 }
pass_rate = { kind = "fixed", p = 0.5 }
prompts = { count = 1000 }

[rollout]
groups_per_step = 2
group_size = 2
cap_tokens = 64

[collector]
kind = "exact_refill"

[hardware]
law = { kind = "affine", a_s = 0.01, b_s = 1e-4, c_s = 0.0 }
prefill = false
slots = 8

[run]
steps = 3
replications = 2
"""


@dataclass(frozen=True)
class Said:
    """Exit code and text of one call."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        """The JSON document on stdout; NaN and Infinity are refused, as strict readers do."""

        def refuse(word):
            raise AssertionError(f"{word} in the document")

        return json.loads(self.out, parse_constant=refuse)


class Desk:
    """A working folder with ``tiny.toml`` and the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.write("tiny.toml", TINY)

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def files(self) -> dict[str, bytes | None]:
        """Return every file (and folder, as None) below the working folder."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(self.folder.rglob("*"))
        }

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
        said = self._capsys.readouterr()
        return Said(code, said.out, said.err)

    def done(self, *words: str) -> Said:
        """Run what has to succeed silently on stderr."""
        said = self(*words)
        assert (said.code, said.err) == (0, "")
        return said

    def refused(self, *words: str) -> str:
        """Run what has to be refused: one line on stderr, exit 2, no file touched."""
        before = self.files()
        said = self(*words)
        assert said.code == 2
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert said.err.startswith("dapolab")
        assert self.files() == before
        return said.err.strip()

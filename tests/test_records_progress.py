"""The bar appears on terminals, after two seconds, and never elsewhere."""

import sys

import pytest

from dapolab.reading import progress
from dapolab.reading.progress import ByteProgress


class Terminal:
    encoding = "utf-8"

    def __init__(self) -> None:
        self.written = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        return


def draw(monkeypatch: pytest.MonkeyPatch, *, elapsed_s: float, shown: bool = True) -> str:
    terminal, clock = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with ByteProgress(100, title="reading x", shown=shown) as bar:
        clock[0] = elapsed_s
        bar.advance(50)
    return terminal.written


def test_a_slow_read_on_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "reading x" in draw(monkeypatch, elapsed_s=2.5)


def test_a_quick_or_a_silent_read_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(monkeypatch, elapsed_s=1.5) == ""
    assert draw(monkeypatch, elapsed_s=2.5, shown=False) == ""


def test_no_bar_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ByteProgress(100, title="reading x") as bar:
        bar.advance(50)
    assert capsys.readouterr().err == ""

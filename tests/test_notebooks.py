"""Every notebook runs from top to bottom, shows what it says, and its two forms are the same."""

import re
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
TITLES = (
    "The recipe in ten minutes",
    "The refill barrier",
    "Your rollouts: fit, compare, advise",
    "Length bias",
    "Clip-higher and entropy",
    "Overlong",
    "Async and staleness",
    "Predicted against measured",
)
BRACKETS = {"(", ")", "[", "]", "{", "}", "),", "],", "},"}
WORDS = re.compile(r"""(\w+=)?f?"[^"]*"[,)]*""")
each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def text_of(script):
    return [c.source for c in jupytext.read(script).cells if c.cell_type == "markdown"]


def test_the_notebooks_are_there_in_order():
    assert [path.name[:2] for path in SCRIPTS] == [f"{n:02}" for n in range(1, len(TITLES) + 1)]
    assert [text_of(path)[0].splitlines()[0] for path in SCRIPTS] == [f"# {t}" for t in TITLES]


@each
# tornado's and zmq's own deprecations are not ours to fix
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_notebook_runs(script, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = jupytext.read(script)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}}).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not [out for out in outputs if out.output_type == "error"]
    shown = [out.data.get("text/html", "") for out in outputs if "data" in out]
    # a figure without a display hook would be a line of text
    assert any("data:image/svg+xml" in html for html in shown)
    assert any("<table" in html for html in shown)


@each
def test_both_forms_hold_the_same_cells(script):
    text, book = jupytext.read(script), jupytext.read(script.with_suffix(".ipynb"))
    assert [c.source for c in text.cells] == [c.source for c in book.cells]
    # outputs are not committed: they would be stale, and the tests make them
    assert not any(c.get("outputs") for c in book.cells)


@each
def test_logic_stays_thin(script):
    code = [c.source for c in jupytext.read(script).cells if c.cell_type == "code"]
    lines = [
        line
        for source in code
        for line in map(str.strip, source.splitlines())
        if line
        and not line.startswith(("import ", "from ", "#"))
        and line not in BRACKETS
        and not WORDS.fullmatch(line)
    ]
    assert len(lines) <= 40


@each
def test_a_reader_is_told_how_to_read_and_what_to_try(script):
    text = "\n".join(text_of(script))
    assert text.count("**How to read this.**") >= 2
    _, heading, tasks = text.partition("## Exercises\n")
    assert heading
    assert len(re.findall(r"^\d\. ", tasks, re.MULTILINE)) in (2, 3)

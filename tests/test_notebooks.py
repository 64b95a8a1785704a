"""Every notebook runs from top to bottom, and its two forms are the same notebook."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
# tornado's and zmq's own deprecations are not ours to fix
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_notebook_runs(script):
    notebook = jupytext.read(script)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}}).execute()
    errors = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not errors


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_both_forms_hold_the_same_cells(script):
    text, book = jupytext.read(script), jupytext.read(script.with_suffix(".ipynb"))
    assert [c.source for c in text.cells] == [c.source for c in book.cells]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_logic_stays_thin(script):
    code = [c.source for c in jupytext.read(script).cells if c.cell_type == "code"]
    lines = [
        line
        for source in code
        for line in source.splitlines()
        if line.strip()
        and not line.startswith(("import ", "from ", "#"))
        and line.strip() not in ("(", ")", "[", "]", "{", "}", "),", "],", "},")
    ]
    assert len(lines) <= 50

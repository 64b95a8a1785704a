"""Starting is cheap: what is not needed is not loaded."""

import json
import subprocess
import sys

import pytest

from dapolab import __version__
from dapolab.cli import COMMANDS

HEAVY = {"torch", "simpy", "numba", "pandas", "pyarrow", "matplotlib", "joblib"}
SCIENCE = {"numpy", "scipy", "pydantic", "rich"}


def loaded_by(code):
    """Return the top-level modules of a fresh interpreter after ``code``, and what it printed."""
    names = "sorted({name.partition('.')[0] for name in sys.modules})"
    report = f"import sys, json; print('\\n' + json.dumps({names}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    text, _, modules = done.stdout.rstrip("\n").rpartition("\n")
    return text, set(json.loads(modules))


def call(*words):
    return (
        f"from dapolab.cli import main\ntry:\n    main({list(words)})\nexcept SystemExit:\n    pass"
    )


def test_import_loads_nothing():
    _, modules = loaded_by("import dapolab")
    assert not modules & (HEAVY | SCIENCE)


def test_help_loads_nothing_and_says_what_to_type_first():
    text, modules = loaded_by(call("--help"))
    assert not modules & (HEAVY | SCIENCE)
    assert "start here" in text
    assert all(f"  {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_light_narrow_and_has_an_example(command):
    text, modules = loaded_by(call(command, "--help"))
    assert not modules & HEAVY
    assert f"\n  dapolab {command} " in text
    assert max(map(len, text.splitlines())) <= 80


def test_version():
    done = subprocess.run(
        [sys.executable, "-m", "dapolab", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"dapolab {__version__}\n"


def test_an_error_in_the_words_loads_nothing_heavy():
    code = call("simulate", "x.toml", "--stepz", "3").replace(
        "import main", "import main; import sys; sys.stderr = sys.stdout"
    )
    text, modules = loaded_by(code)
    assert "nearest: --steps" in text
    assert not modules & HEAVY

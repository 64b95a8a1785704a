"""Every command of the documentation is run here on tiny inputs, or read by the command's parser.

Run: all whose inputs this test can make. Read only: those that train, install, or take minutes
(``READ_ONLY`` says why); their options, settings, presets and files of the repository are checked.
A command of a kind that nobody has decided on fails the test.
"""

import importlib
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import jupytext
import pytest
from cli_cases import Desk
from log_lines import verl_line

from dapolab.cli import COMMANDS, main
from dapolab.studies.readme import FILES, filled

ROOT = Path(__file__).resolve().parents[1]
DOCS = (
    "README.md",
    "README.zh.md",
    "CONTRIBUTING.md",
    "sims/README.md",
    "tests/conformance/README.md",
)
START = re.compile(r"^(?:dapolab|make|python -m gpu_runs|gpu_runs/run_gpu\.sh)\b(?![/.])")
LIGHT = ("--jobs", "1", "--steps", "4", "--replications", "2")
EXTRA = {
    "compare": (*LIGHT, "--collectors", "exact_refill,streaming"),
    "theory": LIGHT,
    "simulate": LIGHT,
    "split": LIGHT,
    "advise": ("--jobs", "1", "--steps", "1", "--replications", "6", "--target", "4"),
    "fit": ("--selection", "all", "--cap", "256", "--draws", "0"),
    "import-log": (),
    "check": (),
    "recipe": (),
    "bandit": ("--seeds", "4", "--steps", "2"),
}
READ_ONLY = {
    "sweep": "hundreds of points; test_sweep runs small ones",
    "best": "needs a whole sweep; test_best runs it",
    "backtest": "needs the logs of two runs; test_fidelity_backtest runs it",
    "calibrate": "needs a trace; test_fidelity_calibrate runs it",
    "fidelity": "needs the real data; minutes",
    "claims": "minutes; test_claims runs it",
    "report": "writes reports; test_studies runs it",
    "bench": "minutes; test_cli runs it",
}
NAMES = ("NAME", "CONFIG", "DUMP", "STUDY")  # stand for something: not a command to type


def commands_of(text):
    """Return the commands in fenced or indented blocks, and those in `code` within a line."""
    found, fenced = [], False
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    for line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            found.append(line.strip())
        else:
            # a command in a line of text may be broken over two of them: those are joined below
            continue
    prose = "\n".join(line for line in lines if not line.startswith("    "))
    spans = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose)]
    # `dapolab fit` within a sentence names a command, it does not tell what to type
    found += [code for code in spans if code.count(" ") > 1 or code.startswith("make ")]
    words = [shlex.split(line, comments=True) for line in found if START.match(line)]
    return [w for w in words if len(w) > 1 and not set(w) & set(NAMES) and "…" not in " ".join(w)]


def documents():
    """Return (document, text): pages, and the words and printed hints of the notebooks."""
    for name in DOCS:
        if (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.py")):
        cells = jupytext.read(path).cells
        yield path.name, "\n".join(c.source for c in cells if c.cell_type == "markdown")
        hints = re.findall(r'": ?((?:dapolab|python -m gpu_runs) [^"]+)"', path.read_text("utf-8"))
        yield path.name, "\n".join(f"`{hint}`" for hint in hints)
    script = (ROOT / "gpu_runs/run_gpu.sh").read_text(encoding="utf-8")
    yield "run_gpu.sh", "\n".join(f"    {line[1:].strip()}" for line in script.splitlines()[:12])


CASES = [
    pytest.param(words, id=f"{name}: {' '.join(words)}")
    for name, text in documents()
    for words in commands_of(text)
]
UNIQUE = list({tuple(case.values[0]): case for case in reversed(CASES)}.values())


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    """Return a folder with everything that the documents name and a reader has to bring."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copytree(ROOT / "sims", tmp_path / "sims")
    desk = Desk(tmp_path, capsys)
    rows = ["prompt_id,sample,n_tokens,correct"]
    for prompt in range(16):
        for sample in range(4):
            tokens = 10 + (prompt * 37 + sample * 53) % 190
            rows.append(f"p{prompt},{sample},{tokens},{int(sample < (prompt * 3) % 5)}")
    table = "\n".join(rows) + "\n"
    for name in ("rollouts/rollouts.csv", "rollouts.csv"):
        desk.write(name, table)
    desk.write("mine.toml", (ROOT / "sims/workloads/qwen3-8b-dapo-math.toml").read_bytes())
    desk.write("run_dapo.sh", (ROOT / "tests/check_configs/dapo_32b_published.sh").read_bytes())
    log = "\n".join(verl_line(step, **{"response_length/mean": 100.0}) for step in (1, 2, 3))
    for name in ("train.log", "grpo.log", "dapo.log", "A.log", "B.log"):
        desk.write(name, log + "\n")
    for name in ("dapo.toml", "B.toml"):
        desk.write(name, (tmp_path / "tiny.toml").read_bytes())
    return desk


@pytest.mark.parametrize("words", UNIQUE)
def test_a_command_of_the_docs_works(words, desk, monkeypatch):
    if words[0] == "dapolab":
        _dapolab(words[1:], desk, monkeypatch)
    elif words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] == "python":
        _gpu_runs(words[3:])
    else:
        assert set(words[1:]) <= {"[--smoke]", "--smoke", "[FOLDER]", "FOLDER", "runs/gpu"}
        assert (ROOT / words[0]).is_file()


def _dapolab(words, desk, monkeypatch):
    command = words[0]
    assert command in COMMANDS
    if command in READ_ONLY or "runs/toy/rollouts.parquet" in words:
        _read(words, monkeypatch)
        return
    said = desk(*words, *EXTRA[command])
    # 1 is check's word for errors in the configuration; everything else has to succeed
    assert said.code in ((0, 1) if command == "check" else (0,)), said.err
    assert said.err == ""
    assert said.out
    for flag, target in pairwise(words):
        if flag == "-o":
            assert Path(target).exists()


def _read(words, monkeypatch):
    """Let the command's own parser read the words; its work is left out."""
    module = importlib.import_module(f"dapolab.cli.{words[0].replace('-', '_')}")
    reached = []
    monkeypatch.setattr(module, "run", lambda options: reached.append(options) or 0)
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    assert len(reached) == 1
    for word in words:
        if word.startswith("sims/"):
            assert Path(word).is_file()


def _gpu_runs(words):
    from dapolab.scenario import parse_overrides
    from gpu_runs.__main__ import COMMANDS as TRAINING
    from gpu_runs.__main__ import _split
    from gpu_runs.preset import load
    from gpu_runs.validate.run import _options

    assert words[0] in TRAINING
    if words[0] == "validate":
        options, settings = _options(words[1:])
        name = options.preset
    else:
        own, settings = _split(words[1:])
        name = own[0]
    load(name, parse_overrides(settings))


def test_a_broken_command_would_be_seen(desk, monkeypatch):
    with pytest.raises(AssertionError):
        _dapolab(["compare", "sims/scenarios/none.toml"], desk, monkeypatch)
    with pytest.raises(AssertionError):
        _read(["sweep", "sims/sweeps/refill-by-pass-rate.toml", "--wrong"], monkeypatch)
    with pytest.raises(AssertionError):
        _dapolab(["simulat", "x"], desk, monkeypatch)


def test_the_parser_of_documents_finds_commands():
    text = (
        "a `make lab` b\n\n    dapolab fit x \\\n        -o y  # why\n\n```\nmake test\n```\n`fit`"
    )
    assert commands_of(text) == [
        ["dapolab", "fit", "x", "-o", "y"],
        ["make", "test"],
        ["make", "lab"],
    ]
    assert {words[1] for case in CASES for words in case.values if words[0] == "dapolab"} >= {
        "fit",
        "compare",
        "advise",
        "check",
    }


# ------------------------------------------------------------------ claims and numbers


@pytest.mark.parametrize("name", FILES)
def test_the_blocks_are_those_of_the_stored_reports(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- claims:begin -->" in text
    new = filled(text, reports=ROOT / "reports", language=FILES[name], name=name)
    assert new == text, f"{name} is stale: run dapolab report readme"


def test_both_readmes_have_the_same_commands_and_numbers():
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in FILES)

    def typed(text):
        return [w for w in commands_of(text) if w[0] != "make"]

    missing = [words for words in typed(chinese) if words not in typed(english)]
    assert not missing
    blocks = [
        re.findall(r"<!-- (\w+):begin -->\n(.*?)\n<!-- \w+:end -->", text, re.DOTALL)
        for text in (english, chinese)
    ]
    assert [kind for kind, _ in blocks[0]] == [kind for kind, _ in blocks[1]]
    for (_, ours), (_, theirs) in zip(*blocks, strict=True):
        assert re.findall(r"−?\d+(?:\.\d+)?", ours) == re.findall(r"−?\d+(?:\.\d+)?", theirs)

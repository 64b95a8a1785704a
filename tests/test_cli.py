"""Every command: its JSON document, its seed, its files, its width."""

import math
import os
import re
import runpy
import subprocess
import sys

import pytest
from cli_cases import Desk

from dapolab import __version__
from dapolab.cli import COMMANDS
from dapolab.metrics import BY_NAME
from dapolab.scenario import COLLECTOR_KINDS

QUICK = ("--jobs", "1")


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Desk(tmp_path, capsys)


def check_metric(metric):
    """DESIGN §8: {"mean", "low", "high", "n", "unit"}, numbers or (low, high) null."""
    assert set(metric) == {"mean", "low", "high", "n", "unit"}
    assert math.isfinite(metric["mean"])
    assert isinstance(metric["n"], int)
    assert isinstance(metric["unit"], str)
    assert (metric["low"] is None) == (metric["high"] is None)
    if metric["low"] is not None:
        assert metric["low"] <= metric["high"]


def check_envelope(document, command, seed=0):
    assert document["schema"].startswith(f"dapolab/{command}/")
    assert document["command"] == command
    assert document["version"] == __version__
    assert document["seed"] == seed


# documents


def test_simulate_document(desk):
    said = desk.done("simulate", "tiny.toml", "--json", *QUICK)
    document = said.document
    check_envelope(document, "simulate")
    assert document["scenario"] == "tiny"
    assert list(document["policies"]) == ["exact_refill"]
    assert (document["baseline"], document["ratios"]) == (None, {})
    for name, metric in document["policies"]["exact_refill"].items():
        check_metric(metric)
        if name in BY_NAME:
            assert metric["unit"] == BY_NAME[name].unit
        if metric["unit"] == "share" and metric["low"] is not None:
            assert 0 <= metric["low"] <= metric["high"] <= 1
    waves = document["waves_distribution"]["exact_refill"]
    assert sum(waves["shares"]) == pytest.approx(1)
    assert len(waves["waves"]) == len(waves["shares"])


def test_compare_document_has_absent_metrics_absent(desk):
    document = desk.done("compare", "tiny.toml", "--collectors", "all", "--json", *QUICK).document
    check_envelope(document, "compare")
    assert set(COLLECTOR_KINDS) <= set(document["policies"])
    assert document["baseline"] == "exact_refill"
    for metrics in document["policies"].values():
        for metric in metrics.values():
            check_metric(metric)
    assert set(document["ratios"]) == set(document["policies"]) - {"exact_refill"}
    for metrics in document["ratios"].values():
        for metric in metrics.values():
            check_metric(metric)
    # without a barrier there are no waves, not one
    assert "rollout/waves" in document["policies"]["rounds"]
    assert "rollout/waves" not in document["policies"]["streaming"]
    assert "streaming" not in document["waves_distribution"]


def test_theory_document(desk):
    document = desk.done("theory", "tiny.toml", "--json", "--steps", "20", *QUICK).document
    check_envelope(document, "theory")
    assert document["quantities"]
    for row in document["quantities"].values():
        assert {"theory", "simulator", "agrees"} <= set(row)
        check_metric(row["simulator"])
        assert isinstance(row["agrees"], bool)


def test_sweep_document(desk):
    desk.write("s.toml", 'name = "s"\nbase = "tiny.toml"\n[grid]\n"run.steps" = [1, 2]\n')
    document = desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK).document
    check_envelope(document, "sweep")
    counts = {key: document[key] for key in ("points", "computed", "skipped", "failed")}
    assert counts == {"points": 2, "computed": 2, "skipped": 0, "failed": 0}
    assert document["seconds"] > 0
    assert (desk.folder / document["table"]).is_file()


def rollouts(n_prompts=40):
    """Return a table whose groups of 4 have 0 to 4 right answers and lengths from 10 to 200."""
    lines = ["prompt_id,sample,n_tokens,correct"]
    for prompt in range(n_prompts):
        for sample in range(4):
            tokens = 10 + (prompt * 37 + sample * 53) % 190
            lines.append(f"p{prompt},{sample},{tokens},{int(sample < (prompt * 3) % 5)}")
    return "\n".join(lines) + "\n"


FIT = ("--selection", "all", "--cap", "256", "--draws", "100")


def test_fit_document_and_files(desk):
    desk.write("r.csv", rollouts())
    said = desk.done("fit", "r.csv", *FIT, "-o", "out/w.toml", "--json")
    document = said.document
    check_envelope(document, "fit")
    assert document["selection"] == "all"
    assert document["workload"]["kind"] == "joint"
    assert document["parameters"]
    for metric in document["parameters"].values():
        check_metric(metric)
    assert isinstance(document["goodness"], list)
    assert all(isinstance(text, str) for text in document["warnings"])
    written = set(desk.files())
    assert {"out/w.toml", "out/w.json", "out/w.draws.csv", "out/w.md", "out/w.html"} <= written
    assert (desk.folder / "out/w.json").read_text() == said.out
    # what it wrote is a workload that any scenario can take, from wherever it is called
    again = desk.done(
        "simulate", "tiny.toml", "--workload", "out/w.toml", "--rollout.cap_tokens", "256",
        "--json", *QUICK,
    )  # fmt: skip
    assert again.document["forecast"]["parts"]


def test_bench_document(desk, monkeypatch):
    rows = [{"name": "x", "value": 2.0, "unit": "ms", "against": None, "ratio": None}]
    monkeypatch.setattr("dapolab.bench.benchmarks", lambda *, on_done: rows)
    document = desk.done("bench", "--json").document
    check_envelope(document, "bench", seed=None)
    assert document["benchmarks"] == rows
    assert " 2 " in desk.done("bench").out


def test_the_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dapolab", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("dapolab", run_name="__main__")
    assert not stop.value.code
    assert capsys.readouterr().out == f"dapolab {__version__}\n"


# seeds


@pytest.mark.parametrize("command", ["simulate", "compare", "theory"])
def test_equal_seeds_equal_bytes_other_seeds_other_results(desk, command):
    words = (command, "tiny.toml", "--json", "--steps", "10", *QUICK)
    one = desk.done(*words, "--seed", "3")
    assert desk.done(*words, "--seed", "3").out == one.out
    other = desk.done(*words, "--seed", "4").document
    assert other.pop("seed") == 4
    document = one.document
    assert document.pop("seed") == 3
    assert other != document


# settings


def test_settings_may_stand_anywhere_and_reach_the_run(desk):
    words = ("--workload.lengths.tokens", "40", "tiny.toml", "--run.steps=1", "--json", *QUICK)
    policies = desk.done("simulate", *words).document["policies"]
    assert policies["exact_refill"]["rollout/mean_completion_tokens"]["mean"] == 40
    assert policies["exact_refill"]["run/steps"]["mean"] == 1


def test_none_takes_a_limit_away_and_is_also_a_kind(desk):
    words = ("simulate", "tiny.toml", "--json", "--workload.pass_rate.p", "0.06", *QUICK)
    fill = "rollout/effective_fill_ratio"
    capped = desk.done(*words, "--steps", "10").document["policies"]["exact_refill"]
    assert capped[fill]["mean"] < 1
    free = desk.done(*words, "--collector.max_candidate_multiplier", "none").document["policies"]
    assert free["exact_refill"][fill]["mean"] == 1
    document = desk.done("simulate", "tiny.toml", "--json", "--collector.kind", "none", *QUICK)
    assert list(document.document["policies"]) == ["none"]


def test_epochs_end_with_the_data(desk):
    words = ("--epochs", "2", "--workload.prompts.count", "10", "--json", *QUICK)
    document = desk.done("simulate", "tiny.toml", *words).document
    assert set(document["forecast"]["run/ended"]) == {"data exhausted"}
    # 20 prompts, at least 2 a step
    assert document["policies"]["exact_refill"]["run/steps"]["mean"] <= 10


# files


def test_without_output_nothing_is_written(desk):
    before = desk.files()
    for command in ("simulate", "compare", "theory"):
        desk.done(command, "tiny.toml", *QUICK)
    desk.write("r.csv", rollouts())
    desk.done("fit", "r.csv", *FIT)
    assert desk.files().keys() == before.keys() | {"r.csv"}


def test_compare_writes_the_report_and_says_where(desk):
    said = desk.done("compare", "tiny.toml", "--collectors", "rounds", "-o", "reports", *QUICK)
    written = sorted(path for path, content in desk.files().items() if content is not None)
    assert {"reports/tiny.md", "reports/tiny.html", "reports/tiny.json"} <= set(written)
    assert all(path == "tiny.toml" or path.startswith("reports/") for path in written)
    assert not [path for path in written if path.endswith(".tmp")]
    named = re.findall(r"^wrote (\S+)$", said.out, flags=re.MULTILINE)
    assert {f"reports/tiny.{kind}" for kind in ("md", "html", "json")} == set(named)


def test_the_written_document_is_the_printed_one(desk):
    said = desk.done("compare", "tiny.toml", "--collectors", "none", "-o", "r", "--json", *QUICK)
    assert (desk.folder / "r/tiny.json").read_text() == said.out
    said = desk.done("theory", "tiny.toml", "-o", "t.json", "--json", *QUICK)
    assert (desk.folder / "t.json").read_text() == said.out


def test_simulate_writes_a_run_and_a_trace(desk):
    said = desk.done("simulate", "tiny.toml", "-o", "run", "--trace", "t.json", *QUICK)
    written = {path for path, content in desk.files().items() if content is not None}
    assert {"run/manifest.json", "run/steps.parquet", "t.json"} <= written
    assert all(p in ("tiny.toml", "t.json") or p.startswith("run/") for p in written)
    assert "wrote run" in said.out
    assert "wrote t.json" in said.out


def test_another_name_names_the_files(desk):
    desk.done("compare", "tiny.toml", "--collectors", "none", "--name", "b", "-o", "r", *QUICK)
    assert "r/b.md" in desk.files()


# what a person sees


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "tiny.toml", *QUICK),
        ("simulate", "tiny.toml", "--all", *QUICK),
        ("compare", "tiny.toml", "--collectors", "all", *QUICK),
        ("theory", "tiny.toml", *QUICK),
        ("sweep", "s.toml", *QUICK),
        *((command, "--help") for command in COMMANDS),
        ("--help",),
    ],
)
def test_lines_fit_the_terminal_and_carry_no_colour(desk, monkeypatch, columns, words):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    desk.write("s.toml", 'name = "s"\nbase = "tiny.toml"\n[grid]\n"run.steps" = [1, 2]\n')
    out = desk.done(*words).out
    assert max(len(line) for line in out.splitlines()) <= min(columns, 80)
    assert "\x1b" not in out


def test_piped_output_has_no_colour_codes(desk):
    words = [sys.executable, "-m", "dapolab", "simulate", "tiny.toml", *QUICK]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=desk.folder)
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_progress_is_shown_on_a_terminal_and_on_stderr_alone(desk):
    terminal, child_end = os.openpty()
    words = [sys.executable, "-m", "dapolab", "simulate", "tiny.toml", "--json", *QUICK]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=child_end, text=True, cwd=desk.folder
    ) as child:
        os.close(child_end)
        out, _ = child.communicate(timeout=120)
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert child.returncode == 0
    assert "simulate exact_refill" in shown
    assert "2/2" in shown
    assert out.startswith("{")
    assert "\x1b" not in out


def test_the_short_view_is_in_words_and_the_long_one_by_name(desk):
    short = desk.done("simulate", "tiny.toml", *QUICK).out
    assert "one training step" in short
    assert "--all" in short
    assert len(short.splitlines()) <= 45
    long = desk.done("simulate", "tiny.toml", "--all", *QUICK).out
    assert "time/step_seconds" in long


def test_theory_rows_of_the_seed_configuration(desk, request):
    """P1 of the theory notes: B=4, M=2, q=.5 has E[waves] 2.75 and P(full) .6367 (exact)."""
    scenario = request.config.rootpath / "sims/scenarios/p1-seed-configuration.toml"
    quick = ("--replications", "20", "--steps", "40", "--json", *QUICK)
    rows = desk.done("theory", str(scenario), *quick).document["quantities"]
    # at most 8 candidates, full with 4: P(Binomial(8, ½) ≥ 4) = 163/256
    assert rows["P(full)"]["theory"] == pytest.approx(163 / 256, abs=1e-9)
    # kept = min(4, Binomial(8, ½))
    kept = sum(min(k, 4) * math.comb(8, k) for k in range(9)) / 256
    assert rows["rollout/effective_groups"]["theory"] == pytest.approx(kept, abs=1e-9)
    assert rows["train/update_skipped"]["theory"] == pytest.approx(1 / 256, abs=1e-9)
    assert all(row["agrees"] for row in rows.values())
    harder = ("--workload.pass_rate.p_mixed", "0.3")
    rows = desk.done("theory", str(scenario), *quick, *harder).document["quantities"]
    full = sum(math.comb(8, k) * 0.3**k * 0.7 ** (8 - k) for k in range(4, 9))
    assert rows["P(full)"]["theory"] == pytest.approx(full, abs=1e-6)
    assert all(row["agrees"] for row in rows.values())


def test_without_a_scenario_the_packaged_one_is_played(desk):
    from pathlib import Path

    from dapolab.scenario import DEFAULT

    small = Path(__file__).parents[1] / "sims" / "scenarios" / "small.toml"
    assert DEFAULT.read_bytes() == small.read_bytes()
    said = desk.done("simulate", "--json", "--steps", "1", "--replications", "2", "--jobs", "1")
    assert said.document["scenario"] == "small"

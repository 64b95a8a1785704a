"""Pages from stored tables: the same bytes again, and no table but the measured one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_cases import Desk

from dapolab.bandit import find_study
from dapolab.errors import ConfigError
from dapolab.report import Document, Section, Table, render
from dapolab.stats import mean_estimate
from dapolab.studies import STUDIES, index_document, read, save, sweeps
from dapolab.studies.bandits import Part, bandit_study, estimate_table, estimates_from
from dapolab.studies.study import Study

ROOT = Path(__file__).parents[1]
COMMITTED = [name for name in STUDIES if (ROOT / "reports" / "tables" / name).exists()]


def study(values: tuple[float, ...] = (1.0, 0.1 + 0.2)) -> Study:
    def document(tables, provenance):
        table = Table(tables["t"], "numbers", formats={"x": ".17g"})
        return Document("T", "Lead.", (Section("S", (table,)),), provenance=provenance)

    frame = pd.DataFrame({"word": ["a", "<script>alert(1)</script>"], "x": values})
    return Study("t", "what?", 1, lambda _seed, _quick, _tick: {"t": frame}, document)


def drawn(study, stored, folder):
    pages = render(study.document(stored.tables, stored.provenance(study)), folder, stem="t")
    return [path.read_bytes() for path in pages]


def test_a_page_from_stored_tables_is_the_page_that_was_measured(tmp_path):
    mine = study()
    stored = save(mine, tmp_path, mine.measure(3, False, print), seed=3, quick=False)
    again = read(mine, tmp_path)
    assert drawn(mine, stored, tmp_path / "a") == drawn(mine, again, tmp_path / "b")
    assert again.tables["t"]["x"].tolist() == [1.0, 0.1 + 0.2]  # to the last digit
    assert again.provenance(mine)["command"] == "dapolab report t --measure --seed 3"
    page = (tmp_path / "a" / "t.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_equal_tables_have_equal_hashes_and_others_do_not(tmp_path):
    hashes = []
    for number, values in enumerate([(1.0, 2.0), (1.0, 2.0), (1.0, 2.0000000000000004)]):
        mine, folder = study(values), tmp_path / str(number)
        hashes.append(save(mine, folder, mine.measure(0, False, print), seed=0, quick=False).sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_tables_that_are_not_those_measured_are_refused(tmp_path):
    mine = study()
    with pytest.raises(ConfigError, match="dapolab report t --measure"):
        read(mine, tmp_path)
    save(mine, tmp_path, mine.measure(0, False, print), seed=0, quick=False)
    place = tmp_path / "tables" / "t"
    text = (place / "t.csv").read_text()
    (place / "t.csv").write_text(text.replace("1.0", "1.1"))
    with pytest.raises(ConfigError, match="changed after it was measured"):
        read(mine, tmp_path)
    (place / "t.csv").write_text(text)
    read(mine, tmp_path)
    for broken in ("", "[]", json.dumps({"tables": ["t"]}), '{"tables": 3}'):
        (place / "study.json").write_text(broken)
        with pytest.raises(ConfigError, match="measure again"):
            read(mine, tmp_path)


def test_estimates_survive_their_table():
    rng = np.random.default_rng(0)
    found = {"a": {"m": mean_estimate(rng.normal(size=9), unit="tokens")}}
    found["a"]["exact"] = mean_estimate([0.1], unit="")
    assert estimates_from(estimate_table(found)) == found


def test_the_index_names_each_page_with_its_first_sentences(tmp_path):
    page = Document("A <b> & *c*", "The **answer** is `x < 3`.", (Section("S", ("text",)),))
    render(page, tmp_path, stem="one")
    (tmp_path / "LOG.md").write_text("# Lab book\n\nnot a page\n")
    render(index_document(tmp_path), tmp_path, stem="index")
    first = (tmp_path / "index.html").read_text()
    assert '<a href="one.html">one.html</a>' in first
    assert "A &lt;b&gt; &amp; *c*" in first
    assert "The answer is x &lt; 3." in first
    assert "Lab book" not in first
    render(index_document(tmp_path), tmp_path, stem="index")  # does not list itself
    assert (tmp_path / "index.html").read_text() == first


def test_a_link_leads_to_a_file_beside_the_page_alone():
    frame = pd.DataFrame({"page": ["a"]})
    for path in ("../secret", "https://example.org", "javascript:alert(1)", "/etc/passwd", ""):
        with pytest.raises(ValueError, match="no file beside the page"):
            Table(frame, "t", files={"a": path})


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Desk(tmp_path, capsys)


def test_the_command_lists_draws_and_refuses(desk, monkeypatch):
    assert set(desk.done("report", "--json").document["studies"]) == set(STUDIES)
    assert max(map(len, desk.done("report").out.splitlines())) <= 80
    assert "nearest: clip" in desk.refused("report", "clop")
    assert "measure first" in desk.refused("report", "clip")
    monkeypatch.setitem(STUDIES, "t", study())
    said = desk.done("report", "t", "--measure", "--json", "-o", "out")
    assert said.document["pages"] == ["t.html", "index.html"]
    first = Path("out/t.html").read_bytes()
    desk.done("report", "t", "-o", "out")
    assert Path("out/t.html").read_bytes() == first


def test_the_command_fills_a_readme_between_its_markers_alone(desk):
    claims = [
        {"id": "a", "verdict": "holds"},
        {"id": "b", "verdict": "undecided"},
        {"id": "c", "verdict": "holds"},
    ]
    reports = desk.folder / "reports"
    desk.write("reports/claims.json", json.dumps({"claims": claims}))
    desk.write("README.md", "mine <!-- claims:begin -->stale<!-- claims:end --> too\n")
    desk.write("README.zh.md", "没有\n")
    assert desk.done("report", "readme").out == "wrote README.md\n"
    text = (desk.folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith("mine <!-- claims:begin -->\n3 claims: 2 hold, 1 undecided (")
    assert text.endswith("\n<!-- claims:end --> too\n")
    assert "stale" not in text
    assert (desk.folder / "README.zh.md").read_text(encoding="utf-8") == "没有\n"
    # again: nothing changes, and the file is still named
    assert desk.done("report", "readme", "--json").document["pages"] == ["README.md"]
    assert (desk.folder / "README.md").read_text(encoding="utf-8") == text
    desk.write("README.md", "<!-- claims:begin --> alone")
    assert "one <!-- claims:begin --> and one" in desk.refused("report", "readme")
    desk.write("README.md", text)
    (reports / "claims.json").write_text("{", encoding="utf-8")
    assert "not a JSON document" in desk.refused("report", "readme")
    (reports / "claims.json").unlink()
    assert "it comes from dapolab claims" in desk.refused("report", "readme")
    desk.write("README.md", "no marker")
    assert "no README.md with" in desk.refused("report", "readme")


def test_a_sweep_is_measured_at_its_settings(desk, monkeypatch):
    chart = sweeps.Chart(
        "few",
        "rollout.groups_per_step",
        "hardware.slots",
        {"time/rollout_seconds": "seconds", "no/such_metric": "nothing"},
        "?",
        "-",
        "groups",
    )
    monkeypatch.setattr(sweeps, "FOLDER", desk.folder)
    monkeypatch.setattr(sweeps, "CHARTS", (chart,))
    with pytest.raises(ConfigError, match="run in a checkout"):
        sweeps._measure(0, False, print)
    desk.write(
        "few.toml",
        'name = "few"\nbase = "tiny.toml"\n[fixed]\n"collector.kind" = "none"\n'
        '[grid]\n"rollout.groups_per_step" = [1, 2]\n"hardware.slots" = [2, 8]\n',
    )
    told = []
    table = sweeps._measure(0, False, lambda: told.append(1))["few"]
    assert len(told) == 1
    found = table.set_index([chart.x, chart.by])
    # two answers of 20 tokens a group, 10 ms an iteration and 0.1 ms an answer in it
    for groups, slots, seconds in (
        (1, 2, 20 * (0.01 + 2e-4)),
        (1, 8, 20 * (0.01 + 2e-4)),
        (2, 8, 20 * (0.01 + 4e-4)),
        (2, 2, 2 * 20 * (0.01 + 2e-4)),  # one group waits for the other's slots
    ):
        row = found.loc[(groups, slots)]
        assert row["time/rollout_seconds"] == pytest.approx(seconds)
        assert row["time/rollout_seconds/se"] == pytest.approx(0, abs=1e-12)
        assert row["replications"] == 2
    assert "no/such_metric" not in table
    assert sweeps._lines(chart, "no/such_metric", table) == []
    few, many = sweeps._lines(chart, "time/rollout_seconds", table)
    assert (few.label, many.label) == ("slots 2", "slots 8")
    assert few.x == many.x == (1.0, 2.0)
    assert few.y[1] > 1.9 * few.y[0]


def test_a_page_on_toys_is_measured_and_drawn(monkeypatch):
    own = find_study("length_classes")
    training = own.base.training.model_copy(update={"n_steps": 130})
    short = replace(own, base=own.base.model_copy(update={"training": training}))
    monkeypatch.setattr("dapolab.bandit.find_study", lambda _: short)
    part = Part("length_classes", "Lengths", "?", modes=tuple(own.modes[:2]))
    page = bandit_study("t", title="T", question="?", lead="L.", parts=[part], n_seeds=200)
    tables = page.measure(3, True, lambda: None)
    assert set(tables) == {f"length-classes.{name}" for name in ("curves", "estimates", "reads")}
    steps = tables["length-classes.curves"]["step"].unique()
    # as many points as a figure shows, the ends among them
    assert (min(steps), max(steps)) == (0, 130)
    assert len(steps) <= 67
    estimates = tables["length-classes.estimates"]
    assert estimates["row"].nunique() == 2
    assert estimates["n"].max() == 20  # quick: a tenth of the seeds
    document = page.document(tables, {"version": "1"})
    assert document.provenance["seeds"] == "20"
    assert document.sections[0].title == "Lengths"


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_pages_are_what_their_tables_draw(name, tmp_path):
    stored = read(STUDIES[name], ROOT / "reports")
    assert not stored.quick
    page = STUDIES[name].document(stored.tables, stored.provenance(STUDIES[name]))
    for path in render(page, tmp_path, stem=name):
        committed = ROOT / "reports" / path.relative_to(tmp_path)
        assert path.read_bytes() == committed.read_bytes(), path.name

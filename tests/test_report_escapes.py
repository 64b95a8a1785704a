"""A script in a user's text is shown and never run, in every kind of page."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest
from report_data import comparison_tables, fit_tables, responses

from dapolab.claims import CLAIMS
from dapolab.claims.report import claims_document
from dapolab.claims.verdict import conclude
from dapolab.report import Document, render
from dapolab.report.bandit_report import bandit_document, effects_document
from dapolab.report.comparison import comparison_document
from dapolab.report.fidelity_report import fidelity_document
from dapolab.report.fit_report import fit_document
from dapolab.report.render import html_page, markdown_page
from dapolab.stats import Estimate
from dapolab.studies import STUDIES, index_document
from dapolab.studies.bandits import Part, bandit_study, estimate_table
from dapolab.studies.sweeps import CHARTS

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
_RATIOS = ("ratio/seconds", "ratio/completion_tokens", "bias/length_ratio_policy")
CURVE = {"metric": "reward/accuracy", "unit": "share", "mean": 0.1, "low": 0.0, "high": 0.2, "n": 9}
CURVES = pd.DataFrame([CURVE | {"mode": EVIL, "step": s, "mean": s / 30} for s in range(25)])
ESTIMATES = {
    EVIL: {"reward/accuracy": Estimate(0.5, 0.4, 0.6, 9, EVIL)},
    "b": {"reward/accuracy": Estimate(0.7, 0.6, 0.8, 9, "share")},
}


def comparison() -> Document:
    names = ("exact_refill", EVIL)
    table, waves = responses(names, n_slots=4)
    tables = comparison_tables(names, responses=table, waves=waves)
    return comparison_document(tables, title=EVIL, provenance={EVIL: EVIL})


def fit() -> Document:
    tables = fit_tables()
    tables["goodness"] = tables["goodness"].assign(quantity=EVIL, unit=EVIL)
    tables["parameters"] = {EVIL: Estimate(0.7, 0.6, 0.8, 200, EVIL)}
    tables["not_identified"] = [(EVIL, EVIL)]
    return fit_document(title=EVIL, lead=EVIL, notes=[EVIL], **tables)


def bandit() -> Document:
    return bandit_document(
        title=EVIL, lead=EVIL, curves=CURVES, estimates=ESTIMATES, how_to_read=[EVIL]
    )


def effects() -> Document:
    return effects_document(title=EVIL, lead=EVIL, effects=ESTIMATES, how_to_read=[EVIL])


def claims() -> Document:
    evil = [replace(c, statement=EVIL, correction=EVIL) for c in CLAIMS if c.measure is not None]
    outcomes = [conclude(claim, None, predicted=claim.predict()) for claim in evil[:2]]
    return claims_document(outcomes, provenance={EVIL: EVIL})


def fidelity() -> Document:
    row = {"log": EVIL, "time": EVIL, "case": EVIL, "n": 9}
    shares = {"error_share": 0.1, "total_share": 0.2, "coverage": 0.3}
    tables = {"given_trl": pd.DataFrame([row | shares])}
    return fidelity_document(tables, missing=[EVIL], provenance={EVIL: EVIL})


def study() -> Document:
    part = Part("mismatch", EVIL, EVIL)
    mine = bandit_study(EVIL, title=EVIL, question="", lead=EVIL, parts=[part], n_seeds=9)
    other = CURVES.assign(mode="b")
    tables = {
        "mismatch.curves": pd.concat([CURVES, other]),
        "mismatch.estimates": estimate_table(ESTIMATES),
        "mismatch.reads": pd.DataFrame({"text": [EVIL]}),
    }
    return mine.document(tables, {EVIL: EVIL})


def collectors() -> Document:
    """Return the catalogue with an evil rule and workload; kinds are named by the code."""
    about = dict.fromkeys(("who", "rule", "wins", "bias", "staleness"), EVIL)
    kinds = [{"policy": name, "preset_of": ""} | about for name in ("none", "exact_refill")]
    estimates = {
        name: {metric: Estimate(mean, mean - 0.1, mean + 0.1, 9, "ratio") for metric in _RATIOS}
        for name, mean in (("none", 0.8), ("exact_refill", 1.0))
    }
    answers = {"replica": 0, "submit_s": 0.0, "admit_s": 0.0, "end_s": 1.0, "status": "finished"}
    tables = {
        "estimates": estimate_table(estimates),
        "best": pd.DataFrame({"policy": ["none"]}),
        "about": pd.DataFrame(kinds),
        "responses": pd.DataFrame([answers | {"policy": name} for name in estimates]),
        "waves": pd.DataFrame([{"start_s": 0.0, "end_s": 1.0, "policy": "none"}]),
        "workload": pd.DataFrame(
            [{"name": EVIL, "B": 1, "G": 2, "cap": 9, "replications": 9, "steps": 3}]
        ),
    }
    return STUDIES["collectors"].document(tables, {EVIL: EVIL})


def sweeps() -> Document:
    """Return the sweeps with evil values of the key that has a line each."""
    tables = {}
    for chart in CHARTS:
        point = {"replications": 9, "p_fails": 0.0, "error": ""}
        point |= {name: 1.0 for m in chart.metrics for name in (m, f"{m}/se")}
        swept = [{chart.x: x} | ({chart.by: EVIL} if chart.by else {}) for x in (1.0, 2.0)]
        tables[chart.name] = pd.DataFrame([point | one for one in swept])
    return STUDIES["sweeps"].document(tables, {EVIL: EVIL})


BUILDERS = [comparison, fit, bandit, effects, claims, fidelity, study, collectors, sweeps]


class Harmful(HTMLParser):
    """What a page could run or load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] if tag in ("script", "img", "iframe", "object", "embed") else []
        self.found += [name for name, _ in attrs if name.startswith("on") or name == "src"]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_script_in_a_users_text_is_shown_and_never_run(build: Callable[[], Document]) -> None:
    document = build()
    page = html_page(document)
    assert Harmful(page).found == ["script"]  # the page's own, which sorts
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    text = markdown_page(document, stem="s")
    assert not re.search("<script|<img", text)
    for figure in document.figures():
        tags = {
            element.tag.rpartition("}")[2] for element in ElementTree.fromstring(figure.svg).iter()
        }
        assert not tags & {"script", "image", "img", "foreignObject"}


def test_the_check_sees_what_a_page_without_escapes_would_run() -> None:
    assert Harmful(f"<p>{EVIL}").found == ["script", "img", "src", "onerror"]


def test_the_index_shows_a_script_and_does_not_run_it(tmp_path) -> None:
    render(bandit(), tmp_path, stem="evil")
    page = html_page(index_document(tmp_path))
    assert Harmful(page).found == ["script"]
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2  # title and lead

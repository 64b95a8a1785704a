"""Pages: the same bytes again, nothing loaded from anywhere, user text shown and never run."""

import html
import html.parser
import re
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_data import POLICIES, comparison_tables, fit_tables, responses

from dapolab.compare.estimates import HEADLINES, totals_of
from dapolab.report import Document, FigureSpec, Section, Table, formats, render
from dapolab.report.comparison import comparison_document, lead
from dapolab.report.comparison_figures import bias_figure
from dapolab.report.console import as_text, comparison_table, metric_table
from dapolab.report.fit_report import fit_document
from dapolab.report.gantt import MAX_LANES, gantt, lanes
from dapolab.report.render import html_page, markdown_page
from dapolab.report.style import drawing, new_figure, policy_colours, raw_svg, standalone_svg
from dapolab.stats import Estimate, ratio_of_totals

COST = "per_trained_group/seconds"
PROVENANCE = {"version": "0.1.0", "command": "dapolab compare small.toml", "seed": "0"}
EVIL = '<script>alert("x")</script> | ![i](https://example.org/i.png) $x$'


def comparison_page(**changes: object) -> Document:
    return comparison_document(
        comparison_tables(**changes), title="Policies", provenance=PROVENANCE
    )


def fit_page() -> Document:
    return fit_document(title="Fit", lead="It *fits*.", notes=["one note"], **fit_tables())


@pytest.fixture(scope="module")
def document() -> Document:
    return comparison_page()


@pytest.fixture(scope="module")
def page(document) -> str:
    return html_page(document)


@pytest.fixture(scope="module")
def written(document, tmp_path_factory) -> list[Path]:
    return render(document, tmp_path_factory.mktemp("reports"), stem="s")


class Elements(html.parser.HTMLParser):
    """All elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_rendering_again_gives_the_same_bytes(written, tmp_path):
    again = render(comparison_page(), tmp_path, stem="s")
    assert [path.name for path in written] == [path.name for path in again]
    for one, two in zip(written, again, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    everything = "".join(path.read_text() for path in again)
    assert str(tmp_path) not in everything
    assert not re.search(r"20\d\d-\d\d-\d\d", everything)


def test_a_figure_that_was_drawn_before_gives_the_same_bytes():
    figure = fit_page().figures()[0].figure
    assert raw_svg(figure) == raw_svg(figure)


def test_files_are_named_by_stem_and_the_page_comes_first(tmp_path):
    paths = render(fit_page(), tmp_path, stem="fit")
    names = [str(path.relative_to(tmp_path)) for path in paths]
    assert names[:2] == ["fit.html", "fit.md"]
    assert names[2:] == [
        f"fit_figures/{n}.svg" for n in ("goodness", "lengths", "difficulty", "spread")
    ]
    linked = re.findall(r"\]\((.*?\.svg)\)", (tmp_path / "fit.md").read_text())
    assert linked == names[2:]


def test_the_page_loads_nothing(page):
    elements = Elements(page)
    for tag, attributes in elements.elements:
        for name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster"):
            value = attributes.get(name)
            if value is not None:
                assert value.startswith(("#", "data:,")), (tag, name, value)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    policy = next(m for m in elements.named("meta") if m.get("http-equiv"))["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert not elements.named("iframe")


def test_every_figure_has_alt_text_and_a_how_to_read(document, page):
    elements = Elements(page)
    labels = [svg.get("aria-label") for svg in elements.named("svg")]
    assert labels == [figure.alt for figure in document.figures()]
    assert all(svg["role"] == "img" for svg in elements.named("svg"))
    assert page.count("How to read this.") == len(labels) == page.count("<figcaption>")
    text = markdown_page(document, stem="s")
    assert text.count("**How to read this.**") == len(labels)


def test_ids_are_unique_and_references_resolve(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', page) + re.findall(r"url\(#([^)]+)\)", page)
    assert set(used) <= set(ids)


def test_figures_follow_the_page_into_dark_mode(page):
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    inline = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    for name in ("ink", "muted", "line"):
        assert f"var(--{name})" in inline
        assert re.search(rf"--{name}: #", page)
    assert "#1f2933" not in inline
    assert "#000000" not in inline  # nothing is left in matplotlib's default black


def test_svg_files_stand_alone(written):
    for path in written[2:]:
        root = ElementTree.fromstring(path.read_bytes())
        assert root.get("aria-label")
        assert "var(--" not in path.read_text()
        assert root[0].tag.endswith("rect")


def hostile() -> Document:
    with drawing():
        figure = new_figure(height_in=1.0)
        figure.text(0.1, 0.5, EVIL.replace("$", r"\$"))
    frame = pd.DataFrame({EVIL: [EVIL, "second"], "n": [1, 2]})
    blocks = (EVIL, FigureSpec("f", figure, EVIL, EVIL, EVIL), Table(frame, EVIL))
    return Document(EVIL, EVIL, (Section(EVIL, blocks),), (EVIL,), {EVIL: EVIL})


def test_user_text_is_shown_and_never_run():
    page = html_page(hostile())
    elements = Elements(page)
    assert len(elements.named("script")) == 1  # the page's own
    assert not elements.named("img")
    assert "<script>alert" not in page
    assert all(not (a.get("href") or "").startswith("http") for _, a in elements.elements)
    assert page.count("&lt;script&gt;alert") >= 10
    assert '<script>alert("x")' in html.unescape(page)


def test_user_text_is_harmless_in_markdown():
    text = markdown_page(hostile(), stem="s")
    assert "<script" not in text
    assert re.findall(r"(?<!\\)\]\((.*?)\)", text) == ["s_figures/f.svg"]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}


@given(st.text(max_size=60))
def test_any_policy_name_gives_a_whole_page(name):
    document = Document(
        name, name, (Section(name, (name, Table(pd.DataFrame({"p": [name]}), ""))),)
    )
    tags = [tag for tag, _ in Elements(html_page(document)).elements]
    expected = Document("t", "t", (Section("t", ("t", Table(pd.DataFrame({"p": ["t"]}), ""))),))
    allowed = {tag for tag, _ in Elements(html_page(expected)).elements}
    markdown = {"em", "strong", "code", "pre", "blockquote", "ol", "ul", "li", "hr", "br", "p"}
    assert set(tags) <= allowed | markdown | {f"h{i}" for i in range(1, 7)}
    assert markdown_page(document, stem="s")


def test_a_figure_without_words_is_refused():
    figure = new_figure(height_in=1)
    for words in ({"alt": " "}, {"how_to_read": ""}, {"title": ""}):
        with pytest.raises(ValueError, match="has no"):
            FigureSpec("f", figure, **({"title": "t", "alt": "a", "how_to_read": "h"} | words))
    with pytest.raises(ValueError, match="no figure name"):
        FigureSpec("../f", figure, "t", "a", "h")
    spec = FigureSpec("f", figure, "t", "a", "h")
    with pytest.raises(ValueError, match="share a name"):
        Document("t", "l", (Section("s", (spec, spec)),))


def test_matplotlibs_settings_come_back(tmp_path):
    before = dict(mpl.rcParams)
    render(fit_page(), tmp_path, stem="fit")
    assert dict(mpl.rcParams) == before


def test_the_lead_is_a_set_and_never_a_name_inside_the_noise():
    tie = comparison_tables(best={COST: ("streaming", "replenish")})
    assert "`streaming` and `replenish`, which cannot be told apart" in lead(tie)
    assert "0.5" in lead(tie)
    everyone = comparison_tables(best={COST: POLICIES})
    assert lead(everyone).startswith("No policy can be told from the others")
    one = comparison_tables(best={COST: ("streaming",)})
    assert lead(one).startswith("`streaming` has the lowest")
    assert lead(comparison_tables(policies=("rounds",))).startswith("`rounds` costs")


def test_a_policy_that_never_trained_is_named_and_has_no_cost():
    tables = comparison_tables()
    tables.estimates["rounds"].pop(COST)
    tables.ratios.pop("rounds")
    document = comparison_document(tables, title="t")
    assert "Without a cost per trained group: `rounds`" in document.lead
    assert "trained too little" in html_page(document)


def test_figures_without_data_are_left_out(document):
    names = [figure.name for figure in document.figures()]
    assert names == ["cost", "time", "waves", "gantt", "tokens", "bias", "engine"]
    few = comparison_page(policies=("streaming",), responses=None, waves=None)
    assert [figure.name for figure in few.figures()] == ["time", "tokens", "bias", "engine"]


def test_bias_counts_groups_not_steps_as_the_headline_does():
    """One step trains 1 group of length 300, one 3 of length 100: mean 150, over 200."""
    tables = comparison_tables(("exact_refill",))
    steps = pd.DataFrame(
        {
            "policy": "exact_refill",
            "replication": [0, 0, 1, 1],
            "rollout/effective_groups": [1, 3, 1, 3],
            "rollout/mixed_candidate_groups": 4,
            "rollout/candidate_groups": 8,
            "bias/length_trained": [300.0, 100.0, 300.0, 100.0],
            "bias/length_effective": 200.0,
            "bias/length_candidates": 250.0,
        }
    )
    figure = bias_figure(replace(tables, steps=steps))
    assert "exact_refill 0.75" in figure.alt
    columns = {column for headline in HEADLINES.values() for column in headline[:2]}
    steps = steps.assign(**{column: 1.0 for column in columns if column not in steps})
    totals = totals_of(steps, ("exact_refill",), 2)["exact_refill"]
    headline = ratio_of_totals(totals["bias/length_trained"], totals["bias/length_effective"])
    assert headline.mean == pytest.approx(0.75)


def test_bias_ratios_are_those_of_the_made_up_tables(document):
    (bias,) = [figure for figure in document.figures() if figure.name == "bias"]
    assert re.search(r"over_provision 0\.8[12]", bias.alt)  # made with 0.82
    assert re.search(r"exact_refill (1\.00|0\.99)", bias.alt)


def test_a_fit_report_shows_what_there_is():
    tables = fit_tables()
    only = fit_document(
        title="t", lead="l", figures={"length_cdf": tables["figures"]["length_cdf"]}
    )
    assert [section.title for section in only.sections] == ["Response lengths"]
    assert not fit_document(title="t", lead="l", figures={}).sections
    kept = tables["figures"]["composition"].drop(columns=["low", "high"])
    kept.loc[[0, 8], ["observed", "model"]] = 0.0
    (figure,) = fit_document(title="t", lead="l", figures={"composition": kept}).figures()
    assert "kept groups" in figure.how_to_read
    page = html_page(fit_page())
    for said in ("What these data cannot say", "may be a loop", "undecided", "all are loops"):
        assert said in page


def test_fixed_colours_and_no_two_alike():
    both = policy_colours(["rounds", "rounds-1536", "mine", "streaming"])
    assert both["rounds"] == policy_colours(["rounds"])["rounds"]
    assert len(set(both.values())) == 4
    assert policy_colours(["rounds-1536"])["rounds-1536"] == both["rounds"]
    assert len(set(policy_colours([f"p{i}" for i in range(7)]).values())) == 7


def most_at_once(start_s: np.ndarray, end_s: np.ndarray) -> int:
    return max(int(((start_s <= t) & (t < end_s)).sum()) for t in start_s)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=40))
def test_lanes_never_overlap_and_are_as_few_as_possible(spans):
    start_s = np.array([float(a) for a, _ in spans])
    end_s = start_s + np.array([float(length) for _, length in spans])
    lane = lanes(start_s, end_s)
    assert lane.max() + 1 == most_at_once(start_s, end_s)
    for one in range(int(lane.max()) + 1):
        order = np.argsort(start_s[lane == one])
        assert (end_s[lane == one][order][:-1] <= start_s[lane == one][order][1:]).all()


def test_a_chart_of_many_slots_is_cut_and_says_so():
    table, waves = responses(("rounds",), n_slots=4 * MAX_LANES)
    _, cut = gantt(table, waves, policies=["rounds"])
    assert cut
    document = comparison_page(policies=("rounds",), responses=table, waves=waves)
    (figure,) = [f for f in document.figures() if f.name == "gantt"]
    assert "regular selection" in figure.how_to_read


def test_responses_aborted_in_the_queue_hold_no_slot():
    table, waves = responses(("streaming", "replenish"))
    table.loc[table["policy"] == "replenish", ["admit_s", "end_s"]] = np.nan
    table.loc[table.index[:3], "admit_s"] = np.nan
    policies = ("streaming", "replenish")
    document = comparison_page(policies=policies, responses=table, waves=waves)
    (figure,) = [f for f in document.figures() if f.name == "gantt"]
    assert "one step of streaming," in figure.alt


def test_a_long_policy_name_leaves_room_for_the_data():
    name = "rounds-" + "x" * 200
    svg = comparison_page(policies=("rounds", name), responses=None).figures()[1].svg
    assert name not in svg
    assert "rounds-xxxxx" in svg


def test_a_large_chart_stays_small():
    table, waves = responses(("streaming", "rounds"), n_slots=2000)
    page = html_page(
        comparison_page(policies=("rounds", "streaming"), responses=table, waves=waves)
    )
    assert len(page) < 400_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Estimate(0.71234, 0.68, 0.74, 20, "ratio"), "0.712 [0.680, 0.740]"),
        (Estimate(12345.6, 12000, 12700, 20, "tokens"), "12,346 [12,000, 12,700]"),
        (Estimate(0.5, 0.45, 0.55, 20, "share"), "50.0 % [45.0, 55.0]"),
        (Estimate(-1.5, -2.5, -0.5, 20, "s"), "−1.5 [−2.5, −0.5]"),
        (Estimate(3.0, None, None, 1, "waves"), "3"),
        (Estimate(1 / 3, None, None, 1, "s"), "0.333"),
        (Estimate(2.0, 2.0, 2.0, 9, "waves"), "2"),
        (Estimate(-0.0001, -0.3, 0.3, 9, "s"), "0.00 [−0.30, 0.30]"),
        (Estimate(0.0, 0.0, 0.0, 9, "share"), "0 %"),
        (Estimate(2e-17, 1e-17, 3e-17, 20, "share"), "0 %"),
    ],
)
def test_estimates_show_the_digits_they_support(value, text):
    assert formats.estimate(value) == text


def test_cells():
    assert formats.cell(None) == formats.cell(float("nan")) == formats.cell(pd.NA) == "—"
    assert formats.cell(1234.5, spec=",.0f") == "1,234"
    assert (formats.cell(True), formats.cell(np.int64(7)), formats.cell("a")) == ("yes", "7", "a")
    assert formats.sort_key(Estimate(2.5, 1, 4, 3, "s")) == "2.5"


def test_tables_sort_by_number(page):
    cells = re.findall(r'data-key="([^"]*)" class="number"', page)
    assert cells
    assert all(not key or float(key) is not None for key in cells)
    assert "aria-sort" in page


def console_lines(policies: tuple[str, ...], best: tuple[str, ...]) -> list[str]:
    tables = comparison_tables(policies)
    for name in policies:
        tables.estimates[name]["share/tail"] = Estimate(0.3, 0.2, 0.4, 9, "share")
        tables.estimates[name]["share/train_tokens"] = Estimate(0.6341, 0.6337, 0.6345, 9, "share")
        tables.estimates[name]["bias/trained_length"] = Estimate(
            0.93123, 0.93101, 0.93145, 9, "ratio"
        )
    table = comparison_table(policies, estimates=tables.estimates, ratios=tables.ratios, best=best)
    return as_text(table).splitlines()


def test_the_console_table_fits_80_columns_and_marks_the_set():
    lines = console_lines(POLICIES, ("streaming", "over_provision"))
    assert max(map(len, lines)) <= 80
    for name in POLICIES:
        (row,) = [line for line in lines if re.match(rf"[* ]+{name}\s", line)]
        assert row.lstrip().startswith("*") == (name in {"streaming", "over_provision"})
        assert "0.931" in row  # the headline's length, as in the bias figure, no mean of steps
    # one line a policy: nothing is wrapped
    rule = next(i for i, line in enumerate(lines) if "────" in line)
    rows = lines[rule + 1 : rule + 1 + len(POLICIES)]
    assert [line.strip("* ").split()[0] for line in rows] == list(POLICIES)
    (row,) = [line for line in lines if "exact_refill  " in line and "relative cost" not in line]
    assert "—" not in row  # it has waves


def test_long_and_hostile_policy_names_fit_80_columns():
    lines = console_lines(("rounds", "x" * 70, "[bold]b[/bold]"), ("rounds",))
    assert max(map(len, lines)) <= 80
    assert any("[bold]b[/bold]" in line for line in lines)


def test_metric_table_fits_80_columns():
    from dapolab.metrics import BY_NAME

    metrics = comparison_tables().estimates["rounds"]
    meanings = {name: BY_NAME[name].meaning for name in BY_NAME}
    text = as_text(metric_table(metrics, title="rounds", meanings=meanings))
    assert max(map(len, text.splitlines())) <= 80
    assert "time/tail_seconds" in text


# notebooks


def test_a_notebook_shows_figure_and_table_with_their_words():
    with drawing():
        figure = new_figure(height_in=1)
        figure.subplots().plot([0, 1])
    spec = FigureSpec("a", figure, "<b>T</b>", 'an "alt"', "read <it>")
    shown = spec._repr_html_()
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', shown).group(1)
    assert b64decode(data).decode() == standalone_svg(spec.svg, alt='an "alt"')
    assert "&lt;b&gt;T&lt;/b&gt;" in shown
    assert "read &lt;it&gt;" in shown
    assert 'alt="an &quot;alt&quot;"' in shown

    frame = pd.DataFrame({"x": ["<script>"], "y": [Estimate(0.5, 0.4, 0.6, 9, "share")]})
    table = Table(frame, "**Shares** of `x`.")._repr_html_()
    assert "<script>" not in table
    assert "50 % [40, 60]" in table
    assert "<p>Shares of x.</p>" in table

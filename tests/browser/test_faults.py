"""Each check finds the fault that it is for, in a page made with it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import Opened, opened
from playwright.sync_api import Browser
from sorting import misplaced, shown_range, unsorted

SORT = Path(__file__).parents[2] / "dapolab" / "report" / "templates" / "sort.js"
HEADER = '<!doctype html><meta charset=utf-8><title>t</title><body style="background: #fff">'
HEAD = "<th><button>word</button></th><th class=number><button>size</button></th>"
SVG = '<svg width="{}" height="100"><text x="10" y="50" fill="{}">note</text></svg>'
Show = Callable[..., Opened]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    with ExitStack() as stack:

        def shown(body: str, *, width_px: int = 360) -> Opened:
            path = tmp_path / "page.html"
            path.write_text(HEADER + body, encoding="utf-8")
            it = stack.enter_context(opened(browser, path))
            it.widen(width_px)
            return it

        yield shown


def figure(svg: str, *, style: str = "") -> str:
    return f'<figure id=f style="margin: 0"><div style="{style}">{svg}</div></figure>'


def table(rows: list[tuple[str, str]], *, script: str) -> str:
    body = "".join(
        f'<tr><td data-key="{word}">{word}<td data-key="{size}">{size}' for word, size in rows
    )
    return f"<table><thead><tr>{HEAD}</thead><tbody>{body}</table><script>{script}</script>"


def test_a_page_without_fault_has_none(show: Show) -> None:
    it = show(figure(SVG.format(600, "black"), style="overflow-x: auto"))
    assert it.faults("wide") == it.faults("hiddenFigures") == it.faults("paleFigures") == []
    assert it.said == it.asked == []


def test_an_error_a_warning_an_exception_and_a_dialog_are_heard(show: Show) -> None:
    calls = ("console.error('one')", "console.warn('two')", "alert('four')", "throw 'three'")
    it = show("".join(f"<script>{call}</script>" for call in calls))
    it.page.wait_for_function("true")
    assert sorted(word.split()[-1] for word in it.said) == ["four", "one", "three", "two"]


def test_an_address_is_noticed(show: Show) -> None:
    assert show("<img src='http://127.0.0.1:9/i.png' alt=''>").asked == ["http://127.0.0.1:9/i.png"]


def test_a_page_that_scrolls_sideways_is_noticed(show: Show) -> None:
    wide = "<div style='width: 500px'>x</div>"
    assert "500" in show(wide).faults("wide")[0] or "508" in show(wide).faults("wide")[0]
    assert show(wide, width_px=820).faults("wide") == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (figure(SVG.format(600, "black"), style="overflow: hidden"), "cut off by div"),
        (figure(SVG.format(600, "black")), "cut off by html"),
        (figure(SVG.format(300, "black"), style="height: 20px; overflow: clip"), "cut off by div"),
        (figure(SVG.format(300, "black"), style="opacity: 0"), "hidden"),
        (figure(SVG.format(300, "black"), style="visibility: hidden"), "hidden"),
        (figure(SVG.format(0, "black")), "f: "),
        (figure(""), "empty"),
        (figure(SVG.format(300, "black").replace('x="10"', 'x="290"')), "note leaves the figure"),
    ],
)
def test_a_figure_that_cannot_be_seen_whole_is_noticed(show: Show, body: str, fault: str) -> None:
    found = show(body).faults("hiddenFigures")
    assert len(found) == 1
    assert fault in found[0]


def test_a_row_head_that_covers_the_row_is_noticed(show: Show) -> None:
    row = '<tr><th style="position: sticky; left: 0; min-width: {}px">name<td>{}'
    table = f'<div class=scroll style="overflow-x: auto"><table>{row}</table></div>'
    assert show(table.format(100, "x" * 99)).faults("wideRowHeads") == []
    assert show(table.format(300, "x")).faults("wideRowHeads") == []  # nothing scrolls
    assert "name: 3" in show(table.format(300, "x" * 99)).faults("wideRowHeads")[0]


def test_words_that_are_cut_into_letters_are_noticed(show: Show) -> None:
    cell = '<table><tr><td style="line-height: 20px; {}">engine seconds</table>'
    assert show(cell.format("width: 9em")).faults("cutWords") == []
    narrow = "max-width: 2em; overflow-wrap: anywhere"
    assert "engine seconds: " in show(cell.format(narrow)).faults("cutWords")[0]


def test_pale_text_of_a_figure_is_noticed(show: Show) -> None:
    # 4.54 and 4.48 to one on white: relative luminance by hand, WCAG 2, 1.4.3
    assert show(figure(SVG.format(300, "#767676"))).faults("paleFigures") == []
    (found,) = show(figure(SVG.format(300, "#777777"))).faults("paleFigures")
    assert "note: 4.5 to 1" in found
    # what counts is the bar below it
    bar = '><rect width="300" height="100" fill="#000000"/>'
    assert show(figure(SVG.format(300, "#555555").replace(">", bar, 1))).faults("paleFigures")
    assert not show(figure(SVG.format(300, "#ffffff").replace(">", bar, 1))).faults("paleFigures")


ROWS = [("b", "10"), ("a", "9"), ("c", "—"), ("c10", "1,000"), ("c9", "−2")]


def test_a_table_that_sorts_is_right_and_others_are_not(show: Show) -> None:
    script = SORT.read_text(encoding="utf-8")
    keys = {"—": "", "1,000": "1000", "−2": "-2"}
    body = table(ROWS, script=script)
    for shown, key in keys.items():
        body = body.replace(f'data-key="{shown}"', f'data-key="{key}"')
    assert unsorted(show(body)) == []
    as_text = body.replace("? a - b :", "? a.localeCompare(b) :")
    assert any("size" in fault for fault in unsorted(show(as_text)))
    assert unsorted(show(body.replace(", {numeric: true}", ""))) != []
    mute = body.replace('head.setAttribute("aria-sort"', '("aria-sort"')
    assert any("aria-sort is" in fault for fault in unsorted(show(mute)))
    assert unsorted(show(body.replace("tBodies[0].append(...rows)", "tBodies[0].append()"))) != []
    lost = body.replace("tBodies[0].append(...rows)", "tBodies[0].replaceChildren(rows[0])")
    assert any("lost" in fault for fault in unsorted(show(lost)))


def test_numbers_are_judged_by_what_is_shown() -> None:
    assert misplaced(["−2", "9", "10", "1,000", "—"], falling=False) == []
    assert misplaced(["1,000", "10", "9", "−2", "—"], falling=True) == []
    assert misplaced(["9", "1,000", "10"], falling=False) == ["1,000 before 10"]
    assert misplaced(["—", "1"], falling=False) == ["— before 1"]
    assert misplaced(["99 %", "1.2", "1.1e−7 [0, 1]"], falling=False) == [
        "1.2 before 1.1e−7 [0, 1]"
    ]
    # 0.46094 and 0.46092 with different digits: either order may be right
    assert misplaced(["0.461", "0.4609"], falling=False) == []
    assert misplaced(["0.461", "0.4602"], falling=False) == ["0.461 before 0.4602"]
    with pytest.raises(ValueError, match="no number"):
        shown_range("x")

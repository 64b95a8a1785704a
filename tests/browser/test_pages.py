"""Every page under reports/, in a real browser: silent, whole at any width, sortable, legible."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import Opened, opened
from playwright.sync_api import Browser
from sorting import unsorted

PAGES = sorted((Path(__file__).parents[2] / "reports").glob("*.html"))
WIDTHS_PX = (360, 820, 1280)
SCHEMES = ("light", "dark")
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


@pytest.fixture(
    scope="module",
    params=[(page, scheme) for page in PAGES for scheme in SCHEMES],
    ids=lambda case: f"{case[0].stem}-{case[1]}",
)
def it(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Opened]:
    path, scheme = request.param
    with opened(browser, path, scheme=scheme) as page:
        yield page


def test_there_are_pages() -> None:
    assert PAGES


@pytest.mark.parametrize("width_px", WIDTHS_PX)
def test_nothing_is_cut_off_and_the_page_itself_never_scrolls_sideways(
    it: Opened, width_px: int
) -> None:
    it.widen(width_px)
    assert it.faults("wide") == []
    assert it.faults("hiddenFigures") == []
    assert it.faults("wideRowHeads") == []
    assert it.faults("cutWords") == []


def test_text_in_figures_stands_out(it: Opened) -> None:
    it.widen(WIDTHS_PX[-1])
    assert it.faults("paleFigures") == []


def test_tables_sort_by_each_head(it: Opened) -> None:
    if it.scheme == "dark":
        pytest.skip("sorts as in the light")
    it.widen(WIDTHS_PX[0])
    assert unsorted(it) == []


def test_axe_finds_nothing(it: Opened) -> None:
    """Axe leaves the inside of an SVG out but walks through it, so it goes: half a minute less."""
    it.widen(WIDTHS_PX[0])
    it.page.evaluate("document.querySelectorAll('svg').forEach(svg => svg.replaceChildren())")
    rules = AXE_RULES if it.scheme == "light" else ["color-contrast"]
    result = Axe().run(it.page, options={"runOnly": rules})
    assert result.response["violations"] == [], result.generate_report()


def test_the_page_says_nothing_and_asks_for_nothing(it: Opened) -> None:
    """Last: what the other tests did to the page is heard as well."""
    assert it.said == []
    assert it.asked == []

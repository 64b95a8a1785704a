"""One Chromium for all tests, and what it says and asks for while a page is open."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

SEEN = (Path(__file__).parent / "seen.js").read_text(encoding="utf-8")
HEIGHT_PX = 900
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Opened:
    """A page in the browser.

    Attributes
    ----------
    page : Playwright's handle of it.
    scheme : what the reader's system prefers.
    said : warnings and errors of its console, uncaught exceptions, dialogs.
    asked : addresses that it asked for, but its own file.
    """

    page: Page
    scheme: Literal["light", "dark"]
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def widen(self, width_px: int) -> None:
        self.page.set_viewport_size({"width": width_px, "height": HEIGHT_PX})

    def faults(self, kind: str) -> list[str]:
        found: list[str] = self.page.evaluate(f"seen.{kind}()")
        return found


def chromium() -> str:
    """Return the browser: $CHROMIUM, or one of the usual names on the path."""
    wanted = os.environ.get("CHROMIUM")
    found = [shutil.which(name) for name in ([wanted] if wanted else _NAMES)]
    path = next((name for name in found if name), None)
    if path is None:
        pytest.exit(
            f"{wanted or 'Chromium'}: not there; install it (Debian: apt-get install chromium), "
            "or name one: make browser CHROMIUM=/path/to/chromium",
            returncode=2,
        )
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium())
        yield running
        running.close()


@contextmanager
def opened(
    browser: Browser, path: Path, *, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Opened]:
    """Open a file as a reader without a network does, and note what it says and asks for."""
    context = browser.new_context(color_scheme=scheme, offline=True)
    page = context.new_page()
    page.set_default_timeout(20_000)
    it = Opened(page, scheme)

    def console(message: ConsoleMessage) -> None:
        if message.type in ("warning", "error", "assert"):
            it.said.append(f"{message.type}: {message.text}")

    page.on("console", console)
    page.on("pageerror", lambda error: it.said.append(f"exception: {error}"))
    page.on(
        "dialog", lambda dialog: (it.said.append(f"dialog: {dialog.message}"), dialog.dismiss())
    )
    page.on("request", lambda request: it.asked.append(request.url))
    page.add_init_script(SEEN)
    page.goto(path.resolve().as_uri())
    it.asked.remove(path.resolve().as_uri())
    yield it
    context.close()

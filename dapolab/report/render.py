"""Write a document as Markdown, one self-contained HTML page, and SVG figures."""

import functools
import re
import unicodedata
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from dapolab.report import formats
from dapolab.report.document import Document, FigureSpec, Section, Table
from dapolab.report.style import inline_svg, standalone_svg
from dapolab.store import atomic_write

# no raw HTML, and nothing that could load from anywhere
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(
    ["image", "link", "autolink", "reference", "html_inline", "html_block"]
)


def render(document: Document, folder: Path | str, *, stem: str) -> list[Path]:
    """Write ``<stem>.md``, ``<stem>.html`` and ``<stem>_figures/<name>.svg`` into ``folder``.

    Equal documents give equal bytes: fixed SVG ids, no date, no host. The page needs no network
    (its content security policy forbids any), follows light and dark mode, and prints.

    Returns
    -------
    list of Path : the files written, the page first.

    Raises
    ------
    OSError : the folder cannot be written.
    """
    target = Path(folder)
    page, text = target / f"{stem}.html", target / f"{stem}.md"
    pages = {page: html_page(document), text: markdown_page(document, stem=stem)}
    figures = {
        target / f"{stem}_figures" / f"{spec.name}.svg": standalone_svg(spec.svg, alt=spec.alt)
        for spec in document.figures()
    }
    # figures first: a page never names a file that is not there yet
    for path, content in (figures | pages).items():
        atomic_write(path, content)
    return [*pages, *figures]


def html_page(document: Document) -> str:
    """Return the document as one HTML page."""
    template = _environment(autoescape=True).get_template("page.html")
    sections = _named(document.sections)
    anchors = {section.title: anchor for anchor, section in sections}
    return template.render(document=document, sections=sections, anchors=anchors)


def markdown_page(document: Document, *, stem: str) -> str:
    """Return the document as Markdown; its figures lie in ``<stem>_figures``."""
    template = _environment(autoescape=False).get_template("page.md")
    return template.render(document=document, stem=stem)


@functools.cache
def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("dapolab.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "markdown": lambda text: Markup(_MARKDOWN.render(text)),  # escaped by markdown-it
        "svg": lambda spec: Markup(inline_svg(spec.svg, alt=spec.alt, prefix=spec.name)),
        "cells": _cells,
        "md_text": _md_text,
        "md_plain": _md_plain,
        "md_table": _md_table,
        "words": lambda name: str(name).replace("_", " "),
    }
    environment.tests |= {
        "figure": lambda block: isinstance(block, FigureSpec),
        "table": lambda block: isinstance(block, Table),
    }
    return environment


def _named(sections: tuple[Section, ...]) -> list[tuple[str, Section]]:
    """Return sections with anchors that are unique and stay put when others are added."""
    named: list[tuple[str, Section]] = []
    taken: set[str] = set()
    for section in sections:
        ascii_title = (
            unicodedata.normalize("NFKD", section.title).encode("ascii", "ignore").decode()
        )
        anchor = re.sub(r"[^a-z0-9]+", "-", ascii_title.lower()).strip("-") or "section"
        while anchor in taken:
            anchor += "-"
        taken.add(anchor)
        named.append((f"s-{anchor}", section))
    return named


def _cells(table: Table) -> dict[str, Any]:
    """Return the table's head and rows as text, sort keys and alignment."""
    frame = table.frame
    columns = [frame[column].tolist() for column in frame.columns]
    numeric = [
        any(formats.is_number(v) for v in column)
        and all(formats.is_number(v) or formats.is_missing(v) for v in column)
        for column in columns
    ]
    specs = [table.formats.get(str(column)) for column in frame.columns]
    rows = [
        [
            {
                "text": formats.cell(value, spec=spec),
                "key": formats.sort_key(value),
                "numeric": is_numeric,
                "mark": table.marks.get(value) if isinstance(value, str) else None,
                "link": table.links.get(value) if isinstance(value, str) else None,
                "file": table.files.get(value) if isinstance(value, str) else None,
            }
            for value, spec, is_numeric in zip(row, specs, numeric, strict=True)
        ]
        for row in zip(*columns, strict=True)
    ]
    head = [
        {"text": str(column), "numeric": is_numeric}
        for column, is_numeric in zip(frame.columns, numeric, strict=True)
    ]
    return {"head": head, "rows": rows}


def _md_text(text: str) -> str:
    """Return authored Markdown with HTML, images and links made harmless."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def _md_plain(text: str) -> str:
    """Return plain text as Markdown that shows it as it is, on one line."""
    flat = " ".join(str(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#$~])", r"\\\1", flat)


def _md_table(table: Table) -> str:
    cells = _cells(table)
    head = [_md_plain(cell["text"]) for cell in cells["head"]]
    rule = ["---:" if cell["numeric"] else "---" for cell in cells["head"]]
    body = [[_md_cell(cell, first=i == 0) for i, cell in enumerate(r)] for r in cells["rows"]]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def _md_cell(cell: dict[str, Any], *, first: bool) -> str:
    text = _md_plain(cell["text"])
    return f"[{text}]({cell['file']})" if first and cell["file"] else text

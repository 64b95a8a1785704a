"""What a report is made of, before it is Markdown or HTML."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from dapolab.report.formats import cell
from dapolab.report.style import raw_svg, standalone_svg

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class FigureSpec:
    """A figure and the words without which it is not shown.

    Attributes
    ----------
    name : file name without its ending, lower case, unique in the document.
    figure : a matplotlib figure made under :func:`dapolab.report.style.drawing`.
    title : what is shown, one line.
    alt : what a reader who cannot see it must know.
    how_to_read : what the marks mean and which pattern to look for.
    """

    name: str
    figure: Figure
    title: str
    alt: str
    how_to_read: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no figure name: use a-z, 0-9, - and _")
        for words in ("title", "alt", "how_to_read"):
            if not getattr(self, words).strip():
                raise ValueError(f"figure {self.name} has no {words}")

    @cached_property
    def svg(self) -> str:
        """The figure as SVG, drawn once for page and file; later changes to it are not seen."""
        return raw_svg(self.figure)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: title, figure, how to read it.

        The figure is an image of its own, so that the ids of several SVGs cannot meet in one page.
        """
        data = base64.b64encode(standalone_svg(self.svg, alt=self.alt).encode()).decode()
        return (
            f"<p><b>{escape(self.title)}</b></p>"
            f'<img alt="{escape(self.alt)}" src="data:image/svg+xml;base64,{data}">'
            f"<p><b>How to read this.</b> {escape(self.how_to_read)}</p>"
        )


Mark = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes
    ----------
    frame : cells are text, numbers, None or Estimates; the index is not shown.
    caption : what the rows are, one line of Markdown.
    formats : column -> format specification for its plain numbers, e.g. ``",.0f"``.
    marks : text of a cell -> the kind of badge that the page sets it in.
    links : text of a cell in the first column -> title of the section that it leads to.
    files : text of a cell in the first column -> a file beside the page that it leads to.
    """

    frame: pd.DataFrame
    caption: str
    formats: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.files.values():
            if not _FILE.fullmatch(name):
                raise ValueError(f"{name!r} is no file beside the page")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the cells as in the page, the caption as plain text."""
        columns = {
            name: [cell(value, spec=self.formats.get(name)) for value in self.frame[name]]
            for name in self.frame.columns
        }
        caption = escape(self.caption.replace("**", "").replace("`", ""))
        return f"{pd.DataFrame(columns).to_html(index=False)}<p>{caption}</p>"


Block = str | FigureSpec | Table
"""A paragraph (Markdown without HTML, links or images), a figure, or a table."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; of level 3 within the section before, not in the menu."""

    title: str
    blocks: tuple[Block, ...]
    level: Literal[2, 3] = 2


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes
    ----------
    title : heading, plain text.
    lead : the answer in a few sentences, Markdown.
    sections : in order.
    notes : assumptions and warnings, one line of plain text each; shown at the top.
    provenance : what repeats it: version, command, seed, fingerprint. No clock, host or path.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [figure.name for figure in self.figures()]
        if len(names) != len(set(names)):
            raise ValueError("two figures of a document share a name")

    def figures(self) -> tuple[FigureSpec, ...]:
        """Return all figures in order."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, FigureSpec)
        )

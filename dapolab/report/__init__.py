"""From tables to pages: a document, its figures, and Markdown, HTML and SVG of it."""

from dapolab.report.document import Document, FigureSpec, Section, Table
from dapolab.report.render import render

__all__ = ["Document", "FigureSpec", "Section", "Table", "render"]

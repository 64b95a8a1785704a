"""Lines of a console log, in bounded memory: no colours, redrawn bars split, a cut end marked."""

import gzip
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from dapolab.reading.lines import GZIP_MAGIC, Source

CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 64 << 20
_BREAK = re.compile(rb"\r\n|\n|\r")
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
# colours whose escape byte was lost on the way (copied from a terminal)
_BARE_COLOUR = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3})*)m")


class Line(NamedTuple):
    """One line, or one drawing of a progress bar: its number counts line breaks only."""

    number: int
    text: str
    is_cut: bool


def text_lines(source: Source) -> Iterator[Line]:
    """Yield the lines of a log, plain or gzipped; the last is cut where no line break ends it.

    Raises
    ------
    ConfigError
        A line of more than 64 MiB, or zero bytes throughout: not a text log.
    """
    number, rest = 1, b""
    for chunk in _chunks(source):
        pieces = rest + chunk
        # a break at the very end waits: "\r" may be the first half of "\r\n"
        held = pieces[-1:] if pieces.endswith(b"\r") else b""
        start = 0
        for found in _BREAK.finditer(pieces, 0, len(pieces) - len(held)):
            yield Line(number, _clean(pieces[start : found.start()]), False)
            number += found.group() != b"\r"
            start = found.end()
        rest = pieces[start:]
        if len(rest) > LONGEST_LINE_BYTES:
            raise source.error("a line of more than 64 MiB is not a log", line=number)
    if rest.endswith(b"\r"):
        yield Line(number, _clean(rest[:-1]), False)
    elif rest:
        yield Line(number, _clean(rest), True)


def _chunks(source: Source) -> Iterator[bytes]:
    with source.path.open("rb") as raw:
        zipped = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if zipped else raw
        position = 0
        while True:
            try:
                chunk = stream.read1(CHUNK_BYTES)  # what there is before a cut
            except (EOFError, gzip.BadGzipFile, zlib.error):
                source.notes.append(f"{source.name}: the gzip stream is cut; the rest is lost")
                return
            if not chunk:
                return
            now = raw.tell()
            source.progress.advance(now - position)
            position = now
            yield chunk


def _clean(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _BARE_COLOUR.sub("", text) if "m" in text and "[" in text else text

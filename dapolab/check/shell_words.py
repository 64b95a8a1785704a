"""A shell text cut into commands and words; quotes and expansions stay in the words.

Knows line continuations, quotes, comments, redirections, heredocs (skipped), brackets. Every text
is cut in time linear in its length, however broken its quotes and brackets are.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class RawWord:
    """A word as it stands in the text, with its line."""

    text: str
    line: int


class Scanner:
    """Cuts the text into words and commands; quotes and expansions stay in the words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.heredocs: list[str] = []

    def commands(self) -> Iterator[list[RawWord]]:
        """Yield the words of each command in turn."""
        words: list[RawWord] = []
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.step(2)
            elif c == "#":
                self.step(self._until("\n"))
            elif c in "\n;&|":
                self._separator(c)
                if words:
                    yield words
                words = []
            elif c in "<>":
                self._redirection()
            elif c in "()" and not words:
                self.at += 1  # a subshell or the brackets of a function: its words count
            else:
                word = self._word()
                descriptor = word.text.isdigit() and self.text[self.at : self.at + 1] in ("<", ">")
                words += [] if descriptor else [word]
        if words:
            yield words

    def step(self, n: int) -> None:
        """Move on by n characters, counting lines."""
        self.line += self.text.count("\n", self.at, self.at + n)
        self.at += n

    def _until(self, end: str) -> int:
        found = self.text.find(end, self.at)
        return (len(self.text) if found < 0 else found) - self.at

    def _separator(self, c: str) -> None:
        self.step(1)
        if c == "\n" and self.heredocs:
            for tag in self.heredocs:
                self._skip_heredoc(tag)
            self.heredocs = []

    def _skip_heredoc(self, tag: str) -> None:
        while self.at < len(self.text):
            line = self.text[self.at : self.at + self._until("\n")]
            self.step(min(len(line) + 1, len(self.text) - self.at))
            if line.strip() == tag:
                return

    def _redirection(self) -> None:
        sign = re.compile(r"<<<|<<-?|>>|[<>]&?|>\|").match(self.text, self.at)
        self.step(sign.end() - self.at if sign else 1)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&":
            target = self._word().text
            if sign and sign[0] in ("<<", "<<-"):
                self.heredocs.append(target.strip("'\"\\"))

    def _word(self) -> RawWord:
        start, line = self.at, self.line
        if self.text[self.at] in "()":  # a stray bracket is a word of its own
            self.at += 1
            return RawWord(self.text[start : self.at], line)
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t\n;&|<>)":
                break
            if c == "(":
                if self.text[self.at - 1] != "=":
                    break
                self.step(_closing(self.text, self.at, "(", ")") - self.at)
                break
            self.step(piece_length(self.text, self.at))
        return RawWord(self.text[start : self.at], line)


def piece_length(text: str, at: int) -> int:
    """Return how many characters the piece at ``at`` has: a quote, an expansion, or one."""
    c = text[at]
    if c == "\\":
        return min(2, len(text) - at)
    if c == "'":
        end = text.find("'", at + 1)
        return (len(text) if end < 0 else end + 1) - at
    if c == '"':
        return _closing_quote(text, at) - at
    if c == "`":
        end = text.find("`", at + 1)
        return (len(text) if end < 0 else end + 1) - at
    for opening, closing in (("$(", ")"), ("${", "}")):
        if text.startswith(opening, at):
            return _closing(text, at + 1, opening[1], closing) - at
    return 1


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """Return the index after the bracket that closes the one at ``at``."""
    depth = 0
    i = at
    while i < len(text):
        c = text[i]
        if c == "\\":
            i += 2
            continue
        if c == "'" or c == '"':
            i = _closing_quote(text, i) if c == '"' else _after(text, "'", i + 1)
            continue
        if c == "#" and opening == "(" and text[i - 1] in " \t\n":
            i = _after(text, "\n", i)
            continue
        depth += (c == opening) - (c == closing)
        i += 1
        if depth == 0:
            return i
    return len(text)


def _after(text: str, sign: str, at: int) -> int:
    end = text.find(sign, at)
    return len(text) if end < 0 else end + 1


def _closing_quote(text: str, at: int) -> int:
    i = at + 1
    while i < len(text) and text[i] != '"':
        i += 2 if text[i] == "\\" else 1
    return min(i + 1, len(text))

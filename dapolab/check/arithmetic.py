"""Shell integer arithmetic, ``$((…))``: read, never run.

A recursive descent over + - * / % ** and brackets with C's precedence and truncation towards
zero. Anything else (assignments, comparisons, an unset name) has no value here: None.
"""

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|[-+*/%()])")
_DEEPEST = 50
_LARGEST = 2**63


class _NoValueError(Exception):
    """The expression has no value that the text alone tells."""


def evaluate(text: str, lookup: Callable[[str], str | None]) -> int | None:
    """Return the integer that ``text`` stands for; None where it cannot be told.

    ``lookup`` gives a variable's text or None; ``$name`` and ``name`` mean the same.
    """
    try:
        return _Parser(_tokens(text), lookup, depth=0).whole()
    except _NoValueError:
        return None


def _tokens(text: str) -> list[str]:
    text = re.sub(r"\$\{?(\w+)\}?", r"\1", text.strip())
    found: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _NoValueError
        found.append(token[1])
        at = token.end()
    return found


class _Parser:
    def __init__(
        self, tokens: list[str], lookup: Callable[[str], str | None], *, depth: int
    ) -> None:
        self.tokens = tokens
        self.lookup = lookup
        self.at = 0
        self.depth = depth

    def whole(self) -> int:
        value = self.sum()
        if self.at != len(self.tokens):
            raise _NoValueError
        return value

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def sum(self) -> int:
        value = self.product()
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value = _bounded(value + sign * self.product())
        return value

    def product(self) -> int:
        value = self.power()
        while self.peek() in ("*", "/", "%"):
            value = _divide_or_times(value, self.take(), self.power())
        return value

    def power(self) -> int:
        value = self.unary()
        if self.peek() != "**":
            return value
        self.take()
        exponent = self.power()
        if not 0 <= exponent <= 64:
            raise _NoValueError
        return _bounded(value**exponent)

    def unary(self) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NoValueError
        try:
            return self._unary()
        finally:
            self.depth -= 1

    def _unary(self) -> int:
        token = self.take()
        if token in ("+", "-"):
            value = self.unary()
            return value if token == "+" else -value
        if token == "(":
            value = self.sum()
            if self.take() != ")":
                raise _NoValueError
            return value
        if token[:1].isdigit():
            return _integer(token)
        text = self.lookup(token) if token else None
        if text is None or not text.strip():
            raise _NoValueError
        return _Parser(_tokens(text), self.lookup, depth=self.depth).whole()


def _integer(token: str) -> int:
    if len(token) > 20:
        raise _NoValueError
    if token[:2] in ("0x", "0X"):
        return int(token, 16)
    if len(token) > 1 and token[0] == "0":  # the shell reads a leading 0 as octal
        if not set(token) <= set("01234567"):
            raise _NoValueError
        return int(token, 8)
    return int(token)


def _divide_or_times(left: int, sign: str, right: int) -> int:
    if sign == "*":
        return _bounded(left * right)
    if right == 0:
        raise _NoValueError
    whole = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return whole if sign == "/" else left - whole * right


def _bounded(value: int) -> int:
    if abs(value) >= _LARGEST:
        raise _NoValueError
    return value

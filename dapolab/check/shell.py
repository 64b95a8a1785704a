"""A launch script, read and never run: which commands it would start, with which words.

Understood: line continuations, both quotes, comments, heredocs (skipped), ``NAME=value``,
``NAME=(array)``, ``+=``, ``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``${NAME[@]}``, ``$((…))``.
Everything that needs a shell to know (``$(…)``, backticks, an unset name, a name set inside a
branch or a loop) becomes an unknown piece of its word.
"""

import re
from dataclasses import dataclass, field

from dapolab.check import arithmetic
from dapolab.check.shell_words import RawWord, Scanner, piece_length

MARK = "\x00"  # encloses the reason of an unknown piece inside a word
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])")
_DECLARE = frozenset({"export", "local", "declare", "readonly", "typeset"})
_OPEN = frozenset({"if", "case", "for", "while", "until", "select"})
_CLOSE = frozenset({"fi", "esac", "done"})
_LONGEST_WORD = 100_000
_DEEPEST = 20


@dataclass(frozen=True)
class Word:
    """One word of a command after expansion; ``MARK`` encloses what stayed unknown."""

    text: str
    line: int

    @property
    def unknown(self) -> str | None:
        """Why a piece of the word is unknown; None where all of it is known."""
        parts = self.text.split(MARK)
        return parts[1] if len(parts) > 2 else None


@dataclass
class _Scope:
    plain: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    depth: int = 0  # of branches and loops


def commands(text: str) -> list[list[Word]]:
    """Return the commands that the script would start, in order, each a list of words."""
    scope = _Scope()
    found: list[list[Word]] = []
    for raw in Scanner(text.replace(MARK, " ").replace("\r\n", "\n")).commands():
        words = _run(raw, scope)
        if words:
            found.append(words)
    return found


# -------------------------------------------------------------------------- what the words mean


def _run(raw: list[RawWord], scope: _Scope) -> list[Word]:
    """Apply assignments to the scope; return the words of a command, if it is one."""
    first = raw[0].text
    while first in ("then", "do", "else", "!", "{", "}", "elif") and len(raw) > 1:
        raw = raw[1:]
        first = raw[0].text
    scope.depth += (first in _OPEN) - (first in _CLOSE)
    scope.depth = max(scope.depth, 0)
    if first == "for" and len(raw) > 1:
        scope.plain[raw[1].text] = _unknown(f"loop variable {raw[1].text}")
        return []
    if first in _DECLARE:
        raw = [word for word in raw[1:] if not word.text.startswith("-")]
    if raw and all(_ASSIGN.match(word.text) for word in raw):
        for word in raw:
            _assign(word, scope)
        return []
    if first in _DECLARE | _OPEN | _CLOSE | {"elif", "then", "else", "do"}:
        return []
    words: list[Word] = []
    for word in raw:
        words += _expand_word(word, scope)
    return words


def _assign(word: RawWord, scope: _Scope) -> None:
    match = _ASSIGN.match(word.text)
    assert match is not None
    name, more, value = match[1], bool(match[2]), word.text[match.end() :]
    if value.startswith("("):
        items = [Word(w.text, w.line) for w in _array(value[1:], word.line, scope)]
        scope.arrays[name] = [*scope.arrays.get(name, []), *items] if more else items
        return
    text = _expand(value, scope, 0)
    if scope.depth > 0 and scope.plain.get(name, text) != text:
        text = _unknown(f"${name} is set in a branch of the script")
    scope.plain[name] = (scope.plain.get(name, "") if more else "") + text


def _array(body: str, line: int, scope: _Scope) -> list[Word]:
    scanner = Scanner(body[:-1] if body.endswith(")") else body)
    scanner.line = line
    words: list[Word] = []
    for raw in scanner.commands():
        for word in raw:
            words += _expand_word(word, scope)
    return words


def _expand_word(word: RawWord, scope: _Scope) -> list[Word]:
    """Expand one word; an array or an unquoted variable may give several words or none."""
    whole = re.fullmatch(r"\"?\$\{(\w+)\[[@*]\]\}\"?", word.text)
    if whole and whole[1] in scope.arrays:
        items = scope.arrays[whole[1]]
        if word.text.startswith('"'):
            return list(items)
        return [Word(part, item.line) for item in items for part in _fields(item.text)]
    if re.fullmatch(r"\"?(\$[@*]|\$\{[@*]\})\"?", word.text) or (
        whole and whole[1] not in scope.plain
    ):
        return []  # arguments of the call, or an array that another file sets: not in this text
    text = _expand(word.text, scope, 0)
    if re.fullmatch(r"\$\{?\w+\}?", word.text):
        return [Word(part, word.line) for part in _fields(text)]
    return [Word(text, word.line)]


def _fields(text: str) -> list[str]:
    """Split at spaces, as the shell does outside quotes; what is partly unknown stays whole."""
    return [text] if MARK in text else text.split()


def _unknown(reason: str) -> str:
    return f"{MARK}{reason.replace(MARK, '')}{MARK}"


def _expand(text: str, scope: _Scope, depth: int) -> str:
    """Return the text with quotes taken off and variables put in."""
    if depth > _DEEPEST:
        return _unknown("nested too deeply")
    parts: list[str] = []
    at, size = 0, 0
    while at < len(text):
        n = piece_length(text, at)
        name = _VARIABLE.match(text, at)
        if name:
            piece, n = _variable(name[1], scope), len(name[0])
        else:
            piece = _piece(text[at : at + n], scope, depth)
        size += len(piece)
        if size > _LONGEST_WORD:
            return _unknown("too long")
        parts.append(piece)
        at += n
    return "".join(parts)


def _piece(piece: str, scope: _Scope, depth: int) -> str:
    if piece[0] == "\\":
        return "" if piece[1:] == "\n" else piece[1:]
    if piece[0] == "'":
        return piece[1:-1]
    if piece[0] == '"':
        return _expand_quoted(piece[1:-1], scope, depth + 1)
    if piece[0] == "`":
        return _unknown("output of a command")
    if piece.startswith("$((") and piece.endswith("))"):
        inner = _expand(piece[3:-2], scope, depth + 1)
        value = arithmetic.evaluate(inner, lambda name: _known(name, scope))
        reason = inner.split(MARK)[1] if MARK in inner else f"$(({inner}))"
        return _unknown(reason) if value is None else str(value)
    if piece.startswith("$("):
        return _unknown("output of a command")
    if piece.startswith("${"):
        return _parameter(piece[2:-1], scope, depth)
    return piece


def _expand_quoted(text: str, scope: _Scope, depth: int) -> str:
    """Expand inside double quotes: single quotes are letters there, few escapes count."""
    parts: list[str] = []
    for i, between in enumerate(text.split("'")):
        parts.append("'" if i else "")
        parts.append(_expand(re.sub(r"\\([^\"\\$`\n])", r"\\\\\1", between), scope, depth))
    return "".join(parts)


def _known(name: str, scope: _Scope) -> str | None:
    text = scope.plain.get(name)
    return None if text is None or MARK in text else text


def _variable(name: str, scope: _Scope) -> str:
    if name in scope.plain:
        return scope.plain[name]
    if name in scope.arrays:
        return scope.arrays[name][0].text if scope.arrays[name] else ""
    return _unknown(f"${name} is not set in the file")


def _parameter(body: str, scope: _Scope, depth: int) -> str:
    """Expand ``${body}``: a name, a default, an array; other forms need a shell."""
    name = _NAME.match(body)
    if name is None:
        return _unknown(f"${{{body[:30]}}}")
    rest = body[name.end() :]
    if not rest:
        return _variable(name[0], scope)
    if rest in ("[@]", "[*]"):
        return " ".join(word.text for word in scope.arrays.get(name[0], []))
    for sign in (":-", ":=", "-", "="):
        if rest.startswith(sign):
            if scope.plain.get(name[0]):
                return scope.plain[name[0]]
            return _expand(rest[len(sign) :], scope, depth + 1)
    return _unknown(f"${{{body[:30]}}}")

"""One reader a file format: YAML, JSON, Hydra overrides, ``--key value`` arguments, Python calls.

A file is parsed, never run. Whatever its bytes are, reading ends in a ``Source`` or in one
``ConfigError``.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from dapolab.check import keys, shell
from dapolab.check.python_call import read_python
from dapolab.check.reading import Setting, Source
from dapolab.check.values import Unknown, Value, read_scalar
from dapolab.errors import ConfigError

MOST_BYTES = 4_000_000
MOST_NODES = 200_000
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w@/.-]*)=(.*)", re.DOTALL)
_DELETION = re.compile(r"~([A-Za-z_][\w@/.-]*)")
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_RANKS = ("num_processes", "nproc_per_node")  # accelerate, torchrun
_NEGATIVE = re.compile(r"-\d|-\.\d")


def read(text: str, *, name: str) -> Source:
    """Return the settings of a configuration, whatever its format.

    ``name`` (a file's name, may be empty) helps where the text alone could be either.

    Raises
    ------
    ConfigError
        Too large, broken YAML, JSON or Python, or no settings in it.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"{name or 'text'}: more than {MOST_BYTES // 10**6} MB is no configuration"
        )
    source = _by_format(text, name=name)
    if not source.settings:
        raise ConfigError(f"{name or 'text'}: no settings found (YAML, JSON, overrides, script?)")
    return source


def _by_format(text: str, *, name: str) -> Source:
    suffix = name.lower().rpartition(".")[2]
    if suffix == "py" or (suffix not in ("yaml", "yml", "json", "sh") and "GRPOConfig(" in text):
        return read_python(text, name=name)
    if suffix == "json" or (suffix != "sh" and text.lstrip()[:1] == "{"):
        return _json(text, name=name)
    if suffix in ("yaml", "yml") or (suffix != "sh" and _looks_like_yaml(text)):
        return _yaml(text, name=name)
    return _script(text)


def _looks_like_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    if not lines or lines[0].startswith("#!"):
        return False
    mapping = re.compile(r"\s*(- )?['\"]?[\w.-]+['\"]?:(\s|$)")
    return sum(bool(mapping.match(line)) for line in lines) > len(lines) / 2


# ---------------------------------------------------------------------------------- YAML and JSON


def _yaml(text: str, *, name: str) -> Source:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name or 'YAML'}{where}: {error.problem or 'broken YAML'}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())[:120] or "nested too deeply"
        raise ConfigError(f"{name or 'YAML'}: broken YAML ({words})") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{name or 'YAML'}: expected a table of settings at the top")
    flat = list(_flatten(node, name=name))
    return Source("yaml", tuple(_resolved(flat)))


def _flatten(root: yaml.MappingNode, *, name: str) -> Iterator[Setting]:
    todo: list[tuple[str, yaml.MappingNode]] = [("", root)]
    n_nodes = 0
    while todo:
        prefix, table = todo.pop()
        for key_node, node in table.value:
            n_nodes += 1
            if n_nodes > MOST_NODES:  # aliases can stand for more than memory holds
                raise ConfigError(f"{name or 'YAML'}: more than {MOST_NODES} settings")
            key = prefix + str(getattr(key_node, "value", ""))
            if isinstance(node, yaml.MappingNode) and node.value:
                todo.append((f"{key}.", node))
            elif isinstance(node, yaml.MappingNode):
                continue
            else:
                yield Setting(key, _node_value(node, 0), key_node.start_mark.line + 1)


def _node_value(node: yaml.Node, depth: int) -> Value:
    if isinstance(node, yaml.ScalarNode):
        plain = node.style in (None, "|", ">") and node.style is None
        if plain and node.tag in ("tag:yaml.org,2002:bool",):
            return node.value.lower() in ("true", "yes", "on", "y")
        return read_scalar(node.value) if plain else str(node.value)
    if isinstance(node, yaml.SequenceNode) and depth < 8 and len(node.value) <= 1000:
        return [_node_value(child, depth + 1) for child in node.value]
    return Unknown("not a plain value")


def _json(text: str, *, name: str) -> Source:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name or 'JSON'}: broken JSON ({error})") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{name or 'JSON'}: expected a table of settings at the top")
    lines = _json_lines(text)
    flat = [
        Setting(key, value, lines.get(key.rpartition(".")[2], 1))
        for key, value in _flat_items(table)
    ]
    return Source("json", tuple(_resolved(flat)))


def _json_lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for i, line in enumerate(text.splitlines(), 1):
        for match in re.finditer(r'"((?:[^"\\]|\\.)*)"\s*:', line):
            found.setdefault(match[1], i)
    return found


def _flat_items(table: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    todo: list[tuple[str, dict[str, Any]]] = [("", table)]
    while todo:
        prefix, inner = todo.pop()
        for key, value in inner.items():
            if isinstance(value, dict):
                todo.append((f"{prefix}{key}.", value))
            elif value is None or isinstance(value, bool | int | float | str | list):
                yield prefix + key, value


def _resolved(settings: Iterable[Setting]) -> list[Setting]:
    """Put in ``${other.key}`` where that key stands in the same file (OmegaConf)."""
    settings = sorted(settings, key=lambda s: s.line)
    plain = {s.key: s.value for s in settings}
    return [Setting(s.key, keys.resolve(s.value, plain), s.line) for s in settings]


# ------------------------------------------------------------------------- scripts and arguments


def _script(text: str) -> Source:
    """Read a launch script, one command line, or a bare list of overrides or arguments."""
    found = shell.commands(text)
    launches = [words for words in found if _entry(words)]
    if launches:
        words = max(launches, key=len)
        entry, at = _entry(words) or ("", 0)
        source = _from_words(words[at + 1 :], entry=entry)
        if source.form == "overrides":
            return source
        ranks = tuple(s for s in _arguments(words[:at]) if s.key in _RANKS)
        named = tuple(Setting("num_processes", s.value, s.line) for s in ranks)
        return Source(source.form, (*named, *source.settings), entry)
    return _from_words([word for words in found for word in words], entry=None)


def _entry(words: list[shell.Word]) -> tuple[str, int] | None:
    """Return the module or script that a command starts, and where it stands among its words."""
    texts = [word.text for word in words]
    for i, text in enumerate(texts[:-1]):
        if (
            text in ("-m", "--module")
            and re.fullmatch(r"[\w.]+", texts[i + 1])
            and "." in texts[i + 1]
        ):
            return texts[i + 1], i + 1
    for i, text in enumerate(texts):
        if text.endswith(".py") and not text.startswith("-"):
            return text, i
    if texts[:1] == ["trl"] and len(texts) > 1:
        return f"trl {texts[1]}", 1
    return None


def _from_words(words: list[shell.Word], *, entry: str | None) -> Source:
    overrides = [word for word in words if _OVERRIDE.fullmatch(word.text)]
    dotted = [word for word in overrides if "." in word.text.partition("=")[0]]
    if dotted:
        return Source("overrides", tuple(_overrides(words)), entry)
    return Source("arguments", tuple(_arguments(words)), entry)


def _overrides(words: list[shell.Word]) -> Iterator[Setting]:
    for i, word in enumerate(words):
        match = _OVERRIDE.fullmatch(word.text)
        if match:
            value = _word_value(shell.Word(match[3], word.line))
            yield Setting(match[2], value, word.line, match[1] or "")
        elif deletion := _DELETION.fullmatch(word.text):
            yield Setting(deletion[1], None, word.line, "~")
        elif flag := re.fullmatch(r"(--config-(?:name|path|dir))(?:=(.*))?", word.text):
            after = words[i + 1].text if i + 1 < len(words) else ""
            yield Setting(flag[1], flag[2] or after, word.line)


def _arguments(words: list[shell.Word]) -> Iterator[Setting]:
    at = 0
    while at < len(words):
        word = words[at]
        flag = _FLAG.fullmatch(word.text)
        at += 1
        if flag is None:
            continue
        values: list[Value] = []
        if flag[2] is not None:
            values.append(_word_value(shell.Word(flag[2], word.line)))
        else:
            while at < len(words) and _is_value(words[at].text):
                values.append(_word_value(words[at]))
                at += 1
        value = True if not values else values[0] if len(values) == 1 else values
        yield Setting(flag[1].replace("-", "_"), value, word.line)


def _is_value(text: str) -> bool:
    return not text.startswith("-") or bool(_NEGATIVE.match(text)) or text == "-"


def _word_value(word: shell.Word) -> Value:
    if word.unknown:
        return Unknown(word.unknown, "".join(word.text.split(shell.MARK)[::2]))
    return read_scalar(word.text)

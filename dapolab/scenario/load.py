"""From files and command-line overrides to a checked Scenario, with one-line errors."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dapolab.scenario.config import ConfigError
from dapolab.scenario.experiment import Scenario
from dapolab.scenario.explain import explain

_KEPT_BY_ANY_KIND = {"budget", "prompts", "drift", "source"}
_FILES = ("file", "draws")
_INCLUDE = ("workload", "hardware", "learner")
# where "none" is a word and not the absence of a value
_TEXTS = {"kind", "name", "description", "source", "assumptions"}

Model = TypeVar("Model", bound=BaseModel)

DEFAULT = Path(__file__).with_name("default.toml")
"""The scenario that comes with the package, sims/scenarios/small.toml."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file; ``"none"`` as a value means absent, as TOML has no null.

    Raises
    ------
    ConfigError
        The file is missing, cannot be read, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, expected a TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid TOML: it is no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return {key: _absent(value, key=key) for key, value in data.items()}


def _absent(value: Any, *, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _absent(below, key=name) for name, below in value.items()}
    if isinstance(value, list):
        return [_absent(below, key=key) for below in value]
    return None if value == "none" and key.rpartition(".")[2] not in _TEXTS else value


def load(
    path: str | Path, overrides: Mapping[str, Any] | None = None, *, folder: Path | None = None
) -> Scenario:
    """Load a scenario file.

    ``workload = "FILE.toml"`` and a replay's ``file`` are resolved relative to the scenario file;
    ``[workload] base = "FILE.toml"`` loads that file and lays the table's other keys over it.
    ``[hardware] base`` and ``[learner] base`` do the same with the tables of their name in a file
    that ``dapolab calibrate`` wrote, or in a scenario.

    Parameters
    ----------
    path : a scenario TOML.
    overrides : dotted keys and values laid over the file, e.g. ``{"workload.sigma": 1.1}``;
        ``{"workload": "FILE.toml"}`` (or ``workload.base``) replaces the whole workload,
        ``{"hardware.base": "LAW.toml"}`` the law and what else that file has of the hardware.
    folder : what files named in the overrides are relative to; absent: the working folder.

    Raises
    ------
    ConfigError
        Missing file, wrong TOML, unknown key, value out of range: one line, naming the key.
    """
    path = Path(path)
    data = read_toml(path)
    changes = dict(overrides or {})
    beside = folder or Path()
    for section in _INCLUDE:
        _include(data, section, path.parent)
        for key in (section, f"{section}.base"):
            if isinstance(changes.get(key), str):
                named: dict[str, Any] = {section: {"base": changes.pop(key)}}
                _include(named, section, beside)
                own = data.get(section)
                keeps = isinstance(own, dict) and section != "workload"
                data[section] = own | named[section] if keeps else named[section]
    for key in (f"workload.{name}" for name in _FILES):
        if isinstance(changes.get(key), str):
            changes[key] = str(beside / changes[key])
    lay_over(data, changes)
    return build(data, where=str(path))


def lay_over(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set dotted keys in nested tables: a new kind first, then the settings meant for it.

    Raises
    ------
    ConfigError
        A key that goes through a value as if it were a table.
    """
    for key, value in sorted(changes.items(), key=lambda item: not _is_kind(item[0])):
        _set(data, key, value)


def build(data: Mapping[str, Any], *, where: str = "scenario") -> Scenario:
    """Check a mapping against the Scenario model; errors are one-line ConfigErrors."""
    return check(Scenario, data, where=where)


def check(model: type[Model], data: Mapping[str, Any], *, where: str) -> Model:
    """Validate ``data`` as ``model``; the first error becomes a one-line ConfigError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, model)}") from None


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Turn ``--workload.sigma 1.1 --run.steps=5`` into dotted keys and values.

    Values are read as TOML where they parse (numbers, true/false, arrays), else as text; ``none``
    means absent: no limit, no cap, no penalty (but a kind may be called none).
    """
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or len(flag) < 3:
            raise ConfigError(f"unexpected argument {flag!r}; settings look like --run.steps 5")
        key, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"--{key} needs a value")
            text = rest.pop(0)
        key = key.replace("-", "_")
        found[key] = _absent(_value(text), key=key)
    return found


def _value(text: str) -> Any:
    if text.lower() in ("none", "nan", "inf"):
        return text.lower()
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def _is_kind(key: str) -> bool:
    return key.rpartition(".")[2] == "kind"


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    table = data
    *parents, last = key.split(".")
    for parent in parents:
        below = table.get(parent)
        if below is None:
            below = table[parent] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"--{key}: {parent} is a value, not a table")
        table = below
    if last == "kind" and table.get("kind") != value:
        # settings of the old kind mean nothing to the new one; what every kind has stays
        for stale in set(table) - _KEPT_BY_ANY_KIND:
            del table[stale]
    table[last] = value


def _include(data: dict[str, Any], section: str, folder: Path) -> None:
    """Put the file that a table names as its base under the table's other keys."""
    table = data.get(section)
    if isinstance(table, str):
        table = {"base": table}
    if not isinstance(table, dict):
        return
    if "base" in table:
        over = {key: value for key, value in table.items() if key != "base"}
        table = _merge(_read_base(folder / str(table["base"]), section), over)
    elif section == "workload":
        table = _beside(table, folder)
    data[section] = table


def _read_base(file: Path, section: str) -> dict[str, Any]:
    """Return the table of a file that was named as base; a workload's may be the whole file."""
    whole = read_toml(file)
    if section == "workload":
        base = whole.get("workload", whole)
        if not isinstance(base, dict):
            raise ConfigError(f"{file}: workload should be a table of settings")
        return _beside(base, file.parent)
    base = whole.get(section)
    if not isinstance(base, dict):
        raise ConfigError(
            f"{file}: no table [{section}]; dapolab calibrate -o writes what it finds"
        )
    if section == "hardware" and not isinstance(base.get("law"), dict):
        raise ConfigError(f"{file}: no decode law in it, a table [hardware.law]")
    return base


def _beside(workload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the table with its files relative to the folder of the file that names them."""
    files = {key: workload[key] for key in _FILES if isinstance(workload.get(key), str)}
    return workload | {key: str(folder / name) for key, name in files.items()}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


def dump(scenario: Scenario) -> str:
    """Return the scenario as canonical JSON (for manifests)."""
    return json.dumps(scenario.model_dump(mode="json"), sort_keys=True)

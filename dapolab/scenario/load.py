"""From files and command-line overrides to a checked Scenario, with one-line errors."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dapolab.scenario.config import ConfigError
from dapolab.scenario.experiment import Scenario

_KEPT_BY_ANY_KIND = {"budget", "prompts", "drift", "source"}

Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file; a missing or broken file is a ConfigError."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Load a scenario file.

    ``workload = "FILE.toml"`` and a replay's ``file`` are resolved relative to the scenario file;
    ``[workload] base = "FILE.toml"`` loads that file and lays the table's other keys over it.

    Parameters
    ----------
    path : a scenario TOML.
    overrides : dotted keys and values laid over the file, e.g. ``{"workload.sigma": 1.1}``.

    Raises
    ------
    ConfigError
        Missing file, wrong TOML, unknown key, value out of range: one line, naming the key.
    """
    path = Path(path)
    data = read_toml(path)
    folder = path.parent
    # a new kind first, then the settings that are meant for it
    for key, value in sorted((overrides or {}).items(), key=lambda item: not _is_kind(item[0])):
        _set(data, key, value)
    _include_workload(data, folder)
    return build(data, where=str(path))


def build(data: Mapping[str, Any], *, where: str = "scenario") -> Scenario:
    """Check a mapping against the Scenario model; errors are one-line ConfigErrors."""
    return check(Scenario, data, where=where)


def check(model: type[Model], data: Mapping[str, Any], *, where: str) -> Model:
    """Validate ``data`` as ``model``; the first error becomes a one-line ConfigError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_explain(error, model)}") from None


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Turn ``--workload.sigma 1.1 --run.steps=5`` into dotted keys and values.

    Values are read as TOML where they parse (numbers, true/false, arrays), else as text; ``none``
    removes a key, which restores its default.
    """
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or len(flag) < 3:
            raise ConfigError(f"unexpected argument {flag!r}; overrides look like --run.steps 5")
        key, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key} needs a value")
            text = rest.pop(0)
        found[key.replace("-", "_")] = _value(text)
    return found


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is_kind(key: str) -> bool:
    return key.rpartition(".")[2] == "kind"


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    table = data
    *parents, last = key.split(".")
    for parent in parents:
        below = table.setdefault(parent, {})
        if isinstance(below, str) and parent == "workload":
            below = table[parent] = {"base": below}
        if not isinstance(below, dict):
            raise ConfigError(f"--{key}: {parent} is a value, not a table")
        table = below
    if last == "kind" and table.get("kind") != value:
        # settings of the old kind mean nothing to the new one; what every kind has stays
        for stale in set(table) - _KEPT_BY_ANY_KIND:
            del table[stale]
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value


def _include_workload(data: dict[str, Any], folder: Path) -> None:
    workload = data.get("workload")
    if isinstance(workload, str):
        workload = {"base": workload}
    if not isinstance(workload, dict):
        return
    if "base" in workload:
        over = {key: value for key, value in workload.items() if key != "base"}
        file = folder / str(workload["base"])
        base = read_toml(file)
        base = base.get("workload", base)
        for key in ("file", "draws"):
            if isinstance(base.get(key), str):
                base[key] = str(file.parent / base[key])
        workload = _merge(base, over)
    else:
        for key in ("file", "draws"):
            if isinstance(workload.get(key), str):
                workload = {**workload, key: str(folder / workload[key])}
    data["workload"] = workload


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    shown = ".".join(_without_tags(location, model))
    if first["type"] == "extra_forbidden":
        wrong = location[-1]
        valid = _fields_at(model, location[:-1])
        near = difflib.get_close_matches(wrong, valid, n=1, cutoff=0.0)
        hint = f"; nearest valid key: {near[0]!r}" if near else ""
        return f"unknown key {shown!r}{hint}"
    message = str(first["msg"]).removeprefix("Value error, ")
    value = first.get("input")
    given = "" if isinstance(value, dict) or first["type"] == "value_error" else f", got {value!r}"
    return f"{shown}: {message}{given}" if shown else message


def _without_tags(location: list[str], model: type[BaseModel]) -> list[str]:
    """Leave out the discriminator tags that pydantic puts into the path of a union."""
    shown: list[str] = []
    for i, part in enumerate(location):
        valid = _fields_at(model, location[:i])
        if not valid or part in valid or i == len(location) - 1:
            shown.append(part)
    return shown


def _fields_at(model: type[BaseModel], location: list[str]) -> list[str]:
    """Names valid at a place; union members are recognised by their discriminator in the path."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    places = [schema]
    for part in location:
        below: list[dict[str, Any]] = []
        for place in places:
            below += _step(place, part, definitions)
        places = below or places
    return sorted({name for place in places for name in place.get("properties", {})})


def _step(place: dict[str, Any], part: str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    inner = place.get("properties", {}).get(part) or place.get("additionalProperties")
    if not isinstance(inner, dict):
        tag = place.get("properties", {}).get("kind", {}).get("const")
        return [place] if tag == part else []
    options = [*inner.get("oneOf", []), *inner.get("anyOf", []), *inner.get("allOf", []), inner]
    found = []
    for option in options:
        name = str(option.get("$ref", "")).rpartition("/")[2]
        if name in definitions:
            found.append(definitions[name])
        elif isinstance(option.get("additionalProperties"), dict):
            found.append(option)
    return found


def dump(scenario: Scenario) -> str:
    """Return the scenario as canonical JSON (for manifests)."""
    return json.dumps(scenario.model_dump(mode="json"), sort_keys=True)

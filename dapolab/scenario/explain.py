"""Why a table was refused, in one line that names the key and what would do."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from dapolab.scenario.collector import COLLECTOR_KINDS, COLLECTOR_PRESETS

_EXPECTED = {
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "int_type": "expected a whole number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "model_type": "expected a table of settings",
    "model_attributes_type": "expected a table of settings",
    "dict_type": "expected a table",
    "tuple_type": "expected a list",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "needs at least {min_length} value",
    "string_pattern_mismatch": "use letters, digits, '.', '_' and '-' alone",
    "literal_error": "expected {expected}",
}
"""What pydantic calls an error -> what a person is told."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error of a validation in one line: the key, the fault, what was given."""
    first = error.errors(include_url=False)[0]
    kind, location = str(first["type"]), [str(part) for part in first["loc"]]
    shown = ".".join(_without_tags(location, model))
    details: Mapping[str, Any] = first.get("ctx", {})
    if kind == "extra_forbidden":
        valid = _fields_at(model, location[:-1])
        near = difflib.get_close_matches(location[-1], valid, n=1, cutoff=0.0)
        return f"unknown key {shown!r}" + (f"; nearest valid key: {near[0]!r}" if near else "")
    if kind == "missing":
        return f"{shown} is missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _which_kind(shown, details, _kinds_at(model, location))
    if kind == "value_error":
        message = str(first["msg"]).removeprefix("Value error, ")
        return f"{shown}: {message}" if shown else message
    message = _EXPECTED.get(kind, str(first["msg"])).format(**details)
    value = first.get("input")
    given = "none" if value is None else "a table" if isinstance(value, dict) else repr(value)
    return f"{shown}: {message}, got {given}"


def _which_kind(shown: str, details: Mapping[str, Any], kinds: list[str]) -> str:
    tag = details.get("tag")
    if tag is None:
        return f"{shown}.kind is missing: one of {', '.join(kinds)}"
    near = difflib.get_close_matches(str(tag), kinds, n=1, cutoff=0.0)
    hint = f"; nearest: {near[0]!r}" if near else ""
    return f"{shown}.kind: {tag!r} is not one of {', '.join(kinds)}{hint}"


def _without_tags(location: list[str], model: type[BaseModel]) -> list[str]:
    """Leave out the discriminator tags that pydantic puts into the path of a union."""
    shown: list[str] = []
    for i, part in enumerate(location):
        valid = _fields_at(model, location[:i])
        if not valid or part in valid or i == len(location) - 1:
            shown.append(part)
    return shown


def _places(model: type[BaseModel], location: list[str]) -> list[dict[str, Any]]:
    """Return the JSON schemas valid at a place; union members are told by their tag in the path."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    places = [schema]
    for part in location:
        below: list[dict[str, Any]] = []
        for place in places:
            below += _step(place, part, definitions)
        places = below or places
    return places


def _fields_at(model: type[BaseModel], location: list[str]) -> list[str]:
    places = _places(model, location)
    return sorted({name for place in places for name in place.get("properties", {})})


def _kinds_at(model: type[BaseModel], location: list[str]) -> list[str]:
    kinds = (
        place.get("properties", {}).get("kind", {}).get("const")
        for place in _places(model, location)
    )
    found = dict.fromkeys(kind for kind in kinds if kind)
    if set(COLLECTOR_KINDS) <= set(found):
        found |= dict.fromkeys(COLLECTOR_PRESETS)
    return list(found)


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

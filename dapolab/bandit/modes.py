"""Modes from a few words, ``seq-mean-token-mean+mean_only+clip.high=0.5``.

A word is the kind of an aggregation, a clip or an advantage, a geometry, a length rule, a filter
(``filter-raw``, ``filter-shaped``), or ``key=value`` for any setting of objective or training.
"""

from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dapolab.bandit.settings import Mode, Training
from dapolab.errors import ConfigError
from dapolab.scenario import (
    Advantage,
    Aggregation,
    Clip,
    Length,
    Objective,
    SamplerCorrection,
)

Plain = dict[str, Any]


def _kinds(union: Any) -> tuple[str, ...]:
    return tuple(model.model_fields["kind"].default for model in get_args(get_args(union)[0]))


AGGREGATIONS, CLIPS, ADVANTAGES = _kinds(Aggregation), _kinds(Clip), _kinds(Advantage)
GEOMETRIES = ("plain", "natural", "adam")
FILTERS = {"filter-raw": "raw", "filter-shaped": "shaped", "no-filter": "none"}
# Settings without which a kind is none; the cap stands in for Dr. GRPO's constant.
_NEEDED: dict[str, Plain] = {
    "seq-mean-token-sum-norm": {"constant": 100.0},
    "dro": {"beta": 0.1},
}
_NO_CLIP = "no-clip"
_SAMPLER: dict[str, Plain] = {
    "no-correction": {},
    "tis": {"level": "token", "action": "truncate", "upper": 2.0},
    "icepop": {"level": "token", "action": "band", "lower": 0.5, "upper": 5.0},
    "bypass": {"bypass": True},
    "importance": {"level": "token", "action": "truncate", "upper": None},
}
_LENGTH_RULES = ("no-length-rule", "overlong", "mask-truncated", "exclude-truncated")


def known_words(default_length: Plain | None = None) -> tuple[str, ...]:
    """Return all words that need no value."""
    rules = _LENGTH_RULES if default_length is not None else _LENGTH_RULES[:1] + _LENGTH_RULES[2:]
    clips = tuple(kind for kind in CLIPS if kind != "none")
    words = (*AGGREGATIONS, *clips, _NO_CLIP, *ADVANTAGES, *GEOMETRIES, *FILTERS, *_SAMPLER)
    return words + rules


def parse_mode(text: str, *, base: Mode, penalty: Plain | None = None) -> Mode:
    """Return ``base`` with the words of ``text`` applied from left to right; its name is the text.

    Parameters
    ----------
    penalty
        What ``overlong`` means in this environment: cap_tokens and buffer_tokens.

    Raises
    ------
    ConfigError
        For a word that no setting has, or a value that none takes.
    """
    objective, training = base.objective.model_dump(), base.training.model_dump()
    for word in text.split("+"):
        name, equals, value = word.strip().partition("=")
        if equals:
            _assign(name, _value(value), objective, training)
        else:
            _apply(name, objective, training, penalty)
    try:
        return Mode(name=text, objective=Objective(**objective), training=Training(**training))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"mode {text!r}: {where}: {first['msg']}".replace(": :", ":")) from None


def _apply(word: str, objective: Plain, training: Plain, penalty: Plain | None) -> None:
    """Change the settings that a word without a value stands for."""
    kinds: dict[str, tuple[str, ...]] = {
        "aggregation": AGGREGATIONS,
        "clip": tuple(kind for kind in CLIPS if kind != "none"),
        "advantage": ADVANTAGES,
    }
    for field, known in kinds.items():
        if word in known:
            objective[field] = _defaults(field, word)
            return
    if word in GEOMETRIES:
        training["geometry"] = word
    elif word in FILTERS:
        training["filter"] = FILTERS[word]
    elif word in _SAMPLER:
        objective["sampler"] = SamplerCorrection(**_SAMPLER[word]).model_dump()
    elif word == _NO_CLIP:
        objective["clip"] = _defaults("clip", "none")
    elif word == "no-length-rule":
        objective["length"] = Length().model_dump()
    elif word == "mask-truncated":
        objective["length"]["mask_truncated"] = True
    elif word == "exclude-truncated":
        objective["advantage"]["truncated"] = "exclude"
    elif word == "overlong" and penalty is not None:
        objective["length"]["penalty"] = dict(penalty)
    else:
        near = get_close_matches(word, known_words(penalty), n=1, cutoff=0.0)[0]
        raise ConfigError(f"mode word {word!r} is unknown; nearest: {near}, or key=value")


def _defaults(field: str, kind: str) -> Plain:
    """Return all settings of a kind, so that later words may change them."""
    table = {"kind": kind} | _NEEDED.get(kind, {})
    filled: BaseModel = getattr(Objective.model_validate({field: table}), field)
    return filled.model_dump()


def _assign(key: str, value: Any, objective: Plain, training: Plain) -> None:
    """Set a dotted key of the objective, or a key of the training."""
    first, *rest = key.split(".")
    if not rest and first in training:
        training[first] = value
        return
    table: Any = objective
    for name in (first, *rest[:-1]):
        table = table.get(name) if isinstance(table, dict) and rest else table
    last = rest[-1] if rest else first
    if not isinstance(table, dict) or last not in table:
        known = [*training, *_dotted(objective)]
        near = get_close_matches(key, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"mode setting {key!r} is unknown; nearest: {near}")
    table[last] = value


def _dotted(table: Plain, prefix: str = "") -> list[str]:
    names = []
    for name, value in table.items():
        inner = _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else []
        names += inner or [f"{prefix}{name}"]
    return names


def _value(text: str) -> Any:
    """Read a number, true, false or none; anything else is a word."""
    words = {"true": True, "false": False, "none": None}
    if text in words:
        return words[text]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text

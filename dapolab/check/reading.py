"""What was read from a configuration: each setting with its line, over the framework's defaults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dapolab.check.values import Unknown, Value

Framework = Literal["verl", "trl", "06-dapo", "openrlhf", "slime", "nemo-rl"]
FRAMEWORKS: tuple[Framework, ...] = ("verl", "trl", "06-dapo", "openrlhf", "slime", "nemo-rl")
Form = Literal["yaml", "json", "overrides", "arguments", "python"]


@dataclass(frozen=True)
class Setting:
    """One setting as it stands in the file.

    ``prefix`` is Hydra's: "" override, "+" append, "++" force, "~" delete.
    """

    key: str
    value: Value
    line: int
    prefix: str = ""


@dataclass(frozen=True)
class Source:
    """The settings of one file before anyone asks what they mean.

    ``entry`` is the module or script that the file launches, None for a bare list of settings.
    """

    form: Form
    settings: tuple[Setting, ...]
    entry: str | None = None


@dataclass
class Reading:
    """Settings over defaults; remembers what was asked for and could not be told.

    ``defaults`` maps every key that the framework knows to its default; keys outside may still be
    given. ``expected`` collects settings whose value has the wrong type.
    """

    framework: Framework
    version: str
    source: Source
    defaults: Mapping[str, Value]
    aliases: Mapping[str, str] = field(default_factory=dict)
    unresolved: dict[str, Setting] = field(default_factory=dict)
    expected: dict[str, tuple[Setting, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last = {
            self.aliases.get(s.key, s.key): s for s in self.source.settings if s.prefix != "~"
        }

    def setting(self, key: str) -> Setting | None:
        """Return the setting as given (the last one wins); None where the default holds."""
        return self._last.get(key)

    def given(self, key: str) -> bool:
        """Say whether the file sets this key."""
        return key in self._last

    def under(self, prefix: str) -> dict[str, Setting]:
        """Return what the file sets at or below a dotted prefix."""
        return {k: s for k, s in self._last.items() if k == prefix or k.startswith(f"{prefix}.")}

    def line(self, key: str) -> int | None:
        """Return the line of a setting, None for a default."""
        setting = self.setting(key)
        return setting.line if setting else None

    def value(self, key: str) -> Value:
        """Return the value, the default where it is not given; Unknown is remembered."""
        setting = self.setting(key)
        value = setting.value if setting else self.defaults.get(key)
        if isinstance(value, Unknown) and setting:
            self.unresolved[key] = setting
        return value

    def number(self, key: str) -> float | None:
        """Return a number (NaN included); None where absent, unknown or no number."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._expect(key, value, "a number")
            return None
        return float(value)

    def integer(self, key: str) -> int | None:
        """Return a whole number; None where absent, unknown or not whole."""
        value = self.number(key)
        if value is None:
            return None
        if not math.isfinite(value) or value != int(value):
            self._expect(key, value, "a whole number")
            return None
        return int(value)

    def flag(self, key: str) -> bool | None:
        """Return true or false; None where absent or unknown."""
        value = self.value(key)
        if isinstance(value, str) and value.lower() in ("yes", "on", "no", "off"):
            return value.lower() in ("yes", "on")
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        if not isinstance(value, bool):
            self._expect(key, value, "true or false")
            return None
        return value

    def text(self, key: str) -> str | None:
        """Return a word; None where absent or unknown."""
        value = self.value(key)
        return None if value is None or isinstance(value, Unknown) else str(value)

    def readable(self, key: str) -> str:
        """Return what can be read of a value as text, without asking for all of it."""
        setting = self.setting(key)
        value = setting.value if setting else self.defaults.get(key)
        return value.known if isinstance(value, Unknown) else str(value)

    def _expect(self, key: str, value: Value, what: str) -> None:
        setting = self.setting(key)
        if setting and value is not None and not isinstance(value, Unknown):
            self.expected[key] = (setting, what)

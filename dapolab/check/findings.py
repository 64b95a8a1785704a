"""What the checker says: one finding, its severity, its order."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that the run will do and that its author may not expect.

    Attributes
    ----------
    id : stable name of the rule's verdict, e.g. ``clip-no-effect``.
    severity : ``error`` (the run stops or learns nothing), ``warning`` (a setting does nothing or
        harms), ``note`` (true and worth knowing).
    certain : False where it rests on something that the configuration does not tell.
    setting : the setting's name as the framework spells it.
    line : line of the file, from 1; None for a default.
    message : what happens, with numbers.
    suggestion : what to set; empty where nothing need be done.
    source : paper and equation, or framework, version and file, or field report.
    """

    id: str
    severity: Severity
    certain: bool
    setting: str
    line: int | None
    message: str
    suggestion: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields under their names, for JSON."""
        return asdict(self)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Sort by severity, then by line (defaults last), then by id; drop exact repetitions."""
    unique = dict.fromkeys(findings)
    return sorted(
        unique,
        key=lambda f: (SEVERITIES.index(f.severity), f.line is None, f.line or 0, f.id, f.setting),
    )

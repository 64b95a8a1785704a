"""The config checker: what a training run will really compute, and which settings do nothing.

``check_file`` and ``check_text`` give a ``Report``; ``check_config`` its findings alone. Read are
verl (YAML, overrides, launch scripts), TRL's GRPOConfig (YAML, JSON, arguments, Python), 06-dapo,
OpenRLHF, slime (arguments, scripts) and NeMo RL (YAML). Files are parsed, never run.
"""

from dapolab.check.checker import Report, check_config, check_file, check_text
from dapolab.check.findings import SEVERITIES, Finding, Severity
from dapolab.check.keys import NEWEST
from dapolab.check.reading import FRAMEWORKS

__all__ = [
    "FRAMEWORKS",
    "NEWEST",
    "SEVERITIES",
    "Finding",
    "Report",
    "Severity",
    "check_config",
    "check_file",
    "check_text",
]

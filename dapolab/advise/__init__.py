"""What should I set? A framework's collection options, searched on the simulator."""

from dapolab.advise.options import FRAMEWORKS, Option, options_of
from dapolab.advise.search import METRICS, SIDE_EFFECTS, Advice, Turn, advise, n_simulated

__all__ = [
    "FRAMEWORKS",
    "METRICS",
    "SIDE_EFFECTS",
    "Advice",
    "Option",
    "Turn",
    "advise",
    "n_simulated",
    "options_of",
]

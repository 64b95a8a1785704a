"""``python -m gpu_runs validate PRESET``: predictions first, then the measurement, then both.

One file a study; ``run`` keeps the order and ``page`` draws what is stored.
"""

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run the command; torch and the lab are loaded only now."""
    from gpu_runs.validate.run import main as run

    return run(argv)

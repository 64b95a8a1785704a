"""dapolab: what a DAPO/GRPO training step will cost, before the GPU hours are spent."""

__version__ = "0.1.0"

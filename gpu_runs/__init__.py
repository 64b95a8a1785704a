"""Real small-model training that tests the predictions, on one CUDA GPU or on a CPU.

The training core needs torch, numpy, pandas, pyarrow and pydantic alone and runs from the source
tree; only the ``validate`` modules also ask the simulator, the bandit and the theory.
"""

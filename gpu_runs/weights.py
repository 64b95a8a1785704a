"""A model in one file: its shape and its weights, read without running anything from the file."""

import io
import pickle
import warnings
from dataclasses import asdict
from pathlib import Path

import torch

from dapolab.errors import ConfigError
from dapolab.store import atomic_write
from gpu_runs.model import Decoder, ModelConfig

TOY = Path(__file__).parent / "checkpoints" / "digit_sum.pt"
"""The warm-started toy, shipped; ``python -m gpu_runs.sft`` makes it again."""


def save_model(model: Decoder, path: Path | str, *, dtype: torch.dtype | None = None) -> Path:
    """Write a model (atomically); ``dtype`` is that of the file, the weights' own where None."""
    weights = {name: w.detach().cpu().to(dtype) for name, w in model.state_dict().items()}
    buffer = io.BytesIO()
    torch.save({"config": asdict(model.config), "weights": weights}, buffer)
    return atomic_write(path, buffer.getvalue())


def load_model(path: Path | str = TOY, *, device: torch.device | str = "cpu") -> Decoder:
    """Read a model that :func:`save_model` wrote; fp32.

    Raises
    ------
    ConfigError
        If the file is missing, is not of this format, or its weights do not fit its shape.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign pickle is refused below, in one line
            found = torch.load(path, map_location="cpu", weights_only=True)
        model = Decoder(ModelConfig(**found["config"]))
        model.load_state_dict(found["weights"])
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}") from None
    except (pickle.UnpicklingError, RuntimeError, KeyError, TypeError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{path} holds no model of gpu_runs ({reason}): name a file written by save_model"
        ) from None
    return model.to(device)

"""Iterations composed from a layer profile: what an engine's step should take by its parts alone.

LLMServingSim 2.0 times the layers of vLLM one by one (``dense.csv``: tokens; ``per_sequence.csv``:
sequences; ``attention.csv``: prefill chunk with its past, decoding responses with theirs). An
iteration is the sum of all layers plus head and sampler. Fitting a law to such iterations uses no
measurement of a running server, so what it then predicts of one is a prediction.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.errors import ConfigError

_PER_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
_ONCE = ("embedding", "final_layernorm")
_HEADS = ("lm_head", "sampler")
_MICRO = 1e-6


def iterations_of_profile(
    folder: Path, *, n_layers: int, longest_prompt: int = 2**31
) -> pd.DataFrame:
    """Return pieces for ``fit_law``: decode iterations and prefill chunks of the profile's grid.

    Raises
    ------
    ConfigError
        A table or a layer of the profile is missing.
    """
    tables = {}
    for name in ("dense", "per_sequence", "attention"):
        path = folder / f"{name}.csv"
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; a layer profile has it")
        tables[name] = pd.read_csv(path)
    attention = tables["attention"]
    decode = attention[(attention["prefill_chunk"] == 0) & (attention["n_decode"] > 0)]
    n = decode["n_decode"].to_numpy(float)
    rows = pd.DataFrame(
        {
            "n": n,
            "sum_context_tokens": n * decode["kv_decode"].to_numpy(float),
            "prefill_tokens": 0.0,
            "prefill_context_tokens": 0.0,
            "seconds": n_layers * decode["time_us"].to_numpy(float) * _MICRO
            + _others(tables, n, n, n_layers=n_layers),
        }
    )
    chunks = attention[(attention["n_decode"] == 0) & (attention["prefill_chunk"] > 0)]
    chunks = chunks[chunks["prefill_chunk"] + chunks["kv_prefill"] <= longest_prompt]
    x = chunks["prefill_chunk"].to_numpy(float)
    prefill = pd.DataFrame(
        {
            "n": 0.0,
            "sum_context_tokens": 0.0,
            "prefill_tokens": x,
            "prefill_context_tokens": x * (x + chunks["kv_prefill"].to_numpy(float)),
            "seconds": n_layers * chunks["time_us"].to_numpy(float) * _MICRO
            + _others(tables, x, np.ones(len(x)), n_layers=n_layers),
        }
    )
    return pd.concat([rows, prefill], ignore_index=True)


def _others(
    tables: dict[str, pd.DataFrame],
    tokens: NDArray[np.float64],
    sequences: NDArray[np.float64],
    *,
    n_layers: int,
) -> NDArray[np.float64]:
    """Seconds of everything but attention, linear between the profile's points."""
    dense, heads = tables["dense"], tables["per_sequence"]

    def at(table: pd.DataFrame, layer: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = table[table["layer"] == layer].sort_values(table.columns[1])
        if rows.empty:
            raise ConfigError(f"the layer profile has no {layer!r}")
        points, times = rows.iloc[:, 1].to_numpy(float), rows["time_us"].to_numpy(float)
        return np.asarray(np.interp(x, points, times))

    micro = np.zeros(len(tokens))
    for layer, times in _PER_LAYER.items():
        micro += n_layers * times * at(dense, layer, tokens)
    for layer in _ONCE:
        micro += at(dense, layer, tokens)
    for layer in _HEADS:
        micro += at(heads, layer, sequences)
    return np.asarray(micro * _MICRO)

"""Completion curves of real waves: who is done when, from their lengths and a law.

open-rs (logs of vLLM 0.7.2 under lighteval) tells after each finished request the seconds and the
tokens of all finished so far, so a request's length is the difference of two lines (to a second's
worth of tokens). All requests of a wave are submitted at once; for waves larger than the slots the
order of submission is not known and is drawn at random.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from dapolab.fidelity.requests import scaled
from dapolab.rng import stream
from dapolab.scenario import FirstPrinciplesLaw, Hardware
from dapolab.sim.hardware import Law, kv_bytes_per_token
from dapolab.sim.replica import Engine

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERCENTS = (50, 90, 95, 99)
CAP_TOKENS, PROMPT_TOKENS, SLOTS = 32768, 200, 256
# R1-Distill-Qwen-1.5B (28 layers, 2 KV heads of 128) in bf16 on an A40-class GPU of 696 GB/s.
MODEL = FirstPrinciplesLaw(parameters=1.78e9, layers=28, kv_heads=2, head_dim=128)
BANDWIDTH, KV_BYTES = 696e9, 30 * 2**30


@dataclass(frozen=True, eq=False)
class Wave:
    """One wave: lengths in order of completion, and when each was done, seconds."""

    number: int
    task: str
    n_tokens_R: Ints
    done_s_R: Floats

    @property
    def size(self) -> int:
        """Requests."""
        return len(self.n_tokens_R)

    def times(self) -> Floats:
        """Return t50, t90, t95, t99 and the wall: when so many per cent are done."""
        return percent_times(self.done_s_R)


def percent_times(done_s_R: Floats) -> Floats:
    """Return the times at which 50, 90, 95, 99 and 100 % of the requests are done."""
    ordered = np.sort(done_s_R)
    places = [int(np.ceil(p / 100 * len(ordered))) - 1 for p in (*PERCENTS, 100)]
    return np.asarray(ordered[places])


def read_waves(folder: Path) -> list[Wave]:
    """Return the waves of ``wave_curves.csv``."""
    table = pd.read_csv(folder / "wave_curves.csv")
    found = []
    for number, rows in table.groupby("wave"):
        last = rows.groupby("done", as_index=False).agg(
            elapsed_s=("elapsed_s", "min"), tokens=("cum_out_tokens_est", "min")
        )
        done, total = last["done"].to_numpy(int), np.maximum.accumulate(last["tokens"].to_numpy())
        # several done between two lines share their tokens
        jumps = np.diff(done)
        each = np.repeat(np.diff(total) / jumps, jumps)
        lengths = np.clip(np.rint(each), 1, CAP_TOKENS).astype(np.int64)
        seconds = np.repeat(last["elapsed_s"].to_numpy(float)[1:], jumps)
        found.append(Wave(int(str(number)), str(rows["task"].iloc[0]), lengths, seconds))
    return found


def physical_law() -> Law:
    """Return the law of first principles for these runs: bytes over bandwidth, nothing fitted."""
    seconds = BANDWIDTH * MODEL.bandwidth_efficiency
    return Law(
        a_s=MODEL.parameters * MODEL.bytes_per_weight / seconds + MODEL.launch_s,
        n_knots=(0.0, 1.0),
        b_knots_s=(0.0, MODEL.per_sequence_s),
        c_s=kv_bytes_per_token(MODEL) / seconds,
    )


def simulate_wave(wave: Wave, law: Law, *, order: Ints | None = None) -> Floats:
    """Return when each request of the wave is done, in the order of ``wave``."""
    at = np.arange(wave.size) if order is None else order
    hardware = Hardware(
        slots=SLOTS,
        prefill=False,
        prefix_cache=False,
        kv_capacity_tokens=int(KV_BYTES / kv_bytes_per_token(MODEL)),
    )
    engine = Engine(hardware, law, n_expected=wave.size)
    engine.submit(
        at_s=0.0,
        group_P=np.arange(wave.size),
        prompt_tokens_P=np.full(wave.size, PROMPT_TOKENS),
        n_tokens_PG=wave.n_tokens_R[at][:, None],
    )
    engine.drain()
    done = np.empty(wave.size)
    done[at] = engine.facts().end_s
    return done


def predicted_times(wave: Wave, law: Law, *, n_orders: int = 12, seed: int = 0) -> Floats:
    """Return predicted t50 … wall, a row an order of submission (one where all fit the slots)."""
    if wave.size <= SLOTS:
        return percent_times(simulate_wave(wave, law))[None, :]
    rows = []
    for number in range(n_orders):
        order = stream(seed, "order", wave.number, number).permutation(wave.size)
        rows.append(percent_times(simulate_wave(wave, law, order=order)))
    return np.stack(rows)


def fit_waves(waves: list[Wave], law: Law) -> tuple[Law, float]:
    """Fit two numbers to the times of ``waves``: a scalar on ``law``, and seconds per response.

    Weights and KV over bandwidth are physics; what a response costs in this engine's scheduler and
    sampler is not, and 256 responses make it matter.
    """

    def at(log_theta: Floats) -> Law:
        scale, each = np.exp(log_theta)
        return replace(scaled(law, float(scale)), b_knots_s=(0.0, float(each)))

    def miss(log_theta: Floats) -> Floats:
        tried = at(log_theta)
        return np.concatenate(
            [np.log(predicted_times(w, tried, n_orders=2).mean(axis=0) / w.times()) for w in waves]
        )

    found = optimize.least_squares(miss, np.log([1.2, 1e-4]), diff_step=[0.02, 0.02])
    return at(found.x), float(np.exp(found.x[0]))


def compare_waves(folder: Path) -> tuple[pd.DataFrame, Law, float]:
    """Fit the two numbers on even waves, judge the odd ones.

    Returns
    -------
    table : a row a judged wave and percent: wave, task, n, percent, measured_s, predicted_s,
        low_s, high_s (over orders of submission), error_share; and both as shares of the wall.
    law, scale : the fitted law, its scalar on physics.
    """
    waves = read_waves(folder)
    base = physical_law()
    law, scale = fit_waves(waves[::2], base)
    rows = []
    for wave in waves[1::2]:
        times, measured = predicted_times(wave, law), wave.times()
        mean = times.mean(axis=0)
        for k, percent in enumerate((*PERCENTS, 100)):
            rows.append(
                {
                    "wave": wave.number,
                    "task": wave.task.rsplit("/", 1)[-1],
                    "n": wave.size,
                    "percent": percent,
                    "measured_s": measured[k],
                    "predicted_s": mean[k],
                    "low_s": times[:, k].min(),
                    "high_s": times[:, k].max(),
                    "error_share": mean[k] / measured[k] - 1,
                    "measured_share": measured[k] / measured[-1],
                    "predicted_share": mean[k] / mean[-1],
                }
            )
    return pd.DataFrame(rows), law, scale

"""Waves of the next step while training goes on: the policy moves, so a tracker must look ahead."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from dapolab.report.style import MODEL, OBSERVED, SPARE_COLOURS, drawing, new_figure
from dapolab.theory.sampling import p_mixed_unbiased
from gpu_runs.preset import Preset
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.frozen import STAGE_RATE
from gpu_runs.validate.study import measured_row, settle
from gpu_runs.validate.waves_predict import closed_form

Floats = npt.NDArray[np.float64]

N_RUNS = 12
N_STEPS = 30
TRAILING = 5
"""Steps of the trailing mean."""
LINE = 10
"""Steps of the line through the logit of the mixed share, taken one step on."""
LAG = 0.47
"""Waves that a trailing mean of 5 steps fell short by in a prototype (3.77 for 4.24)."""


def live_preset(context: Context) -> Preset:
    """Return the training run behind the forecast, timed in CPU seconds on a CPU."""
    changes = {
        "train.learning_rate": STAGE_RATE,
        "run.steps": 12 if context.quick else N_STEPS,
        "run.dump": False,
        "evaluation.every": 10_000,
        "evaluation.n_prompts": 2,
        "engine.clock": "wall" if context.device == "cuda" else "process",
    }
    return vary(context.preset, changes)


def live_seeds(context: Context) -> list[int]:
    """Return the seeds of these runs."""
    n = context.n_runs or (2 if context.quick else N_RUNS)
    return context.seeds(n, purpose=3)


def measure(context: Context) -> pd.DataFrame:
    """Train, and forecast every step from the steps before it alone; one row a step."""
    preset = live_preset(context)
    runs = context.train_runs({"live": preset}, live_seeds(context), tables=("steps",))["steps"]
    parts = [forecasts(part, preset) for _, part in runs.groupby("seed", sort=False)]
    return pd.concat(parts, ignore_index=True)


def forecasts(steps: pd.DataFrame, preset: Preset) -> pd.DataFrame:
    """Return ``seed, step, waves, q, trailing, extrapolated``: forecasts of waves, one step ahead.

    Steps before ``TRAILING`` have none.
    """
    wanted = preset.rollout.groups_per_step
    kept = steps["rollout/effective_groups"].to_numpy(float)
    candidates = steps["rollout/candidate_groups"].to_numpy(float)
    q = p_mixed_unbiased(kept, candidates, n_groups=wanted)
    rows = []
    for i in range(TRAILING, len(q)):
        rows.append(
            {
                "seed": int(steps["seed"].iloc[i]),
                "step": int(steps["step"].iloc[i]),
                "waves": float(steps["rollout/waves"].iloc[i]),
                "q": float(q[i]),
                "trailing": closed_form(preset, float(q[i - TRAILING : i].mean()))["waves"],
                "extrapolated": closed_form(preset, ahead(q[:i]))["waves"],
            }
        )
    return pd.DataFrame(rows)


def ahead(q: Floats) -> float:
    """Return the next share by a straight line through the logits of the last ``LINE``."""
    last = np.clip(q[-LINE:], 0.01, 0.99)
    _, level = np.polyfit(np.arange(last.size) - last.size, logit(last), 1)
    return float(expit(level))


def errors(table: pd.DataFrame, forecast: str) -> Floats:
    """Return measured minus forecast waves, the mean over the steps of each run."""
    values = (table["waves"] - table[forecast]).groupby(table["seed"]).mean()
    return np.asarray(values.to_numpy(float), dtype=np.float64)


def measured_rows(table: pd.DataFrame) -> list[dict[str, object]]:
    """Return the mean errors and mean absolute errors of both forecasts."""
    rows = []
    for forecast in ("trailing", "extrapolated"):
        name = f"live forecast, {forecast}"
        rows.append(measured_row("error of waves", name, errors(table, forecast), unit="waves"))
        absolute = (table["waves"] - table[forecast]).abs().groupby(table["seed"]).mean()
        rows.append(
            measured_row("absolute error of waves", name, absolute.to_numpy(float), unit="waves")
        )
    return rows


def _nothing() -> dict[str, float]:
    return {}


def judge(context: Context, table: pd.DataFrame) -> Sequence[Outcome]:
    """Ask whether looking ahead removes the lag of a tracker."""
    claim = Claim(
        id="v-live-extrapolated",
        kind="value",
        statement="In live training a line through the logit of the mixed share, taken one step "
        "on, forecasts the next step's waves without bias.",
        source="theory A4 and A7 on the steps before; small prototype for the size of the lag",
        instrument="real training",
        rows=(
            Row(
                name="mean error of a run",
                kind="value",
                says=0.0,
                rival=LAG,
                tolerance=LAG / 4,
                why="a quarter of the lag that a trailing mean of 5 steps showed in a prototype",
                unit="waves",
            ),
        ),
        predict=_nothing,
        how_to_read="Measured minus forecast waves, mean over the steps of a run. Steps of one "
        "run depend on each other: the unit is the run.",
        repeat="training run",
        n=N_RUNS,
        quick_n=6,
    )
    name = claim.rows[0].name
    return [settle(claim, {name: errors(table, "extrapolated")}, predicted={name: 0.0})]


def figure(table: pd.DataFrame) -> FigureSpec:
    """Return measured and forecast waves over the steps, means over runs."""
    means = table.groupby("step")[["waves", "trailing", "extrapolated"]].mean()
    colours = {"waves": OBSERVED, "trailing": SPARE_COLOURS[0], "extrapolated": MODEL}
    with drawing():
        found = new_figure(height_in=2.8)
        axes = found.subplots()
        for name, colour in colours.items():
            label = "real training" if name == "waves" else f"forecast, {name}"
            axes.plot(means.index, means[name], color=colour, label=label)
        axes.set_xlabel("training step")
        axes.set_ylabel("waves a step")
        found.legend(loc="outside lower left", ncols=3)
    last = means.iloc[-1]
    return FigureSpec(
        name="waves-live",
        figure=found,
        title="Waves of live training and their forecast from the steps before",
        alt=f"At the last step {last['waves']:.2f} waves, trailing forecast "
        f"{last['trailing']:.2f}, extrapolated {last['extrapolated']:.2f}.",
        how_to_read="Means over runs. While the mixed share falls, a trailing mean lies below what "
        "comes; the line through the logits leads it.",
    )

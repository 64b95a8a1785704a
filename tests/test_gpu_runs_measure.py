"""Timing of the engine: what is timed, in which order, and what repeats."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from dapolab.store import read_run
from gpu_runs.__main__ import main
from gpu_runs.measure import COLUMNS, Plan, default_plan, measure, medians, n_visits
from gpu_runs.model import Decoder, ModelConfig
from gpu_runs.task import DigitSum

PLAN = Plan(
    ns=(1, 5),
    contexts=(4, 12),
    engine_slots=(3, 6),
    engine_responses=10,
    n_decodes=3,
    n_repeats=3,
)


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    task = DigitSum()
    model = Decoder(ModelConfig(vocab_size=task.vocab_size, d_model=16, n_heads=2, n_kv_heads=2))
    visits = []
    table = measure(
        model, task, PLAN, cap_tokens=8, seed=1, on_done=lambda: visits.append(len(visits))
    )
    assert len(visits) == n_visits(PLAN) == 4 * (2 * 2 + 2)
    return table


def test_cells_hold_what_they_say(trace):
    cells = trace[trace["part"] == "cell"]
    assert list(trace.columns) == list(COLUMNS)
    assert len(cells) == 3 * 4 * (1 + 3)  # repeats, cells, admission and decodes
    for (run, cell), visit in cells.groupby(["run", "cell"]):
        n, context = map(int, cell.split("x"))
        assert run.startswith("cells-")
        assert (visit["n"] == n).all()
        assert visit["admitted"].tolist() == [n, 0, 0, 0]
        # an iteration later each of the n responses attends to one token more
        assert visit["sum_context_tokens"].diff().dropna().tolist() == [n] * 3
        first = visit["sum_context_tokens"].iloc[0]
        assert n * (context // 2) <= first <= n * (context + context // 2)
        # all but the newest token of each prompt, shared ones once
        assert visit["prefill_tokens"].iloc[0] <= first - n
        assert (visit["prefill_tokens"].iloc[1:] == 0).all()
    assert (cells["seconds"] >= cells["admit_seconds"]).all()
    assert (trace["seconds"] > 0).all()
    assert (trace["cpu_seconds"] > 0).all()


def test_cells_come_in_another_order_each_time(trace):
    cells = trace[(trace["part"] == "cell") & (trace["index"] == 0)]
    orders = {tuple(visits["cell"]) for _, visits in cells.groupby("run")}
    assert len(orders) > 1


def test_repeats_are_of_the_same_work(trace):
    work = ["n", "sum_context_tokens", "prefill_tokens", "admitted"]
    for _, piece in trace.groupby(["part", "cell", "index"]):
        assert len(piece) == PLAN.n_repeats
        assert (piece[work] == piece[work].iloc[0]).all(axis=None)


def test_engine_runs_answer_every_prompt(trace):
    for _, run in trace[trace["part"] == "engine"].groupby("run"):
        assert run["admitted"].sum() == PLAN.engine_responses
        assert PLAN.engine_responses < run["n"].sum() <= PLAN.engine_responses * 8


def test_medians_are_over_repeats(trace):
    table = medians(trace)
    assert (table["n_repeats"] == PLAN.n_repeats).all()
    assert len(table) * PLAN.n_repeats == len(trace)
    assert set(table["run"]) == {"cells", "slots-3", "slots-6"}
    for row in table.rename(columns={"index": "position"}).itertuples():
        same = (trace["cell"] == row.cell) & (trace["index"] == row.position)
        seconds = np.sort(trace.loc[same & (trace["part"] == row.part), "seconds"])
        assert row.seconds == seconds[1]
        assert row.seconds_min == seconds[0]
        assert row.seconds_iqr == pytest.approx((seconds[2] - seconds[0]) / 2)


def test_default_plans_cover_the_slots():
    plan = default_plan(slots=48, max_context=128)
    assert plan.ns == (1, 2, 4, 8, 16, 32, 48)
    assert plan.contexts == (19, 51, 83)
    assert plan.engine_slots == (6, 24, 48)
    assert n_visits(default_plan(slots=48, max_context=128, smoke=True)) < n_visits(plan) / 5


def test_the_command_writes_a_run_and_says_where(tmp_path, capsys):
    folder = tmp_path / "calibration"
    words = ["calibrate", "toy_cpu", "--smoke", "--device", "cpu", "--engine.slots", "8"]
    assert main([*words, "--json", "-o", str(folder)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gpu_runs/calibrate/1"
    assert [row["n"] for row in document["decode"]] == [1, 8]
    stored = read_run(folder)
    assert set(stored.tables) == {"trace", "medians", "cpu_medians"}
    assert stored.manifest["device"] == "cpu"
    assert stored.manifest["dtype"] == "float32"
    assert str(tmp_path) not in json.dumps(stored.manifest)
    pd.testing.assert_frame_equal(stored.tables["medians"], medians(stored.tables["trace"]))
    on_cpu = stored.tables["cpu_medians"]
    assert (on_cpu["seconds"] == stored.tables["medians"]["cpu_seconds"]).all()

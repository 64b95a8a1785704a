"""What reports/fidelity.json says of the real systems is what the data beside the checkout say."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from dapolab.cli import main
from dapolab.fidelity import study
from dapolab.fidelity.backtest import backtest
from dapolab.fidelity.published import fastest_k
from dapolab.fidelity.published.seed_run import seed_pairs

REPORTS = Path(__file__).parents[2] / "reports"
FAST = {
    "vllm_traces": ("replay",),
    "openrs_vllm_wave_curves": ("waves", "waves_law"),
    "decode_tables": ("laws",),
    "verl_official_logs": ("given_verl",),
    "trl_grpo_logs": ("given_trl",),
    "gsm8k_grpo_ablation": ("given_gsm8k",),
}
"""Folder of the real data -> the tables that come of it; the others take minutes."""


def published() -> dict[str, list[dict[str, object]]]:
    return json.loads((REPORTS / "fidelity.json").read_text(encoding="utf-8"))["tables"]


def same(found: list[dict[str, object]], wanted: list[dict[str, object]]) -> bool:
    """Whether two tables say the same; numbers to 0.1 %, libraries' solvers differ below that."""
    if len(found) != len(wanted):
        return False
    return all(
        row[key] == pytest.approx(cell, rel=1e-3, abs=1e-6)
        if isinstance(cell, float)
        else row[key] == cell
        for row, other in zip(found, wanted, strict=True)
        for key, cell in other.items()
    )


@pytest.fixture(scope="module")
def written(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of reports that ``dapolab fidelity`` writes of the fast parts."""
    folder = tmp_path_factory.mktemp("fidelity")
    (folder / "data").mkdir()
    for name in FAST:
        if not (shared_data / name).is_dir():
            pytest.skip(f"{name} is not among the real data")
        (folder / "data" / name).symlink_to(shared_data / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "systems", lambda: [fastest_k.system()])
        patch.setattr(study, "seed_pairs", partial(seed_pairs, (0.5,), replications=2))
        words = ["fidelity", "--data", str(folder / "data"), "-o", str(folder / "reports")]
        assert main(words) == 0
    return folder / "reports"


def test_the_fast_parts_say_what_is_published(written: Path) -> None:
    document = json.loads((written / "fidelity.json").read_text(encoding="utf-8"))
    stored = published()
    for name in (name for names in FAST.values() for name in names):
        assert same(document["tables"][name], stored[name]), name
    # the twin: the same trace, 5 % slower, is not what is published
    slower = [row | {"scalar": 1.05 * float(row["scalar"])} for row in stored["replay"]]
    assert not same(document["tables"]["replay"], slower)
    own = [row for row in stored["published"] if row["system"] == fastest_k.system().name]
    assert own
    assert same(document["tables"]["published"], own)
    # a row a request is drawn and not listed
    assert not {"replay_points", "wave_curves"} & set(document["tables"])


def test_absent_data_are_named_and_nothing_stands_in_for_them(written: Path) -> None:
    document = json.loads((written / "fidelity.json").read_text(encoding="utf-8"))
    absent = ["verl_grpo_qwen3_8b", "cot_loop_qwen3_1p7b"]
    assert document["missing"] == [f"{name}: no folder {name}" for name in absent]
    assert not {"backtests", "censoring"} & set(document["tables"])
    page = (written / "fidelity.md").read_text(encoding="utf-8")
    for name in absent:
        assert f"not run: {name}" in page.replace("\\_", "_")
    assert "From one run's log another run" not in page
    # 300 requests in two traces, each judged on its odd half
    assert "300 requests of 2 traces" in page


def test_a_log_is_calibrated_as_published_and_its_runs_are_the_measured_ones(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_data / "verl_grpo_qwen3_8b"
    if not folder.is_dir():
        pytest.skip("verl_grpo_qwen3_8b is not among the real data")
    # two of forty predicted runs: they move what is predicted, never what is calibrated
    monkeypatch.setattr(study, "backtest", partial(backtest, replications=2))
    found = study.Study()
    study.PARTS["verl_grpo_qwen3_8b"](found, folder, 0)
    stored = published()
    for name in ("calibrated", "sensitivity", "not_identified"):
        assert same(found.tables[name].to_dict("records"), stored[name]), name
    rows = found.tables["backtests"]
    wanted = pd.DataFrame(stored["backtests"])
    merged = rows.merge(wanted, on=["pair", "quantity"], suffixes=("", "/stored"))
    assert len(merged) == len(wanted)
    assert merged["measured"].to_numpy(float) == pytest.approx(merged["measured/stored"], rel=1e-5)
    # the mean of two runs lies as near the mean of forty as one run is predicted to
    near = merged["predicted"].between(merged["low/stored"], merged["high/stored"])
    assert near.mean() >= 0.8

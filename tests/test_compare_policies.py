"""Which policies a comparison takes, by kind, by framework, by what a workload can give."""

from pathlib import Path

import pandas as pd
import pytest

from dapolab.compare import select_collectors
from dapolab.scenario import (
    COLLECTOR_KINDS,
    COLLECTOR_PRESETS,
    Chunked,
    ConfigError,
    Replace,
    Rounds,
    Scenario,
    build,
)


def scenario(**tables: object) -> Scenario:
    return build({"rollout": {"group_size": 4}} | tables)


def test_all_is_every_kind_and_every_preset_that_differs() -> None:
    found = select_collectors(scenario(), "all")
    assert set(COLLECTOR_KINDS) <= set(found)
    assert set(found) - set(COLLECTOR_KINDS) == set(COLLECTOR_PRESETS) - {"slime", "skyrl_replace"}
    assert found["chunked"] == COLLECTOR_PRESETS["slime"].config == Chunked()
    assert found["replace"] == COLLECTOR_PRESETS["skyrl_replace"].config == Replace()


def test_a_framework_can_be_asked_for_and_has_the_scenarios_budget() -> None:
    collector = {"kind": "rounds", "budget": {"seconds": 9.0}}
    found = select_collectors(scenario(collector=collector), "slime, ms_swift")
    assert list(found) == ["rounds", "slime", "ms_swift"]
    assert all(one.budget.seconds == 9.0 for one in found.values())
    swift = found["ms_swift"]
    assert isinstance(swift, Rounds)
    assert swift.at_max == "original"
    with pytest.raises(ConfigError, match="nearest: 'ms_swift'"):
        select_collectors(scenario(), "ms_swif")


@pytest.mark.parametrize(("n_recorded", "fits"), [(4, False), (9, True)])
def test_a_replay_leaves_out_what_it_has_too_few_responses_for(
    tmp_path: Path, n_recorded: int, fits: bool
) -> None:
    file = tmp_path / "records.csv"
    rows = [
        {"prompt_id": p, "n_tokens": 5 + s, "correct": s % 2, "truncated": 0}
        for p in range(3)
        for s in range(n_recorded)
    ]
    pd.DataFrame(rows).to_csv(file, index=False)
    replay = scenario(workload={"kind": "replay", "file": str(file)})
    found = select_collectors(replay, "all")
    assert "rounds" in found
    # a short round asks for ⌈1.25 · 4⌉ = 5 responses, a long one for 4 others
    assert ("tail_batching" in found) == fits

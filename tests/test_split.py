"""The search for the best split of the GPUs: which splits exist, how they scale, what is best."""

import json
from typing import Any

import pytest

from dapolab.cli import main
from dapolab.compare.split import COLOCATED, COST, GAIN, best_split, splits
from dapolab.errors import ConfigError
from dapolab.scenario import Scenario, build
from dapolab.theory.pipeline import best_split as closed_form


def scenario(*, latency_s: float = 0.0, total: int = 8, **learner: Any) -> Scenario:
    """R = 3 s and T = 1 s on all GPUs, fixed lengths: theory F6, measured on all of them."""
    tokens, groups = 200, 120
    law = {
        "kind": "affine",
        "a_s": latency_s / tokens,
        "b_s": 3.0 * total / (tokens * groups),
        "c_s": 0.0,
    }
    return build(
        {
            "workload": {
                "kind": "independent",
                "lengths": {"kind": "constant", "tokens": tokens},
                "prompts": {"count": 10_000, "tokens_median": 10.0},
            },
            "rollout": {"groups_per_step": groups, "group_size": 1, "cap_tokens": 1000},
            "collector": {"kind": "none"},
            "hardware": {"law": law, "prefill": False, "slots": 200},
            "learner": {
                "measured_on_gpus": total,
                "update_s_per_token": 1.0 / (groups * (tokens + 10)),
            }
            | learner,
            "run": {"steps": 8, "replications": 3},
        }
    )


def test_without_latency_the_best_split_gains_nothing() -> None:
    found = best_split(scenario(), 8, seed=0, n_jobs=1)
    theory = closed_form(3.0, train_s=1.0)
    assert found.best_set == ("rollout 6 + learner 2",)
    assert theory.rollout_share * 8 == pytest.approx(6)
    best = found.confirmed[found.best_set[0]]
    assert best[GAIN].mean == pytest.approx(theory.gain)
    assert best[COST].mean == pytest.approx(theory.cycle_s / 120)
    assert found.confirmed[COLOCATED][COST].mean == pytest.approx(theory.colocated_cycle_s / 120)
    # stage 1 saw all of them
    assert list(found.screened) == [
        COLOCATED,
        *(f"rollout {n} + learner {8 - n}" for n in range(1, 8)),
    ]


def test_with_latency_it_gains_what_no_gpu_shortens() -> None:
    config = scenario(latency_s=2.0, total=10)
    found = best_split(config, 10, seed=0, n_jobs=1)
    (name,) = found.best_set
    x = found.gpus[name][0] / 10
    assert name == "rollout 8 + learner 2"
    assert found.confirmed[name][GAIN].mean == pytest.approx(6.0 / max(2 + 3 / x, 1 / (1 - x)))


def test_rates_are_those_of_the_gpus_that_were_measured() -> None:
    own = scenario(gpus=4, measured_on_gpus=None)
    for name, one in splits(own, 6).items():
        assert one.learner.measured_on_gpus == 4, name
        assert (one.learner.gpus is None) == (name == COLOCATED)
    assert splits(own, 6)[COLOCATED].hardware.replicas == 6


@pytest.mark.parametrize("total", [12, 14])
def test_only_whole_ranks_and_replicas(total: int) -> None:
    packed = scenario(packing={"gpus_per_rank": 4})
    hardware = packed.hardware.model_copy(update={"gpus_per_replica": 2})
    found = splits(packed.model_copy(update={"hardware": hardware}), total)
    sizes = [
        (one.hardware.replicas * 2, one.learner.gpus)
        for name, one in found.items()
        if name != COLOCATED
    ]
    assert sizes == [(total - n, n) for n in (12, 8, 4) if total - n >= 2 and n < total]


def test_limits_grow_with_the_replicas_and_a_filter_keeps_the_long_ones() -> None:
    control = {"kind": "admission", "max_running_groups": 32}
    schedule = {"kind": "fully_async", "control": control}
    base = scenario(gpus=2, schedule=schedule).model_dump()
    base["hardware"]["replicas"] = 2
    base["collector"] = {"kind": "streaming"}
    base["rollout"] |= {"group_size": 2, "groups_per_step": 60}
    found = splits(build(base), 6)
    assert found[COLOCATED].collector.kind == "replenish"
    four: Any = found["rollout 4 + learner 2"].learner.schedule
    assert four.control.max_running_groups == 64


def test_many_gpus_are_searched_in_even_steps() -> None:
    found = splits(scenario(), 128)
    sizes = [one.hardware.replicas for name, one in found.items() if name != COLOCATED]
    assert len(sizes) == 16
    assert (sizes[0], sizes[-1]) == (1, 127)


def test_too_few_gpus_are_refused() -> None:
    packed = scenario(packing={"gpus_per_rank": 8})
    with pytest.raises(ConfigError, match="8 GPUs cannot be split: a rollout replica takes 1"):
        splits(packed, 8)


def test_too_few_steps_are_refused() -> None:
    config = scenario()
    run = config.run.model_copy(update={"steps": 3})
    with pytest.raises(ConfigError, match="too few to judge a split: at least 4"):
        best_split(config.model_copy(update={"run": run}), 8, seed=0, n_jobs=1)


def test_the_command_answers_in_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["split", "sims/scenarios/small-async.toml", "--gpus", "3", "--replications", "2"]
    assert main([*words, "--steps", "4", "--jobs", "1", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["command"] == "split"
    assert body["gpus"] == 3
    assert set(body["splits"]) == {COLOCATED, "rollout 1 + learner 2", "rollout 2 + learner 1"}
    assert set(body["best_set"]) <= set(body["confirmed"])
    assert main([*words, "--steps", "4", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "may be the best" in shown
    assert "gain over colocated" in shown

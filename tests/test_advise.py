"""What should I set: options are what frameworks do, the answer a set, bad input one line."""

import math

import pytest
from cli_cases import TINY, Desk

from dapolab.advise import FRAMEWORKS, advise, options_of
from dapolab.advise.search import FILL
from dapolab.scenario import COLLECTOR_PRESETS, ConfigError, build, load

QUICK = ("--jobs", "1", "--steps", "4", "--replications", "6")
WORKLOAD = 'kind = "joint"\nmedian_tokens = 60\nsigma = 0.6\nmean_logit = 0.0\nsd_logit = 1.5\n'
SMALL = {
    "workload": {"kind": "joint", "median_tokens": 60, "sigma": 0.6, "sd_logit": 1.5},
    "rollout": {"groups_per_step": 4, "group_size": 4, "cap_tokens": 256},
    "hardware": {"law": {"kind": "affine", "a_s": 0.01, "b_s": 1e-5, "c_s": 0.0}, "slots": 64},
    "run": {"steps": 4, "replications": 6},
}


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    desk = Desk(tmp_path, capsys)
    desk.write("w.toml", WORKLOAD)
    return desk


# options


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("n_groups", [1, 4, 512])
def test_options_are_different_policies_with_names_of_their_own(framework, n_groups):
    options = options_of(framework, n_groups=n_groups)
    names = [option.name for option in options]
    assert len(set(names)) == len(names) >= 2
    assert all(option.settings for option in options)
    assert len({option.collector.model_dump_json() for option in options}) == len(options)


def test_baselines_are_what_the_frameworks_ship():
    # trainers.md 14.1, verl.md 5: the recipe's 1536 for 512, NeMo's 1, ms-swift's 3, slime's O = B
    shipped = {
        "verl": {"data.gen_batch_size": 1536},
        "verl-v1": {"algorithm.filter_groups.max_inflight_gen_batches": 1},
        "slime": {"--over-sampling-batch-size": 512},
        "nemo-rl": {"grpo.batch_multiplier": 1.0},
        "ms-swift": {"--max_resample_times": 3},
        "open-instruct": {"--async_steps": 8},
        "06-dapo": {"--max-candidate-multiplier": 2},
    }
    for framework, wanted in shipped.items():
        settings = options_of(framework, n_groups=512)[0].settings
        assert wanted.items() <= settings.items(), framework
    presets = {
        "slime": "slime",
        "skyrl": "skyrl_filter",
        "ms-swift": "ms_swift",
        "roll": "roll",
        "open-instruct": "open_instruct",
    }
    for framework, preset in presets.items():
        own = options_of(framework, n_groups=512)[0].collector.model_dump()
        own |= {"over_sampling_batch_size": None} if framework == "slime" else {}
        assert own == COLLECTOR_PRESETS[preset].config.model_dump(), framework


# the search


def test_the_cheapest_that_fills_is_found_and_counted_against_the_default():
    scenario = build(SMALL)
    options = options_of("06-dapo", n_groups=4)
    found = advise(scenario, options, framework="06-dapo", n_jobs=1)
    # M = 1 never refills, so it cannot train B groups where groups fail the filter
    assert "max-candidate-multiplier=1" in found.best.set_aside
    assert found.settings["--max-candidate-multiplier"] >= 2
    assert found.best.confirmed[found.option][FILL].mean >= 0.99
    assert found.option in found.best.best_set
    if found.gain is not None:
        assert found.gain.low <= found.gain.mean <= found.gain.high


def test_what_is_dearer_by_construction_is_not_advised():
    scenario = build(SMALL)
    options = [o for o in options_of("verl", n_groups=4) if o.collector.kind == "rounds"][::2]
    found = advise(
        scenario,
        options,
        framework="verl",
        metric="per_trained_group/completion_tokens",
        n_jobs=1,
    )
    sizes = {o.name: o.settings["data.gen_batch_size"] for o in options}
    assert options[0].name == "gen_batch_size=12"  # the default, three times 4
    assert max(sizes.values()) == 16
    # a round's surplus is thrown away: four times the batch wastes most of its tokens
    assert sizes[found.option] < 12
    assert found.gain.high < 1
    assert "gen_batch_size=16" not in found.best.best_set


def test_the_choice_is_looked_at_again_as_pass_rates_rise():
    found = advise(build(SMALL), options_of("openrlhf", n_groups=4), framework="openrlhf", n_jobs=1)
    rates = [turn.accuracy for turn in found.turns]
    assert rates == sorted(rates)
    assert 0.5 < rates[0] < rates[-1] < 1
    turn = found.changes_at
    assert turn is None or found.option not in turn.best_set


def test_recorded_groups_cannot_get_better(tmp_path):
    rows = ["prompt_id,sample,n_tokens,correct"]
    rows += [f"p{i},{k},{10 + k},{(i + k) % 2}" for i in range(40) for k in range(4)]
    (tmp_path / "r.csv").write_text("\n".join(rows) + "\n")
    text = SMALL | {"workload": {"kind": "replay", "file": str(tmp_path / "r.csv")}}
    found = advise(build(text), options_of("openrlhf", n_groups=4), framework="openrlhf", n_jobs=1)
    assert found.turns == ()
    assert found.changes_at is None


def test_a_batch_that_nothing_fills_is_refused():
    hopeless = SMALL | {
        "workload": {
            "kind": "independent",
            "lengths": {"kind": "constant", "tokens": 9},
            "pass_rate": {"kind": "fixed", "p": 0.0},
        }
    }
    with pytest.raises(ConfigError, match="no point"):
        advise(build(hopeless), options_of("06-dapo", n_groups=4), framework="06-dapo", n_jobs=1)


# the command


def test_a_workload_a_target_and_hardware_are_enough(desk):
    words = ("--target", "4", "--framework", "06-dapo", "--rollout.group_size", "4")
    law = ("--hardware", "qwen3-8b-h100-tp1")
    said = desk.done("advise", "w.toml", *words, *law, *QUICK, "--json").document
    assert said["framework"] == "06-dapo"
    assert said["settings"]["--groups-per-step"] == 4
    assert said["option"] in said["best_set"]
    assert set(said) >= {"gain", "costs", "changes_when", "schema", "version", "seed"}
    words = ("--target", "4", "--framework", "openrlhf", "--rollout.group_size", "4")
    text = desk.done("advise", "w.toml", *words, *law, *QUICK).out
    assert "--algo.dynamic_filtering_enable true" in text
    assert "says nothing of what the policy learns" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_hardware_may_be_a_file_and_changes_the_scenario(desk, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "dapolab.advise.advise", lambda scenario, *_, **__: seen.append(scenario) or 1 / 0
    )
    law = 'law = { kind = "affine", a_s = 0.5, b_s = 0, c_s = 0 }'
    desk.write("law.toml", f"[hardware]\nslots = 7\n{law}\n[learner]\nsync_s = 3.0\n")
    with pytest.raises(ZeroDivisionError):
        desk.done("advise", "w.toml", "--hardware", "law.toml", "--target", "9")
    one = seen[0]
    assert (one.hardware.slots, one.hardware.law.a_s, one.learner.sync_s) == (7, 0.5, 3.0)
    assert (one.rollout.groups_per_step, one.workload.median_tokens, one.name) == (9, 60, "w")
    desk.write("s.toml", TINY)
    with pytest.raises(ZeroDivisionError):
        desk.done("advise", "s.toml")
    assert seen[1] == load("s.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("w.toml", "--framework", "verll"), "nearest: verl"),
        (("w.toml", "--metric", "step_secondz"), "nearest: step_seconds"),
        (("absent.toml",), "absent.toml: no such file"),
        (("w.toml", "--hardware", "absent.toml"), "absent.toml: no such file"),
        (("w.toml", "--hardware", "h101"), "h101"),
        (("w.toml", "--least-fill", "2"), "a share between 0 and 1"),
        (("w.toml", "--rollout.grup_size", "3"), "nearest valid key: 'group_size'"),
    ],
)
def test_what_cannot_be_used_is_one_line(desk, words, said):
    assert said in desk.refused("advise", *words)


def test_side_effects_decide_inside_the_set():
    import pandas as pd

    from dapolab.advise.search import _side_effect
    from dapolab.sweep.point import Replications

    def runs(stale, ratio):
        means = pd.DataFrame(
            {"staleness/mean_versions": [stale], "bias/length_ratio_policy": [ratio]}
        )
        return Replications(means, means, ("completed",), 0)

    order = [runs(0.0, 1.0), runs(0.0, 0.9), runs(0.0, 1.2), runs(0.5, 1.0)]
    assert sorted(order, key=_side_effect) == order
    assert _side_effect(runs(0.0, 0.5))[1] == pytest.approx(math.log(2))

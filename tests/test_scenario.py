"""Scenario files: what is accepted, what is refused and in which words."""

import pytest

from dapolab.scenario import DEFAULT, AffineLaw, ConfigError, Hardware, build, load, parse_overrides


def refused(data):
    with pytest.raises(ConfigError) as caught:
        build(data, where="x.toml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("x.toml: ")
    return message.removeprefix("x.toml: ")


def test_an_unknown_key_names_the_nearest_valid_one():
    assert refused({"rollout": {"grop_size": 3}}) == (
        "unknown key 'rollout.grop_size'; nearest valid key: 'group_size'"
    )
    message = refused({"workload": {"kind": "joint", "sigm": 1}})
    assert message == "unknown key 'workload.sigm'; nearest valid key: 'sigma'"
    message = refused({"hardware": {"law": {"kind": "affine", "bs": 1}}})
    assert message == "unknown key 'hardware.law.bs'; nearest valid key: 'b_s'"
    message = refused({"alternatives": {"big": {"kind": "rounds", "gen_group": 4}}})
    assert message == "unknown key 'alternatives.big.gen_group'; nearest valid key: 'gen_groups'"
    assert "nearest valid key: 'run'" in refused({"runn": {}})


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("rollout", "groups_per_step", 0),
        ("rollout", "group_size", -1),
        ("rollout", "cap_tokens", 0),
        ("hardware", "replicas", 0),
        ("hardware", "slots", 0),
        ("hardware", "kv_capacity_tokens", 0),
        ("hardware", "poll_s", -1.0),
        ("run", "steps", 0),
        ("run", "replications", 1),
        ("learner", "update_s_per_token", float("nan")),
        ("learner", "sync_s", float("inf")),
    ],
)
def test_sizes_and_numbers_out_of_range_name_their_key(table, key, value):
    assert refused({table: {key: value}}).startswith(f"{table}.{key}: ")


def test_what_cannot_work_together_is_refused_with_what_to_do():
    message = refused({"rollout": {"cap_tokens": 100, "overlong": {"buffer_tokens": 120}}})
    assert "buffer_tokens 120 exceeds cap_tokens 100" in message
    message = refused({"hardware": {"kv_capacity_tokens": 4000}})
    assert "cannot hold one response" in message
    for rollout in ({"group_size": 1}, {"group_size": 1, "singletons": "drop"}):
        assert "a group of one never has spread" in refused({"rollout": rollout})
    build({"rollout": {"group_size": 1, "singletons": "keep"}})
    build({"rollout": {"group_size": 1}, "collector": {"kind": "none"}})
    assert "concave" in refused(
        {"hardware": {"law": {"kind": "piecewise", "n_knots": [1, 2, 3], "b_knots_s": [0, 1, 3]}}}
    )


def test_overrides_reach_any_depth_and_a_new_kind_drops_the_old_settings(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[collector]\nkind = "exact_refill"\nmax_candidate_multiplier = 3\n')
    assert load(file).collector.max_candidate_multiplier == 3
    scenario = load(file, {"collector.gen_groups": 7, "collector.kind": "rounds"})
    assert scenario.collector.gen_groups == 7
    assert load(file, {"workload.kind": "joint", "workload.sigma": 1.1}).workload.sigma == 1.1


def test_a_workload_file_is_found_beside_the_scenario_and_can_be_changed(tmp_path):
    (tmp_path / "w.toml").write_text('[workload]\nkind = "joint"\nsigma = 0.5\nmean_logit = 1.0\n')
    file = tmp_path / "s.toml"
    file.write_text('workload = "w.toml"\n')
    assert load(file).workload.mean_logit == 1.0
    assert load(file, {"workload.sigma": 1.1}).workload.sigma == 1.1
    file.write_text('[workload]\nbase = "w.toml"\nmean_logit = 2.0\n')
    assert (load(file).workload.sigma, load(file).workload.mean_logit) == (0.5, 2.0)


LAW = """[hardware.law]
kind = "affine"
a_s = 0.01
b_s = 2e-5
c_s = 5e-8

[hardware]
call_overhead_s = 0.4

[learner]
update_s_per_token = 1.4e-4
"""


def test_a_law_file_is_named_by_the_hardware_and_the_rest_stays_the_scenario_s(tmp_path):
    (tmp_path / "fits").mkdir()
    (tmp_path / "fits" / "law.toml").write_text(LAW)
    file = tmp_path / "s.toml"
    file.write_text('hardware = "fits/law.toml"\n')
    assert load(file).hardware == Hardware(
        law=AffineLaw(a_s=0.01, b_s=2e-5, c_s=5e-8), call_overhead_s=0.4
    )
    file.write_text(
        '[hardware]\nbase = "fits/law.toml"\nreplicas = 4\ncall_overhead_s = 0.1\n'
        '[hardware.law]\nc_s = 1e-7\n[learner]\nbase = "fits/law.toml"\nsync_s = 3.0\n'
    )
    found = load(file, {"hardware.slots": 64})
    assert (found.hardware.replicas, found.hardware.slots) == (4, 64)
    assert found.hardware.call_overhead_s == 0.1
    assert (found.hardware.law.a_s, found.hardware.law.c_s) == (0.01, 1e-7)
    assert (found.learner.update_s_per_token, found.learner.sync_s) == (1.4e-4, 3.0)
    # named on the command line, its law replaces another kind and the replicas stay
    file.write_text(
        '[hardware]\nreplicas = 4\n[hardware.law]\nkind = "preset"\nname = "qwen3-8b-a100-tp1"\n'
    )
    for key in ("hardware", "hardware.base"):
        hardware = load(file, {key: "law.toml"}, folder=tmp_path / "fits").hardware
        assert (hardware.law.a_s, hardware.replicas, hardware.call_overhead_s) == (0.01, 4, 0.4)
    assert load(file).hardware.law.name == "qwen3-8b-a100-tp1"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "law.toml: no such file"),
        ("a_s = 0.01\n", r"law.toml: no table \[hardware\]"),
        ("[hardware]\nreplicas = 2\n", "law.toml: no decode law in it"),
        ('[hardware.law]\nkind = "affine"\na_ms = 3\n', "a_s"),
        ("import os\n", "not valid TOML"),
    ],
)
def test_a_law_file_that_is_none_is_one_line(tmp_path, body, message):
    if body is not None:
        (tmp_path / "law.toml").write_text(body)
    file = tmp_path / "s.toml"
    file.write_text('[hardware]\nbase = "law.toml"\n')
    with pytest.raises(ConfigError, match=message) as error:
        load(file)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=message):
        load(DEFAULT, {"hardware": "law.toml"}, folder=tmp_path)


@pytest.mark.parametrize("text", ["name = ", "\x00", "[a"])
def test_a_broken_file_is_one_line(tmp_path, text):
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file)
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "absent.toml")


def test_the_fingerprint_changes_with_any_setting_and_not_with_key_order():
    one = build({"run": {"steps": 5}, "name": "a"})
    assert one.fingerprint() == build({"name": "a", "run": {"steps": 5}}).fingerprint()
    assert one.fingerprint() != build({"name": "a", "run": {"steps": 6}}).fingerprint()


def test_overrides_read_numbers_lists_and_text():
    found = parse_overrides(["--a.b", "1.5", "--c=[1, 2]", "--d-e", "x y", "--f", "none"])
    assert found == {"a.b": 1.5, "c": [1, 2], "d_e": "x y", "f": None}
    with pytest.raises(ConfigError, match="needs a value"):
        parse_overrides(["--a.b"])
    with pytest.raises(ConfigError, match="unexpected argument 'x'"):
        parse_overrides(["x"])


def test_another_workload_replaces_the_scenario_s_own_and_lies_where_it_is_named(tmp_path):
    (tmp_path / "fits").mkdir()
    fitted = '[workload]\nkind = "joint"\nsigma = 0.5\ndraws = "w.draws.csv"\n'
    (tmp_path / "fits" / "w.toml").write_text(fitted)
    file = tmp_path / "s.toml"
    file.write_text('[workload]\nkind = "joint"\nsigma = 0.9\nmean_logit = 3.0\n')
    for key in ("workload", "workload.base"):
        scenario = load(file, {key: "w.toml", "workload.sd_logit": 1.5}, folder=tmp_path / "fits")
        # nothing of the old one is left, and settings are laid over the new one
        assert (scenario.workload.sigma, scenario.workload.mean_logit) == (0.5, 0.0)
        assert scenario.workload.sd_logit == 1.5
        assert scenario.workload.draws == str(tmp_path / "fits" / "w.draws.csv")
    # a kind that the file has already changes nothing
    assert load(file, {"workload.kind": "joint"}).workload.sigma == 0.9


def test_none_means_absent_in_files_and_in_overrides(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[collector]\nkind = "exact_refill"\nmax_candidate_multiplier = "none"\n')
    assert load(file).collector.max_candidate_multiplier is None
    file.write_text('[collector]\nkind = "none"\n')
    assert load(file).collector.kind == "none"
    file.write_text("[rollout.overlong]\nbuffer_tokens = 8\n")
    assert load(file, parse_overrides(["--rollout.overlong", "none"])).rollout.overlong is None
    assert parse_overrides(["--collector.kind", "none"]) == {"collector.kind": "none"}

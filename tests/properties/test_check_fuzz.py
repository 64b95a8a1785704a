"""The config checker on arbitrary text: a report or one ConfigError, nothing else, and quickly."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapolab.check import FRAMEWORKS, check_file, check_text
from dapolab.check.keys import table
from dapolab.errors import ConfigError

NAMES = st.sampled_from(["", "a.sh", "a.yaml", "a.json", "a.py", "a.txt"])
PIECES = st.sampled_from(
    [
        *"$`'\"\\(){}[]#;&|<>=:,-+~!*? \n\t",
        "$(",
        "${",
        "$((",
        "))",
        "<<EOF\n",
        "EOF\n",
        "x=",
        "x=(",
        "${x[@]}",
        "if",
        "then",
        "fi",
        "for x in",
        "python3 -m verl.trainer.main_ppo",
        "data.train_batch_size=",
        "actor_rollout_ref.rollout.n=",
        "--groups-per-step ",
        "&a ",
        "*a",
        "!!python/name:os.system ",
        "GRPOConfig(",
        "9" * 30,
        "1e999",
        "nan",
        "\x00",
        "é",
    ]
)
BROKEN = st.lists(PIECES, max_size=60).map("".join)
VALUES = st.sampled_from(
    ["0", "-1", "nan", "inf", "1e30", "0.5", "true", "null", "[]", "[1,[2]]", "x", "''", "1" * 400]
)
KNOWN = [*sorted(table("verl")["keys"]), "reward.reward_kwargs.max_resp_len"]
READ = [
    "data.train_batch_size",
    "data.gen_batch_size",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "algorithm.filter_groups.enable",
    "algorithm.filter_groups.metric",
    "algorithm.filter_groups.max_num_gen_batches",
    "trainer.n_gpus_per_node",
]


def survives(text: str, **how: object) -> None:
    try:
        report = check_text(text, **how)
    except ConfigError:
        return
    assert report.framework in FRAMEWORKS
    assert "\n" not in report.summary


@given(text=st.text(max_size=300), name=NAMES)
def test_any_text(text: str, name: str) -> None:
    survives(text, name=name)


@given(text=BROKEN, name=NAMES, framework=st.none() | st.sampled_from(FRAMEWORKS))
def test_broken_syntax(text: str, name: str, framework: str | None) -> None:
    survives(text, name=name, framework=framework)


@given(
    pairs=st.lists(st.tuples(st.sampled_from(READ) | st.sampled_from(KNOWN), VALUES), max_size=12),
    rate=st.none() | st.sampled_from([0.0, 0.3, 1.0]),
    launch=st.sampled_from(["", "python -m recipe.dapo.main_dapo ", "python -m verl.main_ppo "]),
)
def test_absurd_values_in_verl(
    pairs: list[tuple[str, str]], rate: float | None, launch: str
) -> None:
    survives(launch + " ".join(f"{k}={v}" for k, v in pairs), framework="verl", pass_rate=rate)


@pytest.mark.parametrize("framework", ["trl", "06-dapo", "openrlhf", "slime"])
@given(data=st.data(), rate=st.none() | st.sampled_from([0.0, 0.3, 1.0]))
def test_absurd_values_in_arguments(
    framework: str, data: st.DataObject, rate: float | None
) -> None:
    from dapolab.check.frameworks import dapo06, slime

    names = {
        "trl": sorted(table("trl")["keys"]),
        "openrlhf": sorted(table("openrlhf")["keys"]),
        "06-dapo": sorted(dapo06.DEFAULTS),
        "slime": sorted(slime.DEFAULTS),
    }[framework]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), VALUES), min_size=1, max_size=12))
    text = " ".join(f"--{k} {v}" for k, v in pairs)
    survives(text, framework=framework, pass_rate=rate)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), name=NAMES.filter(bool))
def test_any_bytes(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        check_file(path)
    except ConfigError:
        return


@pytest.mark.parametrize("times", ["1e999", ".inf", "1e308", ".nan", "-1e308"])
def test_a_multiplier_of_any_size(times: str) -> None:
    settings = f"num_prompts_per_step: 100, use_dynamic_sampling: true, batch_multiplier: {times}"
    text = f"grpo: {{{settings}}}"
    survives(text, name="a.yaml", framework="nemo-rl")


@pytest.mark.parametrize(("window", "generation"), [(0, 4), (4, 0), (0, 0), (-1, 4)])
def test_windows_without_a_ratio(window: int, generation: int) -> None:
    text = f"gradient_accumulation_steps: {window}\nsteps_per_generation: {generation}\n"
    for version in ("1.10", "1.16"):
        survives(text, name="a.yaml", framework="trl", version=version)


def test_a_value_with_line_breaks_leaves_the_summary_on_one_line() -> None:
    survives('actor_rollout_ref.actor.loss_agg_mode="token-\nmean"', framework="verl")


@pytest.mark.parametrize(
    "text",
    [
        "$(" * 20_000,
        "${" * 20_000,
        '"' * 40_001,
        "${x:-" * 10_000,
        "x=(" * 20_000,
        "((" * 20_000,
        "`" * 40_001,
        "a" * 200_000,
        "x=" + "$x" * 5_000 + "\ny=" + "$x" * 5_000 + "\na.b=$y",
        "[" * 20_000,
        "{" * 20_000,
        "a: " * 20_000,
        "- " * 20_000,
        "<<E\n" * 5_000,
        "a.b=$((" + "(" * 20_000,
    ],
    ids=lambda text: text[:6],
)
@pytest.mark.parametrize("name", ["a.sh", "a.yaml", "a.json", "a.py"])
def test_hostile_texts_end_soon(text: str, name: str) -> None:
    survives(text, name=name, framework="verl")

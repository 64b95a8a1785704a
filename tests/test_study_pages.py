"""Pages on toy policies: numbers of a lead, modes at equal progress, and what the leads say."""

import itertools

import numpy as np
import pandas as pd
import pytest

from dapolab.metrics import PROMPT_ACCURACY
from dapolab.studies import STUDIES, read
from dapolab.studies.index import _first_sentences
from dapolab.studies.lead import filled, found
from dapolab.studies.progress import equal_progress
from dapolab.studies.study import Tables

ESTIMATE = {"mean": 0.25, "low": 0.24, "high": 0.26, "n": 9, "unit": "share"}
TABLES = {
    "p.estimates": pd.DataFrame([{"row": "m+x=1", "metric": "a/b"} | ESTIMATE]),
    "p.curves": pd.DataFrame([{"mode": "m+x=1", "metric": "a/b", "step": 3} | ESTIMATE]),
    "e.effects": pd.DataFrame([{"row": "s×t", "metric": "a/b"} | ESTIMATE | {"unit": "tokens"}]),
}


def test_a_lead_takes_its_numbers_from_the_tables() -> None:
    assert filled("at {p|m+x=1|a/b}.", TABLES) == "at 25.0 % [24.0, 26.0]."
    assert filled("{p|m+x=1|a/b|3}", TABLES) == "25.0 % [24.0, 26.0]"
    assert filled("{e|s×t|a/b}", TABLES) == "0.250 [0.240, 0.260]"
    for wrong in ("{p|m+x=1|a/c}", "{p|m|a/b}", "{p|m+x=1|a/b|4}", "{q|m|a/b}"):
        with pytest.raises(KeyError):
            filled(wrong, TABLES)


def curves(*rates: float, steps: int = 40) -> pd.DataFrame:
    """Pass rate 0.1 + rate·step and length 50 − 100·(pass rate − 0.1)·rate/0.01, both straight."""
    step = np.arange(steps + 1)
    rows = []
    for rate in rates:
        values = {
            "reward/accuracy": 0.1 + rate * step,
            "length/right": 50 - 100 * rate * step * rate / 0.01,
            f"{PROMPT_ACCURACY}1": 0.1 + rate * step,
        }
        for metric, value in values.items():
            rows += [
                {"mode": f"m{rate}", "metric": metric, "step": s, "mean": v}
                for s, v in zip(step, value, strict=True)
            ]
    return pd.DataFrame(rows)


def test_modes_are_compared_where_they_have_learned_equally_much() -> None:
    section = equal_progress(curves(0.01, 0.02))
    assert section is not None
    (table,) = section.blocks
    slow, fast = table.frame.to_dict("records")
    # the slow one ends at 0.1 + 0.4; the fast one is there after half of its steps
    assert (slow["step"], fast["step"]) == (pytest.approx(40), pytest.approx(20))
    assert "50.0 %" in table.caption
    # lengths by the formula above at a gain of 0.4: 50 − 40 and 50 − 80
    assert slow["tokens if right"] == pytest.approx(10)
    assert fast["tokens if right"] == pytest.approx(-30)
    assert slow["pass rate 1"] == pytest.approx(fast["pass rate 1"]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "table",
    [
        curves(0.01),  # one mode
        curves(0.01, 0.0),  # one that learns nothing
        curves(0.0002, 0.01),  # one that learns less than a per cent
        curves(0.01, 0.02, steps=10),  # few points
        curves(0.002, 0.02),  # there after 4 steps
        curves(0.01, 0.02).query("metric == 'length/right'"),
    ],
)
def test_nothing_is_compared_where_it_would_say_nothing(table: pd.DataFrame) -> None:
    assert equal_progress(table) is None


def test_a_row_of_the_index_holds_whole_sentences() -> None:
    assert _first_sentences("One of 0.2 here. Two.") == "One of 0.2 here. Two."
    long = "A " + "b" * 295 + "."
    assert _first_sentences(f"One. {long} Three.") == "One."
    assert _first_sentences(f"One: Two. {long}") == "One: Two."
    assert _first_sentences(f"{long} Two is longer than the rest.") == long


# ---------------------------------------------------------------------- what the leads say


@pytest.fixture(scope="module")
def tables(pytestconfig) -> Tables:
    folder = pytestconfig.rootpath / "reports"
    names = ("length_bias", "clip", "overlong", "dynamic_sampling")
    stored = [read(STUDIES[name], folder).tables for name in names]
    return {name: table for part in stored for name, table in part.items()}


def apart(tables: Tables, low: str, high: str) -> bool:
    """Whether the interval of ``low`` lies below that of ``high``."""
    below, above = found(low, tables), found(high, tables)
    top, bottom = (below.high, above.low)
    assert top is not None
    assert bottom is not None
    return top < bottom


def holds(tables: Tables, field: str, value: float) -> bool:
    estimate = found(field, tables)
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= value <= estimate.high


def test_what_the_lead_on_length_bias_says(tables: Tables) -> None:
    classes = "length-classes|{}|length/{}"
    total = "seq-mean-token-sum-norm+aggregation.constant=55"
    for mode in ("seq-mean-token-mean", "token-mean"):
        assert apart(tables, classes.format(mode, "right"), classes.format(total, "right"))
        assert apart(tables, classes.format(total, "wrong"), classes.format(mode, "wrong"))
        assert apart(tables, classes.format(mode, "mean"), classes.format(total, "mean"))
    assert holds(tables, classes.format(total, "right"), 55)
    assert holds(tables, classes.format(total, "wrong"), 55)
    first = "length-classes|{}|first/length/wrong"
    shares = [found(first.format(m), tables).mean for m in ("seq-mean-token-mean", "token-mean")]
    assert shares[0] / shares[1] == pytest.approx(17, abs=0.5)
    modes = tables["shared-length.estimates"]["row"].unique()
    assert len(modes) == 6
    # 0.7 · 10 + 0.3 · 100 tokens at the start
    assert all(holds(tables, f"shared-length|{mode}|length/mean", 37) for mode in modes)
    effects = tables["three-paths.effects"]
    crossed = effects[effects["row"].str.contains("×")]
    assert ((crossed["low"] > 0) | (crossed["high"] < 0)).all()


def test_what_the_lead_on_clipping_says(tables: Tables) -> None:
    entropy = "many-arms-{}|clip.high={}|entropy/answer"
    assert apart(tables, entropy.format("likely-right", 0.5), entropy.format("likely-right", 0.2))
    for case in ("random", "likely-wrong"):
        assert apart(tables, entropy.format(case, 0.2), entropy.format(case, 0.5))
    for part in (
        "many-arms-likely-right",
        "many-arms-likely-wrong",
        "many-arms-random",
        "rare-token",
    ):
        for high in (0.2, 0.28, 0.5):
            other = f"{part}|clip.high={high}|entropy/answer"
            assert apart(tables, f"{part}|no-clip|entropy/answer", other)
    rare = "rare-token|clip.high={}|reward/accuracy|1"
    assert not apart(tables, rare.format(0.2), rare.format(0.5))
    assert found(rare.format(0.2), tables).low > 1.5 * 0.01  # beyond (1 + high) for each high
    for rule in ("importance", "tis", "icepop"):
        for metric, sign in (("gradient/bias_share", -1), ("gradient/sd_share", 1)):
            change = found(f"mismatch|{rule}|{metric}", tables).mean
            change -= found(f"mismatch|no-correction|{metric}", tables).mean
            assert sign * change > 0
        plain = "mismatch|no-correction|reward/accuracy"
        assert apart(tables, f"mismatch|{rule}|reward/accuracy", plain)


def test_what_the_lead_on_overlong_answers_says(tables: Tables) -> None:
    start = {
        m: found(f"overlong|overlong|{m}|0", tables).mean for m in ("length/right", "length/wrong")
    }
    for mode in tables["overlong.estimates"]["row"].unique():
        assert found(f"overlong|{mode}|length/right", tables).high < start["length/right"]
        assert found(f"overlong|{mode}|length/wrong", tables).low > start["length/wrong"]
    field = "overlong|{}|{}"
    order = ("overlong", "no-length-rule", "mask-truncated", "exclude-truncated")
    for one, two in itertools.pairwise(order):
        for metric in ("length/right", "length/wrong"):
            assert apart(tables, field.format(one, metric), field.format(two, metric))
        rate = "reward/accuracy"
        assert apart(tables, field.format(two, rate), field.format(one, rate))
    shaped, raw = (f"overlong|overlong+filter-{kind}|{{}}" for kind in ("shaped", "raw"))
    kept = "rollout/effective_group_ratio"
    assert apart(tables, raw.format(kept), shaped.format(kept))
    assert apart(tables, shaped.format("reward/accuracy"), raw.format("reward/accuracy"))


def test_what_the_lead_on_dynamic_sampling_says(tables: Tables) -> None:
    first = "difficulty-ladder|{}|first/reward/accuracy"
    order = ("mean_only", "mean_only+filter-raw", "grpo", "grpo+filter-raw")
    assert all(
        apart(tables, first.format(a), first.format(b)) for a, b in itertools.pairwise(order)
    )
    section = equal_progress(tables["difficulty-ladder.curves"])
    assert section is not None
    frame = section.blocks[0].frame.set_index("mode")
    prompts = [name for name in frame if str(name).startswith("pass rate")]
    for plain in ("mean_only", "grpo"):
        assert (
            frame.loc[f"{plain}+filter-raw", prompts] - frame.loc[plain, prompts]
        ).abs().max() < 0.005
    turned = frame.loc["grpo", prompts] - frame.loc["mean_only", prompts]
    assert turned.iloc[1] > 0.01 > -0.01 > turned.iloc[2]  # pass rates 0.1 and 0.3 at the start

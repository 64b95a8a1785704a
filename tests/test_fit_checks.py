"""The held-out check of mixed groups' accuracy: what it is, when it fails, when it is not made."""

import json

import numpy as np
import pandas as pd
import pytest

from dapolab.cli import main
from dapolab.report.fit_report import fit_document
from dapolab.workload.fit import fit_workload
from dapolab.workload.fit.goodness import PromptSummary, not_comparable, summarise

NAME = "accuracy of mixed groups"


def groups_of(n_correct_P, *, n=8):
    """Records without lengths: group i has ``n_correct_P[i]`` right answers of n."""
    right = np.arange(n) < np.asarray(n_correct_P)[:, None]
    prompt = np.repeat(np.arange(len(right)), n)
    return pd.DataFrame({"prompt_id": prompt, "group_id": prompt, "correct": right.ravel()})


def test_it_is_the_mean_share_right_of_mixed_groups_alone():
    """2 of 4 and 3 of 4 are right in the mixed groups: (1/2 + 3/4)/2; weights count twice."""
    correct = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=float)
    zero, present = np.zeros_like(correct), np.ones_like(correct, dtype=bool)
    summary = summarise(zero + 10, correct, zero, present)
    assert summary.statistics(np.ones(4))[NAME] == pytest.approx(0.625)
    # (1/2 + 2 · 3/4)/3 where the last prompt is drawn twice and the second not at all
    assert summary.statistics(np.array([1, 0, 1, 2]))[NAME] == pytest.approx(2 / 3)
    assert np.isnan(summary.statistics(np.array([0, 2, 2, 0]))[NAME])


def test_groups_of_unequal_size_count_once_each():
    """1 of 2 and 3 of 4: 5/8, not the 4/6 of pooled answers."""
    correct = np.array([[1, 0, np.nan, np.nan], [1, 1, 1, 0]])
    present = np.isfinite(correct)
    found = summarise(correct * 0 + 9, correct, correct * 0, present).statistics(np.ones(2))
    assert found[NAME] == pytest.approx(0.625)


def test_a_law_of_the_wrong_shape_fails_it_though_the_mixed_share_holds(tmp_path, capsys):
    """Two fifths never missed, two fifths never right, a fifth at .12: one guess rate too few."""
    rng = np.random.default_rng(1)
    right = rng.binomial(8, rng.choice([1.0, 0.0, 0.12], p=[0.4, 0.4, 0.2], size=600))
    mixed = (right > 0) & (right < 8)
    groups_of(right).to_csv(tmp_path / "r.csv", index=False)
    given = ["fit", str(tmp_path / "r.csv"), "--selection", "all", "--draws", "100", "--json"]
    assert main([*given, "-o", str(tmp_path / "w.toml")]) == 0
    found = {row["quantity"]: row for row in json.loads(capsys.readouterr().out)["goodness"]}
    assert found[NAME]["verdict"] == "fails"
    assert found[NAME]["observed"] == pytest.approx(right[mixed].mean() / 8)
    assert found[NAME]["tolerance"] == found["mixed share"]["tolerance"] == 0.05
    # the law spreads wide to reach both ends, and its mixed groups come out far too right
    assert found[NAME]["high"] < -0.05
    assert found["mixed share"]["verdict"] != "fails"
    page = (tmp_path / "w.html").read_text()
    assert f"On held-out prompts fails: {NAME};" in page
    assert f"Right in mixed groups: observed {right[mixed].mean() / 8:.3f}, model" in page


def test_the_figure_of_right_answers_says_what_a_filter_trains_on():
    """Shares .1, .3, .2 of groups with 1, 2, 3 of 4 right: (.1 + .6 + .6)/(.6 · 4) = .542."""
    table = pd.DataFrame({"n_correct": range(5), "observed": [0.2, 0.1, 0.3, 0.2, 0.2]})
    table["model"] = [0.4, 0.0, 0.5, 0.0, 0.1]
    (figure,) = fit_document(title="t", lead="l", figures={"composition": table}).figures()
    said = "Right in mixed groups: observed 0.542, model 0.500."
    assert figure.alt.endswith(said)
    assert figure.how_to_read.endswith(said)
    table.loc[1:3, "model"] = 0.0
    (figure,) = fit_document(title="t", lead="l", figures={"composition": table}).figures()
    assert "Right in mixed groups" not in figure.how_to_read + figure.alt


def test_without_mixed_groups_it_is_skipped_and_said():
    fit = fit_workload(groups_of([8] * 30 + [0] * 30), selection="all", n_draws=100)
    assert [g.quantity for g in fit.goodness] == ["mixed share"]
    assert dict(fit.not_identified)[f"held-out {NAME}"] == "no group of these data is mixed"


@pytest.mark.parametrize("n_mixed", [9, 10])
def test_nine_mixed_groups_are_too_few_for_an_interval(n_mixed):
    correct = np.zeros((40, 2))
    correct[:n_mixed, 0] = 1.0
    seen = summarise(correct + 9, correct, correct * 0, correct > -1)
    skipped = not_comparable(seen, [seen])
    if n_mixed < 10:
        assert skipped == {NAME: "only 9 of these groups are mixed; 10 are needed"}
    else:
        assert skipped == {}
    nothing = summarise(correct + 9, correct * 0, correct * 0, correct > -1)
    if n_mixed == 10:
        assert "predicts no mixed group" in not_comparable(seen, [nothing])[NAME]


def test_answers_without_a_verdict_leave_it_open():
    """One cut answer that nobody judged: its group may be mixed or not, and so may the share."""
    correct = np.tile([1.0, 0.0, 1.0], (20, 1))
    cut = np.zeros_like(correct)
    correct[3, 2], cut[3, 2] = np.nan, 1.0
    seen = summarise(correct * 0 + 9, correct, cut, np.ones_like(cut, dtype=bool))
    skipped = not_comparable(seen, [seen])
    assert set(skipped) == {NAME, "mixed share"}
    assert "without a verdict" in skipped[NAME]
    judged = np.ones(20, dtype=bool)
    judged[3] = False
    rest = PromptSummary(*(getattr(seen, name)[judged] for name in seen.__dataclass_fields__))
    assert not_comparable(rest, [rest]) == {}

"""The mathematics task: what is read from a file, and the judge."""

import json
import math
import multiprocessing
import time

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.errors import ConfigError
from gpu_runs.math_task import (
    TEMPLATES,
    MathTask,
    equal_answers,
    last_boxed,
    read_math,
    strip_template,
)


class Letters:
    """A tokenizer with one token a character; token 0 ends."""

    eos_token_id = 0
    pad_token_id = None

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __len__(self):
        return 256

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(c) for c in text]}

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return "<" + messages[0]["content"] + ">"

    def decode(self, tokens, *, skip_special_tokens):
        return "".join(chr(t) for t in tokens if t or not skip_special_tokens)


def said(text):
    return [ord(c) for c in text]


def verl_row(question, answer, template=0):
    before, after = TEMPLATES[template]
    return {
        "prompt": [{"role": "user", "content": before + question + after}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
    }


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_repeats_and_conflicts_leave_and_templates_come_off(tmp_path, suffix):
    rows = [
        verl_row("What is 1 + 1?", "2"),
        verl_row("What is  1 + 1?\n", "2", template=1),  # the same, in another template
        verl_row("What is x?", "3"),
        verl_row("What is x?", "4"),
        verl_row("What is 2 + 2?", "4"),
    ]
    path = tmp_path / f"set.{suffix}"
    if suffix == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    found = read_math(path)
    assert dict(found.questions) == {"What is 1 + 1?": "2", "What is 2 + 2?": "4"}
    assert (found.n_rows, found.n_repeated, found.n_conflicting) == (5, 1, 1)


@given(st.text(min_size=1).map(str.strip).filter(bool), st.sampled_from(TEMPLATES))
def test_stripping_undoes_each_template(question, template):
    assert strip_template(template[0] + question + template[1]) == strip_template(question)


def test_other_spellings_of_a_row(tmp_path):
    path = tmp_path / "set.jsonl"
    rows = [
        {"question": "a?", "answer": 1},
        {"problem": "b?", "answer": "2"},
        {"prompt": "c?", "reward_model": {"ground_truth": "3"}},
        {"prompt": "any", "extra_info": {"raw_problem": "d?"}, "answer": "4"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert dict(read_math(path).questions) == {"a?": "1", "b?": "2", "c?": "3", "d?": "4"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a?"}\n', "row 1 has no answer"),
        (b'{"answer": "1"}\n', "row 1 has no question"),
        (b"[1]\n", "JSON object"),
        (b"{oops\n", "neither parquet nor JSON"),
        (b"\xff\xfe\n", "neither parquet nor JSON"),
        (b"\n", "no problems"),
        (None, "cannot read"),
    ],
)
def test_unusable_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "set.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_math(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        read_math(tmp_path / "absent.parquet")


def test_the_public_set_is_read_as_its_description_says(shared_data):
    path = shared_data / "dapo_math_prompts" / "greso_dapo_math_17917.parquet"
    if not path.is_file():
        pytest.skip("the DAPO-Math prompts are not there")
    found = read_math(path)
    assert found.n_rows == 17917
    # every row is accounted for: kept, a repeat, or of a question whose rows disagree
    table = pd.read_parquet(path)
    texts = [p[0]["content"].split(": ", 1)[1] for p in table["prompt"]]
    asked = [" ".join(t.rsplit(". The assistant", 1)[0].split()) for t in texts]
    answers: dict[str, set[str]] = {}
    for question, judged in zip(asked, table["reward_model"], strict=True):
        answers.setdefault(question, set()).add(judged["ground_truth"])
    n_agreed = sum(len(given) == 1 for given in answers.values())
    assert found.n_conflicting == len(answers) - n_agreed > 0
    assert len(found.questions) == n_agreed
    assert not any("assistant first thinks" in question for question in found.questions)
    problem = "In triangle $ABC$, $\\sin \\angle A = \\frac{4}{5}$"
    first = next(iter(found.questions))
    assert first.startswith(problem)
    assert found.questions[first] == "34"


def test_splits_are_fixed_and_share_nothing(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{i}?", "answer": i}) for i in range(2000)))
    source = read_math(path)
    task = MathTask(source, Letters())
    # one in twenty, by a hash of the question
    n_heldout = len(task._problems["heldout"])
    assert abs(n_heldout - 100) < 4.5 * math.sqrt(2000 * 0.05 * 0.95)
    train = task.problems("train", 2000 - n_heldout, seed=0)
    held_out = task.problems("heldout", n_heldout, seed=0)
    assert {p.id for p in train} & {p.id for p in held_out} == set()
    assert len({p.prompt for p in [*train, *held_out]}) == 2000
    assert {p.id for p in task.problems("heldout", n_heldout, seed=1)} == {p.id for p in held_out}
    assert task.problems("train", 9, seed=1) != train[:9]
    with pytest.raises(ConfigError, match="the set has"):
        task.problems("heldout", 2000, seed=0)


def test_prompts_are_wrapped_and_long_ones_left_out(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"question": "a?", "answer": 1}) + "\n")
    (plain,) = MathTask(read_math(path), Letters()).problems("train", 1, seed=0)
    assert Letters().decode(plain.prompt, skip_special_tokens=True).startswith("a?")
    (chat,) = MathTask(read_math(path), Letters("t")).problems("train", 1, seed=0)
    text = Letters().decode(chat.prompt, skip_special_tokens=True)
    assert text[0] + text[-1] == "<>"
    assert "\\boxed{}" in text
    assert MathTask(read_math(path), Letters(), max_prompt_tokens=5).n_too_long == 1


# ---------------------------------------------------------------------------- the judge


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{34}", "34"),
        (r"\boxed{1} then \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{7} and then \boxed{8", "7"),  # cut at the cap
        (r"\boxed{7} and then \boxed{\frac{8}{", "7"),
        (r"\boxed{a\}", None),  # the brace is text
        (r"\boxed{}", ""),
        (r"\boxed 5", None),
        ("34", None),
        (r"\boxed{ 34 }", "34"),
    ],
)
def test_last_complete_box(text, inside):
    assert last_boxed(text) == inside


@given(st.text("ab{}\\", max_size=30))
def test_a_box_is_balanced_or_none(text):
    found = last_boxed("\\boxed{" + text)
    if found is not None:
        plain = found.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}")


@pytest.mark.parametrize(
    ("given_answer", "recorded", "right"),
    [
        ("34", "34", True),
        ("34.0", "34", True),
        (r"\frac{68}{2}", "34", True),
        (r"0.5", r"\frac12", True),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"\{2, 1\}", r"\{1, 2\}", True),
        ("1,000", "1000", True),
        ("33", "34", False),
        ("-34", "34", False),
        ("", "34", False),
        ("thirty-four", "34", False),
        (r"\frac{", "34", False),
    ],
)
def test_equal_answers(given_answer, recorded, right):
    assert equal_answers(given_answer, recorded) is right


def test_a_monstrous_answer_is_wrong_in_time():
    started = time.monotonic()
    assert not equal_answers(r"9^{9^{9^{9}}}", "34")
    assert time.monotonic() - started < 30  # 3 s each to read and to compare, on a busy machine


def test_responses_are_judged_by_their_last_300_characters(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"question": "a?", "answer": "34"}) + "\n")
    task = MathTask(read_math(path), Letters())
    (problem,) = task.problems("train", 1, seed=0)
    box = r"\boxed{34}"
    assert task.is_right(problem, said("thus " + box), finished=True)
    assert task.is_right(problem, [*said(box), task.stop_token], finished=True)
    assert task.is_right(problem, said(box + "x" * (300 - len(box))), finished=False)
    assert not task.is_right(problem, said(box + "x" * (301 - len(box))), finished=False)
    assert not task.is_right(problem, said("34"), finished=True)
    assert task.answer_of(said(r"\boxed{3} \boxed{ 5 }")) == "5"
    assert task.answer_of(said("none")) is None
    assert task.pad_token == task.stop_token == 0


def test_workers_judge_too():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.starmap(equal_answers, [("0.5", r"\frac12"), ("1", "2")]) == [True, False]

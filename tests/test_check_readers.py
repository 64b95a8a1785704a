"""How the config checker reads: launch scripts (judged by a real shell), YAML, JSON, Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.check import check_text, readers, shell
from dapolab.check.arithmetic import evaluate
from dapolab.check.reading import Setting
from dapolab.check.values import Unknown, read_scalar
from dapolab.scenario import ConfigError

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash here to judge by")


def bash_words(script: str) -> list[list[str]]:
    """Return the words of each `show` command, as a real shell expands them."""
    assert BASH is not None
    prelude = "show() { printf '%s\\0' \"$@\" '@@'; }\n"
    done = subprocess.run(
        [BASH, "--norc", "-c", prelude + script], capture_output=True, env={"PATH": ""}, check=True
    )
    calls = done.stdout.decode().split("@@\0")[:-1]
    return [call.split("\0")[:-1] for call in calls]


def read_words(script: str) -> list[list[str]]:
    """Return the same, as the checker reads it."""
    found = shell.commands(script)
    return [[w.text for w in words[1:]] for words in found if words[0].text == "show"]


SCRIPTS = [
    "show a b  c # not this\nshow d",
    "show a \\\n  b \\\n  c",
    "x=3\ny=$((x * 4 + 1))\nshow $x ${y} v$x-${x}w",
    'x="a b"\nshow "$x" \'$x\' "${x}c" \\$x',
    'show "it\'s" \'say "hi"\' "a\\"b" "back\\\\slash" "keep\\d"',
    'ARGS=(\n  --lr 1e-6 # rate\n  # --gone 1\n  --name "a b"\n)\nshow ${ARGS[@]}',
    'ARGS=(--a 1)\nARGS+=(--b "2 3")\nshow "${ARGS[@]}" end',
    "n=4\nshow $((n*1024)) $(( (n + 2) / 3 )) $((2**n)) $((-7/2)) $((-7%3)) $((0x10 + 010))",
    "a=2; b=$((a*3)); c=$((b - $a)); show $a $b $c",
    "show x=${UNSET:-5} y=${UNSET:-'q r'} z=${UNSET:-}",
    "v=set\nshow ${v:-other} ${v-other}",
    "export A=1 B=2\nreadonly C=3\nshow $A$B$C",
    "x=a\nx+=b\nshow $x",
    "show one; show two && show three\nshow four | cat >/dev/null 2>&1 || true\nshow five",
    "show a >/dev/null 2>&1\nshow b",
    "true <<EOF\nshow not this\nEOF\nshow this",
    "true <<'END'\n$(show not) `show not`\nEND\nshow this",
    "show \"['a','b']\" ['c','d'] [1,2]",
    "p=1024\nshow data.len=$((p * 2)) \"data.x=$((p+1))\" data.y='$p'",
    "show a\tb",
    'e=\nshow "$e" x"$e"y',
    'show {"a":1} "{\\"k\\": \\"v\\"}"',
]


@needs_bash
@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_of_a_real_shell(script: str) -> None:
    expected = bash_words(script)
    got = read_words(script)
    if ">/dev/null" in script or "| cat" in script:  # a call whose output bash does not show
        got = [words for words in got if words in expected]
    assert got == expected


ATOMS = st.integers(0, 99).map(str) | st.sampled_from(["x", "$y", "${x}"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    ),
    max_leaves=8,
)


@needs_bash
@given(st.lists(EXPRESSIONS, min_size=1, max_size=12))
def test_arithmetic_is_that_of_a_real_shell(expressions: list[str]) -> None:
    values = {"x": "7", "y": "-3"}
    ours = [evaluate(e, values.get) for e in expressions]
    known = [e for e, value in zip(expressions, ours, strict=True) if value is not None]
    script = "x=7\ny=-3\nshow " + " ".join(f"$(({e}))" for e in known)
    assert [str(v) for v in ours if v is not None] == bash_words(script)[0]
    for expression, value in zip(expressions, ours, strict=True):
        if value is None:  # only a division by 0 has no value among these
            assert "/" in expression or "%" in expression


@pytest.mark.parametrize(
    "text", ["1/0", "2**999", "x=1", "1 <", "(1", "a b", "", "9" * 50, "z", "1;ls", "08"]
)
def test_arithmetic_without_a_value(text: str) -> None:
    assert evaluate(text, lambda name: None) is None


def test_arithmetic_that_refers_to_itself_has_no_value() -> None:
    assert evaluate("a", {"a": "b", "b": "a + 1"}.get) is None
    assert evaluate("(" * 10_000, lambda name: None) is None


def settings(text: str, name: str = "run.sh") -> dict[str, Setting]:
    return {s.key: s for s in readers.read(text, name=name).settings}


def test_lines_of_overrides_and_array_items() -> None:
    text = "A=(\n  data.a=1\n  data.b=2\n)\npython -m verl.x \\\n  ${A[@]} \\\n  data.c=3\n"
    assert {k: s.line for k, s in settings(text).items()} == {"data.a": 2, "data.b": 3, "data.c": 7}


def test_unknown_pieces_stay_unknown_and_are_reported_where_they_matter() -> None:
    text = (
        "python -m verl.trainer.main_ppo data.train_batch_size=$BATCH data.train_files=$HOME/x "
        "actor_rollout_ref.rollout.n=$(nproc) actor_rollout_ref.actor.ppo_mini_batch_size=`id`"
    )
    read = settings(text)
    assert isinstance(read["data.train_batch_size"].value, Unknown)
    assert "BATCH" in read["data.train_batch_size"].value.reason
    unknown = {
        f.setting for f in check_text(text, name="run.sh").findings if f.id == "value-unknown"
    }
    assert {"data.train_batch_size", "actor_rollout_ref.rollout.n"} <= unknown
    assert "data.train_files" not in unknown


def test_a_name_set_in_a_branch_is_unknown() -> None:
    text = "n=8\nif [ -z $x ]; then n=16; else n=32; fi\nm=2\npython -m verl.x data.n=$n data.m=$m"
    read = settings(text)
    assert isinstance(read["data.n"].value, Unknown)
    assert read["data.m"].value == 2


def test_nothing_is_ever_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    attempts = (
        f"$(touch {mark})",
        f"`touch {mark}`",
        f'"$(touch {mark})"',
        f"${{X:-$(touch {mark})}}",
        f"$((1 + $(touch {mark}; echo 1)))",
        f"$((a[$(touch {mark})]))",
        f"<(touch {mark})",
        f"; touch {mark} ;",
        f"| tee {mark}",
        f"> {mark}",
        f"!!python/object/apply:os.system ['touch {mark}']",
        f"__import__('os').system('touch {mark}')",
    )
    before = set(os.listdir(tmp_path))
    for attempt in attempts:
        for frame in ("data.a={}", "X={}\ndata.b=$X", "--lr {}", "a: {}", "GRPOConfig(a={})"):
            for name in ("", "x.sh", "x.yaml", "x.py", "x.json"):
                try:
                    check_text(frame.format(attempt), name=name, framework="verl")
                except ConfigError:
                    continue
    assert set(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("0.28", 0.28),
        ("16", 16),
        ("-1", -1),
        ("true", True),
        ("False", False),
        ("null", None),
        ("'12'", "12"),
        ("[1, 'a,b', 2.5]", [1, "a,b", 2.5]),
        ("[]", []),
        ("token-mean", "token-mean"),
        ("1_000", 1000),
        ("1e", "1e"),
        ("-", "-"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    read = read_scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_one_configuration_in_every_form() -> None:
    """The same settings as YAML, JSON, overrides, a script and with variables give the same."""
    yaml_text = "data:\n  train_batch_size: 64\nactor_rollout_ref:\n  rollout: {n: 8}\n"
    json_text = '{"data": {"train_batch_size": 64}, "actor_rollout_ref": {"rollout": {"n": 8}}}'
    plain = "data.train_batch_size=64 actor_rollout_ref.rollout.n=8"
    script = "b=$((8 * 8))\nn=8\ndata.train_batch_size=${b} \\\n actor_rollout_ref.rollout.n=$n\n"
    found = {
        form: {(f.id, f.message) for f in check_text(text, name=form).findings}
        for form, text in (("a.yaml", yaml_text), ("a.json", json_text), ("", plain), ("x", script))
    }
    assert len({frozenset(items) for items in found.values()}) == 1


def test_yaml_interpolation_within_the_file() -> None:
    read = settings("a:\n  n: 5\nb:\n  m: ${a.n}\n  k: ${oc.env:HOME}\n", "x.yaml")
    assert read["b.m"].value == 5
    assert isinstance(read["b.k"].value, Unknown)
    assert read["b.m"].line == 4


def test_python_call_keywords() -> None:
    call = "GRPOConfig(\n  epsilon=0.2,\n  num_generations=N,\n  beta=N * 2,\n  x=f())\n"
    text = f"N = 4\nc = trl.{call}"
    read = settings(text, "train.py")
    assert (read["epsilon"].value, read["num_generations"].value, read["beta"].value) == (0.2, 4, 8)
    assert isinstance(read["x"].value, Unknown)
    assert read["num_generations"].line == 4


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("a: [1\n", "a.yaml", "a.yaml line 2"),
        ("{", "a.json", "broken JSON"),
        ("GRPOConfig(", "a.py", "broken Python"),
        ("x = 1", "a.py", "no GRPOConfig"),
        ("echo hello", "a.sh", "no settings"),
        ("", "", "no settings"),
    ],
)
def test_unreadable_input_is_one_clear_line(text: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_text(text, name=name)
    assert "\n" not in str(caught.value)


def test_yaml_aliases_cannot_fill_the_memory() -> None:
    levels = ["a0: &a0 {x: 1, y: 2}"]
    levels += [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 40)]
    with pytest.raises(ConfigError, match="more than"):
        check_text("\n".join(levels), name="bomb.yaml")

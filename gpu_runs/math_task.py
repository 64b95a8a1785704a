r"""Competition mathematics with checkable answers: sets of DAPO-Math-17k's kind, and their judge.

The judge reads the last complete ``\boxed{…}`` of the last 300 characters (verl scores
DAPO-Math so: utils/reward_score/math_dapo.py, 0.9.1) and compares it by math-verify (extra ``hf``).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapolab.errors import ConfigError
from dapolab.rng import stream
from gpu_runs.noise import mix
from gpu_runs.task import Problem, Split

INSTRUCTION = "\n\nReason step by step, and put your final answer within \\boxed{}."
TEMPLATES = (
    (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the "
        "problem.\n\n",
        '\n\nRemember to put your answer on its own line after "Answer:".',
    ),
    (
        "Please solve the following math problem: ",
        ". The assistant first thinks about the reasoning process step by step and then provides "
        "the user with the answer. Return the final answer in \\boxed{} tags, for example "
        "\\boxed{1}. Let's solve this step by step. ",
    ),
)
"""What DAPO (BytedTsinghua-SIA/DAPO) and GRESO (Infini-AI-Lab/GRESO) put around a question."""
N_JUDGED_CHARACTERS = 300
TIMEOUT_S = 3
_HELDOUT_ONE_IN = 20


@dataclass(frozen=True)
class MathSet:
    """Questions with one answer each, and what was left out of the file.

    Attributes
    ----------
    questions : question -> answer, in the order of the file.
    n_rows, n_repeated, n_conflicting : rows of the file; rows that repeat a question with the same
        answer; questions dropped because their rows disagree.
    """

    questions: Mapping[str, str]
    n_rows: int
    n_repeated: int
    n_conflicting: int


def read_math(path: Path | str) -> MathSet:
    """Read a parquet or JSONL file of prompts and recorded answers.

    A row holds a text or a list of chat messages under ``prompt`` (or ``question``, ``problem``)
    and the answer under ``reward_model.ground_truth`` (verl) or ``answer``. A known template around
    the question is taken off; blanks do not tell two questions apart.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a row lacks a question or an answer.
    """
    answers: dict[str, str] = {}
    texts: dict[str, str] = {}
    conflicting: set[str] = set()
    n_rows = n_repeated = 0
    for n_rows, row in enumerate(_rows(Path(path)), start=1):
        question, answer = _question(row), _answer(row)
        if not question or not answer:
            missing = "answer" if question else "question"
            raise ConfigError(f"{path}: row {n_rows} has no {missing}; see gpu_runs/math_task.py")
        key = " ".join(question.split())
        if key not in answers:
            texts[key], answers[key] = question, answer
        elif answers[key] == answer:
            n_repeated += 1
        else:
            conflicting.add(key)
    if not answers:
        raise ConfigError(f"{path} holds no problems")
    kept = {texts[key]: answer for key, answer in answers.items() if key not in conflicting}
    return MathSet(kept, n_rows, n_repeated, len(conflicting))


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        if path.suffix == ".parquet":
            import pandas as pd  # here, so that a worker that only judges starts fast

            yield from pd.read_parquet(path).to_dict("records")  # type: ignore[misc]
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ConfigError(f"{path}:{number}: a row must be a JSON object")
                    yield row
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # JSON, UTF-8 and Arrow errors alike
        raise ConfigError(f"{path} is neither parquet nor JSON lines ({error})") from None


def _question(row: Mapping[str, Any]) -> str:
    extra = row.get("extra_info")
    if isinstance(extra, Mapping) and isinstance(extra.get("raw_problem"), str):
        return str(extra["raw_problem"]).strip()
    found = next((row[k] for k in ("prompt", "question", "problem") if k in row), "")
    if not isinstance(found, str):  # chat messages, a list or (from parquet) an array
        contents = [m.get("content") for m in found if isinstance(m, Mapping)]
        found = "\n".join(text for text in contents if isinstance(text, str))
    return strip_template(found)


def strip_template(text: str) -> str:
    """Return the question without the instructions that a known data set puts around it."""
    for before, after in TEMPLATES:
        if text.startswith(before) and text.rstrip().endswith(after.rstrip()):
            return text[len(before) : len(text.rstrip()) - len(after.rstrip())].strip()
    return text.strip()


def _answer(row: Mapping[str, Any]) -> str:
    model = row.get("reward_model")
    found = model.get("ground_truth") if isinstance(model, Mapping) else row.get("answer")
    return "" if found is None else str(found).strip()


# ---------------------------------------------------------------------------- the judge


def last_boxed(text: str) -> str | None:
    r"""Return what the last complete ``\boxed{…}`` holds; one that never closes is passed over.

    Braces nest; ``\{`` and ``\}`` are text.
    """
    mark = "\\boxed{"
    start = text.rfind(mark)
    while start >= 0:
        depth, i = 1, start + len(mark)
        while i < len(text) and depth:
            if text[i] == "\\":
                i += 1
            elif text[i] in "{}":
                depth += 1 if text[i] == "{" else -1
            i += 1
        if not depth:
            return text[start + len(mark) : i - 1].strip()
        start = text.rfind(mark, 0, start)
    return None


def equal_answers(given: str, recorded: str) -> bool:
    """Say whether two answers are the same number, expression or set.

    Equal texts are; else math-verify decides within ``TIMEOUT_S`` seconds each for reading and
    comparing, and an answer that takes longer is wrong. It stops itself by a signal, so this runs
    in the main thread of any process, workers included.

    Raises
    ------
    ConfigError
        If math-verify is not installed.
    ValueError
        From math-verify, outside a main thread.
    """
    if given == recorded:
        return True
    try:
        from math_verify import parse, verify
    except ImportError:
        raise ConfigError(
            "the judge of mathematics needs the extra hf: pip install 'dapolab[hf]'"
        ) from None
    truth, answer = (
        parse(f"\\boxed{{{text}}}", parsing_timeout=TIMEOUT_S) for text in (recorded, given)
    )
    return bool(verify(truth, answer, timeout_seconds=TIMEOUT_S))


# ---------------------------------------------------------------------------- the task


class MathTask:
    """A :class:`MathSet` as a task: token ids in and out by a tokenizer.

    Parameters
    ----------
    source : the problems.
    tokenizer : of transformers. A chat template, where it has one, wraps the question.
    max_prompt_tokens : longer prompts are left out.

    The held-out split is one problem in twenty, by a hash of the question: the same for every seed.
    """

    def __init__(self, source: MathSet, tokenizer: Any, *, max_prompt_tokens: int = 1024) -> None:
        self._tokenizer = tokenizer
        self._problems: dict[Split, list[Problem]] = {"train": [], "heldout": []}
        self.n_too_long = 0
        for question, answer in source.questions.items():
            prompt = self._prompt(question)
            if len(prompt) > max_prompt_tokens:
                self.n_too_long += 1
                continue
            digest = hashlib.blake2b(" ".join(question.split()).encode(), digest_size=6).digest()
            number = int.from_bytes(digest, "big")
            split: Split = "train" if mix(number) % _HELDOUT_ONE_IN else "heldout"
            self._problems[split].append(Problem(number, prompt, answer, 0, "math"))

    def _prompt(self, question: str) -> tuple[int, ...]:
        text = question + INSTRUCTION
        if getattr(self._tokenizer, "chat_template", None):
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return tuple(self._tokenizer(text + "\n")["input_ids"])

    @property
    def vocab_size(self) -> int:
        """Token ids of the tokenizer; a model may have more."""
        return len(self._tokenizer)

    @property
    def stop_token(self) -> int:
        """The tokenizer's end token."""
        return int(self._tokenizer.eos_token_id)

    @property
    def pad_token(self) -> int:
        """The tokenizer's padding, or else its end token."""
        pad = self._tokenizer.pad_token_id
        return self.stop_token if pad is None else int(pad)

    def problems(self, split: Split, n: int, *, seed: int) -> list[Problem]:
        """Return the first ``n`` problems of a split in the order that ``seed`` shuffles it to.

        Raises
        ------
        ConfigError
            If the split has fewer.
        """
        pool = self._problems[split]
        if n > len(pool):
            raise ConfigError(f"{n} {split} problems asked for: the set has {len(pool)}")
        return [pool[i] for i in stream(seed, "math", split).permutation(len(pool))[:n]]

    def is_right(self, problem: Problem, response: Sequence[int], *, finished: bool) -> bool:
        """Judge the last box, of an unfinished response too."""
        given = self.answer_of(response)
        return given is not None and equal_answers(given, str(problem.answer))

    def answer_of(self, response: Sequence[int]) -> str | None:
        """Return what the last complete box of the last 300 characters holds."""
        text = self._tokenizer.decode(list(response), skip_special_tokens=True)
        return last_boxed(text[-N_JUDGED_CHARACTERS:])

    def filler_count(self, response: Sequence[int]) -> int:
        """0: nothing is known to be useless."""
        return 0

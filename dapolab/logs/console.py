"""Console logs: which lines are steps, in the words of each framework.

verl prints ``step:N - key:value - …`` (verl/utils/logger/aggregate_logger.py), TRL and every HF
trainer a Python dict, OpenRLHF ``Global step N: {…}``, prime-rl ``Step N | Time: 1.0s | …``. Their
lines stand between progress bars, model answers and other processes' output; bars may end without
a line break, and processes may share a line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dapolab.logs.rows import LARGEST_STEP, RowStore
from dapolab.logs.text import Line, text_lines
from dapolab.logs.values import leading_value, whole_value
from dapolab.reading.lines import Source

VERL, DICT, OPENRLHF, PRIME_RL = "verl", "trl", "openrlhf", "prime_rl"

_VERL_STEP = re.compile(r"(?<![\w/.:-])step:(\d{1,16}) - ")
_PROCESS = re.compile(r"\(\w+ pid=(\d+)(?:, ip=([\d.]+))?\)")
_VERL_KEPT = re.compile(r"num_prompt_in_batch=(\d+) < prompt_bsz=(\d+)")
_VERL_AGAIN = re.compile(r"num_gen_batches=(\d+)\. Keep generating")
_DICT = re.compile(r"\{\s*'[^{}]*\}")
_PAIR = re.compile(r"'((?:[^'\\]|\\.)+)'\s*:\s*('[^']*'|[^,'{}()\[\]]+(?:\([^()]*\))?)\s*(?=[,}])")
_OPENRLHF_STEP = re.compile(r"Global step (\d{1,16})(?: \[\w+\])?: $")
_PRIME_STEP = re.compile(r"\bStep (\d{1,16}) \| ")
_PRIME_PIECE = re.compile(
    r"^([A-Z][A-Za-z. -]*): (\S+?)(?:K?\s*(?:s|tokens/s|tokens/sample|GiB|%))?$"
)
_HF_START = "***** Running training *****"
_HF_TOTAL = re.compile(r"Total optimization steps = ([\d,]+)")
_HF_RESUME = re.compile(r"Continuing training from global step (\d+)")
_HF_STEP_KEYS = frozenset({"loss", "reward", "completions/mean_length"})


@dataclass
class Unnumbered:
    """Dict rows of one training of a HF trainer: they carry no step."""

    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    total_steps: int | None = None
    first_step: int = 0
    is_finished: bool = False


@dataclass
class Found:
    """What a console log held: numbered rows by framework, and rows to be numbered."""

    numbered: dict[str, RowStore] = field(default_factory=dict)
    trainings: list[Unnumbered] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def store(self, framework: str) -> RowStore:
        """Return the rows of a framework."""
        return self.numbered.setdefault(framework, RowStore())


def read_console(source: Source) -> Found:
    """Read one console log of any of the four.

    Raises
    ------
    ConfigError
        A line without end (not a text log).
    """
    reader = _Reader()
    for line in text_lines(source):
        reader.take(line)
    reader.found.notes += reader.notes(source.name)
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found = Found()
        self._waves: dict[str, dict[str, float]] = {}
        self._unread: dict[str, int] = {}
        self._n_open_dicts = 0
        self._cut: str | None = None

    def take(self, line: Line) -> None:
        text = line.text
        if "step:" in text and (starts := list(_VERL_STEP.finditer(text))):
            self._take_verl(line, starts)
            return
        if "=" in text or "Continuing" in text:
            self._take_messages(text)
        if "{'" in text or "{ '" in text:
            self._take_dicts(line)
        elif " | " in text and (found := _PRIME_STEP.search(text)):
            self._take_prime(line, int(found.group(1)), text[found.end() :])
        elif _HF_START in text:
            self.found.trainings.append(Unnumbered())

    def _take_verl(self, line: Line, starts: list["re.Match[str]"]) -> None:
        ends = [found.start() for found in starts[1:]] + [len(line.text)]
        for found, end in zip(starts, ends, strict=True):
            process = self._process(line.text[: found.start()])
            pieces = list(_verl_pieces(line.text[found.end() : end]))
            if line.is_cut and end == len(line.text) and pieces:
                self._cut = f"the last of step {found.group(1)} ({pieces.pop()[0]})"
            read = dict(pieces)
            values = {key: value for key, value in read.items() if value is not None}
            if values and any("/" in key for key in values) and int(found.group(1)) < LARGEST_STEP:
                if "timing_s/gen" in values or "timing/gen" in values:
                    values |= self._waves.pop(process, {})
                self._count([key for key in read if key not in values])
                store = self.found.store(VERL)
                store.add(int(found.group(1)), values, line=line.number, stream=process)

    def _process(self, before: str) -> str:
        """Return the process that wrote what follows: the last prefix before it."""
        prefixes = _PROCESS.findall(before)
        return "@".join(filter(None, prefixes[-1])) if prefixes else ""

    def _take_messages(self, text: str) -> None:
        process = self._process(text)
        if kept := _VERL_KEPT.search(text):
            waves = self._waves.setdefault(process, {})
            waves["message/num_prompt_in_batch"] = float(kept.group(1))
            waves["message/prompt_bsz"] = float(kept.group(2))
        if again := _VERL_AGAIN.search(text):
            self._waves.setdefault(process, {})["message/num_gen_batches"] = (
                float(again.group(1)) + 1.0
            )
        if total := _HF_TOTAL.search(text):
            self._training().total_steps = int(total.group(1).replace(",", ""))
        if resumed := _HF_RESUME.search(text):
            self._training().first_step = int(resumed.group(1))

    def _training(self) -> Unnumbered:
        if not self.found.trainings:
            self.found.trainings.append(Unnumbered())
        return self.found.trainings[-1]

    def _take_dicts(self, line: Line) -> None:
        end = 0
        for found in _DICT.finditer(line.text):
            end = found.end()
            values, unread = _pairs(found.group())
            numbered = _OPENRLHF_STEP.search(line.text, 0, found.start())
            if numbered:
                stream = self._process(line.text[: found.start()])
                store = self.found.store(OPENRLHF)
                if values and int(numbered.group(1)) < LARGEST_STEP:
                    store.add(int(numbered.group(1)), values, line=line.number, stream=stream)
                    self._count(unread)
            elif "epoch" in values and not _HF_STEP_KEYS.isdisjoint(values):
                self._training().rows.append((line.number, values))
                self._count(unread)
            elif "train_runtime" in values:
                self._training().is_finished = True
        rest = line.text[end:]
        if "{'" in rest and any(f"'{key}':" in rest for key in ("loss", "reward", "policy_loss")):
            self._n_open_dicts += 1

    def _count(self, unread: list[str]) -> None:
        for key in unread:
            self._unread[key] = self._unread.get(key, 0) + 1

    def _take_prime(self, line: Line, step: int, text: str) -> None:
        pieces = {}
        for piece in text.split(" | "):
            found = _PRIME_PIECE.match(piece.strip())
            value = whole_value(found.group(2)) if found else None
            if found and value is not None:
                scale = 1000.0 if re.search(r"\dK\s", piece + " ") else 1.0
                pieces[found.group(1)] = value * scale
        if line.is_cut and pieces:
            key, _ = pieces.popitem()
            self._cut = f"the last of step {step} ({key})"
        role = "orchestrator" if "Reward" in pieces else "trainer"
        values = {f"{role}/{key}": value for key, value in pieces.items()}
        if len(values) > 1 and step < LARGEST_STEP:
            self.found.store(PRIME_RL).add(step, values, line=line.number)

    def notes(self, name: str) -> list[str]:
        """Return what could not be read, one line each."""
        found = []
        if self._cut:
            found.append(
                f"{name}: no line break at the end: {self._cut} may be cut and is left out"
            )
        if self._unread:
            keys = sorted(self._unread)
            shown = ", ".join(f"{key} ({self._unread[key]})" for key in keys[:6])
            more = f" and {len(keys) - 6} more" if len(keys) > 6 else ""
            found.append(f"{name}: values that are no number are left out: {shown}{more}")
        if self._n_open_dicts:
            found.append(f"{name}: {self._n_open_dicts} dict rows without end are left out")
        return found


def _pairs(text: str) -> tuple[dict[str, float], list[str]]:
    """Return the numbers of a printed dict, and the keys whose values are none."""
    read = {key: whole_value(written) for key, written in _PAIR.findall(text)}
    values = {key: value for key, value in read.items() if value is not None}
    return values, [key for key in read if key not in values]


def _verl_pieces(text: str) -> Iterator[tuple[str, float | None]]:
    """Yield (key, value or None); a key may hold `` - `` and ``:`` (names of data sets)."""
    held = ""
    for piece in text.split(" - "):
        key, colon, value = piece.partition(":")
        if colon and not held and "_" not in value:  # nearly always: one colon, a plain number
            try:
                yield key.strip(), float(value)
                continue
            except ValueError:
                pass
        whole = held + piece
        colons = [i for i, sign in enumerate(whole) if sign == ":"]
        if not colons:
            held = whole + " - "
            continue
        held = ""
        yield _split(whole, colons)


def _split(whole: str, colons: list[int]) -> tuple[str, float | None]:
    """Cut at the first colon that a number follows: what comes after it may hold colons too."""
    for place in colons:
        value = leading_value(whole[place + 1 :])
        if value is not None:
            return whole[:place].strip(), value
    return whole[: colons[-1]].strip(), None

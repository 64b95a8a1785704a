"""From a path to a step table: detect, read, join into runs, translate the keys, finish."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from dapolab.errors import ConfigError
from dapolab.logs.console import Found, read_console
from dapolab.logs.detect import detect
from dapolab.logs.events import read_events
from dapolab.logs.numbering import number_rows
from dapolab.logs.openrlhf import OPENRLHF
from dapolab.logs.options import LogOptions
from dapolab.logs.own import DAPOLAB
from dapolab.logs.prime_rl import PRIME_RL
from dapolab.logs.rows import RowStore, Run
from dapolab.logs.schema import ID_COLUMNS, StepTable, finish, listed
from dapolab.logs.tables import read_state, read_table
from dapolab.logs.tinker import TINKER
from dapolab.logs.trl import TRL
from dapolab.logs.verl import VERL
from dapolab.logs.vocabulary import Mapped, Vocabulary, apply, table_of
from dapolab.logs.write import read_written
from dapolab.reading.lines import Source
from dapolab.reading.progress import ByteProgress

VOCABULARIES: dict[str, Vocabulary] = {
    found.framework: found for found in (VERL, TRL, OPENRLHF, PRIME_RL, TINKER, DAPOLAB)
}


@dataclass
class _Read:
    """Runs under the log's own keys, whose keys they are if the lines told, and findings."""

    runs: list[Run] = field(default_factory=list)
    framework: str = ""
    notes: list[str] = field(default_factory=list)

    def take(self, store: RowStore, name: str, *, streams_are_runs: bool = False) -> None:
        runs, notes = store.runs(name, streams_are_runs=streams_are_runs)
        self.runs += runs
        self.notes += notes
        if store.not_finite:
            keys = [f"{key} ({n})" for key, n in sorted(store.not_finite.items())]
            self.notes.append(f"empty, NaN or infinite cells count as missing: {listed(keys)}")


def read_log(path: str | Path, *, options: LogOptions | None = None) -> StepTable:
    """Read a step-level log, file or folder, into the one table.

    Console logs are streamed: memory stays near the steps' own numbers.

    Parameters
    ----------
    path : a file, or a folder of TensorBoard runs, HF checkpoints or a single log.
    options : what the user says about the log.

    Raises
    ------
    ConfigError
        Anything that makes the log unusable, in one line with what to do.
    """
    options = options or LogOptions()
    path = Path(path)
    found = detect(path, format=options.format)
    if written := read_written(found.files[0]):
        return _one_run(written, options, where=str(path))
    read = _Read()
    total = sum(file.stat().st_size for file in found.files)
    with ByteProgress(total, title=f"reading {path.name}", shown=options.progress) as progress:
        root = path if path.is_dir() else path.parent
        sources = [
            Source(file, file.relative_to(root).as_posix(), read.notes, progress)
            for file in found.files
        ]
        _READERS[found.format](sources, path, options, read)
    return _translate(read, options, where=str(path), format=found.format)


def _read_console(sources: list[Source], path: Path, options: LogOptions, read: _Read) -> None:
    found = read_console(sources[0])
    read.notes += found.notes
    stores = _stores(found, options)
    if not stores:
        raise ConfigError(
            f"{path}: no line of a training step in it (verl «step:N - key:value», TRL or OpenRLHF "
            "dicts, prime-rl «Step N | …»)"
        )
    chosen = max(stores, key=lambda name: stores[name].n_rows)
    if options.framework in stores:
        chosen = options.framework
    others = [f"{name} ({store.n_rows} rows)" for name, store in stores.items() if name != chosen]
    if others:
        read.notes.append(
            f"read as {chosen} ({stores[chosen].n_rows} rows); also in the log, left out: "
            f"{', '.join(others)}; --framework chooses"
        )
    read.framework = chosen
    read.take(stores[chosen], _stem(path))


def _stores(found: Found, options: LogOptions) -> dict[str, RowStore]:
    stores = {name: store for name, store in found.numbered.items() if store.n_rows}
    trainings = [training for training in found.trainings if training.rows]
    if trainings:
        stores[TRL.framework] = number_rows(trainings, every=options.every)
    return stores


def _read_table(sources: list[Source], path: Path, options: LogOptions, read: _Read) -> None:
    store = RowStore()
    are_runs = read_table(sources[0], store, options=options)
    read.take(store, _stem(path), streams_are_runs=are_runs)


def _read_state(sources: list[Source], path: Path, options: LogOptions, read: _Read) -> None:
    store = RowStore()
    read_state(sources[0], store)
    read.framework = TRL.framework
    read.take(store, sources[0].path.parent.name if path.is_dir() else _stem(path))


def _read_events(sources: list[Source], path: Path, options: LogOptions, read: _Read) -> None:
    store = RowStore()
    for source in sources:
        folder = source.path.parent
        root = path if path.is_dir() else folder
        name = folder.relative_to(root).as_posix()
        read_events(source, store, stream=_stem(root) if name == "." else name)
    read.take(store, _stem(path), streams_are_runs=True)


_READERS = {
    "console": _read_console,
    "jsonl": _read_table,
    "table": _read_table,
    "trainer_state": _read_state,
    "tensorboard": _read_events,
}


def _stem(path: Path) -> str:
    name = path.resolve().name if path.name in ("", ".", "..") else path.name
    return name.removesuffix(".gz").rsplit(".", 1)[0] if path.is_file() else name


def _translate(read: _Read, options: LogOptions, *, where: str, format: str) -> StepTable:
    runs = _chosen(read.runs, options, where=where)
    frames = [run.frame() for run in runs]
    vocabulary = _vocabulary(frames, read.framework, options, where=where)
    tables: list[pd.DataFrame] = []
    notes, covers = list(read.notes), dict[str, str]()
    sources: dict[str, str] = {}
    for run, frame in zip(runs, frames, strict=True):
        mapped, said = apply(vocabulary, frame, options=options, where=where)
        known = vocabulary.known(map(str, frame.columns))
        if len(mapped.keys):
            tables.append(table_of(mapped, run=run.name, known=known))
        covers |= said
        sources = {**mapped.sources, **sources}
        notes += [note for note in _named(mapped, run, runs) if note not in notes]
    if len(read.runs) > 1:
        notes.append(f"{len(read.runs)} runs: {listed([run.name for run in read.runs])}")
    for text in dict.fromkeys(covers.values()):
        notes.append(f"{', '.join(key for key in covers if covers[key] == text)}: {text}")
    if vocabulary.silent:
        notes.append(f"{vocabulary.framework} logs do not say: {vocabulary.silent}")
    if not tables:
        raise ConfigError(f"{where}: no training step in it, only rows without training metrics")
    return finish(
        pd.concat(tables, ignore_index=True),
        where=where,
        format=format,
        framework=vocabulary.framework,
        sources=sources,
        notes=notes,
    )


def _named(mapped: Mapped, run: Run, runs: list[Run]) -> list[str]:
    """Return the notes of one run, with its name where there are several and rows are counted."""
    several = len(runs) > 1
    return [
        f"{run.name}: {note}" if several and note[:1].isdigit() else note for note in mapped.notes
    ]


def _chosen(runs: list[Run], options: LogOptions, *, where: str) -> list[Run]:
    runs = [run for run in runs if run.rows]
    if not runs:
        raise ConfigError(f"{where}: no training step in it")
    if options.run is None:
        return runs
    chosen = [run for run in runs if run.name == options.run]
    if not chosen:
        raise ConfigError(
            f"--run {options.run}: not in {where}; it holds {listed([r.name for r in runs])}"
        )
    return chosen


def _one_run(table: StepTable, options: LogOptions, *, where: str) -> StepTable:
    if options.run is None:
        return table
    return finish(
        table.one_run(options.run),
        where=where,
        format=table.format,
        framework=table.framework,
        sources=table.sources,
        notes=table.notes,
    )


def _vocabulary(
    frames: list[pd.DataFrame], told: str, options: LogOptions, *, where: str
) -> Vocabulary:
    if options.framework != "auto":
        return VOCABULARIES[options.framework]
    if told:
        return VOCABULARIES[told]
    names = list(dict.fromkeys(str(name) for frame in frames for name in frame.columns))
    hits = {name: found.hits(names) for name, found in VOCABULARIES.items()}
    best = max(hits, key=lambda name: hits[name])
    asked = [key for column, key in options.columns.items() if column not in ID_COLUMNS]
    if hits[best] or any(asked):
        return VOCABULARIES[best] if hits[best] else DAPOLAB
    raise ConfigError(
        f"{where}: no key of a known framework in it (it has {listed(sorted(names), n_shown=6)}); "
        "map them: --columns time/rollout_seconds=NAME,… ; rollouts go to dapolab fit"
    )

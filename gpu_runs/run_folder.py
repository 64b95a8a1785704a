"""One run is one folder: what is written while it goes on, and the tables when it ends.

While it runs: ``config.json``, ``checkpoint.pt``, ``journal.jsonl`` and a dump a step. At the end
the journal becomes ``steps``, ``updates``, ``waves`` and ``evaluations.parquet`` beside
``rollouts.parquet``, ``heldout.parquet`` and a ``manifest.json``: a run that
``dapolab.store.read_run`` reads.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
import torch

from dapolab.errors import ConfigError
from dapolab.scenario import check
from dapolab.store import atomic_write, manifest
from gpu_runs import checkpoint
from gpu_runs.dump import Dump, about
from gpu_runs.journal import Journal
from gpu_runs.preset import Preset


class RunFolder:
    """The files of one run; nothing is written before ``open``.

    Raises
    ------
    ConfigError
        The folder holds something else, or another run.
    """

    def __init__(self, folder: Path, preset: Preset) -> None:
        self.folder, self.preset = folder, preset
        self.journal = Journal(folder / "journal.jsonl")
        self.checkpoint = folder / "checkpoint.pt"
        self.rollouts, self.heldout = Dump(folder, "rollouts"), Dump(folder, "heldout")
        config = folder / "config.json"
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"-o {folder}: is a file, name a folder")
        if config.is_file():
            self._check_same(config)
        elif folder.is_dir() and any(p.name != ".lock" for p in folder.iterdir()):
            raise ConfigError(f"-o {folder}: it holds other files; name a new folder")
        self._config = config
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Make the folder this run's, as long as this process lives.

        Raises
        ------
        ConfigError
            Another process works on the run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        text = json.dumps(self.preset.model_dump(mode="json"), indent=2) + "\n"
        atomic_write(self._config, text)

    def _check_same(self, config: Path) -> None:
        try:
            stored = json.loads(config.read_text(encoding="utf-8"))
        except ValueError:
            raise ConfigError(f"{config}: not JSON; name a new folder with -o") from None
        found = check(Preset, stored, where=str(config))
        difference = self.preset.first_difference(found)
        if difference is not None:
            raise ConfigError(
                f"-o {self.folder}: it holds another run ({difference}); name a new folder"
            )

    def resume(self) -> dict[str, Any] | None:
        """Return the last checkpoint, None where there is none, and forget what came after it.

        Raises
        ------
        ConfigError
            The checkpoint or the journal is damaged.
        """
        checkpoint.remove_unfinished(self.folder)
        (self.folder / "manifest.json").unlink(missing_ok=True)
        state = checkpoint.read(self.checkpoint) if self.checkpoint.is_file() else None
        n_steps = 0 if state is None else int(state["step"])
        self.journal.cut(n_steps)
        for dump in (self.rollouts, self.heldout):
            dump.cut(n_steps)
        return state

    def finish(
        self,
        *,
        command: Sequence[str],
        device: torch.device,
        status: str,
        final_evaluation: Mapping[str, float] | None,
    ) -> None:
        """Write the tables, then the manifest that says that they are all there."""
        records = self.journal.records()
        tables = _tables(records, final_evaluation)
        cap_tokens = self.preset.rollout.cap_tokens
        for part in (self.rollouts, self.heldout):
            part.join(lambda table: about(table, cap_tokens=cap_tokens))
        for name, table in tables.items():
            buffer = io.BytesIO()
            table.to_parquet(buffer, index=False)
            atomic_write(self.folder / f"{name}.parquet", buffer.getvalue())
        document = manifest(
            command=command,
            seed=self.preset.run.seed,
            fingerprint=self.preset.fingerprint(),
            config=self.preset.model_dump(mode="json"),
            device=describe(device),
            torch=torch.__version__,
            status=status,
            steps=len(records),
        )
        text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"
        atomic_write(self.folder / "manifest.json", text)

    def close(self) -> None:
        """Let another process work on the run."""
        if self._lock is not None:
            self._lock.close()


def _tables(
    records: Sequence[Mapping[str, Any]], final: Mapping[str, float] | None
) -> dict[str, pd.DataFrame]:
    def rows(name: str) -> list[dict[str, Any]]:
        return [
            {"step": record["step"], **row} for record in records for row in record.get(name, ())
        ]

    steps = [
        {"step": r["step"], "ended_by": r["ended_by"], "position": r["position"], **r["metrics"]}
        for r in records
    ]
    evaluations = [
        {"step": r["step"], **r["evaluation"]} for r in records if r.get("evaluation") is not None
    ]
    if final is not None:
        evaluations.append({"step": len(records), **final})
    found = {
        "steps": steps,
        "updates": rows("updates"),
        "waves": rows("waves"),
        "evaluations": evaluations,
    }
    return {name: pd.DataFrame(table) for name, table in found.items() if table}


def describe(device: torch.device) -> str:
    """Return the device in words that a report may print."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu, one thread"


def _lock(folder: Path) -> IO[str]:
    """Hold a lock as long as the process lives; none where the platform has no flock."""
    handle = (folder / ".lock").open("w")
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError:
        handle.close()
        raise ConfigError(f"-o {folder}: another process is training there") from None
    return handle

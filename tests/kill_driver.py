"""Train a preset in children that are really killed, and in a last one that is not.

``python kill_driver.py FOLDER SEED`` prints one JSON line: how each child ended and how far the run
was. A child kills itself at the n-th time that it waits for the disk (so between writing and
renaming as well), or is killed by its parent after a random time. Torch is loaded once: children
are forks.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

SETTINGS = {
    "rollout.groups_per_step": 2,
    "rollout.group_size": 4,
    "rollout.cap_tokens": 40,
    "collector.max_candidate_multiplier": 2,
    "train.responses_per_update": 4,
    "train.learning_rate": 1e-3,
    "evaluation.n_prompts": 3,
    "evaluation.n_samples": 2,
    "evaluation.pass_at": [1, 2],
    "evaluation.every": 3,
    "data.n_prompts": 16,
    "run.steps": 5,
    "run.seed": 5,
}
KILLS = 15
"""Most of them; then a child is left alone."""


def child(folder: Path, *, at_sync: int | None) -> None:
    from gpu_runs.preset import load
    from gpu_runs.train import train

    if at_sync is not None:
        sync, left = os.fsync, [at_sync]

        def killing(handle: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(handle)

        os.fsync = killing
    train(load("toy_cpu", SETTINGS), folder=folder, device="cpu", progress=False)
    os._exit(0)


def attempt(folder: Path, *, at_sync: int | None = None, after_s: float | None = None) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child(folder, at_sync=at_sync)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def steps_done(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.is_file() else 0


def main() -> None:
    folder, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    import torch

    import gpu_runs.train  # noqa: F401  before the forks, as all that an optimizer loads

    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    started = time.perf_counter()
    whole = attempt(folder / "whole")
    pace_s = (time.perf_counter() - started) / SETTINGS["run.steps"]
    log = []
    for number in range(KILLS):
        if number % 3 == 2:
            # within a step's time: a machine that has become faster would end the run meanwhile
            status = attempt(folder / "killed", after_s=rng.uniform(0.1, 0.9) * pace_s)
        else:
            status = attempt(folder / "killed", at_sync=rng.randrange(2, 14))
        log.append([os.waitstatus_to_exitcode(status), steps_done(folder / "killed")])
        if status == 0:
            break
    if status != 0:
        status = attempt(folder / "killed")
        log.append([os.waitstatus_to_exitcode(status), steps_done(folder / "killed")])
    print(json.dumps({"whole": os.waitstatus_to_exitcode(whole), "log": log}))


if __name__ == "__main__":
    main()

"""Workers of a process that was killed outright end too, whatever they were about to do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# each result is larger than a pipe holds: with nobody to read it a worker would wait for ever
PARENT = """
from joblib import delayed
from dapolab.processes import in_processes
for _ in in_processes((delayed(bytes)(1 << 20) for _ in range(10_000)), n_jobs=2):
    import time; time.sleep(0.2)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, start_new_session=True)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    deadline = time.monotonic() + 120
    try:
        workers: list[int] = []
        while len(workers) < 2:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
            # the third child tracks their resources; it ends when nobody holds its pipe
            workers = [int(pid) for pid in children.read_text().split() if _is_worker(int(pid))]
        time.sleep(2)
        child.kill()
        child.wait()
        while any(_is_worker(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        child.kill()
        for pid in workers:
            if _is_worker(pid):
                os.kill(pid, signal.SIGKILL)


def _is_worker(pid: int) -> bool:
    try:
        return b"LokyProcess" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False

"""Reading must not hold the file: the peak stays far below its size, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

N_ROWS = 4000
N_CHARS = 10_000

MEASURE = """
import sys
from dapolab.records import ReadOptions, read_records

def peak_mb():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

small, large = sys.argv[1:]
options = ReadOptions(chars_per_token=2.6, cap_tokens=4096)
read_records(small, options=options)
before = peak_mb()
records = read_records(large, options=options)
print(len(records.table), peak_mb() - before)
"""


def _dump(path: Path, n_rows: int) -> int:
    filler = "so x = 2 and " * (N_CHARS // 13)
    with path.open("w") as file:
        for i in range(n_rows):
            row = {"input": f"p{i // 8}", "output": f"{i} {filler}", "score": i % 2, "step": 1}
            file.write(json.dumps(row) + "\n")
    return path.stat().st_size


def test_peak_memory_is_a_fraction_of_the_file(tmp_path: Path) -> None:
    small, large = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    _dump(small, 50)
    size_mb = _dump(large, N_ROWS) / 2**20
    command = [sys.executable, "-c", MEASURE, str(small), str(large)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    n_rows, growth_mb = done.stdout.split()
    assert int(n_rows) == N_ROWS
    assert size_mb > 35
    assert float(growth_mb) < 0.3 * size_mb

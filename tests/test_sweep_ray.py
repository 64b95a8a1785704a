"""The sweep on a real local Ray with two workers: the same call, the same table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from cli_cases import Desk

ray = pytest.importorskip("ray", reason="--engine ray: pip install 'dapolab[ray]'")


TROUBLED = """\
import sys
import ray
begin = ray.init
def begin_with_trouble(**settings):
    begun = begin(**settings)
    print("(raylet) the node is low on memory")  # where and how Ray reports it, at any moment
    return begun
ray.init = begin_with_trouble
from dapolab.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_ray_gives_the_table_that_processes_give(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path, capsys)
    values = [round(0.3 + i / 100, 2) for i in range(12)]
    desk.write(
        "s.toml", f'name = "s"\nbase = "tiny.toml"\n[grid]\n"workload.pass_rate.p" = {values}\n'
    )
    words = [sys.executable, "-W", "ignore", "-c", TROUBLED, "sweep", "s.toml", "-o", "out"]
    words += ["--engine", "ray", "--jobs", "2", "--json"]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    child = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert child.returncode == 0, child.stderr
    document = json.loads(child.stdout)  # nothing but the document
    assert "low on memory" in child.stderr
    assert (document["points"], document["computed"], document["failed"]) == (12, 12, 0)
    monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("a cluster for nothing"))
    again = desk.done("sweep", "s.toml", "-o", "out", "--engine", "ray", "--json").document
    assert (again["computed"], again["skipped"]) == (0, 12)
    alone = desk.done("sweep", "s.toml", "-o", "alone", "--json", "--jobs", "1").document["table"]
    tables = [pd.read_parquet(Path(t)).drop(columns="seconds") for t in (document["table"], alone)]
    pd.testing.assert_frame_equal(*tables)

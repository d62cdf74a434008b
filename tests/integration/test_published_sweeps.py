"""Test the small variants of the published experiments, from the command line to the tables. All five: `-m slow`."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.stem for path in (ROOT / "studies/conf/sweep/published").glob("*.yaml"))


def run(*arguments, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=880)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_small_variant_ends_with_all_tables(sweep, tmp_path):
    run("orchestrator", f"sweep=published/{sweep}", "scale=small", "cluster.dashboard=false", cwd=tmp_path)
    tables = tmp_path / "results" / f"{sweep}_small" / "tables"
    summary = pd.read_csv(tables / "summary.csv")
    assert (summary.status == "ok").all() and not summary.timing_valid.any()
    printed = run("studies.published_tables", str(tables.parent), cwd=tmp_path)
    assert printed.strip() == (tables / "published.md").read_text().strip()
    assert len(printed.splitlines()) > len(summary)

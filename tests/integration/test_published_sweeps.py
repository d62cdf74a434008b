"""The small variants of the published experiments, from the command line to the tables. All five: `-m slow`."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.stem for path in (ROOT / "conf/sweep/published").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_small_variant_ends_in_tables_that_claim_nothing(sweep, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "orchestrator", f"sweep=published/{sweep}", "scale=small", "cluster.dashboard=false"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tables = tmp_path / "results" / f"{sweep}_small" / "tables"
    summary = pd.read_csv(tables / "summary.csv")
    assert (summary.status == "ok").all() and not summary.timing_valid.any()
    assert "# Published and measured" in (tables / "published.md").read_text()
    assert "# Published and measured" in ended.stdout

"""The command as users start it, in a process and a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.drivers.forked import ROOT


def orchestrate(
    folder: Path, *arguments: str, timeout_s: float = 240.0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """What came of it; modules in the folder are found."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )

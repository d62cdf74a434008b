"""The command as users start it, in its own process and folder."""

import os
import subprocess
import sys
from pathlib import Path

from tests.drivers.forked import ROOT


def orchestrate(
    folder: Path, *arguments: str, timeout_s: float = 240.0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the command and return its result; modules in the folder can be imported."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )

"""Compare the start of the command line with a bare Hydra program with the same config.

    python -m benchmarks.start_up start_up.json [--turns 5]

A turn starts each command once, the bare program first. A command's figure is the median over the turns of its seconds
divided by the bare program's for the same flags in the same turn. Goal: at most 1.5. About 30 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import machine, tell

ROOT = Path(__file__).parents[1]
WANTED = 1.5
OURS: Mapping[str, Sequence[str]] = {
    "--help": ["--help"],
    "--cfg job": ["sweep=batch_scaling", "--cfg", "job"],
    "mode=plan": ["sweep=batch_scaling", "mode=plan"],
}
BARE = f"""
import hydra
hydra.main(config_path={str(ROOT / "conf")!r}, config_name="config", version_base="1.3")(lambda config: None)()
"""


def seconds(command: Sequence[str], folder: str) -> float:
    """Return the wall time of one start."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began_s = time.monotonic()
    subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began_s


def measured(turns: int, folder: str) -> dict[str, dict[str, float]]:
    """Return by command the median ratio, its extremes, and the medians of both programs' seconds."""
    bare_program = Path(folder) / "bare.py"
    bare_program.write_text(BARE)
    commands = {}
    for name, flags in OURS.items():
        pairs = [
            (seconds([str(bare_program), *flags], folder), seconds(["-m", "orchestrator", *flags], folder))
            for _ in range(turns + 1)
        ][1:]  # the first reads the files into memory
        ratios = [ours / bare for bare, ours in pairs]
        commands[name] = {
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "bare_s": statistics.median(bare for bare, _ in pairs),
            "ours_s": statistics.median(ours for _, ours in pairs),
        }
    return commands


def main() -> None:
    """Measure, print, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = measured(given.turns, folder)
    tell({**machine(), "wanted": WANTED, "commands": commands}, given.output)


if __name__ == "__main__":
    main()

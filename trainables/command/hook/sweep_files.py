# mypy: ignore-errors
"""Files through which the hook and the trial exchange what they know, in the folder that SWEEP_HOOK names."""

from __future__ import annotations

import os
import sys

FOLDER = os.environ.get("SWEEP_HOOK", "")  # the folder of the trial's files; empty without a sweep

STOP_FILE = "stop_at_step"
"""The trial writes this file to end the training: it holds the number of the last step."""

ENDED_S = "sweep_ended_s"
"""The key of a row of metrics with the time at which its epoch ended, by the host's monotonic clock."""


def write_file(name, text):
    """Write a file of the trial, whole or not at all."""
    path = os.path.join(FOLDER, name)
    try:
        with open(f"{path}.part", "w") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    except OSError as error:
        print(f"sweep hook: {error}", file=sys.stderr)

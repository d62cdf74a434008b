"""What helps a trial that failed, where its note tells as much."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NO_FILE = re.compile(r"No such file or directory: '([^'/~][^']*)'")


def with_remedy(note: str, folder: Path) -> str:
    """The note of a trial with this folder; of a command that looks for a file where it was started by hand, told how.

    A trial's command runs in a folder of its own, and the file lies where the driver stands.
    """
    found = _NO_FILE.search(note)
    # `Path.exists` would raise for a name that is too long, or in a folder that is closed: no note may end a sweep.
    if found is None or not os.path.exists(found[1]) or not (folder / "work").is_dir():
        return note
    remedy = f"name {{source_dir}}/{found[1]} in trainable.argv, or say trainable.cwd=source"
    return f"{note}. The command runs in a folder of its own: {remedy}"

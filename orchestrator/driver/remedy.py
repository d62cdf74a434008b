"""What helps a trial that failed, where its note tells as much."""

from __future__ import annotations

import re
from pathlib import Path

_NO_FILE = re.compile(r"No such file or directory: '([^'/~][^']*)'")


def with_remedy(note: str, folder: Path) -> str:
    """The note of a trial with this folder; of a command that looks for a file where it was started by hand, told how.

    A trial's command runs in a folder of its own, and the file lies where the driver stands.
    """
    found = _NO_FILE.search(note)
    if found is None or not Path(found[1]).exists() or not (folder / "work").is_dir():
        return note
    told = f"name {{source_dir}}/{found[1]} in trainable.argv, or say trainable.cwd=source"
    return f"{note}. The command runs in a folder of its own: {told}"

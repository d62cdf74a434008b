"""Where the trials of a config will run, as far as its own files and programs are concerned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def runs_here(config: Mapping[str, Any]) -> bool:
    """Whether this machine will run them: then what they need must be here.

    A plan may be made anywhere, and the nodes of a cluster may have what this one lacks.
    """
    address = (config.get("cluster") or {}).get("address") or os.environ.get("RAY_ADDRESS")
    return config.get("mode") == "run" and not address

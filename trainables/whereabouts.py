"""Where the trials of a config will run, as far as its own files and programs are concerned."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def runs_here(config: Mapping[str, Any]) -> bool:
    """Whether this machine will run them: then what they need must be here.

    A plan may be made anywhere, and the nodes of a cluster may have what this one lacks.
    """
    return config.get("mode") == "run" and not _cluster(config)


def not_here(config: Mapping[str, Any], lacks: Iterable[str]) -> Iterator[str]:
    """What this machine lacks, said of a plan: nothing fails of it yet."""
    remark = "the nodes need it" if _cluster(config) else "mode=run would refuse that"
    yield from (f"{each} (as seen from this machine; {remark})" for each in lacks)


def _cluster(config: Mapping[str, Any]) -> Any:
    return (config.get("cluster") or {}).get("address") or os.environ.get("RAY_ADDRESS")

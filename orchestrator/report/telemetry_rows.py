"""What was sampled of the devices of a trial, thinned out for a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from orchestrator.journal.soundness import Finding
from orchestrator.storage.layout import TELEMETRY, Layout

MOST_POINTS = 200
_MAGIC = b"PAR1"
_PLACE = ("rank", "device", "time_s")
_FIGURES = ("gpu_util", "power_w", "cpu_util")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of one trial: columns `rank`, `device`, `time_s`, and those of `gpu_util, power_w, cpu_util`."""

    cell_id: str
    frame: pd.DataFrame


def damaged(layout: Layout, trial_ids: Iterable[str]) -> list[Finding]:
    """The telemetry files that were cut short, of all trials; a trial without one was not sampled."""
    files = ((name, layout.telemetry(name)) for name in trial_ids)
    names = [name for name, path in files if path.exists() and not _is_whole(path)]
    if not names:
        return []
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return [Finding(where=f"trials/{names[0]}/{TELEMETRY}{more}", what="is cut short, or is not a Parquet file")]


def samples(layout: Layout, chosen: Sequence[tuple[str, str]]) -> tuple[list[Samples], list[Finding]]:
    """Of these trials, as (trial_id, cell_id), those that were sampled; and the files that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: list[Samples] = []
    findings: list[Finding] = []
    for trial_id, cell_id in chosen:
        path = layout.telemetry(trial_id)
        if not path.exists() or not _is_whole(path):
            continue
        try:
            names = set(pq.read_schema(path).names)
            wanted = [*_PLACE, *(name for name in _FIGURES if name in names)]
            frame = pq.read_table(path, columns=wanted).to_pandas()
            found.append(Samples(cell_id=cell_id, frame=_thinned(frame)))
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            findings.append(Finding(where=f"trials/{trial_id}/{TELEMETRY}", what=f"cannot be read: {error!s:.200}"))
    return found, findings


def _is_whole(path: Path) -> bool:
    """Whether it begins and ends as a Parquet file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4)
        size = path.stat().st_size
        file.seek(max(0, size - 4))
        return size >= 12 and head == _MAGIC and file.read(4) == _MAGIC


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_POINTS` of each device: means over equally long times."""
    figures = [name for name in _FIGURES if name in frame]
    numbers = frame[["time_s", *figures]].apply(pd.to_numeric, errors="coerce").astype("float64")
    whole = pd.concat([frame[["rank", "device"]], numbers], axis="columns").dropna(subset=["time_s"])
    last = float(whole["time_s"].max()) if len(whole) else math.nan
    width = last / MOST_POINTS if last > 0 else 1.0
    slot = (whole["time_s"] / width).astype("int64").clip(upper=MOST_POINTS - 1)
    slots = whole.groupby(["rank", "device", slot.rename("slot")], sort=True)
    return pd.DataFrame(slots[["time_s", *figures]].mean()).reset_index()

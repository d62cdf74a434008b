"""How busy the devices were, and what they drew, while a trial of each cell ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from orchestrator.report.picture import MOST_PANELS, MOST_SERIES, Axis, Panel, Picture, Series
from orchestrator.report.telemetry_rows import Samples
from orchestrator.text.figures import one_line
from orchestrator.text.rows import short_names, varying
from sweeps.status import Status

_UNSAMPLED = "Not measured: no trial recorded samples of its devices."


def chosen_trials(cells: pd.DataFrame, trials: pd.DataFrame, first: Sequence[str | None]) -> list[tuple[str, str]]:
    """A trial of each cell that is drawn, as (trial_id, cell_id): these cells `first`, then others from all over."""
    ok = trials[trials["status"] == Status.OK.value].drop_duplicates("cell_id").set_index("cell_id")["trial_id"]
    known = [cell_id for cell_id in cells["cell_id"] if cell_id in ok.index]
    wanted = [cell_id for cell_id in dict.fromkeys(first) if cell_id in set(known)]
    others = [cell_id for cell_id in known if cell_id not in wanted]
    room = MOST_PANELS - len(wanted)
    step = max(1.0, len(others) / room) if room > 0 else 1.0
    spread = [others[int(index * step)] for index in range(min(room, len(others)))]
    kept = {*wanted, *spread}
    return [(str(ok[cell_id]), cell_id) for cell_id in known if cell_id in kept]


def utilisation(cells: pd.DataFrame, samples: Sequence[Samples]) -> Picture:
    """Of GPUs as a share of time; where there are none, of the processors, in cores."""
    on_gpu = any(_has(each, "gpu_util") for each in samples)
    picture = Picture(
        name="utilisation",
        title="GPU utilisation" if on_gpu else "Utilisation",
        about="How busy each device was during one trial of the cell, from start to end."
        + ("" if on_gpu else " There are no GPUs, so this is the number of cores that each worker process kept busy."),
        x=Axis(label="time [s]", lo=0),
        y=Axis(label="GPU busy", percent=True, lo=0, hi=1.08) if on_gpu else Axis(label="cores busy", lo=0),
        absent=_UNSAMPLED,
    )
    return _over_time(picture, cells, samples, "gpu_util" if on_gpu else "cpu_util")


def power(cells: pd.DataFrame, samples: Sequence[Samples]) -> Picture:
    """Of each GPU."""
    picture = Picture(
        name="power",
        title="Power",
        about="Power drawn by each device during one trial of the cell, from start to end.",
        x=Axis(label="time [s]", lo=0),
        y=Axis(label="power [W]", lo=0),
        absent="Not measured: no device reported its power.",
    )
    return _over_time(picture, cells, samples, "power_w")


def _has(samples: Samples, column: str) -> bool:
    return column in samples.frame and bool(samples.frame[column].notna().any())


def _over_time(picture: Picture, cells: pd.DataFrame, samples: Sequence[Samples], column: str) -> Picture:
    measured = [each for each in samples if _has(each, column)]
    if not measured:
        return picture
    differing = varying(cells)
    drawn = cells[cells["cell_id"].isin([each.cell_id for each in measured])]
    labels = short_names(drawn.to_dict("records"), differing)
    names = dict(zip(drawn["cell_id"], map(one_line, labels), strict=True))
    legend: dict[str, int] = {}
    panels = [
        Panel(title=names.get(each.cell_id, each.cell_id), series=_series(each.frame, column, legend))
        for each in measured
    ]
    rows = pd.concat([each.frame.assign(cell=names.get(each.cell_id, each.cell_id)) for each in measured])
    data = rows[["cell", "rank", "device", "time_s", column]].dropna(subset=[column])
    remarks = [f"A trial of {len(measured)} of {len(cells)} cells is drawn."] if len(measured) < len(cells) else []
    if any(each.frame[["rank", "device"]].drop_duplicates().shape[0] > MOST_SERIES for each in measured):
        remarks.append(f"For cells with more devices, the first {MOST_SERIES} are drawn.")
    return replace(
        picture,
        legend=tuple(legend),
        panels=panels,
        remarks=remarks,
        data=data.to_dict("records"),  # type: ignore[arg-type]
    )


def _series(frame: pd.DataFrame, column: str, legend: dict[str, int]) -> list[Series]:
    """A line for each device, in the order of the ranks; the legend grows by those it has not yet."""
    found = []
    measured = frame[frame[column].notna()]
    for number, ((rank, device), rows) in enumerate(measured.groupby(["rank", "device"], sort=True)):
        if number == MOST_SERIES:
            break
        label = one_line(f"rank {rank}" if device == "cpu" else f"rank {rank}, {device}")
        if label not in legend and len(legend) == MOST_SERIES:
            continue
        place = legend.setdefault(label, len(legend))
        found.append(Series(label=label, place=place, x=tuple(rows["time_s"]), y=tuple(rows[column])))
    return found

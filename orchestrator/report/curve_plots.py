"""The report's plots over time: each cell's training loss by epoch, and the utilisation and power of its devices.

Telemetry is read here, too: one trial of each plotted cell, thinned out to as many points as a panel shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.report.plot import (
    MOST_PANELS,
    MOST_SERIES,
    Axis,
    Panel,
    Plot,
    Series,
    epoch_axis,
    fewer,
    grouped,
    loss_axis,
    named,
    word,
)
from orchestrator.store.layout import TELEMETRY, Layout
from orchestrator.store.results import Finding
from orchestrator.text.figures import one_line
from orchestrator.text.rows import cell_label, in_order, varying
from sweeps.status import Status

MOST_POINTS = 200
"""The most points of a curve: more than the eye can tell apart in a panel."""

_WITH_CURVE = (Status.OK.value, Status.DIVERGED.value, Status.TIMEOUT.value)
_UNSAMPLED = "Not measured: no trial recorded samples of its devices."


def loss(cells: pd.DataFrame, trials: pd.DataFrame, curves: pd.DataFrame) -> Plot:
    """Return the plot of training loss by epoch, one line per cell: the median of its seeds, and their range.

    Up to MOST_SERIES lines share one panel, where they can be compared; more are divided by rule and GPUs.
    """
    plot = Plot(
        name="loss",
        title="Loss curves",
        about="Training loss after each epoch, one line per cell: the median over its seeds. The band shows the range"
        " of the seeds.",
        x=Axis(label="epoch"),
        absent="No trial reported a loss per epoch.",
    )
    losses = _finite_losses(trials, curves)
    colour = FIXED_SIDE[cells["scaling"].iloc[0]]
    differing = varying(cells)
    facets = [*differing, "lr_rule", "gpus"]
    ordered = in_order(cells[cells["cell_id"].isin(losses["cell_id"].unique())], [*facets, colour])
    if ordered.empty:
        return plot
    together = len(ordered) <= MOST_SERIES
    if together:
        colour, facets = "cell", []
        ordered[colour] = [cell_label(row, differing) for row in ordered.to_dict("records")]
    kept, remarks = fewer(list(ordered[colour].drop_duplicates()), word(colour, cells))
    groups = grouped(ordered[ordered[colour].isin(kept)], facets)
    if len(groups) > MOST_PANELS:
        remarks.append(f"{MOST_PANELS} of {len(groups)} panels are drawn; tables/curves.parquet holds every epoch.")
    groups = groups[:MOST_PANELS]
    drawn = pd.concat([group for _, group in groups])
    points = _over_seeds(losses[losses["cell_id"].isin(drawn["cell_id"])])
    legend = {value: str(value) if together else named(colour, value, cells) for value in kept}
    names = {row["cell_id"]: cell_label(row, differing) for row in drawn.to_dict("records")}
    lines = {str(cell_id): rows for cell_id, rows in points.groupby("cell_id", sort=False, observed=True)}
    data = points.assign(cell=points["cell_id"].map(names))
    return replace(
        plot,
        x=epoch_axis(points["epoch"].tolist()),
        y=loss_axis(points),
        legend=tuple(legend.values()),
        panels=[
            Panel(
                title=title,
                series=[
                    _loss_series(legend[row[colour]], kept.index(row[colour]), lines[row["cell_id"]])
                    for row in group.to_dict("records")
                ],
            )
            for title, group in groups
        ],
        remarks=remarks,
        data=data.to_dict("records"),  # type: ignore[arg-type]
    )


def _finite_losses(trials: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return `cell_id, epoch, loss` of the finite losses of trials whose status allows a curve."""
    ended = trials[trials["status"].isin(_WITH_CURVE)].drop_duplicates("trial_id").set_index("trial_id")["cell_id"]
    finite = curves[curves["loss"].abs() < float("inf")]
    trial = finite["trial_id"].astype("category").cat
    # By the codes of the categories: as text a million rows take ten times as long.
    codes, cell_ids = pd.factorize(ended.reindex(trial.categories))
    cell = pd.Categorical.from_codes(codes[trial.codes], categories=cell_ids)
    return finite.assign(cell_id=cell)[["cell_id", "epoch", "loss"]].dropna()


def _over_seeds(losses: pd.DataFrame) -> pd.DataFrame:
    """Return `cell_id, epoch, loss, loss_lo, loss_hi, n_seeds`: median and range over the seeds, thinned out."""
    stages = losses.groupby(["cell_id", "epoch"], sort=True, observed=True)["loss"].agg(
        ["median", "min", "max", "count"]
    )
    found = stages.set_axis(["loss", "loss_lo", "loss_hi", "n_seeds"], axis="columns").reset_index()
    groups = found.groupby("cell_id", observed=True)
    size, place = groups["epoch"].transform("size"), groups.cumcount()
    step = (size / MOST_POINTS).clip(lower=1)
    first_of_step = (place // step) != ((place - 1) // step)
    return found[first_of_step | (place == size - 1)]


def _loss_series(label: str, place: int, rows: pd.DataFrame) -> Series:
    several = bool((rows["n_seeds"] > 1).any())
    return Series(
        label=label,
        place=place,
        x=tuple(rows["epoch"]),
        y=tuple(rows["loss"]),
        lo=tuple(rows["loss_lo"]) if several else (),
        hi=tuple(rows["loss_hi"]) if several else (),
        tooltips=tuple(
            f"{label}, epoch {epoch:g}: {value:.4g}" for epoch, value in zip(rows["epoch"], rows["loss"], strict=True)
        ),
    )


_MAGIC = b"PAR1"
_PLACE = ("rank", "device", "time_s")
_FIGURES = ("gpu_util", "power_w", "cpu_util")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The telemetry of one trial: `rank`, `device`, `time_s`, and those of `gpu_util, power_w, cpu_util` it has."""

    cell_id: str
    frame: pd.DataFrame


def damaged(layout: Layout, trial_ids: Iterable[str]) -> list[Finding]:
    """Return a finding on the trials whose telemetry file is cut short; a trial without a file was not sampled."""
    files = ((name, layout.telemetry(name)) for name in trial_ids)
    names = [name for name, path in files if path.exists() and not _is_whole(path)]
    if not names:
        return []
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return [Finding(where=f"trials/{names[0]}/{TELEMETRY}{more}", what="is cut short, or is not a Parquet file")]


def samples(layout: Layout, chosen: Sequence[tuple[str, str]]) -> tuple[list[Samples], list[Finding]]:
    """Read the telemetry of the chosen (trial_id, cell_id). Return the samples, and findings on unreadable files."""
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
            found.append(Samples(cell_id=cell_id, frame=_thinned_out(frame)))
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            findings.append(Finding(where=f"trials/{trial_id}/{TELEMETRY}", what=f"cannot be read: {error!s:.200}"))
    return found, findings


def _is_whole(path: Path) -> bool:
    """Return whether the file begins and ends as a Parquet file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4)
        size = path.stat().st_size
        file.seek(max(0, size - 4))
        return size >= 12 and head == _MAGIC and file.read(4) == _MAGIC


def _thinned_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Return at most `MOST_POINTS` samples of each device: means over equally long times."""
    figures = [name for name in _FIGURES if name in frame]
    numbers = frame[["time_s", *figures]].apply(pd.to_numeric, errors="coerce").astype("float64")
    whole = pd.concat([frame[["rank", "device"]], numbers], axis="columns").dropna(subset=["time_s"])
    last = float(whole["time_s"].max()) if len(whole) else math.nan
    width = last / MOST_POINTS if last > 0 else 1.0
    slot = (whole["time_s"] / width).astype("int64").clip(upper=MOST_POINTS - 1)
    slots = whole.groupby(["rank", "device", slot.rename("slot")], sort=True)
    return pd.DataFrame(slots[["time_s", *figures]].mean()).reset_index()


def chosen_trials(cells: pd.DataFrame, trials: pd.DataFrame, first: Sequence[str | None]) -> list[tuple[str, str]]:
    """Choose a trial of each cell to plot, as (trial_id, cell_id): the cells in `first`, then others evenly."""
    ok = trials[trials["status"] == Status.OK.value].drop_duplicates("cell_id").set_index("cell_id")["trial_id"]
    known = [cell_id for cell_id in cells["cell_id"] if cell_id in ok.index]
    wanted = [cell_id for cell_id in dict.fromkeys(first) if cell_id in set(known)]
    others = [cell_id for cell_id in known if cell_id not in wanted]
    room = MOST_PANELS - len(wanted)
    step = max(1.0, len(others) / room) if room > 0 else 1.0
    spread = [others[int(index * step)] for index in range(min(room, len(others)))]
    kept = {*wanted, *spread}
    return [(str(ok[cell_id]), cell_id) for cell_id in known if cell_id in kept]


def utilisation(cells: pd.DataFrame, samples: Sequence[Samples]) -> Plot:
    """Return the plot of GPU utilisation as a share of time; without GPUs, of the cores that are busy."""
    on_gpu = any(_has(each, "gpu_util") for each in samples)
    plot = Plot(
        name="utilisation",
        title="GPU utilisation" if on_gpu else "Utilisation",
        about="How busy each device was during one trial of the cell, from start to end."
        + ("" if on_gpu else " There are no GPUs, so this is the number of cores that each worker process kept busy."),
        x=Axis(label="time [s]", lo=0),
        y=Axis(label="GPU busy", percent=True, lo=0, hi=1.08) if on_gpu else Axis(label="cores busy", lo=0),
        absent=_UNSAMPLED,
    )
    return _over_time(plot, cells, samples, "gpu_util" if on_gpu else "cpu_util")


def power(cells: pd.DataFrame, samples: Sequence[Samples]) -> Plot:
    """Return the plot of each GPU's power in watts."""
    plot = Plot(
        name="power",
        title="Power",
        about="Power of each device during one trial of the cell, from start to end.",
        x=Axis(label="time [s]", lo=0),
        y=Axis(label="power [W]", lo=0),
        absent="Not measured: no device reported its power.",
    )
    return _over_time(plot, cells, samples, "power_w")


def _has(samples: Samples, column: str) -> bool:
    return column in samples.frame and bool(samples.frame[column].notna().any())


def _over_time(plot: Plot, cells: pd.DataFrame, samples: Sequence[Samples], column: str) -> Plot:
    measured = [each for each in samples if _has(each, column)]
    if not measured:
        return plot
    differing = varying(cells)
    sampled = cells[cells["cell_id"].isin([each.cell_id for each in measured])]
    names = {row["cell_id"]: one_line(cell_label(row, differing)) for row in sampled.to_dict("records")}
    legend: dict[str, int] = {}
    panels = [
        Panel(title=names.get(each.cell_id, each.cell_id), series=_device_series(each.frame, column, legend))
        for each in measured
    ]
    rows = pd.concat([each.frame.assign(cell=names.get(each.cell_id, each.cell_id)) for each in measured])
    data = rows[["cell", "rank", "device", "time_s", column]].dropna(subset=[column])
    remarks = [f"A trial of {len(measured)} of {len(cells)} cells is drawn."] if len(measured) < len(cells) else []
    if any(each.frame[["rank", "device"]].drop_duplicates().shape[0] > MOST_SERIES for each in measured):
        remarks.append(f"For cells with more devices, the first {MOST_SERIES} are drawn.")
    return replace(
        plot,
        legend=tuple(legend),
        panels=panels,
        remarks=remarks,
        data=data.to_dict("records"),  # type: ignore[arg-type]
    )


def _device_series(frame: pd.DataFrame, column: str, legend: dict[str, int]) -> list[Series]:
    """Return a line for each device, in the order of the ranks. Devices that are new are added to the legend."""
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

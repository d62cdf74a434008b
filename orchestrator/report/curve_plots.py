"""The report's plots over time: each cell's training loss by epoch, and the utilisation and power of its devices.

Telemetry is read here, too: one trial of each plotted cell, thinned out to as many points as a panel shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.curve_frame import WITH_CURVE
from orchestrator.report import plot as vega
from orchestrator.report.plot import Plot, Spec
from orchestrator.store.results import Problem
from orchestrator.store.results_folder import TELEMETRY, ResultsFolder
from orchestrator.text import numbers
from orchestrator.text.cell_labels import Row, cell_label, gpus_in_words, in_order, named, varying
from orchestrator.text.numbers import one_line
from sweeps.status import Status

MOST_POINTS = 100
"""The most points of a curve: more than the eye can tell apart in a panel."""

MOST_CURVES = 48
MOST_SAMPLED = 6
"""The most cells with loss curves, and with telemetry."""


def _lines(title: str | None) -> dict[str, Any]:
    """Return the colours of the rows' `line`, in the order of the rows."""
    return {"color": {"field": "line", "type": "nominal", "title": title, "sort": None}}


def loss(cells: pd.DataFrame, trials: pd.DataFrame, curves: pd.DataFrame, first: Sequence[str]) -> Plot:
    """Return the chart of training loss by epoch, a line for each cell: the median of its seeds, and their range.

    Up to MOST_SERIES lines share one panel, where they can be compared; more are divided by rule and GPUs. Of more than
    MOST_CURVES cells, those in `first` and others share one panel, and the filters choose which others.
    """
    plot = Plot(
        name="loss",
        title="Loss curves",
        about="Training loss after each epoch: the median over a cell's seeds. The band is the range of the seeds.",
        absent="No trial reported a loss per epoch.",
    )
    losses = _finite_losses(trials, curves)
    differing = varying(cells)
    batch = FIXED_SIDE[cells["scaling"].iloc[0]]
    columns = [*differing, "lr_rule", "gpus"]
    with_curve = in_order(cells[cells["cell_id"].isin(losses["cell_id"].unique())], [*columns, batch])
    if with_curve.empty:
        return plot
    drawn = spread(list(with_curve["cell_id"]), first, MOST_CURVES)
    records = with_curve[with_curve["cell_id"].isin(drawn)].to_dict("records")
    # As many as colours that can be told apart; of many cells, each panel would have one line.
    is_large = len(drawn) < len(with_curve)
    together = is_large or len(records) <= vega.MOST_SERIES
    ranked = sorted(drawn, key=lambda cell_id: first.index(cell_id) if cell_id in first else len(first))
    points = _over_seeds(losses[losses["cell_id"].isin(drawn)])
    by_cell = {str(cell_id): rows for cell_id, rows in points.groupby("cell_id", sort=False, observed=True)}
    titles = ["" if together else _panel_title(row, differing, cells) for row in records]
    best = next((row for row in records if row["cell_id"] in first), None)
    rows = []
    places = {title: place for place, title in enumerate(dict.fromkeys(titles))}
    for row, title, rank in zip(records, titles, vega.ranked_panels(records, titles, columns, best), strict=True):
        name = vega.label_of(cell_label(row, differing))
        line = name if together else numbers.fact(row[batch])
        for point in by_cell[row["cell_id"]].to_dict("records"):
            values = {"epoch": point["epoch"], "loss": point["loss"]}
            # One seed has no range.
            if point["n_seeds"] > 1:
                values |= {"loss_lo": point["loss_lo"], "loss_hi": point["loss_hi"]}
            panel = {"panel": title, "panel_order": rank, "panel_place": places[title]}
            rows.append({"cell": name, "line": line, "order": ranked.index(row["cell_id"]), **panel, **values})
    remarks = []
    if is_large:
        shown = f"{vega.MOST_SERIES} of {len(with_curve)} cells are drawn: the filters choose others"
        remarks.append(f"{shown}, of {len(drawn)}; tables/curves.parquet has all.")
    y = vega.spanning("loss", "training loss", points["loss"])
    epochs = {**vega.quantity("epoch", "epoch", zero=False, nice=False), "axis": {"tickMinStep": 1}}
    look = {"x": epochs, "y": y}
    look |= _lines(None if together else vega.word(batch, cells))
    marks = vega.mark("point", {**look, **vega.FADED, **vega.TIP}, size=18, filled=True)
    layers = [
        vega.band(look, where="true"),
        vega.mark("line", {**look, **vega.FADED}),
        {**marks, "params": [vega.ZOOM, vega.picked("line")]},
    ]
    tip = "datum.cell + '\\nepoch ' + datum.epoch + ': ' + format(datum.loss, '.4~r')"
    transform: list[Spec] = [{"calculate": tip, "as": "tip"}]
    if is_large:
        transform += [
            {"window": [{"op": "dense_rank", "as": "line_rank"}], "sort": [{"field": "order"}]},
            {"filter": f"datum.line_rank <= {vega.MOST_SERIES}"},
        ]
    spec = vega.in_panels(layers, transform, field="panel")
    if together:
        spec = {"transform": transform, "width": 560, "height": 260, "layer": layers}
    return replace(plot, spec=spec, rows=rows, remarks=remarks)


def _panel_title(row: Row, differing: Sequence[str], cells: pd.DataFrame) -> str:
    gpus = gpus_in_words(row["gpus"], on_cpu=vega.is_on_cpu(cells))
    return vega.label_of(", ".join(filter(None, [f"{gpus} {row['lr_rule']}", named(row, differing)])))


def _finite_losses(trials: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return `cell_id, epoch, loss` of the finite losses of trials whose status allows a curve."""
    ended = trials[trials["status"].isin(WITH_CURVE)].drop_duplicates("trial_id").set_index("trial_id")["cell_id"]
    finite = curves[curves["loss"].abs() < float("inf")]
    trial = finite["trial_id"].astype("category").cat
    # By the codes of the categories: as text a million rows take ten times as long.
    codes, cell_ids = pd.factorize(ended.reindex(trial.categories))
    cell = pd.Categorical.from_codes(codes[trial.codes], categories=cell_ids)
    return finite.assign(cell_id=cell)[["cell_id", "epoch", "loss"]].dropna()


def _over_seeds(losses: pd.DataFrame) -> pd.DataFrame:
    """Return `cell_id, epoch, loss, loss_lo, loss_hi, n_seeds`: median and range over the seeds, thinned out."""
    by_epoch = losses.groupby(["cell_id", "epoch"], sort=True, observed=True)["loss"]
    points = by_epoch.agg(loss="median", loss_lo="min", loss_hi="max", n_seeds="count").reset_index()
    groups = points.groupby("cell_id", observed=True)
    size, place = groups["epoch"].transform("size"), groups.cumcount()
    # Every n-th epoch, and always the last one, where the curve is read.
    step = (size / MOST_POINTS).clip(lower=1)
    first_of_step = (place // step) != ((place - 1) // step)
    return points[first_of_step | (place == size - 1)]


def critical_batch(branches: pd.DataFrame) -> Plot:
    """Return the chart of batches by the tokens after which they branched off, with the largest within the margin."""
    rows = [
        {
            "cell": vega.label_of(row["group"]),
            "tokens": row["tokens"],
            "batch": row["global_batch_size"],
            "within": "worse" if row["beyond"] else "within the margin" if row["within"] else "not shown",
            "largest": row["is_lower_end"],
            "tip": f"{row['global_batch_size']:,} after {row['tokens']:,} tokens: {row['worse_by']:+.3f}",
        }
        for row in branches.to_dict("records")
    ]
    x = vega.spanning("tokens", "tokens before the branch", branches["tokens"])
    y = vega.doubling("batch", "global batch", branches["global_batch_size"].tolist())
    several = branches["group"].nunique() > 1
    colour = {"color": {"field": "cell", "type": "nominal", "title": None, "sort": None}, **vega.FADED}
    look = {"x": x, "y": y, **(colour if several else {})}
    shape = {"field": "within", "type": "nominal", "title": None, "sort": ["within the margin", "not shown", "worse"]}
    points = vega.mark("point", {**look, "shape": shape, **vega.TIP}, size=60)
    layers = [
        vega.mark("line", look, where="datum.largest"),
        {**points, "params": [vega.ZOOM, *([vega.picked("cell")] if several else [])]},
    ]
    return Plot(
        name="critical_batch",
        title="Critical batch size",
        about="A point is a batch that branched off. The line is the largest shown to be within the margin.",
        spec={"width": 560, "height": 240, "layer": layers},
        rows=rows,
    )


_MAGIC = b"PAR1"
_PLACE = ("rank", "device", "time_s")
_READINGS = ("gpu_util", "power_w", "cpu_util")


@dataclass(frozen=True, kw_only=True)
class TelemetrySamples:
    """The telemetry of one trial: `rank`, `device`, `time_s`, and those of `gpu_util, power_w, cpu_util` it has."""

    cell_id: str
    frame: pd.DataFrame

    def has(self, column: str) -> bool:
        """Return whether a device reported this reading."""
        return column in self.frame and bool(self.frame[column].notna().any())


def damaged(folder: ResultsFolder, trial_ids: Iterable[str]) -> list[Problem]:
    """Return a problem of the trials whose telemetry file is cut short; a trial without a file was not sampled."""
    files = ((name, folder.telemetry(name)) for name in trial_ids)
    names = [name for name, path in files if path.exists() and not _is_whole(path)]
    if not names:
        return []
    more = f", and {numbers.counted(len(names) - 1, 'more trial', 'more trials')}" if len(names) > 1 else ""
    return [Problem(where=f"trials/{names[0]}/{TELEMETRY}{more}", what="is cut short, or is not a Parquet file")]


def samples(folder: ResultsFolder, chosen: Sequence[tuple[str, str]]) -> tuple[list[TelemetrySamples], list[Problem]]:
    """Read the telemetry of the chosen (trial_id, cell_id). Return the samples, and problems with unreadable files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    telemetry: list[TelemetrySamples] = []
    problems: list[Problem] = []
    for trial_id, cell_id in chosen:
        path = folder.telemetry(trial_id)
        if not path.exists() or not _is_whole(path):
            continue
        try:
            names = set(pq.read_schema(path).names)
            frame = pq.read_table(path, columns=[*_PLACE, *(name for name in _READINGS if name in names)]).to_pandas()
            telemetry.append(TelemetrySamples(cell_id=cell_id, frame=_thinned_out(frame)))
        # One unreadable file must not cost the reader the other plots; the page names it.
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            problems.append(Problem(where=f"trials/{trial_id}/{TELEMETRY}", what=f"cannot be read: {error!s:.200}"))
    return telemetry, problems


def _is_whole(path: Path) -> bool:
    """Return whether the file begins and ends as a Parquet file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4)
        size = path.stat().st_size
        # A sampler that was killed leaves a file without its end.
        file.seek(max(0, size - 4))
        return size >= 12 and head == _MAGIC and file.read(4) == _MAGIC


def _thinned_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Return at most `MOST_POINTS` samples of each device: means over equally long times."""
    readings = [name for name in _READINGS if name in frame]
    values = frame[["time_s", *readings]].apply(pd.to_numeric, errors="coerce").astype("float64")
    whole = pd.concat([frame[["rank", "device"]], values], axis="columns").dropna(subset=["time_s"])
    last = float(whole["time_s"].max()) if len(whole) else math.nan
    width = last / MOST_POINTS if last > 0 else 1.0
    slot = (whole["time_s"] / width).astype("int64").clip(upper=MOST_POINTS - 1)
    slots = whole.groupby(["rank", "device", slot.rename("slot")], sort=True)
    return pd.DataFrame(slots[["time_s", *readings]].mean()).reset_index()


def spread(cell_ids: Sequence[str], first: Sequence[str], most: int) -> list[str]:
    """Return at most this many of the cells, in their order: those in `first`, then others evenly spaced."""
    wanted = [cell_id for cell_id in dict.fromkeys(first) if cell_id in set(cell_ids)][:most]
    others = [cell_id for cell_id in cell_ids if cell_id not in wanted]
    room = most - len(wanted)
    step = max(1.0, len(others) / room) if room > 0 else 1.0
    kept = {*wanted, *(others[int(index * step)] for index in range(min(room, len(others))))}
    return [cell_id for cell_id in cell_ids if cell_id in kept]


def chosen_trials(cells: pd.DataFrame, trials: pd.DataFrame, first: Sequence[str]) -> list[tuple[str, str]]:
    """Choose a trial of each cell to plot, as (trial_id, cell_id): the cells in `first`, then others evenly."""
    ok = trials[trials["status"] == Status.OK.value].drop_duplicates("cell_id").set_index("cell_id")["trial_id"]
    known = [cell_id for cell_id in cells["cell_id"] if cell_id in ok.index]
    return [(str(ok[cell_id]), cell_id) for cell_id in spread(known, first, MOST_SAMPLED)]


def utilisation(cells: pd.DataFrame, telemetry: Sequence[TelemetrySamples], first: Sequence[str]) -> Plot:
    """Return the chart of GPU utilisation as a share of time; without GPUs, of the cores that are busy."""
    on_gpu = any(samples.has("gpu_util") for samples in telemetry)
    busy = "How busy each GPU was" if on_gpu else "How many cores each process kept busy"
    plot = Plot(
        name="utilisation",
        title="GPU utilisation" if on_gpu else "Utilisation",
        about=f"{busy} during one trial of the cell.",
        absent="No trial recorded samples of its devices.",
    )
    y = vega.quantity("value", "GPU busy" if on_gpu else "cores busy", **({"domain": [0, 1.05]} if on_gpu else {}))
    y = {**y, "axis": {"format": "~%" if on_gpu else "~r", "tickCount": 5}}
    return _over_time(plot, cells, telemetry, "gpu_util" if on_gpu else "cpu_util", y, first)


def power(cells: pd.DataFrame, telemetry: Sequence[TelemetrySamples], first: Sequence[str]) -> Plot:
    """Return the chart of each GPU's power in watts."""
    plot = Plot(
        name="power",
        title="Power",
        about="Power of each device during one trial of the cell.",
        absent="No device reported its power.",
    )
    return _over_time(plot, cells, telemetry, "power_w", vega.quantity("value", "power [W]"), first)


def _over_time(
    plot: Plot, cells: pd.DataFrame, telemetry: Sequence[TelemetrySamples], column: str, y: Spec, first: Sequence[str]
) -> Plot:
    """Return the plot with a panel for each sampled cell and a line for each of its devices."""
    measured = {sampled.cell_id: sampled.frame for sampled in telemetry if sampled.has(column)}
    if not measured:
        return plot
    differing = varying(cells)
    records = [row for row in cells.to_dict("records") if row["cell_id"] in measured]
    # The discussed cells come first, because a panel further down is seldom looked at.
    records.sort(key=lambda row: row["cell_id"] not in first)
    rows: list[dict[str, Any]] = []
    for place, row in enumerate(records, start=1):
        name = vega.label_of(cell_label(row, differing))
        frame = measured[row["cell_id"]]
        devices = frame[frame[column].notna()].groupby(["rank", "device"], sort=True)
        for (rank, device), points in list(devices)[: vega.MOST_SERIES]:
            line = one_line(f"rank {rank}" if device == "cpu" else f"rank {rank}, {device}")
            labels = {"cell": name, "line": line, "panel": name, "panel_order": place, "panel_place": place}
            values = zip(points["time_s"], points[column], strict=True)
            rows += [{**labels, "time": time, "value": value} for time, value in values]
    line_of_device = vega.mark("line", {"x": vega.quantity("time", "time [s]"), "y": y, **_lines(None), **vega.FADED})
    spec = vega.in_panels([{**line_of_device, "params": [vega.ZOOM, vega.picked("line")]}], field="panel")
    some = f"A trial of {len(measured)} of {len(cells)} cells is drawn."
    return replace(plot, spec=spec, rows=rows, remarks=[some] if len(measured) < len(cells) else [])

"""The loss of every cell, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from orchestrator.collection.baseline import FIXED_SIDE
from orchestrator.report.axes import epoch_axis, loss_axis
from orchestrator.report.lines import fewer, grouped, named, word
from orchestrator.report.picture import MOST_PANELS, MOST_SERIES, Axis, Panel, Picture, Series
from orchestrator.text.rows import in_order, name, short_names, varying
from sweeps.status import Status

MOST_POINTS = 200
"""Of a drawn curve: more than the eye can tell apart in a panel."""

_DRAWN = (Status.OK.value, Status.DIVERGED.value, Status.TIMEOUT.value)


def loss(cells: pd.DataFrame, trials: pd.DataFrame, curves: pd.DataFrame) -> Picture:
    """Training loss against epochs, a line a cell: the median of its seeds, and the range they span.

    Where lines are few all of them are in one panel, for there it shows how far they are apart.
    """
    picture = Picture(
        name="loss",
        title="Loss curves",
        about="Training loss after each epoch, one line per cell: the median over its seeds. The band shows the range"
        " of the seeds.",
        x=Axis(label="epoch"),
        absent="No trial reported a loss per epoch.",
    )
    by_cell = _by_cell(trials, curves)
    colour = FIXED_SIDE[cells["scaling"].iloc[0]]
    differing = varying(cells)
    facets = [*differing, "lr_rule", "gpus"]
    ordered = in_order(cells[cells["cell_id"].isin(by_cell["cell_id"].unique())], [*facets, colour])
    if ordered.empty:
        return picture
    together = len(ordered) <= MOST_SERIES
    if together:
        colour, facets = "cell", []
        ordered[colour] = short_names(ordered.to_dict("records"), differing)
    kept, remarks = fewer(list(ordered[colour].drop_duplicates()), word(colour, cells))
    groups = grouped(ordered[ordered[colour].isin(kept)], facets)
    if len(groups) > MOST_PANELS:
        remarks.append(f"{MOST_PANELS} of {len(groups)} panels are drawn; tables/curves.parquet holds every epoch.")
    groups = groups[:MOST_PANELS]
    drawn = pd.concat([group for _, group in groups])
    points = _summarised(by_cell[by_cell["cell_id"].isin(drawn["cell_id"])])
    legend = {value: str(value) if together else named(colour, value, cells) for value in kept}
    names = {row["cell_id"]: name(row, differing) for row in drawn.to_dict("records")}
    data = points.assign(cell=points["cell_id"].map(names))
    return replace(
        picture,
        x=epoch_axis(points["epoch"].tolist()),
        y=loss_axis(points),
        legend=tuple(legend.values()),
        panels=_panels(groups, points, colour, legend),
        remarks=remarks,
        data=data.to_dict("records"),  # type: ignore[arg-type]
    )


def _panels(
    groups: Sequence[tuple[str, pd.DataFrame]], points: pd.DataFrame, colour: str, legend: Mapping[Any, str]
) -> list[Panel]:
    """A line for each cell of a group, in the colour of its value in the column `colour`."""
    lines = {str(cell_id): rows for cell_id, rows in points.groupby("cell_id", sort=False, observed=True)}
    places = {value: place for place, value in enumerate(legend)}
    return [
        Panel(
            title=title,
            series=[
                _series(legend[row[colour]], places[row[colour]], lines[row["cell_id"]])
                for row in group.to_dict("records")
            ],
        )
        for title, group in groups
    ]


def _by_cell(trials: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The finite rows of the trials that ended in a way that has a curve, with their `cell_id`."""
    ended = trials[trials["status"].isin(_DRAWN)].drop_duplicates("trial_id").set_index("trial_id")["cell_id"]
    finite = curves[curves["loss"].abs() < float("inf")]
    trial = finite["trial_id"].astype("category").cat
    # By the numbers of the categories: as text a million rows take ten times as long.
    codes, cell_ids = pd.factorize(ended.reindex(trial.categories))
    by_cell = pd.Categorical.from_codes(codes[trial.codes], categories=cell_ids)
    return finite.assign(cell_id=by_cell)[["cell_id", "epoch", "loss"]].dropna()


def _summarised(by_cell: pd.DataFrame) -> pd.DataFrame:
    """`cell_id, epoch, loss` with the median, least and largest of the seeds and their number, thinned out."""
    stages = by_cell.groupby(["cell_id", "epoch"], sort=True, observed=True)["loss"].agg(
        ["median", "min", "max", "count"]
    )
    found = stages.set_axis(["loss", "loss_lo", "loss_hi", "n_seeds"], axis="columns").reset_index()
    groups = found.groupby("cell_id", observed=True)
    size, place = groups["epoch"].transform("size"), groups.cumcount()
    step = (size / MOST_POINTS).clip(lower=1)
    first_of_step = (place // step) != ((place - 1) // step)
    return found[first_of_step | (place == size - 1)]


def _series(label: str, place: int, rows: pd.DataFrame) -> Series:
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

"""Draw docs/pictures/findings_*.svg from docs/results/published: python -m studies.published_plots."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from orchestrator.report.plot import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
PUBLISHED_IN, PLOTS = DOCS / "results" / "published", DOCS / "pictures"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "findings",
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
}
COLOURS = SERIES["light"]
MEASURED, PUBLISHED = COLOURS[0], "#9aa3ae"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[tuple[float | None, ...], ...] = ((None, None), (5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5), (9, 2), (3, 1))
WAYS = {"DDP": "ddp", "DataParallel": "data_parallel"}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One figure, with the ends of its interval where it has one."""

    label: str
    value: float
    lo: float = float("nan")
    hi: float = float("nan")
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """Figures along an axis of the sweep."""

    label: str
    points: Sequence[tuple[float, float]]
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Panels of lines over one axis of the sweep, on a logarithmic scale."""

    panels: Callable[[], Mapping[str, Sequence[Line]]]
    along: str
    between: tuple[float, float] = (0.0, 2.1)
    guide: float | None = 1.0
    """A thin horizontal line, as at a speed-up of 1."""
    legend: Any = "lower right"


class Cells:
    """The cells of a sweep, found by their axes."""

    def __init__(self, sweep: str) -> None:
        self._cells = pd.read_csv(PUBLISHED_IN / sweep / "summary.csv")

    def bar(self, label: str, column: str, factor: float = 1.0, **wanted: Any) -> Bar:
        """A figure of the one cell with these values; None for what is to be empty."""
        (row,) = self._found(wanted).to_dict("records")
        ends = {end: factor * row.get(f"{column}_{end}", float("nan")) for end in ("lo", "hi")}
        return Bar(label=label, value=factor * row[column], **ends)

    def line(self, label: str, along: str, column: str, **wanted: Any) -> Line:
        """A figure of all cells with these values that have it, by another column."""
        cells = self._found(wanted).dropna(subset=column).sort_values(along)
        return Line(label=label, points=list(zip(cells[along], cells[column], strict=True)))

    def _found(self, wanted: Mapping[str, Any]) -> pd.DataFrame:
        cells = self._cells
        for axis, value in wanted.items():
            name = next(column for column in (f"axes.{axis}", axis.replace("__", "."), axis) if column in cells)
            cells = cells[cells[name].isna() if value is None else cells[name] == value]
        return cells


def unequal_pair() -> Mapping[str, Sequence[Bar]]:
    """E0: images a second of the MNIST CNN, and an unequal pair with equal and with proportional shares."""
    cells, pair = Cells("unequal_pair_core"), Cells("unequal_pair_shares")  # where the GPU alone pauses
    plain = {"trainable__slow_down": None}

    def pace(label: str, **wanted: Any) -> Bar:
        return cells.bar(label, "samples_per_s", 1e-3, **wanted)

    def slowed(rank: int, label: str, **wanted: Any) -> Bar:
        paused = {"trainable__slow_down": json.dumps({"rank": rank, "factor": 2.0})}
        return pair.bar(label, "samples_per_s", 1e-3, **wanted, **paused)

    return {
        "MNIST CNN, 1,000 images/s": [
            Bar(label="published: one GPU", value=60 * 200 / 68, published=True),
            Bar(label="published: two GPUs", value=60 * 200 / 59, published=True),
            pace("one H200, batch 512", gpus=1, global_batch_size=512, **plain),
            pace("two, 256 each", gpus=2, global_batch_size=512, strategy="ddp", **plain),
            pace("two, DataParallel", gpus=2, global_batch_size=512, strategy="data_parallel", **plain),
            pace("two, 512 each", gpus=2, global_batch_size=1024, strategy="ddp", **plain),
        ],
        "an unequal pair, 8,192 images, 1,000 images/s": [
            slowed(0, "the slowed one alone, 4,096", gpus=1, global_batch_size=4096),
            slowed(1, "the other alone, 4,096", gpus=1, global_batch_size=4096),
            slowed(1, "both, equal shares", gpus=2, global_batch_size=8192, strategy="ddp"),
            slowed(1, "both, shares by speed", gpus=2, global_batch_size=8192, strategy="ddp_unequal"),
        ],
    }


def second_gpu() -> Mapping[str, Sequence[Line]]:
    """E0: the speed-up of two GPUs over one at the same global batch, by that batch."""
    small, large = Cells("unequal_pair_grid"), Cells("unequal_pair_unet")
    plain = {"trainable__slow_down": None, "gpus": 2}

    def line(label: str, cells: Cells, **wanted: Any) -> Line:
        return cells.line(label, "global_batch_size", "speedup", **wanted)

    return {
        "MNIST CNN, 1.2 million parameters: two H200 against one": [
            *(line(label, small, strategy=strategy, **plain) for label, strategy in WAYS.items()),
            Line(label="the posts", points=[(512, 68 / 59), (512, 41 / 35)], published=True),
        ],
        "U-Net at 256×256, 31 million: two H200 against one": [
            line(label, large, strategy=strategy, gpus=2) for label, strategy in WAYS.items()
        ],
    }


def conv2d() -> Mapping[str, Sequence[Bar]]:
    """E4: milliseconds of one call, on a logarithmic axis."""
    cells = Cells("conv2d")
    one = {"trainable__filter_size": 3, "trainable__channels": 1, "trainable__library": "torch"}
    gpu = {**one, "resources__device": "cuda", "strategy": "data_parallel", "trainable__pin_memory": False}
    pinned = gpu | {"trainable__pin_memory": True}

    def call(label: str, column: str, **wanted: Any) -> Bar:
        return cells.bar(label, column, 1e3, **wanted)

    return {
        "one conv2d on 840 images, ms (logarithmic)": [
            Bar(label="published: first call, one V100", value=14898, published=True),
            Bar(label="published: first call, four V100", value=684, published=True),
            Bar(label="published: SciPy, one core", value=222, published=True),
            call("SciPy, one core", "epoch_s", trainable__library="scipy"),
            call("one H200: first call", "first_epoch_s", trainable__timed="whole", gpus=1, **gpu),
            call("warm call", "epoch_s", trainable__timed="whole", gpus=1, **gpu),
            call("  copy in", "epoch_s", trainable__timed="copy_in", gpus=1, **gpu),
            call("  convolution", "epoch_s", trainable__timed="compute", gpus=1, **gpu),
            call("  copy out", "epoch_s", trainable__timed="copy_out", gpus=1, **gpu),
            call("warm, in pinned memory", "epoch_s", trainable__timed="whole", gpus=1, **pinned),
            call("two H200: warm call", "epoch_s", trainable__timed="whole", gpus=2, **gpu),
            call("warm, in pinned memory", "epoch_s", trainable__timed="whole", gpus=2, **pinned),
        ]
    }


def data_parallel() -> Mapping[str, Sequence[Line]]:
    """E3: the speed-up of two GPUs at a fixed batch for each, by that batch and by the way of driving them."""
    cells = Cells("data_parallel_grid")
    resident = {"trainable__input": "resident", "gpus": 2}
    published = {"resnet18": (128, 21 / 13), "resnet50": (128, 72 / 44), "resnet101": (128, 126 / 77)}

    def line(label: str, **wanted: Any) -> Line:
        return cells.line(label, "device_batch_size", "speedup", **resident, **wanted)

    return {
        f"ResNet-{model.removeprefix('resnet')}, fp32: two H200 against one": [
            *(line(label, model=model, strategy=strategy) for label, strategy in WAYS.items()),
            Line(label="the post, DataParallel", points=[point], published=True),
        ]
        for model, point in published.items()
    }


def batch_vs_tpu() -> Mapping[str, Sequence[Bar]]:
    """E1: images a second of the CNN."""
    cells = Cells("batch_vs_tpu_core")

    def pace(label: str, **wanted: Any) -> Bar:
        return cells.bar(label, "samples_per_s", 1e-3, model="cnn10", trainable__precision="fp32", **wanted)

    def published(label: str, epoch_s: float) -> Bar:
        return Bar(label=f"published: {label}", value=50 / epoch_s, published=True)

    panels = {}
    for batch, one_s, two_s in ((128, 11.68, 14.22), (1024, 10.35, 10.33)):
        panels[f"10-layer CNN, batch {batch}, fp32, 1,000 images/s"] = [
            published("one GPU", one_s),
            published("two GPUs", two_s),
            pace("one H200", gpus=1, global_batch_size=batch, strategy="ddp"),
            pace("two, DDP", gpus=2, global_batch_size=batch, strategy="ddp"),
            pace("two, DataParallel", gpus=2, global_batch_size=batch, strategy="data_parallel"),
        ]
    panels[next(iter(panels))].append(pace("two, a model each", gpus=2, global_batch_size=256, strategy="independent"))
    return panels


def second_gpu_by_precision() -> Mapping[str, Sequence[Line]]:
    """E1: the speed-up of two GPUs over one at the same global batch, by that batch and by the way of driving them."""
    cells = Cells("batch_vs_tpu_grid")
    published = {
        "cnn10": [(128, 11.68 / 14.22), (256, 11.1 / 11.3), (512, 1.0), (1024, 10.35 / 10.33)],
        "wrn28_10": [(128, 114 / 135)],
    }

    def line(label: str, **wanted: Any) -> Line:
        return cells.line(label, "global_batch_size", "speedup", gpus=2, **wanted)

    shown = {
        "10-layer CNN, fp32": ("cnn10", "fp32"),
        "10-layer CNN, bf16": ("cnn10", "bf16"),
        "WRN-28-10, bf16": ("wrn28_10", "bf16"),
    }
    return {
        f"{title}: two H200 against one": [
            *(
                line(label, model=model, trainable__precision=precision, strategy=strategy)
                for label, strategy in WAYS.items()
            ),
            Line(label="the post", points=published[model], published=True),
        ]
        for title, (model, precision) in shown.items()
    }


def recipe() -> Mapping[str, Sequence[Bar]]:
    """E1: the test accuracy of the CNN after the published 100 epochs, on one GPU."""
    cells = Cells("batch_vs_tpu_recipe_merged")
    published = {128: 0.8960, 256: 0.8940, 512: 0.8849, 1024: 0.8597}
    bars: list[Bar] = []
    for batch in (128, 256, 512, 1024, 2048):
        if batch in published:
            bars.append(Bar(label=f"published: {batch}", value=published[batch], published=True))
        bars.append(cells.bar(f"batch {batch:,}", "accuracy", gpus=1, global_batch_size=batch))
    return {"10-layer CNN, 100 epochs, linear rule: test accuracy": bars}


def rules() -> Mapping[str, Sequence[Line]]:
    """E1: the test accuracy after 100 epochs by batch and learning-rate rule, on one GPU."""
    cells = Cells("batch_vs_tpu_rules")
    at_128 = cells.line("", "global_batch_size", "accuracy", global_batch_size=128).points

    def line(label: str, rule: str, warmup_epochs: int = 0) -> Line:
        points = cells.line(
            label, "global_batch_size", "accuracy", lr_rule=rule, warmup_epochs=warmup_epochs, gpus=1
        ).points
        return Line(label=label, points=sorted({*at_128, *points}))

    return {
        "10-layer CNN, 100 epochs: test accuracy by learning-rate rule": [
            line("unchanged", "none"),
            line("linear, 5 epochs of warm-up", "linear", 5),
            line("square root", "sqrt"),
            line("linear", "linear"),
        ]
    }


def input_pipeline() -> Mapping[str, Sequence[Bar]]:
    """E2: distinct samples a second, by the way in which they reach the GPUs."""
    cells = Cells("input_pipeline")
    ways = {
        "same_batch": "the same batch for all",
        "shared_loader": "one loader for all",
        "loader": "a loader each",
        "resident": "data on the GPUs",
    }
    return {
        "H200s at batch 128 each, distinct samples, 1,000/s": [
            cells.bar(f"{label}: {gpus}", "samples_per_s", 1e-3, gpus=gpus, trainable__input=way, device_batch_size=128)
            for way, label in ways.items()
            for gpus in (1, 2, 4)
        ],
        "published, four TITAN X, 1,000/s": [
            Bar(label="one GPU", value=0.758, published=True),
            Bar(label="four, as counted", value=2.593, published=True),
            Bar(label="four, distinct", value=0.648, published=True),
        ],
    }


BARS, LOGARITHMIC, POINTS = "bars", "logarithmic bars", "points"

BARS_AND_POINTS: Mapping[str, tuple[Callable[[], Mapping[str, Sequence[Bar]]], str]] = {
    "unequal_pair": (unequal_pair, BARS),
    "batch_vs_tpu": (batch_vs_tpu, BARS),
    "recipe": (recipe, POINTS),  # from .82 on: bars would have to begin at 0
    "input_pipeline": (input_pipeline, BARS),
    "conv2d": (conv2d, LOGARITHMIC),
}
"""By the picture's name what it shows, and how."""


LINES: Mapping[str, Lines] = {
    "second_gpu": Lines(panels=second_gpu, along="global batch"),
    "second_gpu_by_precision": Lines(panels=second_gpu_by_precision, along="global batch"),
    "data_parallel": Lines(panels=data_parallel, along="batch for each GPU"),
    "rules": Lines(panels=rules, along="global batch", between=(0.815, 0.9), guide=None, legend="lower left"),
}
"""By the picture's name what it shows."""


@contextmanager
def _plot(name: str, titles: Sequence[str], *, width: float, height: float) -> Iterator[Sequence[Axes]]:
    """Yield panels side by side, of this size in inches each; save them at the end of the block."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * len(titles), height), layout="constrained")
        panels = [figure.add_subplot(1, len(titles), place) for place in range(1, len(titles) + 1)]
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=9, loc="left")
            axes.spines[["top", "right"]].set_visible(False)
        yield panels
        figure.savefig(PLOTS / f"findings_{name}.svg", metadata={"Date": None, "Creator": None})


def draw_bars(name: str, panels: Mapping[str, Sequence[Bar]], *, look: str) -> None:
    """Horizontal bars, or points."""
    height = 0.7 + 0.27 * max(map(len, panels.values()))
    with _plot(name, list(panels), width=5.6, height=height) as drawn:
        for axes, bars in zip(drawn, panels.values(), strict=True):
            values = [bar.value for bar in bars]
            errors = [[max(0.0, bar.value - bar.lo) for bar in bars], [max(0.0, bar.hi - bar.value) for bar in bars]]
            colours = [PUBLISHED if bar.published else MEASURED for bar in bars]
            if look == POINTS:
                axes.scatter(values, range(len(bars)), color=colours, zorder=3)
                axes.errorbar(values, range(len(bars)), xerr=errors, fmt="none", ecolor="black", elinewidth=1.2)
            else:
                axes.barh(range(len(bars)), values, color=colours, xerr=errors, error_kw={"elinewidth": 1.2})
            for row, bar in enumerate(bars):
                end = bar.hi if bar.hi == bar.hi else bar.value
                text = f"{bar.value:,.0f}" if bar.value >= 100 else f"{bar.value:#.3g}"
                axes.annotate(text, (end, row), xytext=(4, 0), textcoords="offset points", va="center")
            axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
            axes.invert_yaxis()
            if look == LOGARITHMIC:
                axes.set_xscale("log")
            axes.margins(x=0.16)


def draw_lines(name: str, plot: Lines) -> None:
    """A line for each way of training; published figures as points."""
    panels = plot.panels()
    with _plot(name, list(panels), width=min(7, 11.2 / len(panels)), height=3.2) as drawn:
        for axes, lines in zip(drawn, panels.values(), strict=True):
            if plot.guide is not None:
                axes.axhline(plot.guide, color=PUBLISHED, linewidth=0.8)
            for place, line in enumerate(lines):
                xs, ys = zip(*line.points, strict=True)
                look: dict[str, Any] = {"color": COLOURS[place], "dashes": DASHES[place]}
                if line.published:
                    look = {"color": PUBLISHED, "linestyle": "none"}
                axes.plot(xs, ys, marker=MARKERS[place], markersize=4, label=line.label, **look)
            batches = sorted({batch for line in lines for batch, _ in line.points})
            axes.set_xscale("log", base=2)
            axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
            axes.minorticks_off()
            axes.set_ylim(*plot.between)
            axes.set_xlabel(plot.along)
            axes.legend(frameon=False, loc=plot.legend)


def main() -> None:
    """Draw all of them."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, (panels, look) in BARS_AND_POINTS.items():
        draw_bars(name, panels(), look=look)
    for name, plot in LINES.items():
        draw_lines(name, plot)


if __name__ == "__main__":
    main()

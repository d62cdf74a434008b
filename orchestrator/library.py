"""The Python API: plan, run and load sweeps in a program or a notebook.

`from orchestrator import load_results, plan_sweep, run_sweep`; docs/how-to/library.md has examples.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.config.commands import program
from orchestrator.config.overrides import overrides_of
from orchestrator.config.request import RUNNING, VAL_ACCURACY, Metric
from orchestrator.store import curve_file
from orchestrator.store.files import read_regular
from orchestrator.store.results import cell_to_use, read_results
from orchestrator.store.results_folder import JOURNAL, METRICS, TRACE, ResultsFolder, results_below
from sweeps.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.config.checked_sweep import CheckedSweep
    from orchestrator.report.plot import Plot

_FIRST = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", "lr_multiplier", "lr", "seed")
_THEN = (
    "status",
    "n_ok",
    "efficiency",
    "epoch_s",
    "samples_per_s",
    "val_accuracy",
    "accuracy",
    "accuracy_verdict",
    "timing_valid",
)
"""Columns of frames in the order of their importance: what a row is, then what was found. The others follow."""


class Markdown(str):
    """A text that a REPL shows as it is, and a notebook as Markdown."""

    def __repr__(self) -> str:
        """Return the text itself."""
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


class Values(dict[str, Any]):
    """The settings of a cell, or a trial's row, by name; the names are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        """Return a value. Raises AttributeError with the existing names."""
        if name in self:
            return self[name]
        raise AttributeError(f"{name!r} is not one of {', '.join(self)}")

    def __missing__(self, name: str) -> Any:
        """Raise KeyError with the existing names."""
        raise KeyError(f"{name!r} is not one of {', '.join(self)}")


@dataclass(frozen=True)
class NotebookPlot:
    """One plot of the report; a notebook displays it."""

    plot: Plot

    @cached_property
    def svg(self) -> str:
        """The plot as SVG."""
        from orchestrator.report.plot import svg

        return svg(self.plot)

    def save(self, path: str | Path) -> Path:
        """Write the plot to a file whose name ends in `.svg` or `.png`. Raises ValueError for other names."""
        from orchestrator.report.plot import png

        target = Path(path).expanduser()
        if target.suffix not in (".svg", ".png"):
            raise ValueError(f"{path}: plots are saved as .svg or .png")
        drawing = self.svg
        target.write_bytes(drawing.encode(errors="replace") if target.suffix == ".svg" else png(drawing))
        return target

    def __repr__(self) -> str:
        """Return name, title and what can be done with it."""
        return f"NotebookPlot({self.plot.name}: {self.plot.title}; .save('{self.plot.name}.png'), .svg)"

    def _repr_html_(self) -> str:
        """Return an `<img>` element: unlike an inline SVG it cannot change the notebook's styles."""
        # As data, so that a notebook shows it wherever it is opened.
        data = base64.b64encode(self.svg.encode(errors="replace")).decode()
        return f'<img alt="{html.escape(self.plot.title)}" src="data:image/svg+xml;base64,{data}">'


class NotebookPlots(dict[str, NotebookPlot]):
    """The report's plots by name (`speedup`, `accuracy`, `loss`, …), in its order; a notebook displays all of them."""

    @staticmethod
    def of(folder: ResultsFolder) -> NotebookPlots:
        """Read the plots of the last report. Raises FileNotFoundError if there is none (`report.html=false`)."""
        from orchestrator.report.page import plots_in

        if not folder.page.is_file():
            raise FileNotFoundError(f"there is no {folder.page}: no trial has ended yet, or report.html=false")
        return NotebookPlots({plot.name: NotebookPlot(plot) for plot in plots_in(folder.page.read_text())})

    def __repr__(self) -> str:
        """Return the names, for a REPL that shows no pictures."""
        return f"NotebookPlots({', '.join(self)})"

    def __missing__(self, name: str) -> NotebookPlot:
        """Raise KeyError with the existing names."""
        raise KeyError(f"{name!r} is not one of {', '.join(self)}")

    def _repr_html_(self) -> str:
        """Return the plots one below the other."""
        return "\n".join(f"<p>{plot._repr_html_()}</p>" for plot in self.values())


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """The results of a sweep in a folder. Each access reads the files again, so the results of a running sweep grow.

    Attributes and methods raise FileNotFoundError if their file does not exist, for example because no trial has ended.
    """

    folder: Path  # `<results_dir>/<sweep name>`
    exit_status: int | None = None
    """0 if every planned trial has a result, 1 if some failed or a budget ran out; None for loaded results."""

    def __str__(self) -> str:
        """Return the recommendation with its table as plain text; before there is one, the folder."""
        table = ResultsFolder(self.folder).table("recommendation.md")
        if not table.is_file():
            return repr(self)
        from rich.console import Console
        from rich.markdown import Markdown as RichMarkdown

        from orchestrator.tables.terminal import UNLIMITED

        _, _, below_title = table.read_text(encoding="utf-8").partition("\n")
        # The reader's terminal wraps the lines, so that a command can be copied.
        plain = io.StringIO()
        Console(file=plain, width=UNLIMITED, color_system=None).print(RichMarkdown(below_title))
        return "\n".join(line.rstrip() for line in plain.getvalue().splitlines())

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with where else the name is, or with the existing names."""
        if name.startswith("_"):  # Python itself asks for these, also before there is a folder
            raise AttributeError(name)
        from orchestrator.cli.status import recommendation_in

        known = ", ".join(key for key in dir(self) if key[:1] != "_")
        is_there = name in recommendation_in(ResultsFolder(self.folder))
        hint = f"results.recommendation[{name!r}] has it" if is_there else f"there are {known}"
        raise AttributeError(f"SweepResults has no {name!r}: {hint}")

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial, as in `tables/trials.parquet`; the cell's label and important columns first.

        Units are in the names of the columns (`wall_s`).
        """
        return self._table("trials")

    @property
    def summary(self) -> pd.DataFrame:
        """One row per cell (trials that differ only by seed): the columns of `tables/summary.csv`, the label first.

        The cells with the shortest epochs come first, and those without a time last. `_lo` and `_hi` bound 95%
        intervals. A missing value means not measured. `speedup` is the scaling: the throughput over
        that of the fewest GPUs at the same batch. It and the efficiency are missing unless the timings of the cell and
        its baseline are valid. The speed-up of the answer, over one baseline for all cells, is in `recommendation`.
        """
        from orchestrator.decision.eligibility import speeds_known

        cells = self._table("summary").sort_values("epoch_s", kind="stable", ignore_index=True)
        relative = [column for column in cells.columns if column.startswith(("speedup", "efficiency"))]
        return cells.assign(**{column: cells[column].where(speeds_known(cells)) for column in relative})

    @property
    def recommendation(self) -> dict[str, Any]:
        """The recommendation, as in `tables/recommendation.json`; `recommended` is None without a recommendation."""
        return dict(json.loads(self._existing("recommendation.json").read_text()))

    @property
    def verdict(self) -> str | None:
        """`clear`, `speed only`, `tied` or `undecided`; None without an objective."""
        verdict: str | None = self.recommendation["verdict"]
        return verdict

    def report(self, *, show: bool = False) -> Path:
        """Return the path of report.html; with `show`, open it in a browser, too."""
        page = ResultsFolder(self.folder).page
        if not page.is_file():
            raise FileNotFoundError(f"there is no {page}: no trial has ended yet, or report.html=false")
        if show:
            webbrowser.open(page.absolute().as_uri())
        return page

    @property
    def best(self) -> Values:
        """The settings of the cell to use now: `best["gpus"]` or `best.gpus`, both sides of the batch, `lr` ….

        Raises LookupError with the verdict and its reason unless a cell is recommended.
        """
        if cell := cell_to_use(self.recommendation):
            return Values(cell["values"])
        words = [self.verdict.upper()] if self.verdict else []
        raise LookupError(f"no cell is recommended: {' '.join([*words, self.recommendation['sentence']])}")

    def trial(self, trial_id: str) -> Values:
        """Return a trial's row of `trials` as a dictionary whose keys are attributes, too.

        The start of its id is enough. Raises LookupError unless one trial has it.
        """
        trials = self.trials
        rows = trials[trials["trial_id"].str.startswith(trial_id)].to_dict("records")
        if len(rows) != 1:
            raise LookupError(f"{len(rows)} trials have an id that begins with {trial_id!r}")
        return Values({str(column): value for column, value in rows[0].items()})

    def logs(self, trial_id: str) -> dict[str, str]:
        """Return the logs of a trial as {file name: text}, and its traceback if it failed, by the start of its id."""
        folder = ResultsFolder(self.folder).trial(self.trial(trial_id)["trial_id"])
        files = [*sorted(folder.glob("*.log")), folder / TRACE]
        return {file.name: read_regular(file).decode(errors="replace") for file in files if file.is_file()}

    def curves(self) -> pd.DataFrame:
        """Return the learning curves of all trials but repetitions, one row per epoch.

        The columns are `trial_id`, the axes of trials that have ended, and what trials reported. While a finished trial
        runs again, its curve belongs to the attempt that has the row in `trials`.
        """
        import pandas as pd

        folder = ResultsFolder(self.folder)
        history = read_results(folder).history
        # The curve of a trial that runs again belongs to an attempt that does not count yet.
        folder = replace(folder, set_aside=history.set_aside)
        axes = {trial_id: row.axes for trial_id, row in history.all_ends.items()}
        with_curve = sorted(path.parent.name for path in folder.trials.glob(f"*/{METRICS}"))
        trials = [trial_id for trial_id in with_curve if not history.of(trial_id).measures]
        rows = ((trial_id, row) for trial_id in trials for row in curve_file.read(folder.metrics(trial_id))[0])
        return pd.DataFrame([{"trial_id": trial_id, **axes.get(trial_id, {}), **row} for trial_id, row in rows])

    def markdown(self, name: str) -> Markdown:
        """Return a table as Markdown: `speedup`, `accuracy`, `recommendation`, or another file of `tables/`."""
        return Markdown(self._existing(f"{name}.md").read_text())

    @property
    def plots(self) -> NotebookPlots:
        """The report's plots by name (`speedup`, `accuracy`, `loss`, …), which a notebook displays.

        `results.plots["speedup"].save("speedup.png")` writes one to a file.
        """
        return NotebookPlots.of(ResultsFolder(self.folder))

    def compare(self, other: SweepResults | str | Path) -> Markdown:
        """Return the comparison with other results, or those in a folder, that `mode=compare` prints, as Markdown.

        It lists differences of the configs, then each cell that both have, with the ratio of throughputs, the
        difference of the metric of choice and their 95% intervals. Cells are matched by their axes.
        """
        from orchestrator.tables.compare import comparison_of

        other = other if isinstance(other, SweepResults) else load_results(other)
        this, that = ((results.trials, results.summary) for results in (self, other))
        decided = ResultsFolder(self.folder).table("recommendation.json").is_file()
        # The margin has the metric of choice as its key: the request itself is not among the tables.
        compared = [name for name in self.recommendation["margin"] if name != "tie"] if decided else []
        metric = Metric.named(compared[0]) if compared else VAL_ACCURACY
        return Markdown(comparison_of(this, that, (self.folder, other.folder), metric))

    def __repr__(self) -> str:
        """Return the folder, the verdict and the recommended cell."""
        try:
            recommendation = self.recommendation
        except FileNotFoundError:
            return f"SweepResults({str(self.folder)!r}: no recommendation yet)"
        verdict = f"{recommendation['verdict']}: " if recommendation["verdict"] else ""
        return f"SweepResults({str(self.folder)!r}: {verdict.upper()}{recommendation['sentence']})"

    def _repr_markdown_(self) -> str:
        """Return what a notebook displays: the recommendation, if there is one, and the scaling."""
        there = [
            name for name in ("recommendation", "speedup") if ResultsFolder(self.folder).table(f"{name}.md").is_file()
        ]
        return "\n\n".join(map(self.markdown, there or ["speedup"]))

    def _table(self, name: str) -> pd.DataFrame:
        import pandas as pd

        from orchestrator.text.cell_labels import cell_label, varying

        cells, frame = (pd.read_parquet(self._existing(f"{table}.parquet")) for table in ("summary", name))
        differing = varying(cells)
        labels = {row["cell_id"]: cell_label(row, differing) for row in cells.to_dict("records")}
        columns = [str(column) for column in frame.columns]
        axes = [column for column in columns if "." in column]  # over config keys
        first = [column for column in (*_FIRST, *axes, *_THEN) if column in columns]
        others = [column for column in columns if column not in first]
        return frame.assign(cell=frame["cell_id"].map(labels))[["cell", *first, *others]]

    def _existing(self, name: str) -> Path:
        folder = ResultsFolder(self.folder)
        path = folder.table(name)
        if not path.is_file():
            others = sorted(table.stem for table in path.parent.glob(f"*{path.suffix}"))
            none = "this is not the folder of a sweep"
            if folder.journal.is_file():
                none = f"{program()} mode=report results_dir={self.folder} writes it, once a trial has ended"
            hint = f"existing tables: {', '.join(others)}" if others else none
            raise FileNotFoundError(f"there is no {path}: {hint}")
        return path


def run_sweep(
    config: Mapping[str, Any] | str | None = None,
    *overrides: str,
    config_dir: str | Path | None = None,
    quiet: bool = False,
) -> SweepResults:
    """Run or continue a sweep, as the command line does, and return its results.

    `config` is a mapping (also OmegaConf's), nested or with dotted keys: `{"sweep": "batch_scaling",
    "sweep.axes.gpus": [1, 2], "budget": {"epochs": 3}}`; or one override as text. A section `trainable`, `model`,
    `data`, `optimizer` or `schedule` with its `name` (`_target_` for the trainable) replaces the default section; any
    other section is merged. Or `config` is the name of a sweep: `run_sweep("batch_scaling")`. `overrides` are those of
    the command line and come last. `config_dir` is a folder with your configs. `quiet` prints nothing.

    Raises ConfigError with all errors of the request before anything starts. Failed trials raise nothing: they are
    rows, and `exit_status` is 1. Call it in the main thread, because it handles Ctrl-C.
    """
    from orchestrator.cli.modes import MODES
    from orchestrator.cli.streams import lasting_stdout

    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere) if quiet else lasting_stdout(),
        _configured(config, overrides, config_dir) as configured,
    ):
        mode, folder = configured.request.settings.mode, configured.request.results_dir
        if mode not in (*RUNNING, "report"):
            raise ConfigError([f"mode={mode}: run_sweep takes mode={', '.join(RUNNING)} and report; plan_sweep plans"])
        return SweepResults(exit_status=MODES[mode](configured), folder=folder)


def plan_sweep(
    config: Mapping[str, Any] | str | None = None, *overrides: str, config_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return what `run_sweep` would run with the same arguments, one row per trial; start and write nothing.

    Columns: `trial_id`, `state` (`to run`, `infeasible`, `finished: ok` …), the axes, what follows from them (`lr`,
    `global_batch_size`, `ranks` …), `start_s` and `expected_s` in seconds if finished trials allow an estimate, and
    `note`. The frame's `attrs["remarks"]` has remarks on the sweep. Raises ConfigError like `run_sweep`.
    """
    import pandas as pd

    from orchestrator.plan import printout
    from orchestrator.plan.plan import plan_now

    with _configured(config, [*overrides, "mode=plan"], config_dir) as configured:
        plan = plan_now(configured)
    frame = pd.DataFrame(
        [{"trial_id": row["trial_id"], "state": row["state"], **row.pop("axes"), **row} for row in printout.rows(plan)]
    )
    frame.attrs["remarks"] = list(configured.remarks)
    return frame


def load_results(folder: str | Path) -> SweepResults:
    """Load the results in `<results_dir>/<sweep name>`; a sweep's name alone means its folder in `results/`.

    Raises FileNotFoundError if it has no journal.
    """
    # The name as in `sweep=NAME` is what a user has at hand, and the default folder is known.
    path = Path(folder).expanduser()
    if not ResultsFolder(path).journal.is_file() and ResultsFolder("results" / path).journal.is_file():
        path = "results" / path
    if not ResultsFolder(path).journal.is_file():
        others = next(filter(None, map(results_below, (path, path.parent, Path("results")))), [])
        existing = f"; there are {', '.join(others)}" if others else ""
        nor = "" if path.is_absolute() else f", nor has {Path('results', path)}"
        raise FileNotFoundError(f"{path.absolute()} has no {JOURNAL}{nor}{existing}")
    return SweepResults(folder=path)


@contextmanager
def _configured(
    config: Mapping[str, Any] | str | None, overrides: Sequence[str], config_dir: str | Path | None
) -> Iterator[CheckedSweep]:
    """Yield the composed and checked sweep; afterwards the state of the program's Hydra is restored.

    Hydra makes no output folder. Raises ConfigError, and TypeError if `config` is neither a mapping nor text.
    """
    from orchestrator.cli.sweep_checks import checked, composed
    from orchestrator.config.compose import initialised
    from orchestrator.config.overrides import rewritten, with_search_path
    from orchestrator.config.synonyms import given_in

    if not isinstance(config, Mapping | str | None):
        raise TypeError(f"config must be a mapping, or overrides as one string each; not {config!r}")
    # A name without = can only be a sweep's.
    given = [config if "=" in config else f"sweep={config}"] if isinstance(config, str) else []
    texts, sections = overrides_of(config) if isinstance(config, Mapping) else ([], {})
    folder = str(Path(config_dir).absolute()) if config_dir is not None else None
    # A notebook may use Hydra itself: its global state must be as before.
    with initialised():
        arguments = [*texts, *given, *overrides]
        with given_in(arguments):
            sweep = checked(composed(with_search_path(rewritten(arguments), folder), sections))
        yield sweep


__all__ = ["ConfigError", "SweepResults", "load_results", "plan_sweep", "run_sweep"]

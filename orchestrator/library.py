"""Sweeps from within a program or a notebook: `from orchestrator import plan_sweep, run_sweep, load_results`.

The report's pictures, as a notebook shows them at the end of a cell.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.overrides import overrides_of
from orchestrator.store import trial_files
from orchestrator.store.history import read_results
from orchestrator.store.layout import JOURNAL, METRICS, Layout, results_below
from sweeps.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.cli.configured_sweep import ConfiguredSweep

_IN_DOCUMENT = re.compile(r"!\[(?P<title>[^\]]*)\]\([^)]*?(?P<name>\w+)\.png\)")


@dataclass(frozen=True, kw_only=True)
class NotebookPicture:
    """One picture; `svg` is the file's content."""

    name: str
    title: str
    svg: str

    def _repr_html_(self) -> str:
        """As an image of its own, so that no style of it reaches the notebook."""
        data = base64.b64encode(self.svg.encode()).decode()
        return f'<img alt="{html.escape(self.title)}" src="data:image/svg+xml;base64,{data}">'


class NotebookPlots(Mapping[str, NotebookPicture]):
    """By name (`speedup`, `accuracy`, `loss`, …), in the report's order; shows all of them."""

    def __init__(self, plots: Mapping[str, NotebookPicture]) -> None:
        self._plots = dict(plots)

    @staticmethod
    def of(layout: Layout) -> NotebookPlots:
        """The pictures of the last report; FileNotFoundError where a sweep has none (`report.html=false`)."""
        if not layout.document.is_file():
            raise FileNotFoundError(f"there is no {layout.document}: no trial has ended yet, or report.html=false")
        found = [(each["name"], each["title"]) for each in _IN_DOCUMENT.finditer(layout.document.read_text())]
        files = {name: (title, Path(layout.plots / f"{name}.svg")) for name, title in found}
        return NotebookPlots(
            {
                name: NotebookPicture(name=name, title=title, svg=file.read_text())
                for name, (title, file) in files.items()
                if file.is_file()
            }
        )

    def __getitem__(self, name: str) -> NotebookPicture:
        """KeyError names what there is."""
        if name not in self._plots:
            raise KeyError(f"{name!r} is not one of {', '.join(self._plots)}")
        return self._plots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plots)

    def __len__(self) -> int:
        return len(self._plots)

    def _repr_html_(self) -> str:
        """One below the other."""
        return "\n".join(f"<p>{plot._repr_html_()}</p>" for plot in self._plots.values())


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """The contents of a results folder; each frame is read from disk on access."""

    folder: Path
    """`<results_dir>/<sweep name>`."""
    exit_status: int | None = None
    """As on the command line: 0 if every planned trial has a result, 1 if some failed; None for loaded results."""

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial, as in `tables/trials.parquet`."""
        return self._table("trials")

    @property
    def summary(self) -> pd.DataFrame:
        """One row per cell (trials that differ only by seed), as in `tables/summary.parquet`."""
        return self._table("summary")

    @property
    def recommendation(self) -> dict[str, Any]:
        """The decision, as in `tables/recommendation.json`; `recommended` is None if there is nothing to choose."""
        return dict(json.loads(self._existing("recommendation.json").read_text()))

    def curves(self) -> pd.DataFrame:
        """The learning curves of all trials, one row per epoch: `trial_id` and the columns that the trials reported.

        While a finished trial runs again, its curve is that of the attempt that its row is of.
        """
        import pandas as pd

        layout = Layout(self.folder)
        layout = replace(layout, set_aside=read_results(layout).set_aside)
        trials = sorted(path.parent.name for path in layout.trials.glob(f"*/{METRICS}"))
        rows = ((trial_id, row) for trial_id in trials for row in trial_files.read(layout.metrics(trial_id))[0])
        return pd.DataFrame([{"trial_id": trial_id, **row} for trial_id, row in rows])

    def markdown(self, name: str) -> str:
        """A table as Markdown: `speedup`, `accuracy` or `recommendation`."""
        return self._existing(f"{name}.md").read_text()

    def plots(self) -> NotebookPlots:
        """The report's pictures by name (`speedup`, `accuracy`, `loss`, …); a notebook shows them as pictures."""
        return NotebookPlots.of(Layout(self.folder))

    def compare(self, other: SweepResults) -> str:
        """Which cells changed from `other`'s results to these, by how much and with what intervals, as Markdown.

        As `mode=compare` prints it: cells are matched by their axes, and what the two sweeps were asked differently
        is told first.
        """
        from orchestrator.tables.compare import comparison_of

        this, that = ((each.trials, each.summary) for each in (self, other))
        return comparison_of(this, that, (self.folder, other.folder))

    def _repr_markdown_(self) -> str:
        """What a notebook displays: the decision, if there is one, and the figures behind it."""
        there = [name for name in ("recommendation", "speedup") if Layout(self.folder).table(f"{name}.md").is_file()]
        return "\n\n".join(map(self.markdown, there or ["speedup"]))

    def _table(self, name: str) -> pd.DataFrame:
        import pandas as pd

        return pd.read_parquet(self._existing(f"{name}.parquet"))

    def _existing(self, name: str) -> Path:
        path = Layout(self.folder).table(name)
        if not path.is_file():
            others = sorted(each.stem for each in path.parent.glob(f"*{path.suffix}"))
            none = "no trial has ended yet, or it is not a sweep's folder"
            hint = f"there are {', '.join(others)}" if others else none
            raise FileNotFoundError(f"there is no {path}: {hint}")
        return path


def run_sweep(
    config: Mapping[str, Any] | str | None = None,
    *overrides: str,
    config_dir: str | Path | None = None,
    quiet: bool = False,
) -> SweepResults:
    """Run or continue a sweep, as the command line does, and return its results.

    `config` is a mapping (OmegaConf's too), nested or with dotted keys: `{"sweep": "batch_scaling", "sweep.axes.gpus":
    [1, 2], "budget": {"epochs": 3}}`. A section `trainable`, `model`, `data`, `optimizer` or `schedule` that has its
    `name` (`_target_` for the trainable) is taken as a whole; any other is merged. `overrides` are as on the command
    line, and come last. `config_dir` is a folder of configs of your own. With `quiet` nothing is printed.

    Raises ConfigError with everything that is wrong with the request, before anything starts; failed trials are rows,
    and make an `exit_status` of 1. Must be called in the main thread, because Ctrl-C is to end the sweep in order.
    """
    from orchestrator.cli.modes import MODES

    with _silence(quiet), _configured(config, overrides, config_dir) as configured:
        mode, folder = configured.request.mode, configured.request.results_dir
        if mode not in ("run", "report"):
            raise ConfigError([f"mode={mode}: a program can run a sweep or report on one; plan_sweep plans it"])
        return SweepResults(exit_status=MODES[mode](configured), folder=folder)


def plan_sweep(
    config: Mapping[str, Any] | str | None = None, *overrides: str, config_dir: str | Path | None = None
) -> pd.DataFrame:
    """What `run_sweep` would run with the same arguments, one row per trial; starts and writes nothing.

    Columns: `trial_id`, `state` (`to run`, `infeasible`, `finished: ok` …), the axes, what follows from them (`lr`,
    `global_batch_size`, `ranks` …), `start_s` and `expected_s` if finished trials allow an estimate, and `note`. What
    is worth knowing beforehand is in the frame's `attrs["remarks"]`. Raises ConfigError as `run_sweep` does.
    """
    import pandas as pd

    from orchestrator.plan import printout
    from orchestrator.plan.plan import plan_now

    with _configured(config, [*overrides, "mode=plan"], config_dir) as configured:
        plan = plan_now(configured.request, configured.fingerprint(), configured.trials_on)
    frame = pd.DataFrame(
        [{"trial_id": row["trial_id"], "state": row["state"], **row.pop("axes"), **row} for row in printout.rows(plan)]
    )
    frame.attrs["remarks"] = list(configured.remarks)
    return frame


def load_results(folder: str | Path) -> SweepResults:
    """Load the results in `<results_dir>/<sweep name>`; runs nothing. Raises FileNotFoundError if there are none."""
    path = Path(folder).expanduser()
    if not Layout(path).journal.is_file():
        inside = results_below(path)
        meant = f"; did you mean {' or '.join(inside)}?" if inside else ""
        raise FileNotFoundError(f"{path} has no {JOURNAL}{meant}")
    return SweepResults(folder=path)


@contextmanager
def _configured(
    config: Mapping[str, Any] | str | None, overrides: Sequence[str], config_dir: str | Path | None
) -> Iterator[ConfiguredSweep]:
    """The checked sweep, in a context of its own: the state of a Hydra that the program itself uses is restored.

    Hydra's output folder is not made. Raises ConfigError, and TypeError if `config` is not a config.
    """
    from orchestrator.cli.request_checks import checked, composed
    from orchestrator.config.compose import rewritten
    from orchestrator.config.search_path import initialised, with_search_path

    if not isinstance(config, Mapping | str | None):
        raise TypeError(f"config must be a mapping, or overrides as one string each; not {config!r}")
    given = [config] if isinstance(config, str) else []
    texts, sections = overrides_of(config) if isinstance(config, Mapping) else ([], {})
    folder = str(Path(config_dir).absolute()) if config_dir is not None else None
    with initialised():
        yield checked(composed(with_search_path(rewritten([*texts, *given, *overrides]), folder), sections))


@contextmanager
def _silence(quiet: bool) -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere) if quiet else nullcontext():
        yield


__all__ = ["ConfigError", "SweepResults", "load_results", "plan_sweep", "run_sweep"]

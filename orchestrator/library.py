"""Sweeps from within a program or a notebook: `from orchestrator import plan_sweep, run_sweep, load_results`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.override_text import overrides_of
from orchestrator.notebook_pictures import NotebookPictures
from orchestrator.storage import curve
from orchestrator.storage.layout import JOURNAL, METRICS, Layout, results_below
from sweeps.mistakes import MistakesError

if TYPE_CHECKING:
    import pandas as pd


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
        """The learning curves of all trials, one row per epoch: `trial_id` and the columns that the trials reported."""
        import pandas as pd

        paths = sorted(Layout(self.folder).trials.glob(f"*/{METRICS}"))
        return pd.DataFrame([{"trial_id": path.parent.name, **row} for path in paths for row in curve.read(path)[0]])

    def markdown(self, name: str) -> str:
        """A table as Markdown: `speedup`, `accuracy` or `recommendation`."""
        return self._existing(f"{name}.md").read_text()

    def pictures(self) -> NotebookPictures:
        """The report's pictures by name (`speedup`, `accuracy`, `loss`, …); a notebook shows them as pictures."""
        return NotebookPictures.of(Layout(self.folder))

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

    Raises MistakesError with everything that is wrong with the request, before anything starts; failed trials are rows,
    and make an `exit_status` of 1. Must be called in the main thread, because Ctrl-C is to end the sweep in order.
    """
    from orchestrator.command_line.program import sweep

    texts, sections, folder = _asked(config, overrides, config_dir)
    status, results = sweep(texts, folder=folder, sections=sections, quiet=quiet)
    return SweepResults(folder=results, exit_status=status)


def _asked(
    config: Mapping[str, Any] | str | None, overrides: Sequence[str], config_dir: str | Path | None
) -> tuple[list[str], Mapping[str, Mapping[str, Any]], str | None]:
    """The request as overrides, whole sections and a config folder. Raises TypeError if `config` is not a config."""
    if not isinstance(config, Mapping | str | None):
        raise TypeError(f"config must be a mapping, or overrides as one string each; not {config!r}")
    given = [config] if isinstance(config, str) else []
    texts, sections = overrides_of(config) if isinstance(config, Mapping) else ([], {})
    folder = str(Path(config_dir).absolute()) if config_dir is not None else None
    return [*texts, *given, *overrides], sections, folder


def plan_sweep(
    config: Mapping[str, Any] | str | None = None, *overrides: str, config_dir: str | Path | None = None
) -> pd.DataFrame:
    """What `run_sweep` would run with the same arguments, one row per trial; starts and writes nothing.

    Columns: `trial_id`, `state` (`to run`, `infeasible`, `finished: ok` …), the axes, what follows from them (`lr`,
    `global_batch_size`, `ranks` …), `start_s` and `expected_s` if finished trials allow an estimate, and `note`. What
    is worth knowing beforehand is in the frame's `attrs["remarks"]`. Raises MistakesError as `run_sweep` does.
    """
    import pandas as pd

    from orchestrator.command_line.program import planned

    texts, sections, folder = _asked(config, overrides, config_dir)
    trials, remarks = planned(texts, folder=folder, sections=sections)
    frame = pd.DataFrame(
        [{"trial_id": row["trial_id"], "state": row["state"], **row.pop("axes"), **row} for row in trials]
    )
    frame.attrs["remarks"] = list(remarks)
    return frame


def load_results(folder: str | Path) -> SweepResults:
    """Load the results in `<results_dir>/<sweep name>`; runs nothing. Raises FileNotFoundError if there are none."""
    path = Path(folder).expanduser()
    if not Layout(path).journal.is_file():
        inside = results_below(path)
        meant = f"; did you mean {' or '.join(inside)}?" if inside else ""
        raise FileNotFoundError(f"{path} has no {JOURNAL}{meant}")
    return SweepResults(folder=path)


__all__ = ["MistakesError", "SweepResults", "load_results", "plan_sweep", "run_sweep"]

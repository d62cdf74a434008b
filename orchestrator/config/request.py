"""The user's request as a value: the part of a composed config that says what to do, and the terms of the choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from orchestrator.config.schema import value_at
from orchestrator.config.settings import ReportSection, Settings, read
from orchestrator.store.cloud import is_uri
from sweeps.axes import Axes
from sweeps.metric import Target, column_of, is_higher_better
from sweeps.rerun_selection import Rerun

if TYPE_CHECKING:
    import pandas as pd

AUTO_GPUS = "auto"  # the value of the axis `gpus` that stands for 1, 2, 4 … up to all GPUs


RUNNING = ("run", "settle")
"""Modes that run trials; `settle` also runs further seeds until the verdict is clear."""

READING = ("report", "compare", "status", "verify", "watch")
"""Modes that only read results; they do not check that trials could run here."""


JSON = ("plan", "forecast", "status", "list")
"""Modes that print one JSON object with `format=json`."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A validation metric that trials report; a score is the metric with a sign, so that higher is better."""

    name: str = "val_accuracy"  # the column of the results
    higher_is_better: bool = True

    @staticmethod
    def of(config: Mapping[str, Any]) -> Metric:
        """Read `report.metric` from a config. `auto` is the loss of a language model."""
        metric = config["report"]["metric"]
        if isinstance(metric, Mapping):
            return Metric(name=metric["name"], higher_is_better=metric["better"] == "higher")
        if metric == "auto":
            has_texts = value_at(config, "data.name") in resolve_name("trainables.component_registry:TEXTS")
            metric = "val_loss" if has_texts else "val_accuracy"
        return Metric.named(metric)

    @staticmethod
    def named(name: str) -> Metric:
        """Return the metric of this name; the name says whether lower is better."""
        # A check refuses a metric of choice whose name does not tell.
        return Metric(name=column_of(name), higher_is_better=is_higher_better(name) is not False)

    @property
    def label(self) -> str:
        """The metric in a sentence or on an axis."""
        return self.name.replace("val_", "validation ").replace("_", " ")

    @property
    def word(self) -> str:
        """The metric after a pronoun: `its accuracy`, `its loss`."""
        return self.name.removeprefix("val_").replace("_", " ")

    @property
    def short_label(self) -> str:
        """The metric as the head of a narrow column, such as `val acc`."""
        return "val acc" if self.name == "val_accuracy" else f"{self.name.replace('_', ' ')} {self.arrow}"

    @property
    def heading(self) -> str:
        """The metric as the head of a wide column, with its direction."""
        return self.label if self == VAL_ACCURACY else f"{self.label} {self.arrow}"

    @property
    def arrow(self) -> str:
        """The better direction as a sign, for heads of columns."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def sign(self) -> float:
        """The factor from the metric to the score, and back."""
        return 1.0 if self.higher_is_better else -1.0

    @property
    def worse(self) -> str:
        """In which direction the metric gets worse: lower or higher."""
        return "lower" if self.higher_is_better else "higher"

    @property
    def better(self) -> str:
        """The other direction."""
        return "higher" if self.higher_is_better else "lower"

    def score(self, frame: pd.DataFrame) -> pd.Series[Any]:
        """Return the scores of a frame's rows; NaN where the metric was not measured."""
        import pandas as pd

        measured = frame[self.name] if self.name in frame else pd.Series(float("nan"), index=frame.index)
        return self.sign * pd.to_numeric(measured, errors="coerce").astype("float64")


def target(config: Mapping[str, Any]) -> Target | None:
    """Return `report.target` of a resolved config, as a value of `report.metric`; None if it is not set."""
    value, metric = config["report"]["target"], Metric.of(config)
    if value is None:
        return None
    return Target(metric=metric.name, value=value, higher_is_better=metric.higher_is_better)


VAL_ACCURACY = Metric()  # the metric of choice of a sweep that names none, and does not train on texts


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request for a sweep: the settings in its config, and the values that follow from them."""

    settings: Settings
    axes: Axes  # as written: the axis `gpus` may be the string `auto`
    reference_batch_size: int | None
    """The batch size at which accuracies are compared; None if the trainable has none."""
    metric: Metric
    target: Target | None

    @staticmethod
    def of(config: Mapping[str, Any], axes: Axes) -> Request:
        """Read the request from a resolved config and its parsed axes; `cli.sweep_checks` checks it."""
        settings = read(Settings, config)
        return Request(
            settings=settings,
            axes=axes,
            reference_batch_size=value_at(config, "trainable.reference_batch_size"),
            metric=Metric.of(config),
            target=target(config),
        )

    @property
    def store(self) -> str | None:
        """The URI that results are copied to; None if they stay in the folder."""
        place = str(self.settings.results_dir)
        return place if is_uri(place) else None

    @property
    def results_dir(self) -> Path:
        """The folder of this sweep's results."""
        place = self.settings.results_dir if self.store is None else self.settings.local_results_dir
        return Path(str(place)).expanduser() / str(self.settings.sweep.name)

    @property
    def waits(self) -> bool:
        """True if trials may wait for nodes."""
        return self.settings.cluster.wait_s > 0

    @property
    def scaling(self) -> str:
        """`strong` or `weak`."""
        if self.settings.sweep.scaling != "auto":
            return self.settings.sweep.scaling
        # An axis over the global batch keeps it as GPUs are added, which is strong scaling.
        return "strong" if "global_batch_size" in self.axes else "weak"

    @property
    def rerun(self) -> Rerun:
        """The trials to run again."""
        return Rerun.of(self.settings.rerun)

    def with_metric_of(self, metrics: Iterable[Mapping[str, Any]]) -> Request:
        """Return the request with the validation loss as its metric if it names none, and trials report no accuracy."""
        reported = {name for values in metrics for name in values}
        # A metric that the user names stays, even if no trial reports it: then nothing is recommended.
        is_open = not self.settings.report.names_metric
        if is_open and "val_loss" in reported and not {"accuracy", self.metric.name} & reported:
            return replace(self, metric=Metric.named("val_loss"))
        return self


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The criteria of the choice, and what is needed to phrase commands for further seeds."""

    report: ReportSection = field(default_factory=ReportSection)  # the keys of the section `report`
    metric: Metric = field(default_factory=Metric)  # the metric that `report.metric` stands for
    target: Target | None = None
    budget: Mapping[str, Any] = field(default_factory=dict)
    """The section `budget`, a trial's length; empty where it is an axis."""
    arguments: Sequence[str] = ()  # the command line, repeated in commands for more seeds
    axes: Mapping[str, str] = field(default_factory=dict)
    """Axes that distinguish cells, {axis: column of the frames}."""
    excludes: bool = False  # whether the sweep excludes combinations of these axes
    zips: bool = False  # whether some of these axes advance together
    has_baseline: bool = False  # whether the sweep names the cell that scaling compares with
    unfinished: bool = False  # whether planned trials have not run yet
    runs: bool = False  # whether a driver runs them now
    nullable: frozenset[str] = frozenset()  # axes with a null value, which frames hold as a missing one

    @staticmethod
    def of(request: Request, axes: Mapping[str, str], arguments: Sequence[str] = ()) -> Terms:
        """Return the terms in a request; `axes` maps each axis of the trials except the seed to its column."""
        sweep = request.settings.sweep
        # A report by the name of the results alone does not know how the grid was cut.
        is_another = set(axes) != set(request.axes) - {"seed"}
        return Terms(
            report=request.settings.report,
            metric=request.metric,
            target=request.target,
            budget={} if any(axis.startswith("budget.") for axis in axes) else vars(request.settings.budget),
            arguments=tuple(arguments),
            axes=dict(axes),
            excludes=bool(sweep.exclude) or is_another,
            zips=bool(sweep.zip) or is_another,
            has_baseline=bool(sweep.baseline),
            # `auto` stays a string until the machine is known
            nullable=frozenset(axis for axis, values in request.axes.items() if any(value is None for value in values)),
        )

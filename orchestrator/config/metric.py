"""The metric of choice: the validation metric by which cells are compared, its direction and how texts name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from orchestrator.config.schema import value_at

if TYPE_CHECKING:
    import pandas as pd

_LOWER_IS_BETTER = ("loss", "error", "perplexity", "bits", "rmse", "mae", "mse", "fid", "wer")
"""A metric with one of these in its name is better when lower, unless `report.better` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A validation metric that trials report.

    A score is the metric with a sign, so that higher is better. Comparisons use scores; texts name the metric.
    """

    name: str = "val_accuracy"
    """The column of the results."""
    higher_is_better: bool = True

    @staticmethod
    def of(config: Mapping[str, Any]) -> Metric:
        """Read `report.metric` and `report.better` from a config. `auto` is the loss of a language model."""
        name, better = config["report"]["metric"], config["report"]["better"]
        if name == "auto":
            texts = value_at(config, "data.name") in resolve_name("trainables.registry:TEXTS")
            name = "val_loss" if texts else "val_accuracy"
        lower = any(part in name.lower() for part in _LOWER_IS_BETTER) if better == "auto" else better == "lower"
        return Metric(name=name, higher_is_better=not lower)

    @property
    def label(self) -> str:
        """The metric in a sentence or on an axis."""
        return self.name.replace("val_", "validation ").replace("_", " ")

    @property
    def short_label(self) -> str:
        """The metric as the head of a narrow column, such as `val acc`."""
        return "val acc" if self.name == "val_accuracy" else self.name.replace("_", " ")

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

        found = frame[self.name] if self.name in frame else pd.Series(float("nan"), index=frame.index)
        return self.sign * pd.to_numeric(found, errors="coerce").astype("float64")


VAL_ACCURACY = Metric()
"""The metric of choice of a sweep that names none, and does not train on texts."""

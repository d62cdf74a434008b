"""What the user asked of the recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.config.request import Request
from orchestrator.storage.secrets import NO_SECRETS
from sweeps.sweep import STANDARD_AXES


@dataclass(frozen=True, kw_only=True)
class Terms:
    """By what to choose, and how to ask for more."""

    objective: str = "time"
    margin: float = 0.01
    """In validation accuracy."""
    target: float | None = None
    """`trainable.target_accuracy`."""
    price_per_gpu_hour: float | None = None
    arguments: Sequence[str] = ()
    """The command line, to repeat it with more seeds."""
    axes: Mapping[str, str] = field(default_factory=dict)
    """Axes that tell cells apart, {axis: column of the frames}."""
    excludes: bool = False
    """Whether the sweep leaves combinations of them out."""
    zips: bool = False
    """Whether any of them advance together."""

    @staticmethod
    def of(request: Request, further: Mapping[str, str], arguments: Sequence[str] | None = None) -> Terms:
        """The terms in a request; `further` has the columns of axes beyond the standard ones.

        `arguments` are those that the results came from, where they are not the request's own.
        """
        asked = [axis for axis in request.axes if axis != "seed"]
        return Terms(
            objective=request.objective,
            margin=request.margin,
            target=request.target_accuracy,
            price_per_gpu_hour=request.price_per_gpu_hour,
            arguments=tuple(NO_SECRETS.value(request.arguments) if arguments is None else arguments),
            axes={axis: further.get(axis, axis) for axis in asked if axis in STANDARD_AXES or axis in further},
            excludes=bool(request.exclude),
            zips=bool(request.zip),
        )

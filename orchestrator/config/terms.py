"""What the user asks of the recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.request import Request
from orchestrator.storage.secrets import NO_SECRETS

AT_YOUR_PRICE = "at your price"
"""The unit of costs, since the currency of `report.price_per_gpu_hour` is not known."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The criteria of the choice, and what is needed to phrase commands for further seeds."""

    objective: str = "time"
    margin: float = 0.01
    """In validation accuracy."""
    target: float | None = None
    """`trainable.target_accuracy`."""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """The section `budget`, a trial's length; empty where it is an axis."""
    price_per_gpu_hour: float | None = None
    arguments: Sequence[str] = ()
    """The command line, repeated in commands for more seeds."""
    axes: Mapping[str, str] = field(default_factory=dict)
    """Axes that distinguish cells, {axis: column of the frames}."""
    excludes: bool = False
    """Whether the sweep excludes combinations of these axes."""
    zips: bool = False
    """Whether any of them advance together."""
    unfinished: bool = False
    """Whether planned trials have not run yet."""
    nullable: frozenset[str] = frozenset()
    """Axes with a null value, which frames hold as a missing one."""

    @staticmethod
    def of(request: Request, axes: Mapping[str, str], arguments: Sequence[str] | None = None) -> Terms:
        """The terms in a request; `axes` maps each axis of the trials except the seed to its column.

        `arguments` are those that produced the results, if they are not the request's own: a report may be requested
        by the name of the results alone, and the sweep's `exclude` and `zip` are not known then.
        """
        sweep, criteria = request.sweep, request.criteria
        is_another = set(axes) != set(sweep.axes) - {"seed"}
        return Terms(
            objective=criteria.objective,
            margin=criteria.margin,
            target=criteria.target_accuracy,
            budget={} if any(axis.startswith("budget.") for axis in axes) else request.budget,
            price_per_gpu_hour=criteria.price_per_gpu_hour,
            arguments=tuple(NO_SECRETS.value(request.arguments) if arguments is None else arguments),
            axes=dict(axes),
            excludes=bool(sweep.exclude) or is_another,
            zips=bool(sweep.zip) or is_another,
            # `auto` stays a string until the machine is known
            nullable=frozenset(axis for axis, values in sweep.axes.items() if any(each is None for each in values)),
        )

"""A checked sweep: the request, its config, and its trials on nodes that a cluster may tell later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.config.compose import Composition
from orchestrator.config.content_hashes import Versions
from orchestrator.config.fingerprint import fingerprint
from orchestrator.config.request import AUTO_GPUS, Request
from orchestrator.config.trial_setup import node_sizes, setup
from orchestrator.schedule.cluster import Node
from orchestrator.store.results import Results
from orchestrator.store.secrets import Secrets
from sweeps.axes import Axes, Point, baseline_errors
from sweeps.branch import with_bases
from sweeps.errors import ConfigError
from sweeps.identity import digest
from sweeps.rerun_selection import rerun_errors
from sweeps.sweep import Setup, Sweep, trials
from sweeps.trial import TrialSpec

Check = Callable[[Mapping[str, Any]], Sequence[str]]  # a function that returns the errors in a resolved config


@dataclass(frozen=True, kw_only=True)
class CheckedSweep:
    """A sweep that may start: what to do, and everything that determines its trials, except the nodes."""

    request: Request
    composition: Composition
    remarks: Sequence[str] = ()  # facts worth knowing before the sweep runs; not errors
    results: Results | None = None  # what the results folder holds, if it was read to complete the command line
    versions: Versions = field(default_factory=Versions)
    variants: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The resolved config of each combination of config axes that was expanded so far."""
    _trials: dict[tuple[tuple[float, float, str], ...], list[TrialSpec]] = field(default_factory=dict)
    """The trials by the cores, GPUs and GPU types of the nodes, on which alone they depend."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config."""
        return self.composition.config

    @property
    def secrets(self) -> Secrets:
        """Values in the config that must not be written down."""
        return self.composition.secrets

    def fingerprint(self) -> dict[str, Any]:
        """Return the config outside the axes, with content hashes: what a continued sweep must not change."""
        return fingerprint(self.config, self.versions, self.secrets)

    def with_outputs(self, outputs: Mapping[str, str]) -> CheckedSweep:
        """Return the sweep in a folder of results whose trials write these files (see `History.outputs`)."""
        return replace(self, versions=Versions(outputs), _trials={}) if outputs else self

    def axes(self, nodes: Sequence[Node]) -> Axes:
        """Return the axes with `gpus: auto` resolved: 1, 2, 4 … up to what the nodes have."""
        axes = self.request.axes
        if axes.get("gpus") != AUTO_GPUS:
            return axes
        most = sum(node_sizes(self.config, nodes))
        return {**axes, "gpus": [2**power for power in range(max(1, most).bit_length())]}

    def trials(
        self, nodes: Sequence[Node], *, guessed: bool = False, check: Check = lambda config: ()
    ) -> list[TrialSpec]:
        """Return the sweep's trials on these nodes, which may be `guessed`. Raises ConfigError with all errors.

        `check` is applied to each config in which config axes are set.
        """
        # The check, the plan and the driver ask for the same trials, and an expansion composes configs with Hydra.
        shapes = tuple(sorted((node.cpus, node.gpus, node.gpu_type) for node in nodes))
        if shapes not in self._trials:
            grid = self.request.settings.sweep
            whole = Sweep(name=grid.name, axes=self.axes(nodes), zip=grid.zip, exclude=grid.exclude)
            # The base of a branch is at the reference batch and under no rule, which may be outside of the grid.
            own_trials = trials(whole, lambda point: self._setup(point, nodes, check))
            self._trials[shapes] = with_bases(own_trials, lambda axes: self._at(dict(axes), nodes)[0])
        all_trials = self._trials[shapes]
        # On the real nodes `auto` may stand for other counts, and a reference to one of them may be right.
        if not (guessed and self.request.axes.get("gpus") == AUTO_GPUS):
            points = [trial.axes for trial in all_trials]
            errors = list(baseline_errors(self.request.settings.sweep.baseline or {}, points))
            errors += rerun_errors(self.request.rerun, all_trials)
            if errors:
                raise ConfigError(errors)
        return all_trials

    def more_seeds(self, trial: TrialSpec, seeds: Sequence[int], nodes: Sequence[Node]) -> list[TrialSpec]:
        """Return trials of the same cell with these seeds, which need not be among the sweep's."""
        return self._at(dict(trial.axes), nodes, seeds)

    def _at(self, point: Point, nodes: Sequence[Node], seeds: Sequence[int] | None = None) -> list[TrialSpec]:
        """Return the trial at a point, or one for each of the seeds; they need not be among the sweep's."""
        axes = {axis: [value] for axis, value in point.items()} | ({"seed": list(seeds)} if seeds is not None else {})
        sweep = Sweep(name=self.request.settings.sweep.name, axes=axes)
        return trials(sweep, lambda point: self._setup(point, nodes))

    def _setup(self, config_axes: Point, nodes: Sequence[Node], check: Check = lambda config: ()) -> Setup:
        key = digest(config_axes)
        if key not in self.variants:
            config = self.composition.variant(config_axes) if config_axes else self.config
            # The config without config axes was checked as a whole before.
            if config_axes and (errors := check(config)):
                raise ConfigError(errors)
            self.variants[key] = config
        return setup(self.variants[key], nodes, self.versions, self.secrets)

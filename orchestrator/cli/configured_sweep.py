"""A composed config as a sweep: what to do, and which trials to run on given nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.backends.choose import known_nodes
from orchestrator.cli.schema import shape_errors, type_errors
from orchestrator.cli.setup_checks import axis_errors, baseline_errors, setup_errors, setup_remarks, sweep_remarks
from orchestrator.config.compose import Composition
from orchestrator.config.fingerprint import Versions, import_errors
from orchestrator.config.request import AUTO_GPUS, OWN_SECTIONS, Request
from orchestrator.config.search_path import config_dir
from orchestrator.config.setup import code_in, fingerprint, setup, with_gpus
from orchestrator.config.trust import trust_errors
from orchestrator.schedule.cluster import Node
from sweeps.axes import Point
from sweeps.errors import ConfigError
from sweeps.rerun import rerun_errors
from sweeps.sweep import STANDARD_AXES, Setup, trials
from sweeps.trial import TrialSpec


class ConfiguredSweep:
    """The sweep of a composition. Raises ConfigError if the config names no sweep at all."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._versions = Versions()
        self.config = composition.config
        self.secrets = composition.secrets
        self._trials: dict[tuple[Node, ...], list[TrialSpec]] = {}
        self._remarks: dict[str, None] = {}
        _raise(shape_errors(self.config))
        if self.config["sweep"].get("name") in (None, "???"):
            if composition.sweep:
                hint = "its file must begin with the line '# @package _global_' and set sweep: {name: …}"
                raise ConfigError([f"sweep={composition.sweep} gives no sweep.name: {hint}"])
            choices = ", ".join(f"sweep={name}" for name in composition.groups.options("sweep"))
            raise ConfigError([f"choose a sweep: {choices} (mode=plan shows what it would run; see --help)"])
        self.request = Request.of(self.config, composition.axes(), composition.arguments)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the trials found so far: worth knowing, but not mistakes."""
        return tuple(self._remarks)

    def fingerprint(self) -> dict[str, Any]:
        """The config outside the axes, with content hashes: what a continued sweep must not change."""
        return fingerprint(self.config, self._versions, self.secrets)

    def trials_on(self, nodes: Sequence[Node], *, guessed: bool = False) -> list[TrialSpec]:
        """The sweep's trials on these nodes (cached). Raises ConfigError with every mistake in any of them.

        If the nodes are only `guessed`, so are GPU counts derived from them, and references to such counts are not
        checked.
        """
        there = tuple(nodes)
        if there not in self._trials:
            self._trials[there] = self._trials_on(there)
        found = self._trials[there]
        if not (guessed and self.request.sweep.axes.get("gpus") == AUTO_GPUS):
            baseline = baseline_errors(self.request.criteria.baseline or {}, [trial.axes for trial in found])
            _raise([*baseline, *rerun_errors(self.request.selection.rerun, found)])
        return found

    def _trials_on(self, nodes: Sequence[Node]) -> list[TrialSpec]:
        written = self.request.sweep.axes

        def setup_of(config_axes: Point) -> Setup:
            config = self._composition.variant(config_axes) if config_axes else self.config
            _raise(self._setup_errors(config))
            self._remarks.update(dict.fromkeys(setup_remarks(config, axes)))
            return setup(config, nodes, self._versions, self.secrets)

        # If config keys are axes, only a variant shows whether the trainable gets all it needs.
        whole = all(axis in STANDARD_AXES for axis in written)
        _raise([*axis_errors(self.config, written), *self._setup_errors(self.config, whole=whole)])
        axes = with_gpus(written, self.config, nodes)
        found = trials(replace(self.request.sweep, axes=axes), setup_of)
        self._remarks.update(dict.fromkeys(sweep_remarks(self.config, found)))
        return found

    def _setup_errors(self, config: Mapping[str, Any], *, whole: bool = True) -> Iterator[str]:
        """Yield mistakes; nothing that the config names is imported or called unless it is all trusted and `whole`."""
        distrusted = list(trust_errors(config, self._composition.arguments, config_dir()))
        yield from distrusted
        yield from type_errors(config)
        yield from setup_errors(config, runs_checks=whole and not distrusted)
        named = code_in({key: value for key, value in config.items() if key not in OWN_SECTIONS})
        runs_here = self.request.mode == "run" and known_nodes(self.request) is not None
        yield from import_errors(named, installed=runs_here)


def _raise(errors: Iterable[str]) -> None:
    found = list(errors)
    if found:
        raise ConfigError(found)

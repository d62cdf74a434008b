"""Checks the part of a config that says what to do, independent of the nodes; one line per mistake.

Composes and checks a sweep; all mistakes are reported together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.modes import MODES, WITHOUT_SWEEP
from orchestrator.cli.schema import OF_REQUEST, value_errors
from orchestrator.config.compose import Composition, CompositionError
from orchestrator.config.request import PHASES, value_at
from orchestrator.decision.claims import Claim, Claimed
from orchestrator.decision.recommendation import NO_OBJECTIVE
from orchestrator.plan.search import search_errors
from orchestrator.schedule.cluster import Node
from orchestrator.store.cloud import is_uri, uri_errors
from orchestrator.trackers.tracking import tracker_errors
from sweeps.axes import Axes
from sweeps.errors import ConfigError, nearest, unknown
from sweeps.rerun import form_errors
from sweeps.sweep import STANDARD_AXES

if TYPE_CHECKING:
    from orchestrator.cli.configured_sweep import ConfiguredSweep

_SOME_CLUSTER = Node(name="cluster", cpus=1024, gpus=64)
"""Stands in for a cluster not yet asked: a trial too large for this fits nowhere; other misfits show up later."""


def composed(overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> Composition:
    """Compose the config. Raises ConfigError, which also lists mistakes in the overrides that do compose."""
    try:
        return Composition(overrides, sections)
    except CompositionError as error:
        raise ConfigError([*error.errors, *_further(error, sections)]) from None


def checked(composition: Composition) -> ConfiguredSweep:
    """Check the sweep as far as possible before anything is started. Raises ConfigError."""
    from orchestrator.backends.choose import known_nodes
    from orchestrator.cli.configured_sweep import ConfiguredSweep
    from orchestrator.cli.schema import key_errors  # imported here so that --help stays quick
    from orchestrator.config.request import READING
    from orchestrator.telemetry.cpu import this_machine

    configured = ConfiguredSweep(composition)
    config, request = configured.config, configured.request
    errors = [*key_errors(config), *request_errors(config, request.sweep.axes)]
    if request.mode not in READING:
        try:
            nodes = _SOME_CLUSTER if request.cluster.address else this_machine()
            configured.trials_on((nodes,), guessed=known_nodes(request) is None)
        except ConfigError as error:
            errors += error.errors
    if errors:
        raise ConfigError(errors)
    return configured


def _further(error: CompositionError, sections: Mapping[str, Mapping[str, Any]] | None) -> Iterator[str]:
    if not any(override.startswith(("sweep=", "sweep.name=")) for override in error.fitting):
        return
    try:
        checked(Composition(error.fitting, sections))
    except ConfigError as further:
        yield from (each for each in further.errors if not error.is_due_to_them(each))


_OF_CELLS = ("device", "lr", "scaling", "status")
"""Columns that tell cells apart without being an axis."""


def request_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each wrong value and each pair of values that contradict one another."""
    yield from value_errors(config, {"mode": (*MODES, *WITHOUT_SWEEP), **OF_REQUEST})
    yield from form_errors(config["rerun"])
    name = config["sweep"].get("name")
    if not isinstance(name, str) or not _is_folder_name(name):
        yield f"sweep.name must be a plain folder name of at most 100 characters, not {name!r}"
    if not config["results_dir"]:
        yield "results_dir must be a folder or a URI, not empty: results_dir=. is the current one"
    if is_uri(str(config["results_dir"])):
        yield from uri_errors(config["results_dir"])
    if is_uri(str(config["local_results_dir"])):
        yield f"local_results_dir must be a folder, not {config['local_results_dir']!r}"
    yield from _predict(config)
    yield from _claims(config, axes)
    if config["backend"] == "inprocess" and value_at(config, "cluster.address"):
        yield "backend=inprocess uses no cluster: remove cluster.address"
    if config["sweep"]["phases"] not in (None, list(PHASES)):
        yield f"sweep.phases must be null or [probe, train], not {config['sweep']['phases']!r}"
    yield from search_errors(config["sweep"])
    yield from _without_objective(config)
    yield from _early_stop(config)
    if value_at(config, "sweep.budget.cost") is not None and value_at(config, "report.price_per_gpu_hour") is None:
        yield "sweep.budget.cost needs report.price_per_gpu_hour"
    yield from _gpu_type(config, axes)
    yield from _labels(config)
    yield from tracker_errors(config.get("tracker") or {})
    yield from _tune(config)
    yield from _baseline(config["sweep"]["baseline"], axes)


def _is_folder_name(name: str) -> bool:
    """Whether the name makes a visible folder directly inside its parent."""
    return 0 < len(name) <= 100 and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


def _claims(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    if value_at(config, "claims.fail_on") not in (None, "refuted", "inconclusive"):
        yield unknown("claims.fail_on", value_at(config, "claims.fail_on"), ("null", "refuted", "inconclusive"))
    given = config["sweep"].get("claims") or []
    for claim in given if isinstance(given, list) else [given]:
        expression = claim.get("expression") if isinstance(claim, Mapping) else claim
        try:
            selected_by = Claimed.parse(Claim.of(claim).expression).selected_by
        except ValueError as error:
            yield f"sweep.claims: {expression!r}: {error}"
            continue
        known = (*axes, *STANDARD_AXES, *_OF_CELLS)
        for axis in sorted(selected_by):
            if axis not in known and value_at(config, axis) is None:
                yield f"sweep.claims: {expression!r}: there is no axis {axis!r}{nearest(axis, known)}"


def _tune(config: Mapping[str, Any]) -> Iterator[str]:
    callbacks, path = config["tune"]["callbacks"], config["tune"]["storage_path"]
    if not isinstance(callbacks, list) or not all(
        isinstance(each, Mapping) and "_target_" in each for each in callbacks
    ):
        yield f"tune.callbacks must be a list of {{_target_: package.module.Class, …}}, not {callbacks!r}"
    if path is not None and not isinstance(path, str):
        yield f"tune.storage_path must be a folder or URI, not {path!r}"
    searcher = config["tune"]["searcher"]
    if searcher is not None and not (isinstance(searcher, Mapping) and "_target_" in searcher):
        yield f"tune.searcher must be {{_target_: package.module.Class, …}}, not {searcher!r}"
    if (searcher is not None) != (config["sweep"]["search"] == "tune"):
        yield "tune.searcher and sweep.search=tune belong together: give both or neither"
    if config["backend"] == "inprocess" and (callbacks or path):
        yield "backend=inprocess does not use Ray Tune: remove the section tune"


def _without_objective(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a mistake for each key that chooses trials during the sweep, which needs an objective."""
    if value_at(config, "report.objective") == NO_OBJECTIVE:
        for key in ("phases", "search"):
            if config["sweep"][key]:
                yield f"sweep.{key} chooses by report.objective, which is none: set it to time, energy or cost"


def _early_stop(config: Mapping[str, Any]) -> Iterator[str]:
    asked = config["sweep"]["early_stop"]
    if asked not in (None, "asha"):
        yield f"sweep.early_stop must be null or asha, not {asked!r}"
    elif asked and config["backend"] == "inprocess":
        yield "sweep.early_stop=asha needs Ray Tune: remove backend=inprocess"


def _predict(config: Mapping[str, Any]) -> Iterator[str]:
    counts = value_at(config, "predict.gpus")
    sound = isinstance(counts, list) and all(isinstance(n, (int, float)) and n > 0 for n in counts)
    if not sound or (config["mode"] == "predict" and not counts):
        yield f"predict.gpus must be a list of GPU counts like [8,16,32], not {counts!r}"


def _gpu_type(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    types = config["cluster"]["gpu_type"]
    if types is not None and not (types and all(isinstance(each, str) for each in _listed(types))):
        yield f"cluster.gpu_type must be a name like H100, or a list of names, not {types!r}"
    elif types and config["resources"]["device"] == "cpu" and "resources.device" not in axes:
        yield f"cluster.gpu_type={types} and resources.device=cpu contradict each other: remove one of them"


def _labels(config: Mapping[str, Any]) -> Iterator[str]:
    labels, cluster = config["cluster"]["labels"], config["cluster"]["address"] or os.environ.get("RAY_ADDRESS")
    if not isinstance(labels, Mapping) or not all(isinstance(each, str) for pair in labels.items() for each in pair):
        yield f"cluster.labels must be {{label: value}} with text values, not {labels!r}"
    elif labels and config["mode"] in ("run", "plan") and (not cluster or config["backend"] == "inprocess"):
        hint = "there is none: set cluster.address, or remove the labels (cluster.gpu_type works without a cluster)"
        yield f"cluster.labels={labels} choose among the nodes of a cluster, but {hint}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _baseline(baseline: Any, axes: Axes) -> Iterator[str]:
    cell_axes = [axis for axis in axes if axis != "seed"]
    if not isinstance(baseline, Mapping | None):
        yield f"sweep.baseline must be a cell like {{gpus: 1, lr_rule: none}}, not {baseline!r}"
        return
    for axis in baseline or ():
        if axis not in cell_axes:
            known = ", ".join(cell_axes)
            yield f"sweep.baseline names {axis!r}, which is no axis of cells{nearest(axis, cell_axes)}; axes: {known}"

"""The user's request, read from the composed config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.storage.cloud import is_uri
from sweeps.axes import Axes
from sweeps.limit import Limit
from sweeps.rerun import Rerun

OWN_SECTIONS = (
    *("mode", "backend", "workers", "results_dir", "local_results_dir", "rerun", "allow_changed", "verbose", "sweep"),
    *("strategy",),
    *("retries", "equal_failures", "hang_s", "time_limit_s", "trusted_modules", "rerun_invalid"),
    *("grad_accum_steps", "uneven_batch", "warmup_epochs", "resources", "cluster", "telemetry", "report", "plan"),
    *("predict", "compare", "claims", "tracker", "objective", "tune", "init", "launch", "hydra"),
)
"""Config sections that the orchestrator reads; all others belong to the trainable."""

IDENTIFYING = ("strategy", "grad_accum_steps", "uneven_batch", "warmup_epochs", "resources")
"""Those that can change a trial's result: part of its identity as written, `auto` as `auto`."""

PHASES = ("probe", "train")
"""The phases that a sweep may have."""

AUTO_GPUS = "auto"

READING = ("report", "predict", "compare")
"""Modes that only read results: whether trials could run here does not matter."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The part of the config that says what to do, as opposed to what a trial does."""

    mode: str
    backend: str
    workers: str
    rerun: Rerun
    results_dir: Path
    """The folder of this sweep's results."""
    store: str | None
    """The URI that results are copied to; None if they stay in the folder."""
    retries: int
    equal_failures: int | None
    """How many cells may fail for the same reason before the rest is not run."""
    hang_s: float | None
    time_limit_s: float | None
    allow_changed: bool
    verbose: bool
    name: str
    axes: Axes
    """As written: the axis `gpus` may be the string `auto`."""
    zip: Sequence[Sequence[str]]
    exclude: Sequence[Mapping[str, Any]]
    scaling: str
    baseline: Mapping[str, Any] | None
    published: Mapping[str, Any] | None
    """Figures published by others, as read by `orchestrator.config.published`."""
    address: str | None
    dashboard: bool
    start_ahead: bool
    """Whether a gang's processes may start before its GPUs are free."""
    price_per_gpu_hour: float | None
    reference_batch_size: int | None
    """The batch size at which accuracies are compared; None if the trainable has none."""
    plan_format: str
    limit: Limit
    phases: bool
    """Whether to train only cells that can change the recommendation."""
    early_stop_after: float | None
    """The share of its budget after which a hopeless trial may end; None: no trial is stopped early."""
    search: str | None
    """The search that chooses the cells; None: all of them run."""
    search_cells: int
    search_together: int
    gpu_types: tuple[str, ...]
    labels: Mapping[str, str]
    wait_s: float
    """Seconds for which a trial may wait for nodes."""
    device: str
    """As written: auto, cuda or cpu."""
    returned: Mapping[str, Any]
    """The section `objective`: a column of the summary, and which of its figures is best."""
    trackers: Mapping[str, Any]
    """The section `tracker`: for each tracker, whether it is enabled, and its options."""
    tune: Mapping[str, Any]
    """The section `tune`: Ray Tune callbacks, and where Tune's own copy goes."""
    html: bool
    """Whether to write a report in addition to the tables."""
    objective: str
    """What the recommendation minimises."""
    margin: float
    """How far validation accuracy may fall below the baseline's."""
    target_accuracy: float | None
    budget: Mapping[str, Any]
    """A trial's length."""
    predict: Mapping[str, Any]
    """The GPU counts to predict, and what is known of the nodes."""
    claims: Sequence[Any]
    """As in the config."""
    fail_on: str | None
    """The verdict that fails the sweep: refuted, or inconclusive as well."""
    compare_with: str | None
    """The results of another sweep to compare with."""
    arguments: Sequence[str]
    """The command line, from which further commands are derived."""
    telemetry_hz: float
    rerun_invalid: float
    """The largest share of trials that are run again because something spoiled their timing."""

    @staticmethod
    def of(config: Mapping[str, Any], axes: Axes, arguments: Sequence[str] = ()) -> Request:
        """Read the request from a resolved config and its parsed axes, without checking it (see `checking`)."""
        sweep, place = config["sweep"], str(config["results_dir"])
        store = place if is_uri(place) else None
        return Request(
            mode=config["mode"],
            backend=config["backend"],
            workers=config["workers"],
            rerun=Rerun.of(config["rerun"]),
            results_dir=Path(place if store is None else config["local_results_dir"]).expanduser() / str(sweep["name"]),
            store=store,
            retries=config["retries"],
            equal_failures=config["equal_failures"],
            hang_s=config["hang_s"],
            time_limit_s=config["time_limit_s"],
            allow_changed=config["allow_changed"],
            verbose=config["verbose"],
            name=sweep["name"],
            axes=axes,
            zip=sweep["zip"],
            exclude=sweep["exclude"],
            scaling=_scaling(sweep["scaling"], axes),
            baseline=sweep["baseline"],
            published=sweep.get("published"),
            address=config["cluster"]["address"],
            dashboard=config["cluster"]["dashboard"],
            start_ahead=config["cluster"]["start_ahead"],
            price_per_gpu_hour=config["report"]["price_per_gpu_hour"],
            reference_batch_size=value_at(config, "trainable.reference_batch_size"),
            plan_format=config["plan"]["format"],
            phases=sweep["phases"] == list(PHASES),
            early_stop_after=sweep["early_stop_after"] if sweep["early_stop"] else None,
            search=sweep["search"],
            search_cells=sweep["search_cells"],
            search_together=sweep["search_together"],
            limit=Limit(**sweep["budget"], price_per_gpu_hour=config["report"]["price_per_gpu_hour"]),
            gpu_types=gpu_types(config),
            labels=config["cluster"]["labels"],
            wait_s=config["cluster"]["wait_s"],
            device=device(config),
            returned=config.get("objective") or {},
            trackers=config.get("tracker") or {},
            tune=config["tune"],
            html=config["report"]["html"],
            objective=config["report"]["objective"],
            margin=config["report"]["margin"],
            target_accuracy=value_at(config, "trainable.target_accuracy"),
            budget=config.get("budget") or {},
            predict=config["predict"],
            claims=sweep["claims"],
            fail_on=config["claims"]["fail_on"],
            compare_with=config["compare"]["with"],
            arguments=tuple(arguments),
            telemetry_hz=config["telemetry"]["hz"],
            rerun_invalid=config["rerun_invalid"],
        )


def _scaling(asked: str, axes: Axes) -> str:
    """Resolve `auto`: an axis over the global batch keeps it as GPUs are added, which is strong scaling."""
    return asked if asked != "auto" else ("strong" if "global_batch_size" in axes else "weak")


def gpu_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPU types that a gang requires; empty for any."""
    asked = config["cluster"]["gpu_type"]
    return tuple(asked) if isinstance(asked, list) else (asked,) if asked else ()


def device(config: Mapping[str, Any]) -> str:
    """The device that trials run on: cuda, cpu or auto; asking for a GPU type implies cuda."""
    asked: str = config["resources"]["device"]
    return "cuda" if asked == "auto" and gpu_types(config) else asked


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """The value under a dotted key; None if part of the path is missing."""
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node

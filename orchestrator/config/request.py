"""What the user asked for, read from the composed config."""

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
"""Config sections the orchestrator reads; every other one belongs to the trainable."""

IDENTIFYING = ("strategy", "grad_accum_steps", "uneven_batch", "warmup_epochs", "resources")
"""Those of them that can change a trial's result; they identify it as they were asked for, `auto` as `auto`."""

PHASES = ("probe", "train")
"""The two phases that a sweep may have."""

AUTO_GPUS = "auto"

READING = ("report", "predict", "compare")
"""Modes that look at results only: whether trials could run here does not matter."""


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
    """The URI that they are copied to; None where the folder is all."""
    retries: int
    equal_failures: int | None
    """How many cells may fail alike before the rest is left alone."""
    hang_s: float | None
    time_limit_s: float | None
    allow_changed: bool
    verbose: bool
    name: str
    axes: Axes
    """As asked: the axis `gpus` may be the string `auto`."""
    zip: Sequence[Sequence[str]]
    exclude: Sequence[Mapping[str, Any]]
    scaling: str
    baseline: Mapping[str, Any] | None
    published: Mapping[str, Any] | None
    """Figures of others, as `orchestrator.config.published` reads them."""
    address: str | None
    dashboard: bool
    start_ahead: bool
    """Whether a gang's processes may start before its GPUs are free."""
    price_per_gpu_hour: float | None
    reference_batch_size: int | None
    """The batch that accuracies are compared with; None where the trainable has none."""
    plan_format: str
    limit: Limit
    phases: bool
    """Whether only what can change the answer is trained."""
    early_stop_after: float | None
    """The share of its budget after which a hopeless trial may end; None: none ends within its training."""
    search: str | None
    """Who chooses the cells; None: all of them run."""
    search_cells: int
    search_together: int
    gpu_types: tuple[str, ...]
    labels: Mapping[str, str]
    wait_s: float
    """How long a trial may wait for nodes to come."""
    device: str
    """As asked: auto, cuda or cpu."""
    returned: Mapping[str, Any]
    """The section `objective`: a column of the summary, and which of its figures is the best."""
    trackers: Mapping[str, Any]
    """The section `tracker`: by the tracker's name, whether it is enabled, and its options."""
    tune: Mapping[str, Any]
    """The section `tune`: callbacks of Ray Tune's, and where its own copy goes."""
    html: bool
    """Whether there is to be a report beside the tables."""
    objective: str
    """What the recommendation minimises."""
    margin: float
    """By how much validation accuracy may fall short."""
    target_accuracy: float | None
    budget: Mapping[str, Any]
    """A trial's length."""
    predict: Mapping[str, Any]
    """Which GPU counts, and what is known of the nodes."""
    claims: Sequence[Any]
    """As in the config."""
    fail_on: str | None
    """The verdict that fails the sweep: refuted, or inconclusive as well."""
    compare_with: str | None
    """Another sweep's results."""
    arguments: Sequence[str]
    """The command line, to tell further ones."""
    telemetry_hz: float
    rerun_invalid: float
    """Of the trials, at most, whose timing something spoiled, are run once more."""

    @staticmethod
    def of(config: Mapping[str, Any], axes: Axes, arguments: Sequence[str] = ()) -> Request:
        """The request in a resolved config, whose axes were read already; `checks` say if it makes sense."""
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
    """Whoever gives the global batch keeps it as GPUs are added: that is strong scaling."""
    return asked if asked != "auto" else ("strong" if "global_batch_size" in axes else "weak")


def gpu_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The types of GPU that a gang is to have; empty for any."""
    asked = config["cluster"]["gpu_type"]
    return tuple(asked) if isinstance(asked, list) else (asked,) if asked else ()


def device(config: Mapping[str, Any]) -> str:
    """What trials are to compute on: cuda, cpu, auto; whoever asks for a type of GPU asks for GPUs."""
    asked: str = config["resources"]["device"]
    return "cuda" if asked == "auto" and gpu_types(config) else asked


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """The value under a dotted key; None where a part of the path is absent."""
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node

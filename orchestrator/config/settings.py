"""Every key of the config, declared once: its name, type, default, allowed values, unit and comment.

`python -m benchmarks.config_document` writes `conf/config.yaml` and `conf/schema.json` from here; the string under a
field is its comment there. The keys of `model`, `data`, `optimizer`, `schedule` and `trainable` are those of the files
in `conf/`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from orchestrator.config.value_types import (
    FLAG,
    Described,
    KeyKind,
    Number,
    Parsed,
    Structure,
    choice,
    count,
    is_folder_name,
    is_mapping,
    is_metric,
    is_scalar,
    is_text,
    list_of,
    name,
    names_code,
    text,
)
from sweeps.axes import Axes
from sweeps.gpus import name_errors
from sweeps.layout import STRATEGIES
from sweeps.lr_rule import RULES
from sweeps.rerun_selection import form_errors

Section = TypeVar("Section")


def key(default: Any, kind: KeyKind, *, heading: str = "") -> Any:
    """Return the field of a key; `heading` begins a group of keys in `conf/config.yaml`."""
    return field(default_factory=lambda: copy.copy(default), metadata={"kind": kind, "heading": heading})


def section(keys: type[Section], *, heading: str = "") -> Section:
    """Return the field of a section with these keys."""
    return field(default_factory=keys, metadata={"section": keys, "heading": heading})


def read(keys: type[Section], config: Mapping[str, Any]) -> Section:
    """Return a section of a resolved config as a value; keys that the config lacks are None."""
    values: dict[str, Any] = {}
    for entry in fields(keys):  # type: ignore[arg-type]
        # A key such as `with` is a word of Python, so that its field ends in an underscore.
        value = config.get(entry.name.rstrip("_"))
        inner = entry.metadata.get("section")
        values[entry.name] = read(inner, value or {}) if inner else value
    return keys(**values)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StandardAxes:
    """The values on each axis that the project defines; on any other axis they are those of the config key."""

    gpus: Any = key(None, Number(above=0, hint=": sweep.axes.gpus=auto tries 1, 2, 4 … up to all GPUs"))
    """auto: 1, 2, 4 … up to all GPUs; a fraction (0.25) shares a GPU"""
    device_batch_size: Any = key(None, count())
    """samples per GPU and forward pass …"""
    global_batch_size: Any = key(None, count())
    """… or samples per optimizer step: give one of the two"""
    lr_rule: Any = key(None, choice(*RULES))
    """none, linear, sqrt, adam_sqrt, adam_tokens, lars, lamb, adascale"""
    lr_multiplier: Any = key(None, Number(above=0))
    """factor on the rule's learning rate; compare each rule at its best one"""
    seed: Any = key(None, count(0))


AXES: Mapping[str, KeyKind] = {entry.name: entry.metadata["kind"] for entry in fields(StandardAxes)}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InitSection:
    dir: Any = key(None, name("a new or empty folder"))
    """a new or empty folder"""
    kind: str = key("function", choice("command", "function", "model"))
    """built around a function, a command, or a model and a data set (model)"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LaunchSection:
    target: str | None = key(None, choice("slurm", "kuberay", "skypilot", "ssh", null=True))
    """slurm (sbatch), kuberay (RayJob), skypilot (clouds), ssh (a shell script)"""
    nodes: int = key(1, count())
    cpus_per_node: int = key(64, count())
    setup: Sequence[Any] = key([], list_of("a list of shell commands", is_text))
    """shell commands to run first on every node: ['source /shared/venv/bin/activate']"""
    options: Any = key({}, Structure(form="a section of options like {partition: gpu}", fits=is_mapping))
    """of the target; those with * are needed. memory_gb is that of a node

    slurm: {partition: gpu, time_limit: 12h, workdir: /shared/project, memory_gb: 500}

    kuberay: {image: …*, claim: a PersistentVolumeClaim for the results*, memory_gb: …}

    skypilot: {infra: aws/us-east-1*, instance: …, image: …, workdir: a folder to copy,
    volume: a shared volume for the results, memory_gb: …}

    ssh: {hosts: [the other hosts; run the script on the head]*, workdir: …*}"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TuneSection:
    callbacks: Sequence[Any] = key([], list_of("a list like [{_target_: package.module.Class, …}]", names_code))
    """[{_target_: ray.tune.logger.JsonLoggerCallback}, …]: called for every trial, after the journal. Needs
    backend=ray"""
    storage_path: str | None = key(None, text("a folder or a URI"))
    """a folder or URI (s3://…) for Tune's own copy of each run, for ResultGrid. Needs backend=ray"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrackerWandbSection:
    enabled: bool = key(False, FLAG)
    mode: str = key("offline", choice("offline", "online"))
    """offline: below <results_dir>/<sweep.name>/wandb, for `wandb sync`; online"""
    project: Any = key(None, name("a name"))
    """null: the sweep's name"""
    entity: Any = key(None, name("a name"))
    """null: your default"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrackerMlflowSection:
    enabled: bool = key(False, FLAG)
    uri: str | None = key(None, text("a URI"))
    """http://host:5000, sqlite:///mlflow.db, file:mlruns; null: MLFLOW_TRACKING_URI or MLflow's default"""
    experiment: Any = key(None, name("a name"))
    """null: the sweep's name"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrackerTensorboardSection:
    enabled: bool = key(False, FLAG)
    dir: str | None = key(None, text("a folder"))
    """null: <results_dir>/<sweep.name>/tensorboard"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrackerSection:
    tensorboard: TrackerTensorboardSection = section(TrackerTensorboardSection)
    mlflow: TrackerMlflowSection = section(TrackerMlflowSection)
    wandb: TrackerWandbSection = section(TrackerWandbSection)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweeperObjectiveSection:
    column: str | None = key(None, text("a column of summary.csv"))
    """a column of summary.csv; null: nothing"""
    best: str = key("max", choice("max", "min"))
    """the largest (max) or smallest (min) value of the ok cells"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweeperSection:
    objective: SweeperObjectiveSection = section(SweeperObjectiveSection)
    """what a Hydra sweeper (-m hydra/sweeper=…) receives for a whole sweep"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareSection:
    with_: str | None = key(None, text("a folder of results"))
    """mode=compare: the folder of another sweep's results, results/other"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ForecastSection:
    try_anyway: bool = key(False, FLAG)
    """true: run cells that do not fit into memory by their forecast; otherwise they are infeasible"""
    bandwidth_gb_s: float = key(25.0, Number(above=0, unit="GB/s"))
    """GB/s between nodes (25: 200 Gb/s), for cells that take more nodes than were measured"""
    prices: str | None = key(None, text("a CSV file"))
    """a CSV file of what nodes cost: name, gpu, gpus, price_per_hour, currency, date; mode=forecast takes the cheapest
    that has the GPU, where report.price_per_gpu_hour is null"""
    device: str | None = key(None, Parsed(parse=name_errors))
    """a GPU that this machine lacks, "NVIDIA H100 80GB HBM3": memory and speed there, from the shapes of tensors alone,
    with wide intervals; null: rehearse on this machine"""
    gpus: Sequence[Any] = key([], list_of("a list of GPU counts like [8, 16, 32]", Number(above=0).admits))
    """[8, 16, 32]: instead of sweep.axes.gpus, up to 8 times the largest count that has run, on nodes like theirs"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClaimsSection:
    fail_on: str | None = key(None, choice("refuted", "inconclusive", null=True))
    """refuted: exit with status 1 if a claim in sweep.claims is refuted; inconclusive: also then"""


AT_YOUR_PRICE = "at your price"
"""The unit of costs if `report.currency` does not name that of `report.price_per_gpu_hour`."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReportSection:
    objective: str = key("time", choice("time", "energy", "cost", "none"))
    """what the recommendation minimises: time, energy or cost, until report.target if it is set and reached, else for
    the whole budget; none: no recommendation, because the cells do different work (other data, other models)"""
    metric: Any = key(
        "auto",
        Structure(
            form="a metric that trials report, such as val_loss, or {name: bleu, better: higher} (or lower)",
            fits=is_metric,
        ),
    )
    """the validation metric by which cells are compared: any that trials report; auto: val_loss for data=tokens and
    text, and where no trial reports an accuracy; else val_accuracy. Well-known names tell which direction is better;
    {name: confidence, better: higher} (or lower) tells it for any other name"""
    target: float | None = key(None, Number(null=True))
    """a value of the metric: time_to_target_s is the time of training, at the steady rate, until it is first reached"""
    margin: float = key(0.01, Number(above=0))
    """how much worse than the baseline's the metric may be, in the metric's unit"""
    price_per_gpu_hour: float | None = key(None, Number(at_least=0, null=True))
    """in any currency; null: costs stay empty"""
    currency: str | None = key(None, text("a name like EUR"))
    """its name, for tables: EUR; null: costs have no unit"""
    html: bool = key(True, FLAG)
    """also write report.html, with plots, and curves.parquet; false: only the tables"""

    @property
    def unit_of_cost(self) -> str:
        """The unit of costs if there is a price."""
        return self.currency or AT_YOUR_PRICE

    @property
    def names_metric(self) -> bool:
        """True if the user asked for a metric, so that no cell without it may be chosen."""
        return self.metric != "auto" or self.target is not None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClusterSection:
    address: str | None = key(None, text("auto or host:port"))
    """null: start Ray here; auto or host:port: a running cluster (or set RAY_ADDRESS)"""
    gpu_type: Any = key(
        None,
        Described(
            form="a name like H100, a list of names",
            fits=lambda value: bool(value) and all(map(is_text, value if isinstance(value, list) else [value])),
            null=True,
        ),
    )
    """H100: use only such GPUs, and no CPUs; [H100, A100]: equally many ranks on each type"""
    gpus_per_node: int | None = key(None, count(0, null=True))
    """null: mode=launch starts nodes with 8, mode=forecast takes what this machine or cluster has"""
    labels: Any = key(
        {},
        Structure(
            form="a section {label: value} with text values",
            fits=lambda value: is_mapping(value) and all(is_text(word) for pair in value.items() for word in pair),
        ),
    )
    """use only nodes of the cluster with these Ray labels: {ray.io/market-type: spot}"""
    wait_s: float = key(0, Number(at_least=0, unit="seconds"))
    """seconds that trials wait for a node that fits them, or for a lost node to return; above 0, the cluster's
    autoscaler is asked for such nodes, too"""
    dashboard: bool = key(True, FLAG)
    """if Ray is started here, serve its dashboard on the loopback; false: starts some seconds faster"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ResourcesSection:
    device: str = key("auto", choice("auto", "cuda", "cpu"))
    """cuda, cpu; auto: cuda if there are GPUs"""
    cpus_per_worker: int | str = key("auto", Number(above=0, whole=True, words=("auto",)))
    """auto: a GPU's share of its node's cores; 1 without GPUs"""
    timing: str = key("auto", choice("auto", "device", "exclusive", "shared"))
    """device: a trial has its devices to itself; exclusive: it has the whole node to itself; shared: trials are packed
    and their timings are invalid; auto: device on GPUs, else exclusive"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BudgetSection:
    epochs: float | None = key(10, Number(above=0, null=True))
    samples: int | None = key(None, Number(above=0, whole=True, null=True))
    tokens: int | None = key(None, Number(above=0, whole=True, null=True))
    """of language models, whose samples are sequences"""
    steps: int | None = key(None, Number(above=0, whole=True, null=True))
    """optimizer steps"""
    seconds: float | None = key(None, Number(above=0, unit="seconds", null=True))
    """of training, without evaluation"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepBudgetSection:
    gpu_hours: float | None = key(None, Number(at_least=0, unit="hours", null=True))
    """of all trials in the journal; worker-hours on machines without GPUs"""
    wall_s: float | None = key(None, Number(at_least=0, unit="seconds", null=True))
    """seconds since this command began"""
    cost: float | None = key(None, Number(at_least=0, null=True))
    """gpu_hours × report.price_per_gpu_hour"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepSection:
    name: Any = key("???", Described(form="a plain folder name of at most 100 characters", fits=is_folder_name))
    axes: Axes = key(dict.fromkeys(AXES), Structure(form=f"a section with {', '.join(AXES)}", fits=is_mapping))
    """each a list of values, or a string in Hydra's grammar: 'range(0,5)'. Any other config key can be an axis, too:
    'sweep.axes."optimizer.momentum"=[0.8,0.9]'"""
    zip: Sequence[Any] = key(
        [],
        list_of(
            "a list of groups of axes like [[gpus, global_batch_size]]",
            lambda group: isinstance(group, list) and all(map(is_text, group)),
        ),
    )
    """lists of axes that advance together: [[gpus, global_batch_size]]"""
    exclude: Sequence[Any] = key([], list_of("a list of combinations like [{gpus: 2, lr_rule: linear}]", is_mapping))
    """combinations to leave out: [{gpus: 4, lr_rule: linear}]"""
    scaling: str = key("auto", choice("auto", "weak", "strong"))
    """efficiency compares cells with the same batch per GPU (weak) or the same global batch (strong); auto: with the
    side of the batch that is an axis"""
    baseline: Any = key(None, Structure(form="a cell like {gpus: 1, lr_rule: none}", fits=is_mapping, null=True))
    """the cell that speedup.md compares with, as {axis: value}; null: the ok cell with the fewest GPUs"""
    phases: Any = key(None, Described(form="[probe, train]", fits=lambda value: value == ["probe", "train"], null=True))
    """[probe, train]: short probes of every speed, then only the trials that can still change the recommendation; the
    others are skipped"""
    early_stop: str | None = key(None, choice("asha", null=True))
    """asha: stop trials whose report.metric is far (3 × report.margin) worse than that of others as fast, with Ray
    Tune's ASHA; their status is skipped. Needs backend=ray"""
    early_stop_after: float = key(0.5, Number(above=0, below=1, unit="share of a trial's budget"))
    """share of its budget that every trial gets; the next rung is at twice that, and so on"""
    budget: SweepBudgetSection = section(SweepBudgetSection)
    """once one of these is used up, no further trial starts; the rest is skipped until the limit is raised. With a
    budget, all cells run before any gets its next seed"""
    claims: Sequence[Any] = key([], list_of("a list of claims like [{sentence: …, expression: …}]", lambda claim: True))
    """[{sentence: …, expression: "speedup(gpus=2) > 1.8", margin: 0, about: …, needs_seeds: 2, needs_epochs: 0}]: each
    gets a verdict in tables/claims.md; see docs/claims.md"""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Settings:
    """Every key of the config, apart from those of the trainable and of Hydra."""

    mode: str = key(
        "run",
        choice(
            *("run", "settle", "plan", "forecast", "report", "compare", "verify"),
            *("status", "watch", "list", "launch", "init"),
        ),
        heading="What runs",
    )
    """run: run or continue the sweep, then report; plan: show what would run; forecast: memory, speed, time and cost of
    all cells, from what has run or from rehearsals, or of more GPUs (forecast.gpus); settle: of a sweep with results,
    further seeds of the cells in question until the verdict is CLEAR; report: write the tables from existing results;
    compare: with other results; verify: check that results are complete and undamaged; status: what runs now, what is
    done, the time left; watch: the same and more as a page in the browser; list: all sweeps in results_dir; launch:
    print files that start a cluster; init: write a project of your own"""
    sweep: SweepSection = section(SweepSection)
    strategy: str = key("auto", choice("auto", *STRATEGIES))
    """auto: one process for one rank, ddp for several

    single: one process, one device

    data_parallel: one process drives all GPUs, with torch's nn.DataParallel

    ddp: one process per GPU, equal shares of the batch

    ddp_unequal: as ddp, with shares in proportion to each rank's measured speed

    fsdp: one process per GPU, which holds its part of parameters, gradients and optimizer states (FSDP2)

    fsdp_grad: as fsdp, but parameters stay gathered from the forward pass to the backward pass: faster, more memory

    independent: an independent model on every GPU; the first one is reported

    own_ranks: one process on each node gets all GPUs there and starts its ranks itself (trainable=command)"""
    nodes: int | None = key(None, count(null=True))
    """nodes that have equally many of a trial's GPUs; null: one if the GPUs fit there, else as few as needed (a command
    must name {gpus_per_node} then)"""
    fsdp_size: int | None = key(None, count(null=True))
    """GPUs over which fsdp divides one replica of the model, as on one node; null: all GPUs of a trial"""
    grad_accum_steps: int = key(1, count())
    """forward passes per optimizer step"""
    tensor_parallel: int = key(1, count())
    """GPUs of one node that divide each layer: of gpt, llama or hf, with strategy=fsdp or fsdp_grad, or in a command
    ({tp}); commands also divide …"""
    context_parallel: int = key(1, count())
    """… each sequence ({cp}) …"""
    pipeline_parallel: int = key(1, count())
    """… and the layers ({pp}). {dp}: gpus divided by all three, the number of replicas"""
    uneven_batch: bool = key(False, FLAG)
    """true: split a global batch that does not divide evenly, and weight the gradients"""
    warmup_epochs: float = key(5, Number(at_least=0))
    """for the rules that warm up (linear, lars, lamb)"""
    rerun: Any = key("none", Parsed(parse=form_errors))
    """none: finished trials never run again; failed; all; or the trials that you name, by the start of an id (in
    tables/trials.csv, of cells in summary.csv): [3fa2,81c0]; or by axes: {gpus: 2, seed: 0}"""
    allow_changed: bool = key(False, FLAG)
    """true: continue although the config outside sweep.axes, the code or the hardware changed"""
    trusted_modules: Sequence[Any] = key([], list_of("a list of modules like [mypackage]", is_text))
    """modules whose code the config may name, besides the project's own: [mypackage]. A config file can trust modules
    in your folder; name installed ones on the command line"""
    budget: BudgetSection = section(BudgetSection, heading="How long")
    """a trial's length, rounded up to whole batches: exactly one of"""
    backend: str = key("ray", choice("ray", "inprocess"), heading="Where")
    """ray, or inprocess: one process, one rank, no Ray"""
    workers: str = key("per_seed", choice("warm", "per_seed", "fresh"))
    """which trials one set of rank processes runs. per_seed: trials of one seed, so that intervals include how
    processes differ, and commands of all seeds; warm: trials of all seeds, with fewer starts; fresh: one trial"""
    resources: ResourcesSection = section(ResourcesSection)
    cluster: ClusterSection = section(ClusterSection)
    results_dir: Any = key(
        "results",
        Described(
            form="a folder or a URI (results_dir=. is the current folder)",
            fits=lambda value: is_scalar(value) and value != "",
        ),
    )
    """results go to <results_dir>/<sweep.name>. For a URI (s3://bucket/path, gs://…, abfs://…), results are fetched
    from there first, and copied back while the sweep runs in"""
    local_results_dir: Any = key(
        "results",
        Described(form="a folder", fits=lambda value: is_scalar(value) and value != "" and "://" not in str(value)),
    )
    """this folder"""
    retries: int = key(0, count(0), heading="Failures")
    """further attempts for a trial that raised or crashed, from its checkpoint; attempts that end with a lost node do
    not count"""
    equal_failures: int | None = key(5, count(2, null=True))
    """once this many cells failed for the same reason and none is ok, a few different cells are tried; if they fail
    alike, the rest waits until the command runs again; null: run all"""
    hang_s: float | None = key(1800, Number(above=0, unit="seconds", null=True))
    """seconds without progress (a step, row or evaluation; of a command, output or CPU time) after which a trial times
    out, at least 120 before its first step or row; null: never"""
    time_limit_s: float | None = key(None, Number(above=0, unit="seconds", null=True))
    """seconds after which an attempt times out; null: never"""
    rerun_invalid: float = key(0.1, Number(at_least=0, unit="share of all trials"))
    """disturbed timings are repeated, one trial at a time: at most this share of all trials"""
    report: ReportSection = section(ReportSection, heading="Report")
    claims: ClaimsSection = section(ClaimsSection)
    forecast: ForecastSection = section(ForecastSection)
    """mode=forecast: memory, speed, time and cost of every cell before it runs; later plans and runs use it"""
    compare: CompareSection = section(CompareSection)
    sweeper: SweeperSection = section(SweeperSection)
    format: str = key("table", choice("table", "json"))
    """how mode=plan, forecast, status and list print: table, json"""
    verbose: bool = key(False, FLAG)
    """true: show the output of Ray and Tune, too"""
    tracker: TrackerSection = section(TrackerSection)
    """each trial becomes a run in a tracker, which needs a further package: pip install
    'sweep-orchestrator[tensorboard]', [mlflow], [wandb]"""
    tune: TuneSection = section(TuneSection)
    """for users of Ray Tune. Trust its modules on the command line: trusted_modules=[ray]"""
    launch: LaunchSection = section(LaunchSection, heading="Launch")
    """mode=launch prints a file that starts a cluster and this sweep on it"""
    init: InitSection = section(InitSection)
    """mode=init writes a small project to start from"""

    @property
    def shapes_of(self) -> str | None:
        """The GPU of a forecast from shapes; None for other forecasts and modes."""
        return self.forecast.device if self.mode == "forecast" else None

    @property
    def extrapolates(self) -> bool:
        """True if other GPU counts are forecast, from trials that ran."""
        return self.mode == "forecast" and bool(self.forecast.gpus)

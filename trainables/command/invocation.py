"""The start of a command on a node: its words with the trial's values, its variables, its folder, and its output files.

It receives the values in place of names in braces, and as SWEEP_* variables. The variables by which launchers tell a
process its rank are taken away, because the command starts its ranks itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.ports import free_port
from trainables.command.hook_files import FOLDER, HOOK
from trainables.command.placeholders import NAMES, fill, filled, lengths_of, text_of
from trainables.command.process import Command
from trainables.command.settings import CommandSettings
from trainables.context import Context, master_of

WORK = "work"  # the command's working folder, within the trial's

_OF_A_RANK = re.compile(
    r"((LOCAL|GROUP|NODE|ROLE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|ROLE_NAME|PET_\w+|TORCHELASTIC_\w+"
    r"|OMPI_(COMM_WORLD|UNIVERSE|MCA_orte|MCA_ess)\w*|PMIX?_\w+|MPI_LOCAL\w+|MV2_COMM_WORLD_\w+|JSM_NAMESPACE_\w+"
    r"|SLURM_(?!(JOB_?ID|JOB_NAME|(JOB_)?NODELIST|TMPDIR|SUBMIT_\w+|ARRAY_\w+|CLUSTER_NAME|CONF)$)\w+"
    r"|(HOROVOD_)?(LOCAL_|CROSS_)SIZE|HOROVOD_((LOCAL_|CROSS_)?RANK|SIZE)|CROSS_RANK|MPI(RUN)?_RANK(ID)?"
    r"|(ALPS_APP|FLUX_TASK|PALS|PRTE)_\w+|MASTER_(ADDR|PORT)"
)
"""Variables by which launchers such as torchrun, Open MPI, MPICH, Slurm, Horovod and Flux tell a process its rank.

Those that identify the allocation stay: from them alone, no framework takes itself for a rank of Slurm's. Lightning
asks for SLURM_NTASKS, JAX for SLURM_PROCID, SLURM_LOCALID and SLURM_STEP_NODELIST.
"""

_OF_ALLOCATIONS = re.compile(
    r"(?:^|[\s/;&|(])(?:srun|mpirun|mpiexec(?:\.hydra)?|orterun|prterun|jsrun|aprun|flux\s+(?:run|exec|alloc))(?:\s|$)"
)
"""Launchers that start their ranks in the allocation of which these variables tell."""

_PASSED_ON = tuple(name for name in NAMES if name != "python")


def values_of(
    settings: CommandSettings, config: Mapping[str, Any], context: Context, trial_dir: Path
) -> dict[str, Any]:
    """Return the value of each of `NAMES`; None if it has none."""
    batch, lr = context.batch, context.lr
    # On a node without the source folder, Ray has shipped the code to the current one.
    source = Path(settings.source_dir or ".").absolute()
    return {
        **_place_of(context),
        "gpus": context.layout.devices,
        "dp": batch.data_parallel_size,
        "tp": context.layout.tensor,
        "cp": context.layout.context,
        "pp": context.layout.pipeline,
        "device_batch_size": batch.device_batch_size,
        "global_batch_size": batch.global_batch_size,
        "grad_accum_steps": batch.grad_accum_steps,
        "lr": lr.value,
        "lr_rule": lr.rule,
        "warmup_from": lr.warmup_from,
        "warmup_epochs": lr.warmup_epochs,
        "reference_batch_size": lr.reference_batch_size or batch.global_batch_size,
        "seed": context.seed,
        "threads": context.threads,
        "device": context.device.partition(":")[0],
        "trial_id": context.trial_id,
        "trial_dir": str(trial_dir),
        "source_dir": str(source if source.is_dir() else Path.cwd()),
        "python": settings.interpreter or sys.executable,
        **lengths_of(config.get("budget") or {}, batch.global_batch_size, settings.tokens_per_sample),
    }


def _place_of(context: Context) -> dict[str, Any]:
    """Return the values by which a command's launcher finds the other nodes; {name: value}."""
    per_node = context.layout.devices // context.world_size
    # The first node has chosen a free port for all of them.
    host, port = master_of(context) if context.world_size > 1 else ("127.0.0.1", free_port())
    return {
        "nodes": context.world_size,
        "node_rank": context.rank,
        "gpus_per_node": per_node,
        "devices": ",".join(map(str, range(per_node))),
        "master_addr": host,
        "master_port": port,
    }


def command_of(settings: CommandSettings, values: Mapping[str, Any], context: Context, trial_dir: Path) -> Command:
    """Return the command of this node, with `values_of` in place of the names in braces."""
    source = Path(values["source_dir"])
    words = []
    for word in filled(settings.words, values):
        # A word, or the value of an option, that names a file in the source folder gets its full path.
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        is_file = value and os.path.isfile(source / value)
        words.append(f"{option}{equals}{source / value}" if is_file else word)
    return Command(
        words=words,
        environment=_environment(settings, values, context, trial_dir),
        cwd=trial_dir / WORK if settings.cwd == "trial" else source,
        stdout=file_of(trial_dir, "stdout.log", context.rank),
        stderr=file_of(trial_dir, "stderr.log", context.rank),
        timeout_s=settings.timeout_s,
        grace_s=settings.grace_s,
    )


def _environment(
    settings: CommandSettings, values: Mapping[str, Any], context: Context, trial_dir: Path
) -> dict[str, str]:
    """Return the command's variables. Those of the user precede ours, which precede the inherited ones."""
    # The command starts its own ranks, and must not take itself for a rank of another launcher.
    is_kept = _OF_ALLOCATIONS.search(" ".join(settings.words)) is not None
    inherited = {name: value for name, value in os.environ.items() if is_kept or not _OF_A_RANK.fullmatch(name)}
    if settings.interpreter:  # its launchers, such as torchrun, are beside it
        path = _path(str(Path(settings.interpreter).parent), os.environ.get("PATH"))
    else:  # launchers are found beside this Python, too, whose environment may not be activated
        path = _path(os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
    given = {
        "PATH": path,
        "PYTHONPATH": _path(str(values["source_dir"]), os.environ.get("PYTHONPATH")),
        "PYTHONUNBUFFERED": "1",  # otherwise metrics arrive only when a buffer is full
        "OMP_NUM_THREADS": str(max(1, context.threads // values["gpus_per_node"])),
        **launcher_variables(values),
        **{f"SWEEP_{name.upper()}": text_of(values[name]) for name in _PASSED_ON if values.get(name) is not None},
    }
    if context.device == "cpu":
        # Without the second one, several processes of accelerate and of Hugging Face's Trainer train apart.
        given |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    own = {name: fill(str(value), values) for name, value in settings.env.items()}
    environment = {**inherited, **given, **own}
    if settings.adapter == "off":
        return environment
    return environment | {
        "SWEEP_HOOK": str(file_of(trial_dir, FOLDER, context.rank)),
        "PYTHONPATH": _path(str(HOOK), environment["PYTHONPATH"]),
    }


def launcher_variables(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that torchrun, Lightning and others read, given `values_of`."""
    # torchrun's default port is the same for every trial of a node.
    sources = {"MASTER_ADDR": "master_addr", "MASTER_PORT": "master_port", "PET_MASTER_PORT": "master_port"}
    if values["nodes"] > 1:
        sources |= {"NODE_RANK": "node_rank", "PET_NODE_RANK": "node_rank", "PET_NNODES": "nodes"}
        sources |= {"PET_NPROC_PER_NODE": "gpus_per_node", "PET_MASTER_ADDR": "master_addr"}
    return {variable: str(values[name]) for variable, name in sources.items()}


def _path(first: str, others: str | None) -> str:
    return os.pathsep.join(filter(None, [first, others]))


def file_of(trial_dir: Path, name: str, node: int) -> Path:
    """Return the path of a node's own file: `stdout.log`, on further nodes `stdout.node1.log`."""
    # The nodes may share the trial's folder.
    stem, dot, ending = name.partition(".")
    return trial_dir / (f"{stem}.node{node}{dot}{ending}" if node else name)

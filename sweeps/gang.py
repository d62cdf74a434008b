"""Turns a number of GPUs into the processes that use them."""

from __future__ import annotations

from sweeps.number import is_number
from sweeps.trial import Gang

INDEPENDENT = "independent"
"""The strategy that trains an independent model on every rank, each with its share of the batch."""

UNEQUAL = "ddp_unequal"
"""The strategy in which ranks take shares of the batch in proportion to their speed."""

STRATEGIES = ("single", "data_parallel", "ddp", UNEQUAL, INDEPENDENT, "own_ranks")
"""How the ranks of a trial train together; `trainables.step.strategies` does it."""

ONE_PROCESS = ("single", "data_parallel", "own_ranks")
"""Strategies in which a single process drives all GPUs of a trial (`own_ranks`: by starting further processes)."""


def gang(
    gpus: float,
    *,
    strategy: str,
    device: str,
    gpus_per_worker: float | None,
    cpus_per_worker: int | None,
    cores_per_gpu: int,
) -> Gang:
    """The gang of a trial with this many GPUs; on `cpu`, `gpus` counts worker processes.

    If `cpus_per_worker` is None, a rank gets its GPUs' share of the cores, or one core without GPUs.

    gpus = ranks × gpus_per_rank. A fraction of a GPU is one rank, because NCCL refuses two ranks on one device.
    Raises ValueError if no such gang exists.
    """
    if not is_number(gpus) or gpus <= 0:
        hint = ": sweep.axes.gpus=auto tries 1, 2, 4 … up to all GPUs" if isinstance(gpus, str) else ""
        raise ValueError(f"gpus must be a number above 0, not {gpus!r}{hint}")
    if strategy == "data_parallel" and device == "cpu":
        raise ValueError("strategy=data_parallel drives GPUs from one process, but there are none here: use ddp")
    if strategy == "single" and gpus > 1:
        raise ValueError(f"strategy=single is one process on one device, not gpus={gpus:g}: use ddp or data_parallel")
    per_rank = gpus_per_worker or (gpus if strategy in ONE_PROCESS else min(1, gpus))
    ranks = gpus / per_rank
    if ranks != int(ranks):
        raise ValueError(f"gpus={gpus:g} is not a whole number of workers with {per_rank:g} GPUs each")
    if ranks > 1 and per_rank < 1:
        raise ValueError(
            f"gpus={gpus:g} with resources.gpus_per_worker={per_rank:g} would put several ranks on one GPU;"
            f" a fraction is for a single rank: sweep.axes.gpus=[{per_rank:g}]"
        )
    if per_rank > 1 and per_rank != int(per_rank):
        raise ValueError(f"gpus={gpus:g} is neither a fraction of one GPU nor a whole number of GPUs")
    if strategy in ONE_PROCESS and ranks > 1:
        raise ValueError(f"strategy={strategy} is one process, so resources.gpus_per_worker={per_rank:g} does not fit")
    if device == "cpu" and strategy == "own_ranks" and per_rank == int(per_rank):
        workers = int(per_rank)
        cores = workers * (cpus_per_worker or 1)
        return Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=cores, workers_per_rank=workers)
    if device == "cpu" and per_rank != 1:
        raise ValueError(f"gpus={gpus:g} does not fit a machine without GPUs, where it counts worker processes")
    if device == "cpu":
        return Gang(ranks=int(ranks), gpus_per_rank=0, cpus_per_rank=cpus_per_worker or 1)
    cores = cpus_per_worker or max(1, int(cores_per_gpu * per_rank))
    return Gang(ranks=int(ranks), gpus_per_rank=per_rank, cpus_per_rank=cores)

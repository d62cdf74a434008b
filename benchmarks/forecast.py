"""Forecasts of memory and speed from rehearsals, against the same cells run on one and two GPUs.

    python -m benchmarks.forecast --out forecast.json [--limit-s 240] [--only single] [--with EARLIER.json]
    python -m benchmarks.forecast --out alone.json --alone                   # cells of two GPUs from one of them
    python -m benchmarks.forecast --cpu tiny --out /tmp/forecast.json        # three tiny models, on CPUs
    python -m benchmarks.forecast --cpu all --limit-s 600 --out cpu.json     # 120 cells

A row of `GRID` is a kind: a model in a layout, with an optimizer and four micro-batches. Rehearsals are those that
`mode=forecast` would make on two GPUs, or with --alone on one. Then every cell runs through `trainables.rank.run`,
cells of one GPU side by side. Needs PyTorch and numpy only.
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu_throughput import Ranks
from orchestrator.plan.estimates import Forecast
from orchestrator.plan.rehearsals import Rehearsal, Rehearsals, kind_of, micro_batch
from sweeps.identity import digest
from sweeps.layout import Gang, layout_of
from sweeps.lr_rule import LearningRate
from sweeps.trial import ALONE, Batch, RankRequest, TrialSpec
from tests.unit.trainables.ranks import Processes, rendezvous, run

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp", "hidden": [16]},
    "small_cnn": {"name": "small_cnn"},
    "resnet18": {"name": "resnet18"},
    "resnet50": {"name": "resnet50"},
    "gpt2": {"name": "gpt", "layers": 12, "heads": 12, "width": 768, "bias": False},
    "gpt2-medium": {"name": "gpt", "layers": 24, "heads": 16, "width": 1024, "bias": False},
    "gpt2-large": {"name": "gpt", "layers": 36, "heads": 20, "width": 1280, "bias": False},
    "llama": {"name": "llama", "layers": 16, "heads": 16, "kv_heads": 8, "width": 1024},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "momentum": 0.9},
    "adamw": {"name": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
    "lars": {"name": "lars", "momentum": 0.9},
    "muon": {"name": "muon"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "tf32": {"precision": "tf32"},
    "last": {"memory_format": "channels_last"},
    "ac": {"activation_checkpointing": "full"},
    "selective": {"activation_checkpointing": "selective"},
    "blocks": {"compile": "blocks"},
    "whole": {"compile": "default"},
    "graph": {"cuda_graph": "on"},
}
GRID = """
resnet18    single    1 sgd   bf16-last        64 256 512 1024
gpt2        single    1 adamw bf16             2 4 8 16 32 64
gpt2        ddp       2 adamw bf16             2 4 8 16 32 64
gpt2-medium fsdp      2 adamw bf16-ac          2 4 8 16 32 64
llama       fsdp      2 adamw bf16-selective   2 4 8 16 32
resnet50    ddp       2 adamw bf16-last        64 128 256 512
gpt2-large  fsdp_grad 2 adamw bf16-ac          4 8 16 32
gpt2        fsdp_grad 2 muon  bf16             2 4 8 16
resnet50    single    1 lars  tf32             32 64 128 256 512
gpt2-large  single    1 adamw bf16             2 8 16 64
gpt2-medium single    1 adamw bf16             8 16 24 32
llama       single    1 sgd   bf16-ac          2 4 8 16 32 64
resnet18    fsdp      2 sgd   tf32             64 256 512 1024
gpt2        ddp       2 sgd   bf16-blocks      8 16 32
resnet18    ddp       2 sgd   bf16-last-graph  64 256 512 1024
gpt2        ddp       2 adamw bf16-whole       8 16
"""
"""Model, strategy, GPUs, optimizer, options, micro-batches."""
TINY = """
small_cnn   ddp       2 sgd   bf16             2 4
mlp         single    1 lars  bf16             2 4 8 16
gpt2        fsdp      2 adamw bf16-ac          1 2
"""
CPU = "\n".join(
    f"{model} single 1 {optimizer} {options} 1 2 4 8 16 24 32 64"
    for model, optimizers, options in (
        ("mlp", ("sgd", "adamw", "lars"), "bf16"),
        ("small_cnn", ("sgd", "adamw", "lars"), "bf16"),
        ("gpt2", ("sgd", "adamw", "muon"), "bf16"),
        ("gpt2", ("sgd", "adamw", "muon"), "ac"),
        ("llama", ("sgd", "adamw", "muon"), "bf16"),
    )
    for optimizer in optimizers
)
"""Tiny models with many micro-batches: 120 cells."""
LENGTH = 1024
REHEARSING = 0.4
"""The share of the time after which no further kind is rehearsed; kinds without a rehearsal do not run."""
IMAGES, TOKENS = 20_000, 4_000_000
SMALLEST_MB, LARGEST_MB = 1, 1024
"""Messages of the collectives that are timed between two GPUs."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The device that cells run on, and their data."""

    device: str
    tokens: Path
    tiny: bool

    def spec(self, kind: str, micro: int) -> TrialSpec:
        """Return the trial of a row of the grid with this micro-batch."""
        model, strategy, gpus, optimizer, options = kind.split()
        ranks, is_text = int(gpus), model.startswith(("gpt", "llama"))
        gang = Gang(ranks=ranks, gpus_per_rank=1, cpus_per_rank=1 if self.tiny else 4)
        settings = {key: value for option in options.split("-") for key, value in OPTIONS[option].items()}
        length = 32 if self.tiny else LENGTH
        of_model = MODELS[model] | ({"sequence_length": length, "vocabulary": 50304} if is_text else {})
        if self.tiny:
            settings["precision"] = "fp32"
            of_model |= {"layers": 2, "heads": 2, "kv_heads": 2, "width": 32, "vocabulary": 256} if is_text else {}
            of_model = {key: value for key, value in of_model.items() if key != "kv_heads" or model == "llama"}
        images = {
            "name": "synthetic",
            "train_size": 256 if self.tiny else IMAGES,
            "test_size": 64 if self.tiny else 2048,
        }
        tokens = {"name": "tokens", "path": str(self.tokens), "validation_tokens": 16 * length}
        timing = {"window_s": 0.1, "window_steps": 3} if self.tiny else {"window_s": 1.0, "window_steps": 10}
        config = {
            "trainable": timing
            | {"warmup_steps": 5, "warmup_s": 0.3, "checkpoint": "off", "val_fraction": 0.1}
            | settings,
            "model": of_model,
            "data": tokens if is_text else images,
            "optimizer": OPTIMIZERS[optimizer],
            "schedule": {"name": "constant"},
            "budget": {"steps": 5},
        }
        name = digest([kind, micro])
        return TrialSpec(
            trial_id=name,
            cell_id=name,
            sweep="forecast",
            axes={"kind": kind, "micro_batch": micro},
            gpus=ranks,
            gang=gang,
            device=self.device,
            layout=layout_of(gang, strategy=strategy, model_parallel={}),
            timing="device",
            batch=Batch(global_batch_size=micro * ranks, shares=(micro,) * ranks),
            lr=LearningRate(value=1e-4, warmup_from=1e-4),
            seed=0,
            trainable="trainables.supervised.training:train",
            config=config,
        )


def requests(trial: TrialSpec, **place: Any) -> list[RankRequest]:
    """Return the requests to the ranks of a trial."""
    return [RankRequest(trial=trial, rank=rank, **place) for rank in range(trial.gang.ranks)]


def kinds_of(grid: str) -> Iterator[tuple[str, list[int]]]:
    """Yield each kind of a grid with its micro-batches."""
    for line in grid.strip().splitlines():
        words = line.split()
        yield " ".join(words[:5]), [int(word) for word in words[5:]]


def rehearse(
    trials: Sequence[TrialSpec], ranks: Processes, gpu: int, *, limit_s: float | None = None, together: bool = False
) -> list[Rehearsal]:
    """Rehearse on this GPU, or all ranks `together`, what the trials' forecasts need.

    Raises TimeoutError if a rehearsal takes longer than the limit.
    """
    rehearsals = Rehearsals()
    meeting = rendezvous() if together else ALONE
    while trial := rehearsals.next(trials):
        rehearsed = replace(trial, trainable="trainables.supervised.rehearsal:rehearse")
        to_ranks = requests(rehearsed, rendezvous=meeting, gang_id=meeting)[: trial.gang.ranks if together else 1]
        started = time.perf_counter()
        exit = ranks.call(run, *((request,) for request in to_ranks), first=gpu, limit_s=limit_s)[0]
        answer = {"status": exit["status"], "note": exit["note"], "took_s": time.perf_counter() - started}
        rehearsal = Rehearsal.of(trial, answer | {"figures": dict(exit["metrics"])})
        if rehearsal.status not in ("ok", "oom"):
            print(exit["trace"][-2000:], file=sys.stderr, flush=True)
        rehearsals.add(rehearsal)
    return list(rehearsals)


def time_collectives(rank: int, ranks: int, meeting: str, device: str) -> dict[str, float]:
    """Return GB/s of some collectives between the ranks, by name and size: bytes of the whole tensor over seconds."""
    import torch
    import torch.distributed as dist

    host, port = meeting.removeprefix("tcp://").split(":")
    store = dist.TCPStore(host, int(port), ranks, rank == 0)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=ranks)
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    rates: dict[str, float] = {}
    sizes_mb = [SMALLEST_MB] if device == "cpu" else [SMALLEST_MB, 32, LARGEST_MB]
    for size_mb in sizes_mb:
        whole = torch.zeros(size_mb * 2**18, device=device)
        own = whole[: len(whole) // ranks].clone()
        collectives: dict[str, Callable[[], object]] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(dist.all_gather_into_tensor, whole, own),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, own, whole),
        }
        for name, collective in collectives.items():
            for _ in range(3):
                collective()
            wait()
            started = time.perf_counter()
            for _ in range(10):
                collective()
            wait()
            rates[f"{name}_{size_mb}mb"] = 10 * whole.numel() * 4 / 1e9 / (time.perf_counter() - started)
    dist.destroy_process_group()
    return rates


def row_of(trial: TrialSpec, forecast: Forecast | None, exit: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's forecast beside its result."""
    metrics = exit["metrics"]
    measured = {key: metrics.get(key) for key in ("peak_memory_gb", "reserved_memory_gb", "samples_per_s", "loss")}
    measured |= {key: value for key, value in metrics.items() if key.startswith("step_")}
    return {
        "kind": trial.axes["kind"],
        "micro_batch": micro_batch(trial),
        "status": exit["status"],
        "note": exit["note"],
        "measured": measured,
        "forecast": asdict(forecast) if forecast else None,
    }


def errors(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return median and 95th percentile of a forecast's relative error, and how often its interval covers."""
    pairs = [
        (row["forecast"][name], row["measured"][name])
        for row in rows
        if row["forecast"] and row["forecast"][name] and row["measured"][name]
    ]
    if not pairs:
        return {"cells": 0}
    off = sorted(abs(forecast["value"] / measured - 1) for forecast, measured in pairs)
    return {
        "cells": len(pairs),
        "median": median(off),
        "p95": off[math.ceil(0.95 * len(off)) - 1],
        "covered": sum(forecast["lo"] <= measured <= forecast["hi"] for forecast, measured in pairs),
    }


def judged(rows: Sequence[Mapping[str, Any]], rehearsals: Sequence[Rehearsal]) -> dict[str, Any]:
    """Return the accuracy of the forecasts."""
    rehearsed = {(rehearsal.kind, rehearsal.micro_batch) for rehearsal in rehearsals}
    other = [row for row in rows if (row["key"], row["micro_batch"]) not in rehearsed]
    alone = [row for row in rows if row["kind"].split()[2] == "1"]
    fits = [(row["forecast"]["fits"], row["status"]) for row in rows if row["forecast"]]
    return {
        "peak_memory_gb": errors(rows, "peak_memory_gb"),
        "peak_memory_gb, not rehearsed": errors(other, "peak_memory_gb"),
        "samples_per_s, one GPU": errors(alone, "samples_per_s"),
        "samples_per_s, one GPU, not rehearsed": errors([row for row in alone if row in other], "samples_per_s"),
        "samples_per_s, two GPUs": errors([row for row in rows if row not in alone], "samples_per_s"),
        "false_fits": sum(pair == ("yes", "oom") for pair in fits),
        "false_does_not_fit": sum(pair == ("no", "ok") for pair in fits),
        "unsure": sum(fit == "unsure" for fit, _ in fits),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--cpu", choices=("tiny", "all"), help="tiny models, on CPUs")
    arguments.add_argument("--gpus", type=int, default=2, help="1: with --only single")
    arguments.add_argument("--limit-s", type=float, default=240, help="no cell starts after so many seconds")
    arguments.add_argument("--only", default="", help="a part of the names of the kinds to run, like single")
    arguments.add_argument("--alone", action="store_true", help="rehearse cells of two GPUs on one of them")
    arguments.add_argument("--with", dest="earlier", type=Path, help="results of an earlier run, to complete")
    given = arguments.parse_args()
    device = "cpu" if given.cpu else "cuda"
    began = time.perf_counter()
    ranks = Ranks(given.gpus, device)
    atexit.register(lambda: ranks.close())  # also after an error
    result: dict[str, Any] = {"rehearsals": [], "rows": []}
    if given.earlier:
        result = json.loads(given.earlier.read_text())
    done = {(row["kind"], row["micro_batch"]) for row in result["rows"]}
    earlier = [Rehearsal.read(rehearsal) for rehearsal in result["rehearsals"]]

    def late(share: float = 1.0) -> bool:
        return time.perf_counter() - began > share * float(given.limit_s)

    def save() -> None:
        result["took_s"] = time.perf_counter() - began
        given.out.write_text(json.dumps(result) + "\n")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.gpus) as pool:
        draw = np.random.default_rng(0)
        for name, count in (("train", TOKENS), ("val", 64 * LENGTH + 1)):
            draw.integers(0, 250, count, dtype=np.uint16).tofile(Path(folder) / f"{name}.bin")
        machine = Machine(device=device, tokens=Path(folder), tiny=bool(given.cpu))
        cells: dict[str, list[TrialSpec]] = {}
        for kind, sizes in kinds_of({"tiny": TINY, "all": CPU, None: GRID}[given.cpu]):
            trials = [machine.spec(kind, size) for size in sizes]
            if given.only in kind and any((kind, size) not in done for size in sizes):
                cells[kind] = trials
        keys = {trial.trial_id: kind_of(trial) for trials in cells.values() for trial in trials}

        every = [trial for trials in cells.values() for trial in trials]
        waiting = [trial for trial in every if (trial.axes["kind"], micro_batch(trial)) not in done]

        # Each GPU rehearses every second kind, without the other GPU.
        def rehearse_on(gpu: int) -> list[Rehearsal]:
            own = [trials for trials in cells.values() if given.alone or trials[0].gang.ranks == 1][gpu :: given.gpus]
            made: list[Rehearsal] = []
            for trials in own:
                if not late(REHEARSING):
                    made += rehearse(trials, ranks, gpu)
            return made

        rehearsals = [rehearsal for part in pool.map(rehearse_on, range(given.gpus)) for rehearsal in part]
        for trials in cells.values():
            if trials[0].gang.ranks > 1 and not given.alone and not late(REHEARSING):
                rehearsals += rehearse(trials, ranks, 0, together=True)
        rehearsals = [*earlier, *rehearsals]
        known = Rehearsals(rehearsals)
        result["rehearsals"] = [asdict(rehearsal) for rehearsal in rehearsals]
        result |= {"command": " ".join(sys.argv), "rehearsed_s": time.perf_counter() - began}
        save()
        # Libraries that have chosen their algorithms in these processes would need less memory.
        ranks.close()
        ranks = Ranks(given.gpus, device)

        def note(trial: TrialSpec, exit: Mapping[str, Any]) -> None:
            row = row_of(trial, known.forecast(trial), exit) | {"key": keys[trial.trial_id]}
            result["rows"].append(row)
            print(json.dumps(row), flush=True)

        def alone_on(gpu: int) -> None:
            own = [trial for trial in waiting if trial.gang.ranks == 1][gpu :: given.gpus]
            for trial in own:
                if not late() and known.forecast(trial):
                    [exit] = ranks.call(run, (requests(trial, gang_id=f"gpu {gpu}")[0],), first=gpu)
                    note(trial, exit)

        list(pool.map(alone_on, range(given.gpus)))
        save()
        meeting = rendezvous()
        if given.gpus == 2 and not late():
            calls = [(rank, 2, meeting, device) for rank in range(2)]
            result["collectives_gb_s"] = ranks.call(time_collectives, *calls)[0]
        meeting = rendezvous()
        for trial in (trial for trial in waiting if trial.gang.ranks == 2):
            if late():
                break
            forecast = known.forecast(trial)
            if forecast is None or forecast.fits == "no":
                continue  # a rank without memory would leave the other waiting
            to_ranks = requests(trial, rendezvous=meeting, gang_id=meeting)
            exits = ranks.call(run, *((request,) for request in to_ranks))
            failed = [exit for exit in exits if exit["status"] != "ok"]
            if failed:
                meeting = rendezvous()  # the group may be broken
            note(trial, next((exit for exit in failed if exit["status"] == "oom"), (failed or exits)[0]))
            save()
    for row in result["rows"]:  # with this version's arithmetic, also for the cells of an earlier run
        forecast = known.forecast(machine.spec(row["kind"], row["micro_batch"]))
        row["forecast"] = asdict(forecast) if forecast else None
    result["accuracy"] = judged(result["rows"], rehearsals)
    save()
    print(json.dumps(result["accuracy"], indent=2))


if __name__ == "__main__":
    main()

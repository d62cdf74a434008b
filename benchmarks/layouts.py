"""Tokens per second and memory of each layout in the project's own loop, beside a yardstick in the same processes.

    python -m benchmarks.layouts --out layouts.json [--beside yardstick.py] [--limit-s 200] [CASE …]
    python -m benchmarks.layouts --out forecasts.json --forecast [CASE …]    # from one GPU each, without running them
    python -m benchmarks.layouts --rehearse --out /tmp/layouts.json [--beside yardstick.py]    # on CPUs

A case is model:sequences per GPU x length:options, joined by `-`: eager or compile (each block), whole (the model is
compiled in one piece), fsdp (else DDP), grad (fsdp_grad), hybrid (fsdp in groups of two GPUs), ac (full recomputation),
tp or tp2 (all or two GPUs divide the layers, and share the sequences of one), bf16 (parameters and optimizer states in
bf16), fp8 (tensorwise; the yardstick stays at bf16). `@2` after it is a number of GPUs other than `--gpus`. Models have
GPT-2's shape without biases, an untied output layer and a vocabulary of 50,304, or Llama's; bf16, fused AdamW, no
clipping, random tokens.

`--beside` names a Python file with `measure(model, batch, length, options) -> {"tokens_per_s": …, "peak_gb": …}`, which
every rank calls in its process group after the trial of the same case. A row is written as soon as it is measured; no
case starts after `--limit-s`, and one that takes longer than `--case-s` ends with its processes. Needs PyTorch and
numpy only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import numpy as np

from benchmarks import lm_throughput
from benchmarks.forecast import rehearse, requests
from benchmarks.gpu_throughput import Ranks
from orchestrator.plan.rehearsals import Rehearsals
from sweeps.layout import Gang, layout_of
from sweeps.lr_rule import LearningRate
from sweeps.trial import Batch, RankRequest, TrialSpec
from tests.unit.trainables.ranks import Processes, rendezvous, run
from trainables.context import Context

SIZES = {  # layers, heads, width, vocabulary
    "tiny": (2, 4, 64, 50304),
    "gpt2": (12, 12, 768, 50304),
    "gpt2-xl": (48, 25, 1600, 50304),
    "3b": (32, 20, 2560, 50304),
    "7b": (32, 32, 4096, 50304),
    "llama-8b": (32, 32, 4096, 128256),
}
LLAMA_8B = {"name": "llama", "kv_heads": 8, "hidden": 14336}
CASES = [
    "gpt2-xl:8x1024:compile-fsdp-grad",
    "gpt2-xl:8x1024:compile-fsdp",
    "gpt2-xl:8x1024:compile",
    "gpt2:32x1024:compile-whole",
    "3b:4x2048:compile-fsdp-grad-ac",
    "3b:4x2048:compile-fsdp-ac",
    "3b:4x2048:compile-ac",
    "7b:1x4096:compile-fsdp-ac",
    "3b:8x2048:compile-tp-ac",
]
OF_YARDSTICK = {"eager", "compile", "whole", "fsdp", "grad", "ac", "tp", "fp8"}
OPTIONS = OF_YARDSTICK | {"hybrid", "tp2", "bf16"}


@dataclass(frozen=True, kw_only=True)
class Case(lm_throughput.Case):
    """A model at a batch per GPU, in a layout."""

    sizes = SIZES
    choices = OPTIONS

    gpus: int = 2

    @classmethod
    def on(cls, text: str, gpus: int) -> Self:
        """Parse a case for so many GPUs, unless it names another number. Raises ValueError."""
        described, _, own = text.partition("@")
        return replace(cls.of(described), gpus=int(own or gpus))

    @property
    def has_yardstick(self) -> bool:
        """Return whether the yardstick has this model and layout, too."""
        return self.options <= OF_YARDSTICK and not self.model.startswith("llama")

    @property
    def strategy(self) -> str:
        """The layout's name in the config."""
        if self.options & {"grad", "tp", "tp2"}:
            return "fsdp_grad"
        return "fsdp" if self.options & {"fsdp", "hybrid"} else "ddp"

    def trial(self, data: Path, *, on_gpu: bool) -> TrialSpec:
        """Return the trial of this case."""
        name = f"{self.model}:{self.batch_size}x{self.length}:{'-'.join(sorted(self.options))}@{self.gpus}"
        tensor = self.gpus if "tp" in self.options else 2 if "tp2" in self.options else 1
        gang = Gang(ranks=self.gpus, gpus_per_rank=1 if on_gpu else 0, cpus_per_rank=8 if on_gpu else 1)
        shares = (self.batch_size,) * (self.gpus // tensor)
        return TrialSpec(
            trial_id=name,
            cell_id=name,
            sweep="layouts",
            axes={"case": name},
            gpus=self.gpus,
            gang=gang,
            device="cuda" if on_gpu else "cpu",
            layout=layout_of(
                gang,
                strategy=self.strategy,
                model_parallel={"tensor_parallel": tensor},
                fsdp_size=2 if "hybrid" in self.options else None,
            ),
            timing="device",
            batch=Batch(global_batch_size=sum(shares), shares=shares),
            lr=LearningRate(value=3e-4, warmup_from=3e-4),
            seed=1,
            trainable="trainables.supervised.training:train",
            config=self.config(data, on_gpu=on_gpu),
        )

    def config(self, data: Path, *, on_gpu: bool) -> dict[str, Any]:
        """Return the sections of the trial's config."""
        compiles = "default" if "whole" in self.options else "blocks" if "compile" in self.options else "off"
        model = self.model_config | {"tied": False}
        if self.model.startswith("llama"):
            model = {key: value for key, value in model.items() if key != "bias"} | LLAMA_8B
        return {
            "trainable": {
                "precision": "bf16" if on_gpu or "bf16" in self.options else "fp32",
                "compile": compiles,
                "activation_checkpointing": "full" if "ac" in self.options else "off",
                "master_weights": "bf16" if "bf16" in self.options else "fp32",
                "fp8": "tensorwise" if "fp8" in self.options else "off",
                "window_s": 4.0 if on_gpu else 0.1,
                "window_steps": 8 if on_gpu else 2,
                "warmup_steps": 10 if on_gpu else 2,  # as many as the yardstick; the first steps are 2% slower
                "warmup_s": 0.3 if on_gpu else 0.0,
                "checkpoint": "off",
                "val_fraction": 0.0,
            },
            "model": model,
            "data": {"name": "tokens", "path": str(data)},
            "optimizer": {"name": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
            "schedule": {"name": "constant"},
            "budget": {"steps": 8 if on_gpu else 2},
        }


def beside(path: str, case: Case, request: RankRequest) -> dict[str, Any]:
    """Return the yardstick's figures of a case, measured by this rank together with the others."""
    import torch

    from trainables import isolation, process_group

    # The yardstick finds the process group that the trial before has left connected.
    process_group.join(Context.of(request))
    os.environ["WORLD_SIZE"] = str(request.trial.gang.ranks)
    name = "yardstick"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    try:
        yardstick = sys.modules[name]
        measured: dict[str, Any] = yardstick.measure(case.model, case.batch_size, case.length, set(case.options))
    except torch.OutOfMemoryError as error:
        measured = {"tokens_per_s": None, "note": str(error).splitlines()[0]}
    isolation.leave()  # frees its memory and compiled code
    return measured


def figures(exits: Sequence[dict[str, Any]], case: Case) -> dict[str, Any]:
    """Return the figures of a trial in the project's loop, from the exits of its ranks."""
    failed = [exit for exit in exits if exit["status"] != "ok"]
    if failed:
        return {key: failed[0][key] for key in ("status", "note", "trace")}
    metrics = exits[0]["metrics"]
    known = ("first_epoch_s", "window_s", "window_steps", "mfu_nominal", "loss", "samples_per_s", "peak_memory_gb")
    split = ("step_s", "step_data_s", "step_host_s", "step_compute_s", "step_communication_s", "step_imbalance_s")
    return {
        "status": "ok",
        "tokens_per_s": round(metrics["samples_per_s"] * case.length),
        "peak_gb": round(metrics.get("peak_memory_gb", 0.0) * 2**30 / 1e9, 1),
    } | {key: metrics[key] for key in (*known, *split) if key in metrics}


class Bench:
    """Cases to measure on the GPUs of this machine, and their rows, each written as soon as it is known."""

    def __init__(self, given: argparse.Namespace, data: Path) -> None:
        self._given, self._data = given, data
        self._started = time.monotonic()
        self._on_gpu = not given.rehearse
        self._rows: list[dict[str, Any]] = []

    def forecast(self, cases: dict[str, Case]) -> None:
        """Rehearse each case on one GPU, those of different GPUs side by side."""
        waiting: SimpleQueue[tuple[str, Case]] = SimpleQueue()
        for item in cases.items():
            waiting.put(item)
        ranks = self._processes()

        def rehearse_on(gpu: int) -> None:
            while not self._is_late():
                try:
                    text, case = waiting.get_nowait()
                except Empty:
                    return
                trial = case.trial(self._data, on_gpu=self._on_gpu)
                row: dict[str, Any] = {"case": text, "gpus": case.gpus, "forecast": None}
                try:
                    rehearsals = rehearse([trial], ranks, gpu, limit_s=self._given.case_s)
                except TimeoutError as error:
                    self._add(row | {"note": str(error)})
                    return  # its process may hang
                row["rehearsals"] = [asdict(rehearsal) for rehearsal in rehearsals]
                if forecast := Rehearsals(rehearsals).forecast(trial):
                    row["forecast"] = asdict(forecast)
                self._add(row)

        with ThreadPoolExecutor(self._given.gpus) as pool:
            list(pool.map(rehearse_on, range(self._given.gpus)))
        ranks.kill()

    def run(self, cases: dict[str, Case]) -> None:
        """Run each case on all of its GPUs, in the same processes unless a case fails in them."""
        ranks = self._processes()
        meetings: dict[int, str] = {}
        for text, case in cases.items():
            if self._is_late():
                print(f"{text}: left out, {self._given.limit_s:g} s are over", flush=True)
                continue
            trial = case.trial(self._data, on_gpu=self._on_gpu)
            meeting = meetings.setdefault(case.gpus, rendezvous())
            to_ranks = requests(trial, rendezvous=meeting, gang_id=meeting)
            row: dict[str, Any] = {"case": text, "gpus": case.gpus}
            try:
                row["ours"] = figures(self._timed(row, "ours_s", ranks, run, [(asked,) for asked in to_ranks]), case)
                if self._given.beside and case.has_yardstick and row["ours"]["status"] == "ok":
                    calls = [(self._given.beside, case, asked) for asked in to_ranks]
                    row["beside"] = self._timed(row, "beside_s", ranks, beside, calls)[0]
                    if row["beside"]["tokens_per_s"]:
                        row["ratio"] = round(row["ours"]["tokens_per_s"] / row["beside"]["tokens_per_s"], 3)
            except (TimeoutError, RuntimeError, EOFError) as error:
                row |= {"note": str(error)[-2000:]}
            self._add(row)
            if "note" in row or row["ours"]["status"] != "ok":  # other ranks may wait for one that failed
                ranks.kill()
                ranks = self._processes()
                meetings.clear()
        ranks.close()

    def _processes(self) -> Processes:
        return Ranks(self._given.gpus, "cuda" if self._on_gpu else "cpu")

    def _is_late(self) -> bool:
        return time.monotonic() - self._started > float(self._given.limit_s)

    def _timed(
        self, row: dict[str, Any], name: str, ranks: Processes, function: Callable[..., Any], calls: list[Any]
    ) -> list[dict[str, Any]]:
        began = time.monotonic()
        answers = ranks.call(function, *calls, limit_s=self._given.case_s)
        row[name] = round(time.monotonic() - began, 1)
        return answers

    def _add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        print(json.dumps(row), flush=True)
        self._given.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": self._rows}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--out", type=Path, required=True, help="where the figures go, as JSON")
    parser.add_argument("--forecast", action="store_true", help="forecast each case from one GPU instead of running it")
    parser.add_argument("--beside", type=lambda text: str(Path(text).resolve()), help="the yardstick's file")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=200.0)
    parser.add_argument("--case-s", type=float, default=90.0)
    parser.add_argument("--rehearse", action="store_true", help="on CPUs, with tiny sizes")
    given = parser.parse_args()
    cases = {text: Case.on(text, given.gpus) for text in given.cases}
    if given.rehearse:
        cases = {text: replace(case, model="tiny", batch_size=2, length=16) for text, case in cases.items()}
    with tempfile.TemporaryDirectory() as folder:
        tokens = np.random.default_rng(0).integers(0, 50257, lm_throughput.TOKENS, dtype=np.uint16)
        tokens.tofile(Path(folder) / "train.bin")
        bench = Bench(given, Path(folder))
        if given.forecast:
            bench.forecast(cases)
        else:
            bench.run(cases)


if __name__ == "__main__":
    main()

"""Tokens per second and memory of each layout in the project's own loop, beside a yardstick in the same processes.

    python -m benchmarks.layouts --out layouts.json [--beside yardstick.py] [--limit-s 200] [CASE …]
    python -m benchmarks.layouts --rehearse --out /tmp/layouts.json [--beside yardstick.py]    # on CPUs

A case is model:sequences per GPU x length:options, joined by `-`: eager or compile (each block), whole (the model is
compiled in one piece), fsdp (else DDP), grad (fsdp_grad), ac (full recomputation), tp (all GPUs divide the layers, and
share the sequences of one), fp8 (tensorwise; the yardstick stays at bf16). Models have GPT-2's shape without biases, an
untied output layer and a vocabulary of 50,304; bf16, fused AdamW, no clipping, random tokens.

`--beside` names a Python file with `measure(model, batch, length, options) -> {"tokens_per_s": …, "peak_gb": …}`, which
every rank calls in its process group after the trial of the same case. A row is written as soon as it is measured; no
case starts after `--limit-s`. Needs PyTorch and numpy only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import lm_throughput
from tests.unit.trainables.ranks import Processes, rendezvous, request, run

SIZES = {  # layers, heads, width, vocabulary
    "tiny": (2, 4, 64, 50304),
    "gpt2": (12, 12, 768, 50304),
    "gpt2-xl": (48, 25, 1600, 50304),
    "3b": (32, 20, 2560, 50304),
    "7b": (32, 32, 4096, 50304),
}
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
OPTIONS = {"eager", "compile", "whole", "fsdp", "grad", "ac", "tp", "fp8"}


class Case(lm_throughput.Case):
    """A model at a batch per GPU, in a layout."""

    sizes = SIZES
    choices = OPTIONS

    @property
    def strategy(self) -> str:
        """The layout's name in the config."""
        if "grad" in self.options or "tp" in self.options:
            return "fsdp_grad"
        return "fsdp" if "fsdp" in self.options else "ddp"

    def divided(self, gpus: int) -> dict[str, Any]:
        """Return the part of a request that says how so many GPUs divide the work."""
        tensor = gpus if "tp" in self.options else 1
        return {"strategy": self.strategy, "shares": (self.batch_size,) * (gpus // tensor), "tensor": tensor}

    def config(self, data: Path, *, on_gpu: bool) -> dict[str, Any]:
        """Return the sections of the trial's config."""
        compiles = "default" if "whole" in self.options else "blocks" if "compile" in self.options else "off"
        return {
            "trainable": {
                "precision": "bf16" if on_gpu else "fp32",
                "compile": compiles,
                "activation_checkpointing": "full" if "ac" in self.options else "off",
                "fp8": "tensorwise" if "fp8" in self.options else "off",
                "window_s": 2.0 if on_gpu else 0.1,
                "window_steps": 8 if on_gpu else 2,
                "warmup_steps": 2,
                "warmup_s": 0.3 if on_gpu else 0.0,
                "checkpoint": "off",
                "val_fraction": 0.0,
            },
            "model": self.model_config | {"tied": False},
            "data": {"name": "tokens", "path": str(data)},
            "optimizer": {"name": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
            "schedule": {"name": "constant"},
            "budget": {"steps": 8 if on_gpu else 2},
        }


def beside(path: str, case: Case, own_request: dict[str, Any]) -> dict[str, Any]:
    """Return the yardstick's figures of a case, measured by this rank together with the others."""
    import torch

    from trainables import isolation, process_group, rank

    # The yardstick finds the process group that the trial before has left connected.
    process_group.join(rank.context_of(own_request, lambda row: None, lambda: False))
    os.environ["WORLD_SIZE"] = str(own_request["world_size"])
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


def ours(ranks: Processes, case: Case, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a trial in the project's loop."""
    answers = ranks.call(run, *((of_rank,) for of_rank in requests))
    failed = [answer for answer in answers if answer["status"] != "ok"]
    if failed:
        return {key: failed[0][key] for key in ("status", "note", "trace")}
    metrics = answers[0]["metrics"]
    known = ("first_epoch_s", "window_s", "window_steps", "mfu_nominal", "loss", "step_s", "step_data_s")
    split = ("step_host_s", "step_compute_s", "step_communication_s", "step_imbalance_s")
    return {
        "status": "ok",
        "tokens_per_s": round(metrics["samples_per_s"] * case.length),
        "peak_gb": round(metrics.get("peak_memory_gb", 0.0) * 2**30 / 1e9, 1),
    } | {key: metrics[key] for key in (*known, *split) if key in metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--out", type=Path, required=True, help="where the figures go, as JSON")
    parser.add_argument("--beside", type=lambda text: str(Path(text).resolve()), help="the yardstick's file")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=200.0)
    parser.add_argument("--rehearse", action="store_true", help="on CPUs, with tiny sizes")
    given = parser.parse_args()
    started = time.monotonic()
    cases = {text: Case.of(text) for text in given.cases}
    if given.rehearse:
        cases = {
            text.replace(case.model, "tiny", 1): replace(case, model="tiny", batch_size=2, length=16)
            for text, case in cases.items()
        }
    device = "cpu" if given.rehearse else "cuda"
    environments = [{"CUDA_VISIBLE_DEVICES": "" if given.rehearse else str(gpu)} for gpu in range(given.gpus)]
    rows: list[dict[str, Any]] = []
    meet = rendezvous()
    with tempfile.TemporaryDirectory() as folder:
        tokens = np.random.default_rng(0).integers(0, 50257, lm_throughput.TOKENS, dtype=np.uint16)
        tokens.tofile(Path(folder) / "train.bin")
        ranks = Processes(given.gpus, environments)
        for text, case in cases.items():
            if time.monotonic() - started > given.limit_s:
                print(f"{text}: left out, {given.limit_s:g} s are over", flush=True)
                continue
            requests = [
                request(
                    rank=rank,
                    **case.divided(given.gpus),
                    lr=3e-4,
                    config=case.config(Path(folder), on_gpu=device == "cuda"),
                    device=device,
                    gpus_per_rank=1 if device == "cuda" else 0,
                    threads=8 if device == "cuda" else 1,
                    rendezvous=meet,
                    gang_id=meet,
                )
                for rank in range(given.gpus)
            ]
            began = time.monotonic()
            row: dict[str, Any] = {"case": text, "gpus": given.gpus, "ours": ours(ranks, case, requests)}
            row["ours_s"] = round(time.monotonic() - began, 1)
            if given.beside and row["ours"]["status"] == "ok":
                began = time.monotonic()
                row["beside"] = ranks.call(beside, *((given.beside, case, of_rank) for of_rank in requests))[0]
                row["beside_s"] = round(time.monotonic() - began, 1)
                if row["beside"]["tokens_per_s"]:
                    row["ratio"] = round(row["ours"]["tokens_per_s"] / row["beside"]["tokens_per_s"], 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
            given.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=2) + "\n")
        ranks.close()


if __name__ == "__main__":
    main()

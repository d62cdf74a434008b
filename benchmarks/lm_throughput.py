"""Tokens per second, MFU and memory of language models in the project's own loop, beside a hand-written loop.

    python -m benchmarks.lm_throughput --out lm_throughput.json [gpt2:32x1024:whole …]
    python -m benchmarks.lm_throughput --device cpu tiny:4x64:eager       to rehearse

A case is model:sequences x length:options, joined by `-`: eager, whole (the model is compiled in one piece) or blocks
(each block is compiled), ac (activation checkpointing), ref (untied output layer, no clipping: the work of a step is
that of a plain yardstick). Models are in GPT-2's shape without biases, their vocabulary is padded to 50,304. A trial
goes through `trainables.rank.run`, as from a back end: tokens from memory-mapped files, bf16 autocast, fused AdamW,
clipping, validation at the end of an epoch. Its figure is its `samples_per_s` times the length.

The hand-written loop trains the same model with the same options on random tokens that lie on the device, in the same
process just before and after; the ratio is to the mean of both. Needs PyTorch and numpy only; one JSON line per case.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Self

import numpy as np

from tests.unit.trainables.ranks import request, run
from trainables import isolation

SIZES = {  # layers, heads, width, vocabulary
    "tiny": (2, 2, 64, 256),
    "small": (6, 4, 128, 256),
    "gpt2": (12, 12, 768, 50304),
    "gpt2-medium": (24, 16, 1024, 50304),
    "gpt2-xl": (48, 25, 1600, 50304),
}
CASES = [
    *("gpt2:32x1024:whole", "gpt2:64x1024:whole", "gpt2:32x1024:whole-ref"),
    *("gpt2-xl:16x1024:blocks", "gpt2-xl:16x1024:blocks-ac"),
]
OPTIONS = {"eager", "whole", "blocks", "ac", "ref"}
PEAK = 989e12
"""FLOP/s of an H100 SXM or H200 in dense bf16: NVIDIA's data sheet."""
TOKENS = 20_000_000
WINDOWS = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model at a batch, trained with some options."""

    sizes = SIZES
    choices = OPTIONS

    model: str
    batch_size: int
    """Sequences per GPU."""
    length: int
    options: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a case. Raises ValueError for unknown models and options."""
        model, shape, options = text.split(":")
        batch_size, length = map(int, shape.split("x"))
        chosen = frozenset(options.split("-"))
        if model not in cls.sizes or not chosen <= cls.choices:
            raise ValueError(f"{text}: models are {', '.join(cls.sizes)}, options {', '.join(sorted(cls.choices))}")
        return cls(model=model, batch_size=batch_size, length=length, options=chosen)

    @property
    def model_config(self) -> dict[str, Any]:
        layers, heads, width, vocabulary = self.sizes[self.model]
        size = {"layers": layers, "heads": heads, "width": width, "vocabulary": vocabulary}
        tied = "ref" not in self.options
        return {"name": "gpt", "sequence_length": self.length, "bias": False, "tied": tied, **size}

    @property
    def settings(self) -> dict[str, Any]:
        compiled = "default" if "whole" in self.options else "blocks" if "blocks" in self.options else "off"
        return {
            "compile": compiled,
            "activation_checkpointing": "full" if "ac" in self.options else "off",
            "clip_grad_norm": None if "ref" in self.options else 1.0,
        }


def by_hand(case: Case, device: str, window_s: float) -> dict[str, float]:
    """Return tokens/s (the median of some windows) and peak memory of a hand-written loop."""
    import torch
    import torch.nn.functional as F

    from trainables import models
    from trainables.models import recompute_blocks

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    net = models.build(case.model_config, input_shape=(case.length,), num_classes=0).to(device)
    if "ac" in case.options:
        recompute_blocks(net, "full")

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x).float().flatten(0, 1), y.flatten())

    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = loss_of
    if "blocks" in case.options:
        for block in net.blocks:  # type: ignore[union-attr]
            block.compile(dynamic=False)
    elif "whole" in case.options:
        forward = torch.compile(loss_of, dynamic=False)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.1, fused=True)
    tokens = torch.randint(0, case.model_config["vocabulary"], (4_000_000,), device=device)
    counted = torch.arange(case.length + 1, device=device)

    def step() -> None:
        start = torch.randint(0, len(tokens) - case.length - 1, (case.batch_size, 1), device=device)
        rows = tokens[start + counted]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = forward(rows[:, :-1], rows[:, 1:])
        loss.backward()
        if "ref" not in case.options:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    def steps(count: int) -> float:
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        wait()
        started = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return time.perf_counter() - started

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    warm_s = steps(8)
    count = max(8, round(window_s / (steps(2) / 2)))
    rates = [case.batch_size * case.length * count / steps(count) for _ in range(WINDOWS)]
    peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0
    return {"tokens_per_s": median(rates), "warm_s": warm_s, "peak_gb": peak}


def trial(case: Case, device: str, window_s: float, folder: Path) -> dict[str, Any]:
    """Return the figures of a trial in the project's loop."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    timing = {"window_s": window_s, "window_steps": 20, "warmup_steps": 10, "checkpoint": "off", "val_fraction": 0.0}
    answer = run(
        request(
            shares=(case.batch_size,),
            lr=3e-4,
            config={
                "trainable": timing | case.settings | {"precision": "bf16" if device == "cuda" else "fp32"},
                "model": case.model_config,
                "data": {"name": "tokens", "path": str(folder), "validation_tokens": 16 * case.length},
                "optimizer": {"name": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
                "schedule": {"name": "constant"},  # at a rate of 0 the fused AdamW kernel is 15% slower on an H200
                "budget": {"steps": 20},
            },
            device=device,
            gpus_per_rank=1,
            threads=torch.get_num_threads(),
        )
    )
    metrics = answer["metrics"]
    if answer["status"] != "ok":
        return {key: answer[key] for key in ("status", "note", "trace")}
    rate = metrics["samples_per_s"] * case.length
    known = ("mfu", "first_epoch_s", "window_s", "window_steps", "step_data_s", "step_host_s", "loss", "val_loss")
    return {
        "status": "ok",
        "tokens_per_s": rate,
        "mfu_nominal": rate / case.length * metrics["flops_per_sample"] / PEAK,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0,
    } | {key: metrics[key] for key in known if key in metrics}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("cases", nargs="*", default=CASES)
    arguments.add_argument("--out", type=Path, help="where the figures go, as JSON")
    arguments.add_argument("--window-s", type=float, default=2.0)
    arguments.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments.add_argument("--no-hand", action="store_true", help="without the hand-written loop")
    given = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for text in given.cases:
            case = Case.of(text)
            draw = np.random.default_rng(0)
            for name, count in (("train", TOKENS), ("val", 64 * case.length + 1)):
                tokens = draw.integers(0, min(case.model_config["vocabulary"], 50257), count, dtype=np.uint16)
                tokens.tofile(Path(folder) / f"{name}.bin")
            row: dict[str, Any] = {"case": text}
            if not given.no_hand:
                row["by_hand"] = [by_hand(case, given.device, given.window_s)]
                isolation.leave()  # frees its memory and compiled code
            row["ours"] = trial(case, given.device, given.window_s, Path(folder))
            if not given.no_hand and "tokens_per_s" in row["ours"]:
                row["by_hand"].append(by_hand(case, given.device, given.window_s))
                isolation.leave()
                row["ratio"] = row["ours"]["tokens_per_s"] / mean(run["tokens_per_s"] for run in row["by_hand"])
            rows.append(row)
            print(json.dumps(row), flush=True)
            if given.out:
                given.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

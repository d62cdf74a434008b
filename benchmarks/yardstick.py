"""Measure plain PyTorch with nothing but a model and an optimizer: images on the GPU, no data set, no metrics.

    python -m benchmarks.yardstick resnet18:1024:tuned resnet18:128:compile-graph

A case is model:batch:kind. Kinds: naive (float32, N×C×H×W), tuned (bf16 autocast, channels last, TF32, fused SGD),
compile (tuned, and torch.compile for fixed shapes), graph (tuned, and the whole step as one CUDA graph), compile-graph
(both). Each step draws a batch from 20,000 random images on the device as uint8.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F

from trainables import models

KINDS = ("naive", "tuned", "compile", "graph", "compile-graph")
IMAGES = 20_000
WARMUP_STEPS = 12


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model at a batch, trained in one of the ways of `KINDS`."""

    model: str
    batch_size: int
    kind: str

    @staticmethod
    def of(text: str) -> Case:
        model, batch_size, kind = text.split(":")
        if kind not in KINDS:
            raise ValueError(f"{text}: the kind is not one of {', '.join(KINDS)}")
        return Case(model=model, batch_size=int(batch_size), kind=kind)

    @property
    def model_config(self) -> dict[str, object]:
        """Return the config for `trainables.models`: cnn10 has no biases, which batch norm makes redundant."""
        name = f"studies.models:{self.model}" if self.model in ("cnn10", "wrn28_10") else self.model
        return {"name": name} | ({"bias": False} if self.model == "cnn10" else {})


def images_per_s(case: Case, *, device: str = "cuda", windows: int = 3, window_s: float = 1.0) -> list[float]:
    """Return the speed in each of several windows of about `window_s` seconds, and of at least 6 steps."""
    torch.manual_seed(0)
    step = make_step(case, device)
    _seconds(step, 6, device)
    count = max(6, round(window_s / (_seconds(step, 6, device) / 6)))
    return [case.batch_size * count / _seconds(step, count, device) for _ in range(windows)]


def _seconds(step: Callable[[], None], count: int, device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    for _ in range(count):
        step()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def make_step(case: Case, device: str) -> Callable[[], None]:
    """Return a training step on a random batch, warmed up; captured if the kind says so."""
    fast, graphed = case.kind != "naive", "graph" in case.kind
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = fast, True
    layout = torch.channels_last if fast else torch.contiguous_format
    model = models.build(case.model_config, input_shape=(3, 32, 32), num_classes=10).to(device, memory_format=layout)
    forward = torch.compile(lambda images: model(images), dynamic=False) if "compile" in case.kind else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)
    x = torch.rand(case.batch_size, 3, 32, 32, device=device).contiguous(memory_format=layout)
    y = torch.zeros(case.batch_size, dtype=torch.long, device=device)

    def update() -> None:
        optimizer.zero_grad(set_to_none=not graphed)
        with torch.autocast(device, torch.bfloat16, enabled=fast, cache_enabled=not graphed):
            loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()

    return _feeding(x, y, capture(update) if graphed else update)


def _feeding(x: torch.Tensor, y: torch.Tensor, update: Callable[[], None]) -> Callable[[], None]:
    images = torch.randint(0, 256, (IMAGES, *x.shape[1:]), dtype=torch.uint8, device=x.device)
    labels = torch.randint(0, 10, (IMAGES,), device=x.device)

    def step() -> None:
        chosen = torch.randint(0, IMAGES, (len(x),), device=x.device)
        x.copy_(images[chosen].float().div_(255))
        y.copy_(labels[chosen])
        update()

    return step


def capture(update: Callable[[], None]) -> Callable[[], None]:
    """Return a replay of the update, captured as in PyTorch's notes on CUDA semantics."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP_STEPS):
            update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="model:batch:kind")
    for text in parser.parse_args().cases:
        print(f"{text}: {median(images_per_s(Case.of(text))):,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()

"""Trainables that leave behind whatever a trial can leave behind."""

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from trainables.context import Context

STARTED: list[threading.Event | subprocess.Popen[bytes]] = []


def change_flags(config: object, context: Context) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    torch.set_autocast_enabled("cpu", True)
    numpy.random.seed(9)
    random.seed(9)
    os.environ["LEFT_BEHIND"] = "1"
    os.chdir("/")
    gc.disable()


def fail(config: object, context: Context) -> None:
    torch.set_grad_enabled(False)
    raise RuntimeError("on purpose\nand with a second line")


def run_out_of_memory(config: object, context: Context) -> None:
    torch.empty(2**60, dtype=torch.uint8)


def exit_early(config: object, context: Context) -> None:
    sys.exit("enough")


def say_nan(config: object, context: Context) -> None:
    context.summarize({"power_w": float("nan"), "loss": torch.tensor(0.5), "epochs": numpy.int64(3)})
    context.summarize(
        {"of_classes": numpy.array([0.25, 1.0]), "norms": {"layers": torch.ones(2)}, "one": torch.ones(1)}
    )


def diverge_late(config: object, context: Context) -> None:
    for epoch, loss in enumerate((0.5, float("nan"))):
        context.report({"epoch": epoch, "val_loss": torch.tensor(loss)})


def say_an_object(config: object, context: Context) -> None:
    context.summarize({"accuracy": object()})


def remark(config: object, context: Context) -> None:
    context.remark("slower than others")
    context.remark("and old")


def leave_a_thread(config: object, context: Context) -> None:
    ended = threading.Event()
    STARTED.append(ended)
    threading.Thread(target=ended.wait).start()


def leave_a_child(config: object, context: Context) -> None:
    STARTED.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))


def state(config: object, context: Context) -> None:
    """Report everything that `change_flags` changes."""
    context.report(
        {
            "dtype": str(torch.get_default_dtype()),
            "device": str(torch.get_default_device()),
            "grad": torch.is_grad_enabled(),
            "deterministic": torch.get_deterministic_debug_mode(),
            "precision": torch.get_float32_matmul_precision(),
            "mkldnn": torch.backends.mkldnn.matmul.fp32_precision,
            "benchmark": torch.backends.cudnn.benchmark,
            "threads": torch.get_num_threads(),
            "denormal": (torch.tensor([1e-40]) * 1).item(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "numpy": float(numpy.random.rand()),
            "random": random.random(),
            "torch": torch.rand(1).item(),
            "environment": os.environ.get("LEFT_BEHIND", ""),
            "directory": os.getcwd(),
            "collects": gc.isenabled(),
        }
    )


def end_what_was_left() -> None:
    """End the threads and the child processes."""
    for left in STARTED:
        if isinstance(left, threading.Event):
            left.set()
        else:
            left.communicate()
    STARTED.clear()


def keep_and_fail(config: Mapping[str, Any], context: Context) -> None:
    context.checkpoint({"epoch": 1})
    raise RuntimeError("on purpose")


def take_half_of_the_gpu(config: object, context: Context) -> None:
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.empty(whole // 2 + 2**20, dtype=torch.uint8, device=context.device)
    context.summarize({"loss": 0.5})


def return_figures(config: Mapping[str, Any], context: Context) -> dict[str, float]:
    return {"accuracy": 0.5}


def report_percent(config: Mapping[str, Any], context: Context) -> None:
    context.report({"epoch": 1, "val_accuracy": 92.5})


def take_nothing() -> None:
    """A function that is not a trainable."""

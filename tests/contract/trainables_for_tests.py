"""Trainables of the contract suite: they follow their config, in any process."""

import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainables.context import Context, DivergedError


def quick(config: Mapping[str, Any], context: Context) -> None:
    """Report `rows` rows, `pace_s` apart, wait until there is a file `until`, and leave the process's id."""
    print(f"this is rank {context.rank} of {context.trial_id}")
    os.write(2, b"written past Python\n")
    for epoch in range(1, config.get("rows", 1) + 1):
        time.sleep(config.get("pace_s", 0))
        context.report({"epoch": epoch, "samples": epoch * 8})
    while "until" in config and not Path(config["until"]).exists():
        time.sleep(0.01)
    context.summarize({"accuracy": 0.5, "pid": os.getpid()})


def learning(config: Mapping[str, Any], context: Context) -> None:
    """Report `reaches` as the accuracy of each of ten epochs of eight samples, until told to stop.

    From halfway on, wait `patience_s` after each epoch for a stop request.
    """
    for epoch in range(1, 11):
        context.report({"epoch": epoch, "samples": epoch * 8, "val_accuracy": config["reaches"]})
        until = time.monotonic() + (config.get("patience_s", 0) if epoch >= 5 else 0)
        while not (stops := context.should_stop()) and time.monotonic() < until:
            time.sleep(0.02)
        if stops:
            break
    context.summarize({"accuracy": 0.5, "pid": os.getpid()})


def failing(config: Mapping[str, Any], context: Context) -> None:
    """Report a row, then end as `how` says in rank `who`; the other ranks hang as in a collective."""
    context.report({"epoch": 1})
    if context.rank != config.get("who", 0):
        _hang()
    match config["how"]:
        case "raise":
            raise ValueError("no such luck")
        case "diverge":
            raise DivergedError("the loss is nan")
        case "oom":
            raise MemoryError("CUDA out of memory. Tried to allocate 80 GiB")
        case "crash":
            faulthandler._sigsegv()


def on_gpus(config: Mapping[str, Any], context: Context) -> None:
    """Report the GPUs, once two trials are in the folder `together`; the GPU named `broken` fails when it is used."""
    if "together" in config:
        (Path(config["together"]) / context.trial_id).touch()
    while "together" in config and len(os.listdir(config["together"])) < 2:
        time.sleep(0.01)
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    if config.get("broken") in devices:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    context.summarize({"found": ",".join(devices)})


def collective(config: Mapping[str, Any], context: Context) -> None:
    """Run an all-reduce over gloo; rank `who`, if given, raises instead of joining in."""
    import torch

    from trainables import process_group

    gang = process_group.join(context)
    if context.rank == config.get("who"):
        raise ValueError("no such luck")
    total = gang.sum(torch.tensor([float(context.rank + 1)]))
    context.summarize({"total": total.item(), "threads": torch.get_num_threads(), "pid": os.getpid()})


def freezing(config: Mapping[str, Any], context: Context) -> None:
    """Sum over the ranks again and again; after a few rounds rank `who` stops as by SIGSTOP, or exits."""
    import torch

    from trainables import process_group

    gang = process_group.join(context)
    for epoch in range(1, 1000):
        if epoch == 5 and context.rank == config["who"]:
            if config["how"] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            _hang()
        gang.sum(torch.ones(1))
        context.should_stop()
        time.sleep(0.02)


def meeting(config: Mapping[str, Any], context: Context) -> None:
    """Leave a file in `folder` and wait for the others': ends only if as many trials run at the same time."""
    folder = Path(config["folder"])
    (folder / context.trial_id).touch()
    while len(list(folder.iterdir())) < config["trials"]:
        time.sleep(0.01)


def polite(config: Mapping[str, Any], context: Context) -> None:
    """Run until asked to stop."""
    context.report({"epoch": 1})
    while not context.should_stop():
        time.sleep(0.01)


def stubborn(config: Mapping[str, Any], context: Context) -> None:
    """Run for ever."""
    context.report({"epoch": 1})
    _hang()


def _hang() -> None:
    while True:
        time.sleep(1)

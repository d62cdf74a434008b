"""Measurements of a GPU session (gpu_session.py): each function takes the host and returns a row's figures."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_throughput import SETTINGS, Ranks, compare
from sweeps.lr_rule import LearningRate
from tests.unit.trainables.ranks import rendezvous, request, run

ROOT = Path(__file__).parents[1]
CROP_AND_FLIP = {"crop_padding": 4, "flip": True}
SCRIPT = {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-4}
FAST = SETTINGS["compile-graph"]
JUDGED_BY = 0.02
"""The part of the training images by which ours is judged after every epoch, beside the script."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine and the data of the measurements."""

    data: dict[str, Any]
    """The config section of the data set."""
    device: str
    gpus: int
    tiny: bool
    """Whether this is a rehearsal: everything as small as it can be."""
    given: argparse.Namespace

    def trial(self, ranks: Ranks, *, count: int = 1, **asked: Any) -> dict[str, Any]:
        """Return rank 0's result of one trial, with its rows."""
        place = {"device": self.device, "gpus_per_rank": 1, "threads": 1 if self.tiny else 4}
        place |= {"rendezvous": rendezvous() if count > 1 else None, "gang_id": f"{time.monotonic()}"}
        config = {"data": self.data} | asked.pop("config")
        lr = asked.pop("lr", 0.05)
        place["rates"] = LearningRate(rule="linear", reference_batch_size=64, value=lr, warmup_from=lr)
        answers = ranks.call(run, *[(request(rank=rank, config=config, **place, **asked),) for rank in range(count)])
        return next((answer for answer in answers if answer["status"] != "ok"), answers[0])


def figures(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a trial's result that are kept."""
    if answer["status"] != "ok":
        return {key: answer[key] for key in ("status", "note")}
    keys = ("samples_per_s", "epoch_s", "first_epoch_s", "train_s", "accuracy", "epochs", "peak_memory_gb", "steps")
    return {"status": "ok"} | {key: answer["metrics"][key] for key in keys if key in answer["metrics"]}


def throughput(case: str, gpus: int) -> Callable[[Host], dict[str, Any]]:
    """Compare trials with plain PyTorch, or with a trial on one GPU: see gpu_throughput.py."""

    def measure(host: Host) -> dict[str, Any]:
        given = argparse.Namespace(**{**vars(host.given), "gpus": gpus, "device": host.device, "epochs": 2})
        given.data_config, given.window_s = host.data, 0.2 if host.tiny else 2.0
        ranks = Ranks(gpus, host.device)
        try:
            row = compare("small_cnn:16:naive" if host.tiny else case, ranks, given)
        finally:
            ranks.close()
        row["ours"].pop("provenance", None)
        return row

    return measure


def recipe(epochs: int, batch: int, lr: float, model: str = "resnet9") -> Callable[[Host], dict[str, Any]]:
    """Run three trainings: the first compiles, the others reuse most of it. Goal: 90.5% in 10 s."""

    def measure(host: Host) -> dict[str, Any]:
        speed = {} if host.tiny else FAST
        judged = {"label_smoothing": 0.2, "eval_mirrored": True, "val_fraction": 0.0, "window_s": 0.01}
        config = {
            "trainable": speed | judged,
            "model": {"name": _model(host, model)},
            "data": host.data | {"augment": CROP_AND_FLIP | {"cutout": 8}},
            "optimizer": SCRIPT | {"nesterov": True},
            "schedule": {"name": "onecycle", "peak": 0.2, "initial": 0.0},
            "budget": {"epochs": 2 if host.tiny else epochs},
        }
        ranks, trials = Ranks(1, host.device), []
        try:
            for seed in range(3):
                answer = host.trial(ranks, shares=(16 if host.tiny else batch,), lr=lr, seed=seed, config=config)
                trials.append(figures(answer) | {"seed": seed} | _after_compilation(answer))
        finally:
            ranks.close()
        done = [trial for trial in trials if trial["status"] == "ok"]
        return {
            "trials": trials,
            "accuracy": _mean([trial["accuracy"] for trial in done]),
            "train_s_after_compilation": _mean([trial["train_s_after_compilation"] for trial in done]),
            "wanted": {"accuracy": 0.905, "train_s_after_compilation": 10.0},
        }

    return measure


def _after_compilation(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of the whole training, with the first epoch as long as the median of the others."""
    later = [row["epoch_s"] for row in answer["rows"][1:]]
    return {"train_s_after_compilation": math.fsum(later) + median(later)} if later else {}


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def script(epochs: int) -> Callable[[Host], dict[str, Any]]:
    """Compare the published script (loader workers, image by image, the loss read back every step) with a trial:
    s/epoch, accuracy.

    Accuracies are means over the second half of the epochs. The script's are on the test images. The trial's are on
    JUDGED_BY of the training images, which it does not train on; the factors correct for this.
    """

    def measure(host: Host) -> dict[str, Any]:
        from studies.published_script import seconds_of_epochs

        count = 1 if host.tiny else epochs
        theirs = seconds_of_epochs(
            host.data, device=host.device, epochs=count, workers=1 if host.tiny else 8, model=_model(host, "resnet18")
        )
        row: dict[str, Any] = {"script": theirs, "ours": {}}
        ranks = Ranks(1, host.device)
        try:
            for batch, rate in ((128, 0.1), (512, 0.2), (1024, 0.2), (1024, 0.8)):
                config = {
                    "trainable": ({} if host.tiny else FAST) | {"val_fraction": JUDGED_BY, "window_s": 0.1},
                    "model": {"name": _model(host, "resnet18")},
                    "data": host.data | {"augment": CROP_AND_FLIP},
                    "optimizer": SCRIPT,
                    "schedule": {"name": "constant"},
                    "budget": {"epochs": 2 if host.tiny else max(3, epochs)},
                }
                asked = {"shares": (16 if host.tiny else batch,), "lr": rate, "config": config}
                answer = host.trial(ranks, **asked)
                row["ours"][f"{batch} at {rate}"] = figures(answer) | _later_accuracies(answer["rows"])
        finally:
            ranks.close()
        row["factor"] = {
            batch: theirs["epoch_s"] / ours["epoch_s"] * (1 - JUDGED_BY)
            for batch, ours in row["ours"].items()
            if "epoch_s" in ours
        }
        return row | {"wanted": {"128 at 0.1": 3.7, "best, as accurate": 6.0}}

    return measure


def _later_accuracies(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    later = [row["val_accuracy"] for row in rows[len(rows) // 2 :]]
    return {"later_accuracy": _mean(later), "later_accuracies": later}


def _model(host: Host, name: str) -> str:
    return "small_cnn" if host.tiny else name


def inputs(gpus: int, batch: int) -> Callable[[Host], dict[str, Any]]:
    """Run the same training from each kind of input; return the factor of the fastest over each."""

    def measure(host: Host) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name in ("resident", "loader"):
            workers = {"workers": 1 if host.tiny else 8 if name == "loader" else 12}
            config = {
                "trainable": ({} if host.tiny else SETTINGS["tuned"])
                | {"input": name, "loader": workers, "val_fraction": 0.0, "window_s": 0.2 if host.tiny else 2.0},
                "model": {"name": _model(host, "resnet18")},
                "data": host.data | {"augment": CROP_AND_FLIP},
                "optimizer": SCRIPT,
                "budget": {"epochs": 1},
            }
            ranks = Ranks(gpus, host.device)
            shares = (16 if host.tiny else batch,) * gpus
            try:
                row[name] = figures(host.trial(ranks, count=gpus, shares=shares, lr=0.1, config=config))
            finally:
                ranks.close()
        speeds = {name: trial["samples_per_s"] for name, trial in row.items() if trial["status"] == "ok"}
        return row | {"resident_over": {name: speeds["resident"] / speed for name, speed in speeds.items()}}

    return measure


def out_of_memory(host: Host) -> dict[str, Any]:
    """Check that a far too large share is a row with status oom, that the next trial runs, and that micro_batch=auto
    fits.
    """
    share = 64 if host.tiny else 32_768
    no_window = {"val_fraction": 0.0, "window_s": 0.1, "window_steps": 2, "warmup_steps": 0, "warmup_s": 0.0}
    row: dict[str, Any] = {}
    for name, settings, size in (
        ("too large", {}, share),
        ("after it", {}, 64),
        ("auto", {"micro_batch": "auto"}, share),
    ):
        config = {
            "trainable": ({} if host.tiny else SETTINGS["tuned"]) | settings | no_window,
            "model": {"name": _model(host, "studies.models:wrn28_10")},
            "data": host.data | {"augment": CROP_AND_FLIP},
            "optimizer": SCRIPT,
            "budget": {"steps": 2},
        }
        ranks = Ranks(1, host.device)  # as a back end does: a process in which memory ran out takes no further trial
        try:
            answer = host.trial(ranks, shares=(size,), lr=0.01, config=config)
        finally:
            ranks.close()
        row[name] = figures(answer) | {"micro_batch_size": answer["metrics"].get("micro_batch_size")}
    return row | {"wanted": {"too large": "oom", "after it": "ok", "auto": "ok"}}


SLOWED = "studies.slow_down:train"


def unequal(host: Host) -> dict[str, Any]:
    """Slow one rank to half its speed; compare equal and proportional shares with the sum of the speeds."""
    ranks, share = Ranks(2, host.device), 16 if host.tiny else 1024
    rounds: list[dict[str, Any]] = []
    config = {
        "model": {"name": _model(host, "resnet18")},
        "optimizer": SCRIPT,
        "schedule": {"name": "constant"},
        "budget": {"steps": 5},
    }
    speed = {} if host.tiny else SETTINGS["tuned"]

    def settings(slow: int) -> dict[str, Any]:
        timing = {"val_fraction": 0.0, "window_s": 0.2 if host.tiny else 1.5, "window_steps": 10}
        return config | {"trainable": speed | timing | {"slow_down": {"rank": slow, "factor": 2.0}}}

    try:
        for _ in range(1 if host.tiny else 3):
            apart = [
                request(
                    SLOWED,
                    shares=(share,),
                    config={"data": host.data} | settings(slow),
                    device=host.device,
                    gpus_per_rank=1,
                )
                for slow in (1, 0)  # the second process is the slow one: alone it is a separate rank 0
            ]
            alone = [answer["metrics"]["samples_per_s"] for answer in ranks.call(run, *[(single,) for single in apart])]
            pair = {
                name: host.trial(
                    ranks, count=2, trainable=SLOWED, shares=(share, share), strategy=name, config=settings(1)
                )["metrics"]
                for name in ("ddp", "ddp_unequal")
            }
            rounds.append(
                {"apart": alone, "shares": pair["ddp_unequal"]["shares"]}
                | {name: metrics["samples_per_s"] / sum(alone) for name, metrics in pair.items()}
            )
    finally:
        ranks.close()
    medians = {name: median(speeds_of_round[name] for speeds_of_round in rounds) for name in ("ddp", "ddp_unequal")}
    return {"of_the_sum_of_speeds": medians, "rounds": rounds, "wanted": {"ddp_unequal": 0.9, "ddp": "about 0.67"}}


WAITING_HOST = (
    *("model=resnet18", "data=synthetic", "data.shape=[3,32,32]", "data.train_size=8192", "data.test_size=256"),
    *("budget.epochs=1", "trainable.precision=bf16", "trainable.memory_format=channels_last"),
    *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[512,1024]", "rerun_invalid=0"),
)
"""A sweep of steps that the device is busy with: where the host is, processes differ by their luck with cores."""


def warm_and_fresh(host: Host) -> dict[str, Any]:
    """Compare the whole orchestrator with kept and with new workers, in turn: see warm_vs_fresh.py. Needs Ray."""
    file = Path(host.given.out).with_suffix(".warm_vs_fresh.json")
    tiny = ["--rounds", "1", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[128]"]
    chosen = tiny if host.tiny else ["--rounds", "2", "--seeds", "2", *WAITING_HOST]
    return _by_module("warm_vs_fresh", [str(file), *chosen], file)


def warm_slices(host: Host) -> dict[str, Any]:
    """Compare processes that have trained before with new ones, slice by slice: see warm_slices.py."""
    file = Path(host.given.out).with_suffix(".warm_slices.json")
    rounds = ["--rounds", "2", "--slices", "4"] if host.tiny else ["--rounds", "5"]
    return _by_module("warm_slices", ["--device", host.device, "--out", str(file), *rounds], file)


def _by_module(name: str, arguments: list[str], file: Path) -> dict[str, Any]:
    """Return the figures that another benchmark writes into the file."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    environment = os.environ | {"PYTHONPATH": _path()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"status": "failed", "note": done.stderr.strip()[-500:]}
    return {"status": "ok", "figures": json.loads(file.read_text())}


def _path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

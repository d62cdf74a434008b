"""Run the published experiments on GPUs within a time limit; the same command continues an interrupted session.

    python -m studies.published_session --data DATA --out OUT [--limit-s 560] [--only core …] [--again]
    python -m studies.published_session --rehearse --out /tmp/rehearsal        # on a CPU, with tiny sizes

DATA holds cifar10.npz, mnist/MNIST/raw, and the nuclei as nuclei/train and nuclei/val. Sweeps run one after the other,
the most informative cells first. Results are packed into OUT/published.tar.gz after each sweep and every 30 s. Started
again with that file in OUT, the command continues, also on a machine with more GPUs: cells that did not fit before are
tried again. `--only` takes names or parts of names. Afterwards, on any machine:

    tar -xzf OUT/published.tar.gz -C results
    python -m studies.published_results FOLDER --from results/NAME_SCALE

which writes tables, verdicts and plots to docs/results/published/FOLDER (docs/results/published/README.md).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PACK_EVERY_S = 30.0
REPORT_S = 45.0
"""Time for an interrupted sweep to write its tables."""
LEAST_S = 45.0
"""With less time left no further sweep starts: Ray and the first trial would take it."""
PACKED = ("journal.jsonl", "tables/*", "trials/*/config.yaml", "trials/*/metrics.jsonl", "trials/*/telemetry.parquet")
"""Files of a sweep's results from which it can be continued and reported."""

DATA = ("cifar10.npz", "mnist/MNIST/raw", "nuclei/train")

TINY = ("trainable.window_s=0.1", "trainable.window_steps=2", "trainable.warmup_steps=1", "trainable.warmup_s=0")

FEW_IMAGES = (
    *("sweep.axes.device_batch_size=[8]", "sweep.axes.seed=[0]", "sweep.axes.gpus=[1,2]", "sweep.exclude=[]"),
    *("data.train_size=512", "data.test_size=64", "trainable.loader.workers=1", "model.depth=11"),
)
SMALL_UNET = (
    *("sweep.axes.strategy=[ddp]", "sweep.axes.global_batch_size=[8,12]", "sweep.axes.gpus=[1,2]"),
    *("sweep.axes.seed=[0]", "sweep.exclude=[]", "data=synthetic", "sweep.axes.data=[synthetic]", "data.dense=true"),
    *("data.shape=[1,32,32]", "data.train_size=64", "data.test_size=64", "model.width=4", "trainable.precision=fp32"),
)
EQUAL_PAIRS = (
    *("sweep.axes.strategy=[ddp,ddp_unequal]", "sweep.axes.global_batch_size=[128]", "sweep.axes.gpus=[1,2]"),
    "sweep.axes.seed=[0]",
    "sweep.exclude=[{strategy:ddp_unequal,gpus:1},"
    "{strategy:ddp_unequal,trainable.slow_down:[null,{rank:0,factor:2.0}]},"
    "{trainable.slow_down:{rank:0,factor:2.0},gpus:2},{trainable.slow_down:{rank:1,factor:2.0},gpus:1}]",
    *("data=synthetic", "sweep.axes.data=[synthetic]", "data.shape=[1,28,28]", "data.train_size=512"),
)
"""Arguments without DataParallel, which needs GPUs."""
SMALL_CIFAR = ("data=synthetic", "data.train_size=64", "data.test_size=64")
SMALL_CNN = (
    *("sweep.axes.model=[cnn10]", "sweep.axes.global_batch_size=[16]"),
    "sweep.axes.trainable.precision=[fp32,bf16]",  # tf32 is a format of GPUs
    *("sweep.axes.resources.timing=[device]", "sweep.axes.gpus=[1,2]", "sweep.axes.strategy=[ddp,independent]"),
    *("sweep.exclude=[{strategy:independent,gpus:1}]", *SMALL_CIFAR),
)
SMALL_RESNET = (
    *("sweep.axes.model=[resnet18]", "sweep.axes.device_batch_size=[8]", "sweep.axes.strategy=[ddp]"),
    *("sweep.axes.gpus=[1,2]", "sweep.exclude=[]", "trainable.loader.workers=1", *SMALL_CIFAR),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One sweep, or a part of one."""

    sweep: str
    scale: str
    part: str = ""
    """Distinguishes it from other steps of the same sweep and scale."""
    arguments: tuple[str, ...] = ()
    seconds: float
    """Estimate for two H200; the step is interrupted after twice this time and a minute."""
    rehearsal: tuple[str, ...] = ("scale=small",)
    """Arguments that replace it on a CPU."""

    @property
    def name(self) -> str:
        """Return the name for `--only` and messages."""
        return " ".join(filter(None, (self.sweep, self.scale, self.part)))


def steps() -> Iterator[Step]:
    """Yield the steps by value: the claims' cells three times each, published recipes, grids, the longest recipes."""
    yield Step(sweep="input_pipeline", scale="core", seconds=120, rehearsal=("scale=core", *TINY, *FEW_IMAGES))
    yield Step(sweep="data_parallel", scale="core", seconds=150)
    yield Step(sweep="batch_vs_tpu", scale="core", seconds=230)
    yield Step(sweep="unequal_pair", scale="core", seconds=160, rehearsal=("scale=core", *TINY, *EQUAL_PAIRS))
    tiny_call = ("trainable.side=32", *TINY)
    yield Step(sweep="conv2d", scale="core", seconds=300, rehearsal=("scale=core", *tiny_call))
    only_ddp = ("sweep.axes.strategy=[ddp]", "sweep.exclude=[]")
    yield Step(sweep="unequal_pair", scale="full", part="ddp", seconds=360, arguments=only_ddp)
    yield Step(sweep="unequal_pair", scale="unet", seconds=270, rehearsal=("scale=unet", *TINY, *SMALL_UNET))
    yield Step(sweep="unequal_pair", scale="grid", seconds=200, rehearsal=("scale=grid", *TINY, *EQUAL_PAIRS))
    least = ("sweep.axes.device_batch_size=[64]", "sweep.axes.seed=[0]", "sweep.exclude=[]")
    few = ("scale=full", *TINY, *FEW_IMAGES)
    yield Step(sweep="input_pipeline", scale="full", part="64", seconds=80, arguments=least, rehearsal=few)
    large = ("scale=large", *TINY, *FEW_IMAGES, "sweep.axes.data.shape=[[3,48,48]]")
    yield Step(sweep="input_pipeline", scale="large", seconds=170, rehearsal=large)
    yield Step(sweep="conv2d", scale="full", seconds=310, rehearsal=("scale=full", *tiny_call))
    missing = ("sweep.axes.gpus=[2]", "sweep.axes.global_batch_size=[256,512,2048]", "sweep.baseline=null")
    yield Step(sweep="batch_vs_tpu", scale="full", part="missing", seconds=400, arguments=missing)
    yield Step(sweep="data_parallel", scale="full", seconds=960)
    yield Step(sweep="data_parallel", scale="grid", seconds=520, rehearsal=("scale=grid", *TINY, *SMALL_RESNET))
    yield Step(sweep="batch_vs_tpu", scale="grid", seconds=770, rehearsal=("scale=grid", *TINY, *SMALL_CNN))
    yield Step(sweep="batch_vs_tpu", scale="rules", seconds=780)
    yield Step(sweep="batch_vs_tpu", scale="wide", seconds=2020)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session: its options, GPUs and end."""

    given: argparse.Namespace
    gpus: int
    until: float
    """End of the session on the monotonic clock, in seconds."""

    @property
    def results(self) -> Path:
        """Return the results folder; it is not under OUT, because much of it is not worth keeping."""
        return Path(self.given.work).absolute() / "results"

    @property
    def packed(self) -> Path:
        """Return the archive of all kept files."""
        return Path(self.given.out).absolute() / "published.tar.gz"

    def left_s(self) -> float:
        """Return the seconds until the last sweep is interrupted."""
        return self.until - time.monotonic() - REPORT_S

    def command(self, step: Step) -> list[str]:
        """Return the command that runs the step."""
        chosen = step.rehearsal
        if not self.given.rehearse:
            chosen = (f"scale={step.scale}", *step.arguments)
            folder = Path(self.given.data).absolute()
            if step.sweep in ("data_parallel", "batch_vs_tpu"):
                chosen += ("data=npz", f"data.path={folder / 'cifar10.npz'}")
            if step.sweep == "unequal_pair":
                chosen += (f"data.root={folder / ('nuclei' if step.scale == 'unet' else 'mnist')}",)
        common = [f"results_dir={self.results}", "cluster.dashboard=false", "report.html=false", "hang_s=180"]
        return [sys.executable, "-m", "orchestrator", f"sweep=published/{step.sweep}", *chosen, *common]


def main() -> None:
    """Run the remaining steps within the time limit."""
    given = _arguments()
    session = Session(given=given, gpus=_gpus(), until=time.monotonic() + given.limit_s)
    session.packed.parent.mkdir(parents=True, exist_ok=True)
    session.results.mkdir(parents=True, exist_ok=True)
    if session.packed.exists():
        with tarfile.open(session.packed) as before:
            before.extractall(session.results, filter="data")
    log = session.results / "session.json"
    rows: list[dict[str, Any]] = json.loads(log.read_text()) if log.exists() else []
    for step in steps():
        if given.only and not any(word in step.name for word in given.only):
            continue
        ended = [row for row in rows if row["step"] == step.name and row["exit_status"] in (0, 1)]
        if not given.again and any(row["gpus"] >= session.gpus and not row["cut_off"] for row in ended):
            continue
        if session.left_s() < (5 if given.rehearse else LEAST_S):
            print(f"{step.name}: left out, {session.left_s():.0f} s are left", flush=True)
            continue
        rows.append(_taken(step, session))
        log.write_text(json.dumps(rows, indent=2) + "\n")
        _pack(session)
        print(json.dumps(rows[-1]), *_verdicts(session, step), sep="\n  ", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=f"folder with {', '.join(DATA)}")
    parser.add_argument("--out", required=True, help="folder for published.tar.gz")
    parser.add_argument("--work", default="/tmp/published_session", help="folder for the results as they come")
    parser.add_argument("--limit-s", type=float, default=560.0)
    parser.add_argument("--only", nargs="+", help="parts of steps' names: 'unequal_pair core', core, full")
    parser.add_argument("--again", action="store_true", help="also the steps that are done")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes and little data")
    given = parser.parse_args()
    if not given.data and not given.rehearse:
        parser.error("give --data, or --rehearse")
    needed = [Path(given.data or ".") / path for path in DATA]
    if absent := [str(path.absolute()) for path in needed if not path.exists() and not given.rehearse]:
        parser.error(f"there is no {' and no '.join(absent)}")
    return given


def _gpus() -> int:
    """Count the GPUs in another process, so that this one holds no device."""
    there = shutil.which("nvidia-smi")
    answer = subprocess.run([there, "-L"], capture_output=True, text=True) if there else None
    return len(answer.stdout.splitlines()) if answer and answer.returncode == 0 else 0


def _taken(step: Step, session: Session) -> dict[str, Any]:
    """Run a step and return how it ended."""
    began = time.monotonic()
    allowed_s = min(session.left_s(), 2 * step.seconds + 60)
    command = session.command(step)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    log = session.results / f"{step.name.replace(' ', '_')}.log"
    with log.open("ab") as output:
        running = subprocess.Popen(
            command,
            cwd=session.results.parent,
            env=os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        cut_off = _ended_by(running, began + allowed_s, session)
    return {
        "step": step.name,
        "command": command[1:],
        "gpus": session.gpus,
        "exit_status": running.returncode,
        "cut_off": cut_off,
        "took_s": round(time.monotonic() - began, 1),
    }


def _ended_by(running: subprocess.Popen[bytes], until: float, session: Session) -> bool:
    """Wait for the step, packing results at intervals; return whether it had to be interrupted."""
    while time.monotonic() < until:
        try:
            running.wait(min(PACK_EVERY_S, max(0.1, until - time.monotonic())))
            return False
        except subprocess.TimeoutExpired:
            _pack(session)
    running.send_signal(signal.SIGINT)
    try:
        running.wait(REPORT_S - 10)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # the journal has every trial that has ended
        running.wait()
    return True


def _pack(session: Session) -> None:
    """Pack the files worth keeping into a new archive, and put it in place at once."""
    aside = session.packed.with_suffix(".aside")
    with tarfile.open(aside, "w:gz", compresslevel=3) as archive:
        kept = ("*.log", "session.json", *(f"*/{pattern}" for pattern in PACKED))
        for path in sorted(path for pattern in kept for path in session.results.glob(pattern)):
            try:
                content = path.read_bytes()  # read at once, because the sweep may append to the file
            except FileNotFoundError:
                continue
            entry = tarfile.TarInfo(str(path.relative_to(session.results)))
            entry.size, entry.mtime = len(content), int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    os.replace(aside, session.packed)


def _verdicts(session: Session, step: Step) -> Sequence[str]:
    """Return a line for each claim."""
    scale = "small" if session.given.rehearse and step.rehearsal == ("scale=small",) else step.scale
    name = step.sweep if scale == "full" else f"{step.sweep}_{scale}"
    table = session.results / name / "tables" / "claims.md"
    if not table.exists():
        return []
    rows = [re.split(r"(?<!\\)\|", line) for line in table.read_text().splitlines() if line.startswith("| ")]
    return [" | ".join(cell.strip() for cell in row[1:5])[:300] for row in rows[1:]]


if __name__ == "__main__":
    main()

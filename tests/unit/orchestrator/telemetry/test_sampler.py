import math
import os
import pickle
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.telemetry.columns import Device, timed
from orchestrator.telemetry.cpu import Usage, cpu_tap
from orchestrator.telemetry.foreign_load import Census, Process, TimedForeignLoad
from orchestrator.telemetry.gpu import Neighbours
from orchestrator.telemetry.sampler import Sampler, Sampling, Watched
from orchestrator.telemetry.sources import Source, Tap


class Stage:
    """A clock that is moved by hand, a source that counts, and a census of a machine with one foreigner."""

    def __init__(self, fails_at=None):
        self.now_s, self.reads, self._fails_at, self.counted = 50.0, 0, fails_at, 0

    def read(self):
        self.reads += 1
        if self.reads == self._fails_at:
            raise OSError("the sensor broke")
        return {"reads": float(self.reads)}

    def census(self, time_s):
        self.counted += 1
        listed = {os.getpid(): Process(parent=1, cpu_s=self.now_s, name="rank")}
        return Census(
            time_s=time_s, busy_s=1.5 * self.now_s, steal_s=0, processes=listed, throttled=None, swapped_pages=0
        )

    def sampler(self, hz=0):
        tap = Tap([Source(name="sensor", read=self.read)], (FileNotFoundError,))
        return Sampler(Sampling(hz=hz), Watched(rank=0, taps={"cpu": tap}), count=self.census, now=lambda: self.now_s)

    def phase(self, sampler, name, seconds):
        sampler.observe(name)
        self.now_s += seconds
        sampler.observe("")


def test_borders_are_sampled_and_phases_kept():
    stage = Stage()
    with stage.sampler() as sampler:
        stage.now_s += 1
        stage.phase(sampler, "training", 2)
        stage.phase(sampler, "window", 3)
    readings = sampler.readings()
    assert list(readings.phases) == [(1, "training"), (3, ""), (3, "window"), (6, "")]
    assert list(readings.series["cpu"]["time_s"]) == [0, 1, 3, 3, 6, 6]
    assert list(readings.series["cpu"]["reads"]) == [1, 2, 3, 4, 5, 6]
    assert pickle.loads(pickle.dumps(readings)) == readings


def test_counters_are_read_at_phase_borders_and_rarely_between():
    sources = [
        Source(name="sensor", read=lambda: {"now": 1.0}),
        Source(name="meter", read=lambda: {"sum": 1.0}, counts=True),
    ]
    stage = Stage()  # whose clock stands still: "now and then" does not come
    taps = {"gpu0": Tap(sources, ())}
    with Sampler(Sampling(hz=50), Watched(rank=0, taps=taps), count=stage.census, now=lambda: stage.now_s) as sampler:
        while sampler.readings().ticks < 5:
            time.sleep(0.01)
    columns = sampler.readings().series["gpu0"]
    assert not any(math.isnan(value) for value in columns["now"]) and len(columns["now"]) > 5
    known = [not math.isnan(value) for value in columns["sum"]]
    assert known[0] and known[-1] and sum(known) == 2


def test_short_phases_are_not_all_sampled():
    stage = Stage()
    with stage.sampler(hz=1e-9) as sampler:
        for _ in range(100):
            stage.phase(sampler, "training", 0.01)
    assert len(sampler.readings().series["cpu"]["time_s"]) < 10
    assert len(sampler.readings().phases) == 200


def test_foreign_load_is_counted_over_the_window():
    stage = Stage()
    with stage.sampler() as sampler:
        for _ in range(3):
            stage.phase(sampler, "training", 1)
        stage.phase(sampler, "evaluation", 1)
        stage.phase(sampler, "window", 4)
    load = sampler.readings().foreign_load
    assert load["foreign_cpu"] == pytest.approx(0.5 / len(os.sched_getaffinity(0)))
    assert stage.counted == 5  # the second epoch's border, the ends of the second and third, and the window's own two


@pytest.mark.parametrize(("seen", "told"), [((0, 2), 2), ((1, 0), 1), ((0, math.nan), 0), ((math.nan, math.nan), None)])
def test_foreign_gpu_processes_are_read_around_the_window(seen, told):
    stage, looks = Stage(), iter(seen)
    gpus: Any = SimpleNamespace(neighbours=lambda workers: Neighbours(busy=next(looks), idle=1), failure="")
    watching = Sampler(Sampling(hz=0), Watched(rank=0, taps={}, gpus=gpus), count=stage.census, now=lambda: stage.now_s)
    with watching as sampler:
        stage.phase(sampler, "training", 1)
        stage.phase(sampler, "window", 4)
    load = sampler.readings().foreign_load
    assert load.get("foreign_gpu_processes") == told and load["idle_gpu_processes"] == 1


def test_foreign_load_without_window_covers_later_epochs():
    stage = Stage()
    with stage.sampler() as sampler:
        stage.phase(sampler, "training", 1)
        assert stage.counted == 0
        stage.phase(sampler, "training", 2)
        stage.phase(sampler, "training", 2)
    assert sampler.readings().foreign_load["foreign_cpu"] == pytest.approx(0.5 / len(os.sched_getaffinity(0)))


def test_reports_mark_the_timed_part_of_a_trial_without_phases():
    stage = Stage()
    with stage.sampler() as sampler:
        stage.now_s += 10  # start-up
        for _ in range(4):
            sampler.observe("reported")
            stage.now_s += 2
        stage.now_s += 5  # the last evaluation
    readings = sampler.readings()
    assert timed(readings) == [(10, 16)]
    assert readings.foreign_load["foreign_cpu"] == pytest.approx(0.5 / len(os.sched_getaffinity(0)))
    assert stage.counted == 4


def test_load_during_the_whole_trial_counts_if_it_reports_once():
    stage = Stage()
    measured = TimedForeignLoad(stage.census, Usage())
    measured.look(0)
    stage.now_s += 10
    measured.reported(10)
    assert measured.figures(None)["foreign_cpu"] == pytest.approx(0.5 / len(os.sched_getaffinity(0)))


def test_reports_of_a_trial_with_phases_mark_nothing():
    stage = Stage()
    with stage.sampler() as sampler:
        sampler.observe("reported")
        stage.now_s += 3
        stage.phase(sampler, "window", 4)
        sampler.observe("reported")
        stage.now_s += 3
    assert timed(sampler.readings()) == [(3, 7)]


def test_trial_without_phases_has_no_foreign_load():
    stage = Stage()
    with stage.sampler() as sampler:
        stage.now_s += 5
    assert sampler.readings().foreign_load == {}


@pytest.mark.parametrize("call", range(1, 6))
def test_a_failure_leaves_empty_columns_and_one_warning(call, caplog):
    stage = Stage(fails_at=call)
    with stage.sampler() as sampler:
        stage.phase(sampler, "training", 2)
        stage.phase(sampler, "window", 2)
    readings = sampler.readings()
    assert readings.failure == "sensor: the sensor broke"
    assert len(readings.series["cpu"]["time_s"]) == 5
    seen = list(readings.series["cpu"].get("reads", []))
    assert seen[: call - 1] == list(range(1, call)) and all(value != value for value in seen[call - 1 :])
    assert len(caplog.records) == 1


def test_failed_census_is_recorded():
    def broken(time_s):
        raise PermissionError(f"/proc is closed at {time_s:g}")

    stage = Stage()
    tap = Tap([Source(name="sensor", read=stage.read)], ())
    with Sampler(Sampling(hz=0), Watched(rank=0, taps={"cpu": tap}), count=broken, now=lambda: stage.now_s) as sampler:
        stage.phase(sampler, "window", 2)
        stage.phase(sampler, "window", 2)
    assert (
        sampler.readings().failure == "PermissionError: /proc is closed at 0" and sampler.readings().foreign_load == {}
    )


WORKER = "import subprocess, sys; block = bytearray(2**26); subprocess.run([sys.executable, '-c', sys.argv[1]])"
ITS_WORKER = "import time; block = bytearray(2**26); print(flush=True); time.sleep(60)"


def test_the_memory_of_a_commands_workers_counts():
    """A child and its child count, although such a trial reports no phases."""
    usage = Usage()
    # Those of other tests.
    usage.children = own = sorted(process.pid for process in psutil.Process().children(recursive=True))
    with Sampler(Sampling(hz=20), Watched(rank=0, taps={"cpu": cpu_tap(usage)}, usage=usage)) as sampler:
        column = sampler.readings().series["cpu"]["rss_gb"]
        started = [sys.executable, "-c", WORKER, ITS_WORKER]
        with subprocess.Popen(started, start_new_session=True, stdout=subprocess.PIPE) as command:
            try:
                assert command.stdout.readline()
                deadline = time.monotonic() + 60
                while max(column) - column[0] < 1.5 * 2**26 / 2**30 and time.monotonic() < deadline:
                    time.sleep(0.02)
                workers = set(usage.children) - set(own)
            finally:
                os.killpg(command.pid, signal.SIGKILL)
    assert len(workers) == 2
    assert max(column) - column[0] > 1.5 * 2**26 / 2**30


def test_cpu_time_of_loaders_before_a_window_is_excluded():
    """Workers are first looked for where the timed part begins."""
    usage = Usage()
    busy = "import time\nwhile time.process_time() < 0.25: pass\nprint(flush=True)\ntime.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE)
    try:
        assert worker.stdout.readline()
        with Sampler(Sampling(hz=0), Watched(rank=0, taps={"cpu": cpu_tap(usage)}, usage=usage)) as sampler:
            sampler.observe("window")
            time.sleep(0.1)
            sampler.observe("")
    finally:
        worker.kill()
        worker.communicate()
    readings = sampler.readings()
    assert worker.pid in usage.children
    grown_s = readings.series["cpu"]["cpu_s"][-1] - readings.series["cpu"]["cpu_s"][0]
    assert grown_s > 0.2  # of the trial, but not of its window
    assert Device(readings.series["cpu"]).growth("cpu_s", timed(readings)) < 0.15


def test_the_thread_keeps_its_pace_and_ends():
    tap = Tap([Source(name="sensor", read=lambda: {"one": 1.0})], ())
    began = time.monotonic()
    with Sampler(Sampling(hz=50), Watched(rank=0, taps={"cpu": tap})) as sampler:
        while sampler.readings().ticks < 10:
            time.sleep(0.01)
    readings, took_s = sampler.readings(), time.monotonic() - began
    assert 10 <= readings.ticks <= 50 * took_s
    time.sleep(0.05)
    assert sampler.readings().ticks == readings.ticks

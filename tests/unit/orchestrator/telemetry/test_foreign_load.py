import math
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from orchestrator.telemetry.foreign_load import Census, Owners, Process, census, foreign_load, load_now
from orchestrator.telemetry.timing_gate import FOREIGN_CPU

OURS = Owners(roots=[10])


def at(time_s, busy_s, processes, **other):
    given = {"steal_s": 0.0, "throttled": None, "swapped_pages": 0} | other
    listed = {pid: Process(parent=parent, cpu_s=cpu_s, name=name) for pid, (parent, cpu_s, name) in processes.items()}
    return Census(time_s=time_s, busy_s=busy_s, processes=listed, **given)


def test_own_work_is_not_foreign():
    before = at(
        0, 100, {1: (0, 5, "init"), 10: (1, 20, "raylet"), 11: (10, 30, "ray::Rank"), 12: (10, 30, "ray::Rank")}
    )
    after = at(2, 104, {1: (0, 5, "init"), 10: (1, 20.1, "raylet"), 11: (10, 32, "a"), 12: (10, 31.9, "b")})
    assert foreign_load(before, after, OURS, 2) == {"foreign_cpu": 0, "swapped_pages": 0}


def test_a_neighbour_is_named_with_its_share():
    before = at(0, 100, {10: (1, 20, "rank"), 50: (1, 7, "hog"), 51: (1, 7, "idler")})
    after = at(2, 103, {10: (1, 22, "rank"), 50: (1, 7.9, "hog"), 51: (1, 7.1, "idler")})
    load = foreign_load(before, after, OURS, 2)
    assert load["foreign_cpu"] == pytest.approx(0.25) and load["foreign_cpu_by"] == "hog"


def test_a_worker_that_ends_is_counted_once():
    """Its time becomes its parent's when that has waited for it."""
    before = at(0, 100, {10: (1, 20, "rank"), 11: (10, 5, "loader")})
    after = at(2, 102.5, {10: (1, 27.5, "rank")})
    assert foreign_load(before, after, OURS, 2)["foreign_cpu"] == pytest.approx(0.0)


def test_new_and_ended_processes_are_counted():
    before = at(0, 100, {10: (1, 20, "rank")})
    after = at(2, 103.2, {10: (1, 22, "rank"), 70: (1, 0.2, "sh")})
    assert foreign_load(before, after, OURS, 2)["foreign_cpu"] == pytest.approx(0.3)


def test_steal_time_is_foreign():
    before = at(0, 100, {10: (1, 20, "rank"), 50: (1, 0, "cron")})
    after = at(2, 102.5, {10: (1, 22, "rank"), 50: (1, 0.01, "cron")}, steal_s=0.49)
    load = foreign_load(before, after, OURS, 2)
    assert load["foreign_cpu"] == pytest.approx(0.125) and "guests" in str(load["foreign_cpu_by"])
    busier = at(2, 102.5, {10: (1, 22, "rank"), 50: (1, 0.4, "cron")}, steal_s=0.1)
    assert foreign_load(before, busier, OURS, 2)["foreign_cpu_by"] == "cron"


def test_throttling_and_swap_are_counted():
    before = at(0, 100, {10: (1, 20, "rank")}, throttled=3, swapped_pages=100)
    after = at(2, 102, {10: (1, 22, "rank")}, throttled=5, swapped_pages=1100)
    load = foreign_load(before, after, OURS, 2)
    assert (load["throttled_periods"], load["swapped_pages"]) == (2, 1000)


def test_joined_ray_is_recognised_by_name():
    before = at(
        0, 100, {10: (30, 20, "rank"), 30: (1, 1, "raylet"), 31: (1, 1, "gcs_server"), 32: (30, 1, "ray::IDLE")}
    )
    after = at(2, 104, {10: (30, 22, "rank"), 30: (1, 2, "raylet"), 31: (1, 1.5, "gcs_server"), 32: (30, 1.5, "x")})
    assert foreign_load(before, after, Owners(roots=[10], names=("raylet", "gcs_server")), 2)["foreign_cpu"] == 0


def test_kernel_files_are_parsed(tmp_path):
    proc, group = tmp_path / "proc", tmp_path / "group"
    (proc / "7").mkdir(parents=True)
    group.mkdir()
    (proc / "7" / "stat").write_bytes(b"7 (a (b) c) S 1 " + b"0 " * 9 + b"100 50 30 20 " + b"0 " * 30)
    own = min(os.sched_getaffinity(0))
    (proc / "stat").write_text(
        f"cpu 9 9 9\ncpu{own} 100 10 50 999 5 3 2 35 0 0\ncpu4095 900 0 0 0 0 0 0 0 0 0\nintr 5\n"
    )
    (proc / "vmstat").write_text("nr_free_pages 5\npswpin 3\npswpout 4\n")
    snapshot = census(1.0, proc, group)
    assert snapshot.busy_s == pytest.approx(2.0) and snapshot.steal_s == pytest.approx(0.35)
    assert snapshot.processes == {7: Process(parent=1, cpu_s=2.0, name="a (b) c")}
    assert (snapshot.throttled, snapshot.swapped_pages) == (None, 7)
    (group / "cpu.stat").write_text("usage_usec 5\nnr_periods 9\nnr_throttled 4\nthrottled_usec 100\n")
    assert census(1.0, proc, group).throttled == 4


HOG = """
import os, sys, time
if child := os.fork():
    print(child)
    sys.stdout.flush()
    os._exit(0)
os.close(1)
while time.process_time() < 60:
    pass
"""


def test_a_real_neighbour_is_seen():
    started = subprocess.run([sys.executable, "-c", HOG], check=True, stdout=subprocess.PIPE)
    try:  # its child is nobody's now
        before = census(time.perf_counter())
        time.sleep(0.6)
        after = census(time.perf_counter())
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)
    load = foreign_load(before, after, Owners.here(None), 1)
    assert float(load["foreign_cpu"]) * (after.time_s - before.time_s) > 0.1


def simulated(source, foreign, *, cores=2, ranks=2, ticks_s=0.01):
    """The foreign share as it is seen through clocks that count in ticks, each of them by itself."""

    def in_ticks(seconds):
        return ticks_s * math.floor(seconds / ticks_s + source.random())

    seconds = source.uniform(2.0, 2.2)
    taken_s = foreign * cores * seconds
    own_s = [(cores * seconds - taken_s) / ranks * source.uniform(0.85, 1.0) for _ in range(ranks)]
    ranks_before = {11 + rank: (10, 50.0, "rank") for rank in range(ranks)}
    ranks_after = {11 + rank: (10, 50.0 + in_ticks(own), "rank") for rank, own in enumerate(own_s)}
    busy_s = sum(in_ticks((sum(own_s) + taken_s) / cores) for _ in range(cores))
    raylet = {10: (1, 20.0, "raylet")}
    before, after = at(0, 100, raylet | ranks_before), at(seconds, 100 + busy_s, raylet | ranks_after)
    return float(foreign_load(before, after, OURS, cores)["foreign_cpu"])


def test_disturbed_windows_are_caught_and_clean_ones_pass():
    """Clean: up to 3% of the cores' time, as daemons take; disturbed: from 7% on. 500 windows of each."""
    source = random.Random(0)
    clean = [simulated(source, source.uniform(0, 0.03)) for _ in range(500)]
    disturbed = [simulated(source, source.uniform(0.07, 0.5)) for _ in range(500)]
    assert sum(share > FOREIGN_CPU for share in clean) <= 0.02 * len(clean)
    assert sum(share > FOREIGN_CPU for share in disturbed) >= 0.95 * len(disturbed)


@pytest.mark.slow
def test_load_now_counts_programs_that_are_not_children():
    busy = "exec timeout 20 sh -c 'while :; do :; done'"
    told = subprocess.run(["sh", "-c", f"{busy} >/dev/null & echo $!"], capture_output=True, text=True, check=True)
    orphan = int(told.stdout)
    try:
        share, busiest = load_now(seconds=1.0)
    finally:
        os.kill(orphan, signal.SIGTERM)
    assert share > FOREIGN_CPU and busiest

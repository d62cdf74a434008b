import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from orchestrator.telemetry import cpu
from orchestrator.telemetry.cpu import Rapl, Usage, cpu_tap, cpus, machine_id, this_machine, visible


def zone(root, name, energy_uj, limit=None):
    folder = root / f"intel-rapl:{len(list(root.iterdir()))}"
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    if limit is not None:
        (folder / "max_energy_range_uj").write_text(f"{limit}\n")
    return folder / "energy_uj"


def test_packages_are_added_and_wrap_around(tmp_path):
    first, second = zone(tmp_path, "package-0", 900, 999), zone(tmp_path, "package-1", 50)
    zone(tmp_path, "dram", 5)
    rapl = Rapl(tmp_path)
    assert rapl.read() == {"energy_j": 0}
    first.write_text("100")
    second.write_text("70")
    assert rapl.read() == {"energy_j": pytest.approx(220e-6)}


def test_without_counters_or_permission_the_column_is_empty(tmp_path):
    assert "energy_j" not in cpu_tap(Usage(), Rapl(tmp_path)).read()


BUSY = """
import time
block = bytearray(2**26)
while time.process_time() < 0.25: pass
print(flush=True)
time.sleep(60)
"""


@contextmanager
def busy_worker():
    """A process that is about to compute for a quarter of a second, and says when it has."""
    worker = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def has_computed(worker):
    assert worker.stdout.readline()


def test_a_process_counts_with_its_workers():
    usage = Usage()
    before = usage.read()
    with busy_worker() as worker:
        usage.children = [worker.pid, 2**22 + 1]
        has_computed(worker)
        alive = usage.read()
    ended = usage.read()
    assert 0.22 <= alive["cpu_s"] - before["cpu_s"] < 2
    assert alive["rss_gb"] - before["rss_gb"] > 2**26 / 2**30 > ended["rss_gb"] - before["rss_gb"]
    assert 0 <= ended["cpu_s"] - alive["cpu_s"] < 0.2
    assert os.getpid() not in usage.children


def test_earlier_cpu_time_of_a_worker_is_not_counted():
    with busy_worker() as worker:
        has_computed(worker)
        usage = Usage()
        before = usage.read()["cpu_s"]
        usage.children = [worker.pid]
        assert usage.read()["cpu_s"] - before < 0.2
    assert 0 <= usage.read()["cpu_s"] - before < 0.2


def test_cpu_time_of_an_orphan_does_not_decrease():
    usage = Usage()
    with busy_worker() as worker:
        usage.children = [worker.pid]
        has_computed(worker)
        before = usage.read()["cpu_s"]
        usage.children = []
        assert 0 <= usage.read()["cpu_s"] - before < 0.2


TWO = ("A", "B")


@pytest.mark.parametrize(
    ("restriction", "left"),
    [(None, TWO), ("", ()), ("0", ("A",)), ("1,0", ("B", "A")), ("0,7,1", ("A",)), ("-1", ()), ("GPU-123", ("A",))],
)
def test_cuda_visible_devices_restricts_the_gpus(restriction, left):
    assert visible(TWO, restriction) == left


@pytest.mark.parametrize(
    ("text", "count"), [("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("max 100000", 4), ("", 4)]
)
def test_quota_limits_cores_to_whole_ones(tmp_path, monkeypatch, text, count):
    monkeypatch.setattr(cpu, "cores", lambda: frozenset(range(4)))
    if text:
        (tmp_path / "cpu.max").write_text(text)
    assert cpus(tmp_path / "cpu.max") == count


def test_this_machine_has_a_name_and_cores():
    machine = this_machine()
    assert machine.name and machine.cpus >= 1 and machine.gpus >= 0


def test_machine_id_is_stable_and_opaque(tmp_path):
    boots = [tmp_path / name for name in ("one", "again", "other", "absent")]
    for file, boot_id in zip(boots, ("11111111-2222", "11111111-2222", "33333333-4444"), strict=False):
        file.write_text(f"{boot_id}\n")
    one, again, other, absent = map(machine_id, boots)
    assert one == again != other and absent == ""
    assert len(one) == 8 and "1111" not in one

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.telemetry.cpu import Rapl, Usage, cpu_tap


def zone(root: Path, name: str, energy_uj: int, limit: int | None = None) -> Path:
    folder = root / f"intel-rapl:{len(list(root.iterdir()))}"
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    if limit is not None:
        (folder / "max_energy_range_uj").write_text(f"{limit}\n")
    return folder / "energy_uj"


def test_packages_are_added_and_wrap_around(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "package-0", 900, 999), zone(tmp_path, "package-1", 50)
    zone(tmp_path, "dram", 5)
    rapl = Rapl(tmp_path)
    assert rapl.read() == {"energy_j": 0}
    first.write_text("100")
    second.write_text("70")
    assert rapl.read() == {"energy_j": pytest.approx(220e-6)}


def test_without_counters_or_permission_the_column_is_empty(tmp_path: Path) -> None:
    assert "energy_j" not in cpu_tap(Usage(), Rapl(tmp_path)).read()


BUSY = """
import time
block = bytearray(2**26)
while time.process_time() < 0.25: pass
print(flush=True)
time.sleep(60)
"""


@contextmanager
def busy_worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is about to compute for a quarter of a second, and says when it has."""
    worker = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def has_computed(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdout is not None and worker.stdout.readline()


def test_a_process_counts_with_its_workers() -> None:
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


def test_what_an_older_worker_had_done_is_not_counted() -> None:
    with busy_worker() as worker:
        has_computed(worker)
        usage = Usage()
        before = usage.read()["cpu_s"]
        usage.children = [worker.pid]
        assert usage.read()["cpu_s"] - before < 0.2
    assert 0 <= usage.read()["cpu_s"] - before < 0.2


def test_what_ends_as_nobodys_child_takes_nothing_away() -> None:
    usage = Usage()
    with busy_worker() as worker:
        usage.children = [worker.pid]
        has_computed(worker)
        before = usage.read()["cpu_s"]
        usage.children = []
        assert 0 <= usage.read()["cpu_s"] - before < 0.2

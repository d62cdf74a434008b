import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.telemetry.cpu import Process, Rapl, cpu_tap


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
    assert "energy_j" not in cpu_tap(Process(), Rapl(tmp_path)).read()


def test_a_process_counts_with_its_workers() -> None:
    process = Process()
    before = process.read()
    busy = (
        "import time\nblock = bytearray(2**26)\nended = time.process_time() + 0.4\nwhile time.process_time() < ended: 1"
    )
    worker = subprocess.Popen([sys.executable, "-c", f"{busy}\ntime.sleep(60)"])
    try:
        process.children = [worker.pid, 2**22 + 1]
        deadline = time.monotonic() + 20
        while process.read()["cpu_s"] - before["cpu_s"] < 0.4 and time.monotonic() < deadline:
            time.sleep(0.02)
        after = process.read()
    finally:
        worker.kill()
        worker.wait()
    assert 0.4 <= after["cpu_s"] - before["cpu_s"] < 2
    assert after["rss_gb"] - before["rss_gb"] > 2**26 / 2**30
    assert os.getpid() not in process.children

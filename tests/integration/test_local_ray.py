"""Test the Ray that a sweep starts: who can reach it, and what it leaves behind."""

import ipaddress
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.drivers.place import SMALL, Place, wait_for

SWEEP = ("sweep=traced", *SMALL, "sweep.axes.gpus=[2]", "trainable=noop", "backend=ray")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for Ray's files; pytest's own has too long a path for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def listening(processes: list[psutil.Process]) -> set[tuple[str, str]]:
    """Return program and address of everything that these processes listen on."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            for each in process.net_connections(kind="inet"):
                if each.status == psutil.CONN_LISTEN:
                    found.add((process.name(), each.laddr.ip))
    return found


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def test_ray_of_one_machine_is_out_of_reach_and_leaves_no_files(place: Place, short: Path) -> None:
    driver = place.start_afresh(*SWEEP, "cluster.dashboard=true", RAY_TMPDIR=str(short))
    found: set[tuple[str, str]] = set()
    modes: set[int] = set()
    while driver.poll() is None:
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(driver.pid)
            found |= listening([own, *own.children(recursive=True)])
        modes |= {stat.S_IMODE(folder.stat().st_mode) for folder in short.glob("*/")}
        time.sleep(0.05)
    out, err = driver.communicate()
    assert driver.returncode == 0, out + err
    programs = {program for program, _ in found}
    assert {"gcs_server", "raylet", "ray::Rank", "ray::DashboardAgent"} <= programs, programs
    assert [each for each in found if not is_loopback(each[1])] == []
    assert modes == {0o700} and os.listdir(short) == []


@pytest.mark.slow
def test_interrupted_sweep_leaves_no_files_of_ray(place: Place, short: Path) -> None:
    on_ray = ("sweep=traced", *SMALL, "backend=ray", "cluster.dashboard=false")
    driver = place.start_afresh(*on_ray, RAY_TMPDIR=str(short), HOLD_AFTER="0")
    wait_for(lambda: place.ran(), driver)
    assert len(os.listdir(short)) == 1
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 130 and os.listdir(short) == [], err

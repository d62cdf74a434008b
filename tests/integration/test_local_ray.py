"""Test the Ray that a sweep starts: who can reach it, and what it leaves behind."""

import ipaddress
import os
import signal
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.drivers.place import SMALL, wait_for

SWEEP = ("sweep=traced", *SMALL, "sweep.axes.gpus=[2]", "trainable=noop", "backend=ray")


@pytest.fixture
def short():
    """A folder for Ray's files; pytest's own has too long a path for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def listening(processes):
    """Return program and address of everything that these processes listen on."""
    listeners = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    listeners.add((process.name(), connection.laddr.ip))
    return listeners


def is_loopback(address):
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


@pytest.mark.slow
def test_ray_of_one_machine_is_out_of_reach_and_leaves_no_files(place, short):
    driver = place.start_afresh(*SWEEP, "cluster.dashboard=true", RAY_TMPDIR=str(short))
    listeners: set[tuple[str, str]] = set()
    modes: set[int] = set()
    while driver.poll() is None:
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(driver.pid)
            listeners |= listening([own, *own.children(recursive=True)])
        modes |= {stat.S_IMODE(folder.stat().st_mode) for folder in short.glob("*/")}
        time.sleep(0.05)
    out, err = driver.communicate()
    assert driver.returncode == 0, out + err
    programs = {program for program, _ in listeners}
    assert {"gcs_server", "raylet", "ray::Rank", "ray::DashboardAgent"} <= programs, programs
    assert [listener for listener in listeners if not is_loopback(listener[1])] == []
    assert modes == {0o700} and os.listdir(short) == []


ON_RAY = ("sweep=traced", *SMALL, "backend=ray", "cluster.dashboard=false", "resources.device=cpu")


def own_process(driver, program):
    """Return the process of a driver that runs this program; a rank has the name of its trial."""
    named = {process.name(): process for process in psutil.Process(driver.pid).children(recursive=True)}
    others = ("ray::Supervisor", "ray::Dashboard", "ray::RuntimeEnv", "ray::IDLE")
    ranks = [name for name in named if name.startswith("ray::") and not name.startswith(others)]
    (name,) = ranks if program == "rank" else [name for name in named if name.startswith(program)]
    return named[name]


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["rank", "ray::Supervisor", "raylet"])
def test_interruption_ends_in_order_whatever_a_process_does(place, short, stopped):
    driver = place.start_afresh(*ON_RAY, RAY_TMPDIR=str(short), HOLD_AFTER="1")
    wait_for(lambda: len(place.ran()) == 2, driver)
    rank = own_process(driver, "rank")
    own_process(driver, stopped).suspend()
    asked = time.monotonic()
    driver.send_signal(signal.SIGTERM)
    rank.wait(timeout=60)
    ranks_s = time.monotonic() - asked
    out, err = driver.communicate(timeout=120)
    print(f"ranks ended after {ranks_s:.1f} s, the driver after {time.monotonic() - asked:.1f} s")
    assert driver.returncode == 143, out + err
    kinds = [record["kind"] for record in place.journal()]
    assert kinds[-1] == "ended" and "cut_off" in kinds and len(place.finished()) == 1
    assert (place.results / "tables/summary.csv").exists() and os.listdir(short) == []


@pytest.mark.parametrize("signalled", ["group", pytest.param("all", marks=pytest.mark.slow)])
def test_signal_to_all_processes_ends_the_sweep_in_order(place, short, signalled):
    """`timeout` and shells signal the driver's process group, systemd and Slurm all that it has started."""
    driver = place.start_afresh(*ON_RAY, RAY_TMPDIR=str(short), HOLD_AFTER="1")
    wait_for(lambda: len(place.ran()) == 2, driver)
    if signalled == "group":
        os.killpg(driver.pid, signal.SIGTERM)
    else:
        own = psutil.Process(driver.pid)
        for process in [own, *own.children(recursive=True)]:
            process.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 143 and "not finished" not in err, out + err
    assert place.journal()[-1]["kind"] == "ended" and len(place.finished()) == 1
    assert (place.results / "tables/summary.csv").exists()


@pytest.mark.slow
def test_sweep_with_a_stopped_raylet_ends_with_tables(place, short):
    driver = place.start_afresh(*ON_RAY, "trainable.pause_s=3", "workers=warm", RAY_TMPDIR=str(short))
    wait_for(lambda: len(place.ran()) == 4, driver)
    own_process(driver, "raylet").suspend()
    out, err = driver.communicate(timeout=200)
    assert driver.returncode in (0, 1), out + err
    assert place.journal()[-1]["kind"] == "ended" and os.listdir(short) == []
    assert (place.results / "tables/summary.csv").exists()

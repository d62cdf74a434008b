"""Processes that were started ahead belong to their driver: they import what it asked for, and do not outlive it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.drivers.ray_head import RayHead, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 2
DRIVER = f"""
import sys
from orchestrator.backends.ray.token import show_token_if_any
show_token_if_any()
from orchestrator.backends.on_ray import import_ahead
from orchestrator.backends.ray.prestart import start_processes
from orchestrator.backends.ray.cluster import Cluster
from orchestrator.backends.ray.cluster import ClusterSpec

cluster = Cluster(ClusterSpec(address=sys.argv[1]), start_ahead=True)
import_ahead.ask_for(["trainables.supervised.training"], 1)
(node,) = cluster.nodes()
start_processes(node.node_id, {COUNT}, print)
print("asked", flush=True)
input()
cluster.close()
"""


def prepared(head: RayHead) -> list[psutil.Process]:
    """Processes of the cluster that have imported torch."""
    found = []
    for process in head.processes():
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:  # it ends just now
            continue
        if "libtorch" in maps:
            found.append(process)
    return found


def wait_until(holds: bool, head: RayHead, within_s: float) -> None:
    """Until there are prepared processes, all of them, or none is left."""
    until_s = time.monotonic() + within_s
    while len(prepared(head)) < COUNT if holds else prepared(head):
        assert time.monotonic() < until_s, head.processes()
        time.sleep(0.2)


@pytest.mark.parametrize("how", ["killed", "interrupted", "done"])
def test_what_was_started_ahead_ends_with_its_driver(how: str) -> None:
    port = free_port()
    head = RayHead(f"--port={port}", "--include-dashboard=false")
    head.start()
    try:
        command = [sys.executable, "-c", DRIVER, f"127.0.0.1:{port}"]
        driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert driver.stdout and driver.stdout.readline() == "asked\n"
        wait_until(True, head, 120)
        began_s = time.monotonic()
        if how == "done":
            driver.communicate("\n", timeout=60)
        else:
            driver.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)
            driver.communicate(timeout=60)
        wait_until(False, head, 60)
        print(f"{how}: gone after {time.monotonic() - began_s:.1f} s")
    finally:
        head.kill()

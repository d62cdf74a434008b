"""A node of a Ray cluster, usually the head, started as users start it, and ended by its process ids."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.drivers.hosts import Host

START_S = 120


def free_port() -> int:
    """Return a free port that neither the kernel nor Ray assigns by itself."""
    while True:
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 30_000)))
            return int(free.getsockname()[1])


class RayHead:
    """A head with 2 CPUs, or this number, and no GPU; it can be killed, and started again at the same address.

    On a `host` it is the head if the options say so, and another node if they have an `--address`.
    """

    def __init__(self, *options: str, host: Host | None = None, cpus: int = 2, **environment: str) -> None:
        node = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}", "--num-gpus=0")
        self._command = [*node, *(() if host else ("--head",)), *options]
        if host:
            self._command = host.command(*self._command, f"--node-ip-address={host.address}")
        # A busy machine is slow, and slower for workers of the low priority that Ray gives them.
        patient = {"RAY_raylet_start_wait_time_s": str(START_S), "RAY_worker_niceness": "0"}
        self._environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"} | patient | environment

    def start(self) -> None:
        """Start it; it answers when this returns."""
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )
        assert self._process.stdout
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in self._process.stdout.readline():
            assert time.monotonic() < deadline and self._process.poll() is None

    def end(self) -> None:
        """End it as Ctrl-C does."""
        children = self.processes()
        self._process.terminate()
        self._process.communicate()
        psutil.wait_procs(children, timeout=30)

    def kill(self) -> None:
        """Kill it and its children at once, as if the machine had gone."""
        children = self.processes()
        for process in [*children, self._process]:
            with suppress(psutil.NoSuchProcess):  # a child may end just now
                process.kill()
        self._process.communicate()
        psutil.wait_procs(children, timeout=30)

    def processes(self) -> list[psutil.Process]:
        """Return its child processes."""
        return psutil.Process(self._process.pid).children(recursive=True)


@contextmanager
def ray_head(*options: str, **environment: str) -> Iterator[None]:
    """Run a head for the block."""
    head = RayHead(*options, **environment)
    head.start()
    try:
        yield
    finally:
        head.end()

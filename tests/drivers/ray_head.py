"""The head of a Ray cluster, started as users start it, and ended by its processes' numbers."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

START_S = 120


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def ray_head(*options: str, **environment: str) -> Iterator[None]:
    """Of 2 CPUs and no GPU, for a while."""
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=2",
        "--num-gpus=0",
    ]
    process = subprocess.Popen(
        [*command, *options],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )
    deadline = time.monotonic() + START_S
    while "--address" not in process.stdout.readline():
        assert time.monotonic() < deadline and process.poll() is None
    try:
        yield
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.communicate()
        psutil.wait_procs(children, timeout=30)

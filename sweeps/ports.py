"""Free ports, on which the processes of a trial find one another."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 30_000)
"""Outside the ranges of the kernel and Ray, so that nothing takes the port before it is listened on."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of this machine on which nothing listens. Raises OSError if a hundred tries find none.

    `host` is the machine's own address on which the port is to be free.
    """
    # Two trials that start together must not choose the same port, so seeds play no part.
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) != 0:
                return port
    raise OSError(f"no free port in {PORTS} on {host}")

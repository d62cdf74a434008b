"""Free ports, on which the processes of a trial find one another."""

from __future__ import annotations

import random
import socket
from collections import deque

PORTS = range(20_000, 30_000)
"""Outside the ranges of the kernel and Ray, so that nothing takes the port before it is listened on."""


_given: deque[int] = deque(maxlen=len(PORTS) // 2)
"""Ports that this process has chosen last; what listened there may not have ended on all hosts."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of this machine on which nothing listens. Raises OSError if a hundred tries find none.

    `host` is the machine's own address on which the port is to be free.
    """
    ports = [port for port in PORTS if port not in _given]
    # Two trials that start together must not choose the same port, so seeds play no part.
    for port in random.SystemRandom().sample(ports, 100):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) != 0:
                _given.append(port)
                return port
    raise OSError(f"no free port in {PORTS} on {host}")

"""Two hosts on their own network, as network namespaces of this machine: each has an address and a cable."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

INTERFACE = "cable"
"""What each host calls its end."""


@dataclass(frozen=True)
class Host:
    """One of the hosts."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return the command that runs this command there."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *words]

    def unplug(self) -> None:
        """Cut its network without notice."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "down")


def can_be_made() -> bool:
    """Return whether this user may make network namespaces here."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter"))):
        return False
    name = f"try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    return made and subprocess.run(["ip", "netns", "delete", name]).returncode == 0


@contextmanager
def two_hosts() -> Iterator[Sequence[Host]]:
    """Provide both for the block; their processes must have ended before its end."""
    hosts = [Host(f"host{number}-{os.getpid()}", f"10.99.7.{number}") for number in (1, 2)]
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        one, other = hosts
        ends = (INTERFACE, "netns", one.namespace), (INTERFACE, "netns", other.namespace)
        _ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", host.namespace, "link", "set", interface, "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

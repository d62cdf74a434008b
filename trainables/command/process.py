"""The process of a command: its surroundings, its output in files, and its end."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from trainables.command import process_tree
from trainables.command.output_lines import OutputLines
from trainables.context import TrialTimeoutError

POLL_S = 0.1
"""How often output is read, and the end and the wish to stop are looked for."""
_PORTS = range(20_000, 30_000)
"""Outside of what the kernel and Ray give out by themselves."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One run of a command, ready to be started."""

    words: Sequence[str]
    environment: Mapping[str, str]
    """All of it."""
    cwd: Path
    stdout: Path
    stderr: Path
    timeout_s: float | None
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended: by itself with an exit status (negative: the signal that killed it), or stopped."""

    exit_code: int
    stopped: bool


def run(command: Command, hear: Callable[[str, str], None], should_stop: Callable[[], bool]) -> Ended:
    """Run it to its end, calling `hear(stream, line)` for each line of `stdout` and `stderr`.

    None of its processes is left when this returns or raises, nor when this process is killed. Raises
    TrialTimeoutError, OSError for what cannot be started, and whatever `hear` raises.
    """
    streams = {"stdout": OutputLines(command.stdout), "stderr": OutputLines(command.stderr)}
    started = time.monotonic()
    with _started(command) as process:
        exit_code, stopped = None, False
        while exit_code is None and not stopped:
            exit_code = _wait(process, POLL_S)
            for stream, output in streams.items():
                for line in output.new(ended=exit_code is not None):
                    hear(stream, line)
            stopped = exit_code is None and should_stop()
            if command.timeout_s and exit_code is None and time.monotonic() - started > command.timeout_s:
                raise TrialTimeoutError(f"the command ran longer than timeout_s={command.timeout_s:g}")
    return Ended(exit_code=process.returncode, stopped=stopped)


def _anew(path: Path) -> BinaryIO:
    """An empty file for its owner alone; OSError where a link would lead elsewhere."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


@contextmanager
def _started(command: Command) -> Iterator[subprocess.Popen[bytes]]:
    """The process in a session of its own; whatever is left of its tree ends with the block."""
    token = uuid4().hex
    environment = {**command.environment, process_tree.TOKEN: token}
    with _anew(command.stdout) as out, _anew(command.stderr) as err:
        process = subprocess.Popen(
            list(command.words),
            cwd=command.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    hold = -1
    try:
        hold = process_tree.guard(process.pid, token, command.grace_s, environment)
        yield process
    finally:
        process_tree.end(process.pid, token, command.grace_s)
        process.wait()
        if hold >= 0:
            process_tree.dismiss(hold)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def free_port() -> int:
    """A port of this machine that nothing listens on. OSError if a hundred tries find none."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError(f"no free port in {_PORTS}")

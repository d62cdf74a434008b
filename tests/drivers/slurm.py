"""A Slurm cluster of one host: real daemons with their own files and ports, and no accounts."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.drivers.ray_head import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def can_be_started() -> bool:
    """Return whether Slurm is installed and this user may run it."""
    return not os.geteuid() and all(map(shutil.which, PROGRAMS))


class Slurm:
    """A cluster that starts when it is made; `end` it."""

    def __init__(self, folder: Path, cpus: int = 2) -> None:
        folder.mkdir()
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        ports = {"controller_port": free_port(), "node_port": free_port()}
        self._config = folder / "slurm.conf"
        self._config.write_text(CONFIG.format(host=host, folder=folder, cpus=cpus, **ports))
        self.environment = os.environ | {"SLURM_CONF": str(self._config)}
        self._folder = folder
        self._daemons = [self._daemon("slurmctld"), self._daemon("slurmd", "-N", host)]
        self._wait_for_node()

    def tell(self, *words: str, given: str | None = None) -> str:
        """Return the output of one of Slurm's commands."""
        done = subprocess.run(
            words, env=self.environment, input=given, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def submit(self, script: str) -> str:
        """Submit a script; return its job number."""
        return self.tell("sbatch", "--parsable", given=script).strip()

    def field(self, number: str, name: str) -> str:
        """Return a field of Slurm's job record: JobState, Restarts."""
        told = dict(field.partition("=")[::2] for field in self.tell("scontrol", "show", "job", number).split())
        return told[name]

    def end(self) -> None:
        """End the submitted jobs and the daemons."""
        self.tell("scancel", "--full", "--user=root")
        deadline = time.monotonic() + 30
        while self.tell("squeue", "--noheader", "--states=running,completing") and time.monotonic() < deadline:
            time.sleep(0.5)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(timeout=30)

    def _daemon(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        output = (self._folder / f"{name}.out").open("wb")
        with output:
            return subprocess.Popen(
                [name, "-D", "-f", str(self._config), *words],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait_for_node(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            state = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"], env=self.environment, capture_output=True, text=True
            ).stdout.strip()
            if state == "idle":
                return
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self._daemons):
                logs = [path.read_text()[-1000:] for path in self._folder.glob("slurm*.*") if path.suffix != ".conf"]
                raise RuntimeError(f"the node is {state or 'unknown'}: {logs}")
            time.sleep(0.2)

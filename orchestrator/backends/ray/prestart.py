"""Starts processes before their gang's GPUs are free, so that the GPUs do not wait for Python.

Ray keeps idle processes, and a gang uses those first. Each raylet is asked for as many as the next gangs need. While
they wait they import everything but the user's own code: see `import_ahead`. Unused processes end by themselves.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray

from orchestrator.backends.ray.preload import ask_for
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.scheduler import Upcoming
from orchestrator.telemetry.timing_gate import FOREIGN_CPU

BATCH_S = 10.0
"""How long a batch of processes gets to start before the next batch starts next to the same trials."""
KEEP_S = 900
"""How long an unused process lives."""
OWN_CODE: str | tuple[str, ...] = "trainables."
"""Only modules with this prefix are imported ahead: the user's own must not be imported without their devices."""
ANSWER_S = 5.0

_log = logging.getLogger(__name__)


def at_once(cores: float, beside: Collection[str]) -> int:
    """How many processes may start at a time on a node with this many cores, next to trials of these timing modes.

    Each computes on one core for some seconds. Next to timed trials they may use no more of the cores than the timing
    gate tolerates of foreign work, so that nodes with fewer than 20 cores start nothing ahead. Next to `exclusive`
    trials, which need a quiet node, nothing starts. `shared` trials have no valid timings to protect.
    """
    if "exclusive" in beside:
        return 0
    allowed = int(FOREIGN_CPU * cores)
    return int(cores) if allowed and set(beside) <= {"shared"} else allowed


class StartAhead:
    """The processes started ahead in one run. Ray does not say how many are idle, so requests and uses are counted."""

    def __init__(self, *, wanted: bool) -> None:
        """`wanted`: whether to start anything ahead at all."""
        self._wanted = wanted
        self._asked_for: tuple[Sequence[str], int] | None = None
        self._spare: dict[str, int] = {}
        self._asked_s: dict[str, float] = {}

    def prepare_for(self, trainable: str, threads: Collection[int]) -> None:
        """Set what processes import; if ranks differ in their number of threads, nothing can start ahead."""
        self._wanted = self._wanted and len(threads) == 1
        modules = [trainable.partition(":")[0]] if trainable.startswith(OWN_CODE) else []
        asked = (modules, max(threads))
        if self._wanted and asked != self._asked_for:
            ask_for(*asked)
            self._asked_for = asked

    def settle(self, foreseen: Callable[[], Upcoming | None], now_s: float) -> None:
        """Start what the foreseen gangs need, one batch at a time."""
        upcoming = foreseen() if self._wanted else None
        if upcoming is None:
            return
        for node in upcoming.nodes:
            missing = upcoming.ranks_a_node + upcoming.gangs - self._left(node.node_id, now_s)
            count = min(missing, at_once(node.cpus, upcoming.beside))
            if count > 0 and now_s - self._asked_s.get(node.node_id, -BATCH_S) >= BATCH_S:
                self._start(node.node_id, count, now_s)

    def begins(self, nodes: Sequence[Node], now_s: float) -> None:
        """A gang with its ranks on these nodes starts: start the processes that were not started ahead."""
        if not self._wanted:
            return
        needed = Counter(nodes)
        needed[nodes[0]] += 1  # its supervisor's
        for node, count in needed.items():
            missing = count - self._left(node.node_id, now_s)
            if missing > 0 and at_once(node.cpus, ()):
                self._start(node.node_id, missing, now_s)
            self._spare[node.node_id] = max(0, self._left(node.node_id, now_s) - count)

    def _left(self, node_id: str, now_s: float) -> int:
        if now_s - self._asked_s.get(node_id, -KEEP_S) >= KEEP_S:
            self._spare[node_id] = 0
        return self._spare.get(node_id, 0)

    def _start(self, node_id: str, count: int, now_s: float) -> None:
        self._spare[node_id] = self._left(node_id, now_s) + count
        self._asked_s[node_id] = now_s
        start_processes(node_id, count, self._failed)

    def _failed(self, why: str) -> None:
        """Give up starting processes ahead: each gang then starts its own."""
        self._wanted = False
        _log.warning("no processes are started ahead any more: %s", why)


def start_processes(node_id: str, count: int, failed: Callable[[str], None]) -> None:
    """Ask the node's raylet for this many processes of this driver; `failed` is called with the reason if it fails."""
    try:  # none of this is part of Ray's public interface
        import grpc  # not a dependency of Ray
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated.common_pb2 import Language
        from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest
        from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub
    except ImportError as error:
        failed(f"Ray {ray.__version__} has no way to ask for them ({error})")
        return

    address = next((_address(each) for each in ray.nodes() if each["NodeID"] == node_id and each["Alive"]), None)
    if address is None:  # the node is lost
        return
    context = ray.get_runtime_context()
    asked = PrestartWorkersRequest(
        language=Language.PYTHON,
        job_id=bytes.fromhex(context.get_job_id()),
        num_workers=count,
        keep_alive_duration_secs=KEEP_S,
    )
    asked.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
    channel = init_grpc_channel(address)
    answer = NodeManagerServiceStub(channel).PrestartWorkers.future(asked, timeout=ANSWER_S)

    def heard(answer: Any) -> None:
        channel.close()
        if answer.code() is not grpc.StatusCode.OK:
            failed(f"{answer.code().name}: {answer.details()}")

    answer.add_done_callback(heard)


def _address(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"

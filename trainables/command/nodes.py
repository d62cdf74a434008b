"""The nodes on which a command runs: each has a rank that runs the same command, and the first one has the results.

All start together. The others send the first one what their processes count and print; it chooses the step at which all
of them stop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainables.command.hook_files import Adapter
from trainables.command.metrics import CommandMetrics
from trainables.context import Context

POLL_S = 0.02

WAIT_S = 5.0  # how long the first node waits for the last counts of the others once the trial is to stop


@dataclass(frozen=True, kw_only=True)
class NodeEnd:
    """The facts that a node has once its command has ended."""

    metrics: CommandMetrics  # read from its output
    cores: Sequence[float]  # the cores that each of its busy processes used
    remarks: Sequence[str] = ()


class NodeGroup:
    """The nodes of a trial, as one of them sees the others. A trial on one node exchanges nothing."""

    def __init__(self, context: Context, adapter: Adapter) -> None:
        self.context, self.adapter = context, adapter
        self.number, self.count = context.rank, context.world_size
        self._ready: set[int] = set()
        self._may_start = False
        self._rows: dict[int, list[dict[str, Any]]] = {}  # rows of other nodes that are not reported
        self._speaker: int | None = None  # the node whose rows are reported
        self._ends: dict[int, NodeEnd | None] = {}  # None for a node whose command has failed

    @property
    def is_first(self) -> bool:
        """Return whether this node has the results."""
        return self.number == 0

    def start_together(self) -> bool:
        """Wait until all nodes are ready; return False if the trial is to stop before that."""
        self._tell_first(ready=True)
        self._ready.add(self.number)
        while not (self._may_start or (self.is_first and len(self._ready) == self.count)):
            if self.context.should_stop(progress=False):
                return False
            time.sleep(POLL_S)
            self.read()
        self._tell_others(start=True)
        return True

    def read(self) -> None:
        """Read what the other nodes have sent."""
        mailbox = self.context.mailbox
        for message in mailbox.received() if mailbox else ():
            node = message["node"]
            if message.get("ready"):
                self._ready.add(node)
            if message.get("start"):
                self._may_start = True
            if "stop_at" in message:
                self.adapter.stop_at(message["stop_at"])
            for process, text in message.get("counts", {}).items():
                self.adapter.take(f"{node}/{process}", text)
            self._rows.setdefault(node, []).extend(message.get("rows", ()))
            if "end" in message:
                self._ends[node] = message["end"]

    def send_counts(self, counts: Mapping[str, str]) -> None:
        """Send the first node the counts of processes, {file: text}."""
        if counts:
            self._tell_first(counts=dict(counts))

    def report(self, row: Mapping[str, Any]) -> None:
        """Report a row of this node's output, unless another node was heard first."""
        if self._speaker is None:
            self._speaker = self.number
        if self._speaker == self.number:
            self.context.report(row)
        self._tell_first(rows=[dict(row)])

    def report_others(self, *, ended: bool = False) -> None:
        """Report the rows of the lowest other node that has some, if this one has none."""
        if self._speaker is None:
            # Nodes that print the same rows print them almost together: another one must be a row ahead.
            speakers = [node for node, rows in sorted(self._rows.items()) if len(rows) > (0 if ended else 1)]
            self._speaker = next(iter(speakers), None)
        if self._speaker not in (None, self.number):
            for row in self._rows.pop(self._speaker, ()):
                self.context.report(row)

    def stop_at(self, step: int) -> None:
        """Have the processes of the other nodes stop at this step."""
        self._tell_others(stop_at=step)

    def end(self, end: NodeEnd | None) -> None:
        """Tell the first node that the command has ended here; None if it has failed."""
        self._tell_first(end=end)

    def wait_for_ends(self, *, has_stopped: bool) -> None:
        """Wait until the commands of the other nodes have ended, and read what they sent."""
        give_up_s = time.monotonic() + WAIT_S if has_stopped else float("inf")
        self.read()
        while len(self._ends) < self.count - 1 and time.monotonic() < give_up_s:
            if not has_stopped and self.context.should_stop(progress=False):
                return
            time.sleep(POLL_S)
            self.read()

    def whole(self, own: NodeEnd) -> NodeEnd:
        """Return the facts of all nodes together.

        The metrics are of the node whose rows were reported, else of the first one whose output has a figure.
        """
        others = {node: end for node, end in sorted(self._ends.items()) if end is not None}
        ends = [own, *others.values()]
        heard = [others[self._speaker]] if self._speaker in others else []
        with_figure = (end.metrics for end in [*heard, *ends] if not end.metrics.output.found_nothing)
        return NodeEnd(
            metrics=next(with_figure, own.metrics),
            cores=sorted((cores for end in ends for cores in end.cores), reverse=True),
            remarks=[*own.remarks, *(f"node {node}: {text}" for node, end in others.items() for text in end.remarks)],
        )

    def _tell_first(self, **message: Any) -> None:
        if not self.is_first:
            self._send(0, message)

    def _tell_others(self, **message: Any) -> None:
        if self.is_first:
            for node in range(1, self.count):
                self._send(node, message)

    def _send(self, node: int, message: Mapping[str, Any]) -> None:
        assert self.context.mailbox is not None
        self.context.mailbox.send(node, {"node": self.number, **message})

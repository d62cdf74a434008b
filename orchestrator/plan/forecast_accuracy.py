"""How far forecasts may be off, as measured: the widths of their intervals, and figures that no rehearsal has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far a rehearsal's figure may be off, as a share, by how it is derived."""

    rehearsed: float  # at a micro-batch that was rehearsed
    between: float  # between two that were rehearsed
    beyond: float  # outside of what was rehearsed, or from a single rehearsal


MEMORY = Accuracy(rehearsed=0.01, between=0.025, beyond=0.06)
TIME = Accuracy(rehearsed=0.03, between=0.08, beyond=0.5)
FASTER, SLOWER = 0.7, 1.6
"""How long the host may take to launch a step in another process, at least and at most, as a multiple of the rehearsed
time: 0.70 to 1.86 in 20 cells on H100 and H200. A 90% interval leaves out the slowest."""
HOST_BOUND = 1.1  # a step is bound by the host's launches if it takes this many times as long as the device alone
MEMORY_OF_SHAPES = Accuracy(rehearsed=0.08, between=0.1, beyond=0.15)
TIME_OF_SHAPES = Accuracy(rehearsed=0.5, between=0.5, beyond=0.8)
COMPILED = 0.5
"""The least share of memory and time that a compiler leaves of what shapes tell."""
TIME_ON_CPU = Accuracy(rehearsed=0.25, between=0.3, beyond=1.0)
"""Other programs use cores, and clocks follow the temperature."""
ELSEWHERE = 0.7  # the share that is added for a rehearsal on another machine

BESIDE = 1.0
"""The share by which the time outside the training may be off: the start of processes, checkpoints and files are not
rehearsed."""
WARMUPS = 1.5  # warm-ups last longer than their least length, until the pace is steady

LINK_GB_S = 250.0  # bandwidth between GPUs of a node with NVLink, as all-reduces of 100 MB and more measure it
HIDDEN, EXPOSED, SLOWED = 0.1, 0.4, 3.0
"""How much longer overlapping communication makes a step, as a multiple of its duration: at least, usually and at most.
A backward pass hides it, but its kernels run more slowly beside it. 13 layouts on four H100 and H200 had 0.28 to 0.71,
and two 1.9 and 2.5."""
TENSOR = 0.2  # how much longer tensor parallelism makes a step, as a share of it; 0.17 was measured for one layout

# mypy: ignore-errors
"""The devices of this process, the time of its steps on them, and its place among those that train together."""

from __future__ import annotations

import ctypes
import sys
import time

from sweep_optimizers import is_shared, weights_of

WITHOUT_TORCH_DISTRIBUTED = ("horovod.torch", "mpi4py", "bagua", "ray.train")
"""Modules that exchange gradients by themselves."""


class Gpu:
    """The GPU of this process, which works behind the launches; on a CPU nothing is behind."""

    def __init__(self):
        self.began = self.ended = None
        self.synchronized_s = 0.0

    def synchronized(self):
        """Wait for the GPU if there is one, and return the time."""
        cuda = self.cuda()
        if cuda is not None:
            cuda.synchronize()
            if self.began is None:
                self.began, self.ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                for event in (self.began, self.ended):  # never freed: in a forked loader's worker that would abort
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
            self.began.record()
        self.synchronized_s = time.perf_counter()
        return self.synchronized_s

    def step(self):
        """Note that a step has been launched."""
        if self.ended is not None:
            self.ended.record()

    def behind(self, launched_s):
        """Return how much later than its launch the last step ended on the GPU, and wait for it."""
        if self.ended is None:
            return 0.0
        self.ended.synchronize()
        worked_s = self.began.elapsed_time(self.ended) / 1e3
        return max(0.0, worked_s - (launched_s - self.synchronized_s))

    def cuda(self):
        """Return torch.cuda if it is in use."""
        torch = sys.modules.get("torch")
        return torch.cuda if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized() else None


class StepTimer:
    """The time of the steps, without that of evaluations and checkpoints between them."""

    def __init__(self):
        self._gpu = Gpu()
        self._first_s = None  # the time of the first step; None before it
        self._last_s = None  # the time of the last step
        self.is_paused = False  # whether something else has happened since the last step
        self.paused_s = 0.0  # when that began, the last time

    def step(self, begun_s):
        """Return the seconds of the step that has ended; None if they are not those of a step alone.

        `begun_s` is when its loader started, if that was after the last step.
        """
        now_s = time.perf_counter()
        if self._first_s is None:
            self._first_s = now_s
        since_s = self._last_s
        if self.is_paused:
            # An evaluation ended when the training's next loader started. Its workers, and what came between the last
            # step and the evaluation, belong to the training.
            has_resumed = since_s is not None and begun_s is not None and begun_s > self.paused_s
            since_s = begun_s - max(0.0, self.paused_s - since_s) if has_resumed else None
        if self.is_paused or self._last_s is None:
            now_s = self._gpu.synchronized()
        self._last_s, self.is_paused = now_s, False
        self._gpu.step()
        return None if since_s is None else now_s - since_s

    @property
    def running_s(self):
        """The seconds from the first step to the last; None before any."""
        return None if self._first_s is None else self._last_s - self._first_s

    def behind_s(self):
        """Return how much later the last step ended on the GPU than on the host, if nothing has happened since then."""
        return 0.0 if self.is_paused or self._last_s is None else self._gpu.behind(self._last_s)

    def waited_s(self):
        """Wait for the GPU, and return the seconds since the last step, if nothing else has happened since then."""
        self.behind_s()
        return 0.0 if self.is_paused or self._last_s is None else time.perf_counter() - self._last_s

    def pause(self):
        """Note that something other than training begins."""
        if not self.is_paused:
            self.paused_s = time.perf_counter()
        self.is_paused = True


def is_capturing():
    """Return whether a CUDA graph is captured, during which nothing may wait for the GPU."""
    torch = sys.modules["torch"]
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def place(counts, optimizer):
    """Note the process's rank and world size, GPUs that it uses, and whether it exchanges gradients."""
    counts.connected = any(name in sys.modules for name in WITHOUT_TORCH_DISTRIBUTED)
    if "jax" in sys.modules and optimizer is None:
        place_jax(counts, sys.modules["jax"])
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "distributed"):
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        counts.rank, counts.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        counts.connected |= counts.world > 1
    elif optimizer is not None:
        first = next(weights_of(optimizer), None)
        counts.connected |= first is not None and is_shared(first)
    if torch.cuda.is_initialized():
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
        counts.gpus = [str(getattr(torch.cuda.get_device_properties(index), "uuid", index)) for index in used]


def place_jax(counts, jax):
    """Note the devices that hold arrays, and the process's place among several ones."""
    devices = {f"{device.platform}:{device.id}" for array in jax.live_arrays() for device in array.devices()}
    counts.gpus = sorted(devices)
    if jax.process_count() > 1:
        counts.rank, counts.world, counts.connected = jax.process_index(), jax.process_count(), True

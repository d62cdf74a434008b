"""What became of one call of a trainable, told by the exception it ended with."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from trainables.context import DivergedError, GivenUpError, RequestError, TrialTimeoutError

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA, cuDNN, NCCL and the caching allocator, in their several wordings
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",  # torch's CPU allocator
)
LOST_DEVICE_TEXTS = (
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
    "GPU is lost",
    "fallen off the bus",
)
"""What CUDA and NVML say of a GPU that is gone or broken (CUDA runtime errors 214, 220, 714, 46 and 100)."""
NOTE_LENGTH = 300

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the call ended: `status` is `ok`, `oom`, `diverged`, `timeout`, `skipped` or `failed`."""

    status: str
    cause: str = ""
    """`error`, `request` (no trial can go better), `device` (a GPU is lost), `device_memory`, `host_memory`, `disk`
    (full, or takes no writes); empty for what is a result."""
    note: str = ""
    """The exception in one line; for `ok` what the trainable remarked, mostly nothing."""
    trace: str = ""

    @staticmethod
    def of(error: BaseException) -> Ending:
        """The ending that this exception means, whichever wrapper (a compiler's, say) it arrived in."""
        status, cause = _kind(error)
        return Ending(
            status=status,
            cause=cause,
            note=str(error) if status == "skipped" else _one_line(error),
            trace="" if status == "skipped" else "".join(traceback.format_exception(error)),
        )


def _kind(error: BaseException) -> tuple[str, str]:
    """Status and cause."""
    for cause in _causes(error):
        if isinstance(cause, DivergedError):
            return "diverged", ""
        if isinstance(cause, TrialTimeoutError):
            return "timeout", "time_limit"
        if isinstance(cause, GivenUpError):
            return "skipped", ""
        if _is_out_of_memory(cause):
            on_host = isinstance(cause, MemoryError) or "can't allocate memory" in str(cause)
            return "oom", "host_memory" if on_host else "device_memory"
        if isinstance(cause, RequestError | ImportError | SyntaxError):
            return "failed", "request"
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return "failed", "disk"
        if isinstance(cause, RuntimeError) and any(text in str(cause) for text in LOST_DEVICE_TEXTS):
            return "failed", "device"
    return "failed", "error"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # an error of torch's cannot come from a process that never imported it
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY_TEXTS)


def _one_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # Python's own account begins with the place, and names the error lines below
        return f"{type(error).__name__}: {error}"[:NOTE_LENGTH]
    if isinstance(error, RequestError):  # says all by itself
        return str(error).splitlines()[0][:NOTE_LENGTH]
    text = "".join(traceback.format_exception_only(error)).strip()
    if type(error).__module__.startswith("trainables."):  # where one of ours is defined helps no reader
        text = text.removeprefix(f"{type(error).__module__}.")
    return text.splitlines()[0][:NOTE_LENGTH]

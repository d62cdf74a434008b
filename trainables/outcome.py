"""What became of one call of a trainable, told by the exception it ended with."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from trainables.context import DivergedError, TrialTimeoutError

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA, cuDNN, NCCL and the caching allocator, in their several wordings
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",  # torch's CPU allocator
)
NOTE_LENGTH = 300


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the call ended: `status` is `ok`, `oom`, `diverged`, `timeout` or `failed`."""

    status: str
    note: str = ""
    """The exception in one line; for `ok` what the trainable remarked, mostly nothing."""
    trace: str = ""

    @staticmethod
    def of(error: BaseException) -> Ending:
        """The ending that this exception means, whichever wrapper (a compiler's, say) it arrived in."""
        return Ending(
            status=_status(error),
            note=_one_line(error),
            trace="".join(traceback.format_exception(error)),
        )


def _status(error: BaseException) -> str:
    for cause in _causes(error):
        if isinstance(cause, DivergedError):
            return "diverged"
        if isinstance(cause, TrialTimeoutError):
            return "timeout"
        if _is_out_of_memory(cause):
            return "oom"
    return "failed"


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
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.splitlines()[0][:NOTE_LENGTH]

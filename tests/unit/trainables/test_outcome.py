import errno

import pytest
import torch

from trainables.context import DivergedError, RequestError
from trainables.outcome import Ending


def wrapped(error: Exception) -> Exception:
    outer = ValueError("the compiler failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "oom"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (MemoryError(), "oom"),
        (wrapped(torch.OutOfMemoryError("CUDA out of memory")), "oom"),
        (DivergedError("the loss is nan"), "diverged"),
        (RequestError("model has no key width"), "failed"),
        (ArithmeticError("division"), "failed"),
        (ValueError("the text says out of memory, but it is no runtime error"), "failed"),
        (RuntimeError("Connection closed by peer"), "failed"),
    ],
)
def test_exceptions_tell_what_happened(error: Exception, status: str) -> None:
    assert Ending.of(error).status == status


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (wrapped(RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")), "device"),
        (RuntimeError("CUDA error: device-side assert triggered"), "error"),
        (ValueError("GPU is lost"), "error"),
    ],
)
def test_a_lost_gpu_is_told_from_an_error(error: Exception, cause: str) -> None:
    assert (Ending.of(error).status, Ending.of(error).cause) == ("failed", cause)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "device_memory"),
        (RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "device_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "host_memory"),
        (MemoryError(), "host_memory"),
    ],
)
def test_whose_memory_it_was_is_told(error: Exception, cause: str) -> None:
    assert (Ending.of(error).status, Ending.of(error).cause) == ("oom", cause)


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, "disk"), (errno.EDQUOT, "disk"), (errno.EROFS, "disk"), (errno.ENOENT, "error")],
)
def test_a_disk_that_takes_nothing_is_told_from_an_error(number: int, cause: str) -> None:
    for error in (OSError(number, "no"), wrapped(OSError(number, "no"))):
        assert (Ending.of(error).status, Ending.of(error).cause) == ("failed", cause)


def test_a_note_is_one_short_line() -> None:
    ending = Ending.of(RuntimeError("first " + "long " * 200 + "\nsecond"))
    assert len(ending.note) == 300 and ending.note.startswith("RuntimeError: first") and "second" in ending.trace


def test_a_note_does_not_say_where_an_error_of_ours_is_defined() -> None:
    assert Ending.of(DivergedError("the loss is nan")).note == "DivergedError: the loss is nan"
    assert Ending.of(torch.OutOfMemoryError("CUDA")).note == "torch.OutOfMemoryError: CUDA"


def test_the_note_of_a_syntax_error_names_error_and_place() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("def train(config, context)\n    pass\n", "/somewhere/my_training.py", "exec")
    assert Ending.of(caught.value).note == "SyntaxError: expected ':' (my_training.py, line 1)"


def test_what_no_trial_can_do_better_is_the_requests_fault() -> None:
    for error in (RequestError("no key"), wrapped(ModuleNotFoundError("No module named 'x'")), SyntaxError("what")):
        assert Ending.of(error).cause == "request"

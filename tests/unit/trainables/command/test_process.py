from pathlib import Path

import pytest

from trainables.command import process
from trainables.command.process import CommandError, FailureCause, OutputLines
from trainables.context import DivergedError


def end(lines, exit_code=1, oom=(), diverged=(), stream="stderr"):
    failure = FailureCause(oom, diverged)
    for line in lines:
        failure.read(stream, line)
    failure.check(exit_code, [0])


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 GiB.",
        "[rank1]: RuntimeError: CUDA error: out of memory",
        "MemoryError",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "RESOURCE_EXHAUSTED: while allocating",
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_out_of_memory_is_recognised(line, stream):
    after = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"]
    with pytest.raises(MemoryError, match=line.split(":")[0].replace("[", r"\[")):
        end([line, *after], oom=["RESOURCE_EXHAUSTED"], stream=stream)


def test_out_of_memory_may_be_handled_by_the_command():
    end(["CUDA out of memory: retrying with half the batch"], exit_code=0)


def test_the_first_error_is_the_cause():
    lines = [
        "Traceback (most recent call last):",
        "[rank0]: ValueError: no such data",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "====",
    ]
    with pytest.raises(CommandError, match="status 1: ValueError: no such data$"):
        end(lines)


def test_without_an_error_the_last_line_is_the_cause():
    with pytest.raises(CommandError, match="status 2: usage: train.py"):
        end(["", "usage: train.py [-h]", ""], exit_code=2)
    with pytest.raises(CommandError, match="status 3$"):
        end([], exit_code=3)


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-60, "signal 60")])
def test_signals_have_names(code, name):
    with pytest.raises(CommandError, match=name):
        end([], exit_code=code)


def test_divergence_counts_with_exit_status_0():
    with pytest.raises(DivergedError, match="loss became NaN"):
        end(["loss became NaN, giving up"], exit_code=0, diverged=["became NaN"])


def test_only_complete_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    output = OutputLines(path)
    assert list(output.new()) == []
    path.write_bytes(b"first\nsec")
    assert list(output.new()) == ["first"]
    with path.open("ab") as file:
        file.write("ond ü".encode()[:-1])
    assert list(output.new()) == []
    with path.open("ab") as file:
        file.write("ü".encode()[1:] + b"\r10%\r20%\nlast")
    assert list(output.new()) == ["second ü", "10%", "20%"]
    assert list(output.new(ended=True)) == ["last"] and list(output.new(ended=True)) == []


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"a\xffb\n")
    assert list(OutputLines(tmp_path / "out").new()) == ["a\ufffdb"]


def test_an_endless_line_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LONGEST", 8)
    (tmp_path / "out").write_bytes(b"x" * 20)
    output = OutputLines(tmp_path / "out")
    assert list(output.new()) == ["x" * 16] and list(output.new(ended=True)) == ["x" * 4]

import pytest

from sweeps.rank_exit import Cause
from trainables.command.failure import CommandError, FailureCause
from trainables.context import DivergedError, PortInUseError
from trainables.rank import exit_by


def end(lines, exit_code=1, oom=(), diverged=(), stream="stderr"):
    failure = FailureCause(oom, diverged)
    for line in lines:
        failure.read(stream, line)
    failure.check(exit_code, [0])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 GiB.", Cause.DEVICE_MEMORY),
        ("[rank1]: RuntimeError: CUDA error: out of memory", Cause.DEVICE_MEMORY),
        ("RESOURCE_EXHAUSTED: while allocating", Cause.DEVICE_MEMORY),
        ("MemoryError", Cause.HOST_MEMORY),
        ("java.lang.OutOfMemoryError: Java heap space", Cause.HOST_MEMORY),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", Cause.HOST_MEMORY),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", Cause.HOST_MEMORY),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Cause.HOST_MEMORY),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_out_of_memory_is_recognised(line, cause, stream):
    other = "MemoryError: also" if cause is Cause.DEVICE_MEMORY else "CUDA error: out of memory"  # the first one counts
    after = [other, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"]
    with pytest.raises(MemoryError, match=line.split(":")[0].replace("[", r"\[")) as raised:
        end([line, *after], oom=["RESOURCE_EXHAUSTED"], stream=stream)
    # Only a host's memory is tried again: other processes may have held it.
    assert exit_by(raised.value, 0).cause is cause


def test_out_of_memory_may_be_handled_by_the_command():
    end(["CUDA out of memory: retrying with half the batch"], exit_code=0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[rank0]: ValueError: no such data", "ValueError: no such data"),
        ("/venv/bin/python3.11: can't open file '/mine/train.py': [Errno 2]", ".*can't open file '/mine/train.py'.*"),
        ("train.py: error: unrecognized arguments: --bs 32", "train.py: error: unrecognized arguments: --bs 32"),
    ],
)
def test_the_first_error_is_the_cause(line, message):
    lines = [
        "Traceback (most recent call last):",
        line,
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "====",
    ]
    with pytest.raises(CommandError, match=f"status 1: {message}$"):
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("E1126 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: /bin/python", "rank 1 .* SIGKILL"),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGSEGV",
            "rank 2 .* SIGS",
        ),
        ("mpirun noticed that process rank 3 with PID 0 on node a exited on signal 9 (Killed).", "rank 3 .* SIGKILL"),
        ("srun: error: node1: task 0: Bus error", "rank 0 .* SIGBUS"),
        ("failed (exitcode: -15) local_rank: 1 (pid: 7)", "Connection reset"),
        ("ValueError: no such data", "ValueError: no such data"),
    ],
)
def test_the_failing_rank_is_the_cause_and_not_the_lost_connection(line, message):
    with pytest.raises(CommandError, match=message):
        end(["[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:545] Connection reset by peer", line])


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to listen. port: 12355, name: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_a_port_in_use_is_told(line):
    with pytest.raises(PortInUseError, match="free"):
        end([line, "ChildFailedError: "])


def test_divergence_counts_with_exit_status_0():
    with pytest.raises(DivergedError, match="loss became NaN"):
        end(["loss became NaN, giving up"], exit_code=0, diverged=["became NaN"])

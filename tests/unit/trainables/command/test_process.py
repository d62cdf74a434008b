import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainables.command import process, process_tree
from trainables.command.metrics import CommandMetrics
from trainables.command.process import Command, CommandError, CommandExit, CommandListener, FailureCause, OutputLines
from trainables.command.process_tree import CpuTimes
from trainables.command.settings import CommandSettings
from trainables.context import DivergedError, PortInUseError, TrialTimeoutError


def end(lines, exit_code=1, oom=(), diverged=(), stream="stderr"):
    failure = FailureCause(oom, diverged)
    for line in lines:
        failure.read(stream, line)
    failure.check(exit_code, [0])


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 GiB.",
        *("[rank1]: RuntimeError: CUDA error: out of memory", "MemoryError"),
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
        *("terminate called after throwing an instance of 'std::bad_alloc'", "RESOURCE_EXHAUSTED: while allocating"),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_out_of_memory_is_recognised(line, stream):
    after = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"]
    with pytest.raises(MemoryError, match=line.split(":")[0].replace("[", r"\[")):
        end([line, *after], oom=["RESOURCE_EXHAUSTED"], stream=stream)


def test_out_of_memory_may_be_handled_by_the_command():
    end(["CUDA out of memory: retrying with half the batch"], exit_code=0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[rank0]: ValueError: no such data", "ValueError: no such data"),
        ("/venv/bin/python3.11: can't open file '/mine/train.py': [Errno 2]", ".*can't open file '/mine/train.py'.*"),
    ],
)
def test_the_first_error_is_the_cause(line: str, message: str) -> None:
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
def test_the_failing_rank_is_the_cause_and_not_the_lost_connection(line: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        end(["[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:545] Connection reset by peer", line])


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to listen. port: 12355, name: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_a_port_in_use_is_told(line: str) -> None:
    with pytest.raises(PortInUseError, match="free"):
        end([line, "ChildFailedError: "])


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
    monkeypatch.setattr(process, "CHUNK", 4)
    (tmp_path / "out").write_bytes(b"x" * 20)
    output = OutputLines(tmp_path / "out")
    assert list(output.new()) == ["x" * 12] and list(output.new(ended=True)) == ["x" * 8]


def test_a_backlog_is_skipped_from_line_to_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"CHUNK": 8, "BACKLOG": 40, "BACKLOG_KEPT": 14}.items():
        monkeypatch.setattr(process, name, number)
    (tmp_path / "out").write_text("".join(f"line {number}\n" for number in range(100, 200)))
    output = OutputLines(tmp_path / "out")
    monkeypatch.setattr(process, "READ_S", -1.0)  # the first look returns nothing, and finds too long a backlog
    assert list(output.new()) == [] and len(list(output.remarks("stdout"))) == 1
    assert list(output.new(ended=True)) == ["line 199"]


def test_a_long_log_keeps_its_head_and_its_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"LOG_MOST": 60, "LOG_KEPT": 10}.items():
        monkeypatch.setattr(process, name, number)
    path = tmp_path / "out"
    path.write_text("first one\n" + "x" * 50 + "\n" + "the last\n")
    output = OutputLines(path)
    assert list(output.new()) == ["first one", "x" * 50, "the last"]
    output.shorten()
    assert path.read_text().startswith("first one\n") and path.read_text().endswith("]\n\nthe last\n")
    with path.open("a") as file:
        file.write("next\n")
    assert list(output.new()) == ["next"]


def run(folder: Path, words: list[str], timeout_s: float | None = None, on_line: Any = None) -> CommandExit:
    command = Command(
        words=words,
        environment=dict(os.environ),
        cwd=folder,
        stdout=folder / "stdout.log",
        stderr=folder / "stderr.log",
        timeout_s=timeout_s,
        grace_s=0.5,
    )
    listener = CommandListener()
    listener.on_line = on_line or listener.on_line  # type: ignore[method-assign]
    return process.run(command, listener, CpuTimes())


DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
ENDLESS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "deaf": f"{DEAF}while True: print('a' * 99)",
    "stops its guard": "os.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass",
}
SLOW_ENDLESS = {
    "lines": "while True: print('a' * 99)",
    "one line": "while True: print('1' * 9999, end='')",
    "binary": "while True: sys.stdout.buffer.write(os.urandom(100_000))",
    "stops it again": f"{DEAF}while True: os.kill(os.getppid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("how", [*ENDLESS, *(pytest.param(how, marks=pytest.mark.slow) for how in SLOW_ENDLESS)])
def test_no_output_escapes_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    code = (ENDLESS | SLOW_ENDLESS)[how]
    for name, number in {"LOG_MOST": 2**20, "LOG_KEPT": 2**16, "BACKLOG": 2**18}.items():
        monkeypatch.setattr(process, name, number)
    monkeypatch.setattr(process_tree, "KILL_S", 1.0)

    def slow(stream: str, line: str) -> None:
        time.sleep(0.001)  # as for many patterns

    started = time.monotonic()
    with pytest.raises(TrialTimeoutError, match="timeout_s=1"):
        run(tmp_path, [sys.executable, "-S", "-c", f"import os, signal, sys\n{code}"], timeout_s=1.0, on_line=slow)
    assert time.monotonic() - started < 20
    assert (tmp_path / "stdout.log").stat().st_size <= 2**20


def test_a_process_without_session_and_environment_ends_with_the_command(tmp_path: Path) -> None:
    daemon = "env -i setsid --fork sleep 87654"
    assert run(tmp_path, ["bash", "-c", f"{daemon}; exit 3"]).status == 3
    running = [process for process in psutil.process_iter() if _words(process) == ["sleep", "87654"]]
    assert not running


def test_a_command_is_among_the_descendants_of_its_rank(tmp_path: Path) -> None:
    """Telemetry counts what those use as the trial's own, and everything else as foreign."""
    seen: list[bool] = []

    def see(stream: str, line: str) -> None:
        seen.append(int(line) in {process.pid for process in psutil.Process().children(recursive=True)})

    run(tmp_path, ["bash", "-c", "echo $$; sleep 1 & echo $!; wait"], on_line=see)
    assert seen == [True, True]


def test_a_command_ends_with_its_rank_and_the_children_of_that(tmp_path: Path) -> None:
    """Ray kills a process and its children, but no grandchildren."""
    code = f"""
        import os, sys
        from pathlib import Path
        from trainables.command import process_tree
        output = (open(os.devnull, "wb"),) * 2
        tree = process_tree.Tree(["sleep", "76543"], dict(os.environ), Path({str(tmp_path)!r}), output, 0.5)
        print(tree.pid, flush=True)
        tree.wait(60.0)
    """
    rank = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert rank.stdout
    with rank.stdout:
        command = psutil.Process(int(rank.stdout.readline()))
    for victim in (*psutil.Process(rank.pid).children(), psutil.Process(rank.pid)):
        victim.kill()
    rank.wait()
    command.wait(10)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


def test_a_process_that_may_not_be_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with the rights of another user, as after `sudo`, takes no signal."""
    guard = tmp_path / "guard.py"
    guard.write_text(
        "import psutil, runpy\n"
        "def denied(self, number): raise psutil.AccessDenied(self.pid)\n"
        "psutil.Process.send_signal = denied\n"
        f"runpy.run_path({process_tree.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(process_tree, "__file__", str(guard))
    command_exit = run(tmp_path, ["bash", "-c", "sleep 3 & exit 0"])
    assert command_exit.status == 0 and "sleep" in command_exit.remarks[0]


def test_a_program_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    with pytest.raises(PermissionError, match="text"):
        run(tmp_path, [str(tmp_path / "text")])
    with pytest.raises(OSError, match="null byte"):
        run(tmp_path, ["echo", "a\0b"])


@pytest.mark.parametrize("unit", ["1", "1.", "ab ", "1:", "{", "'", "\x1b[", "━"])
def test_a_line_of_a_megabyte_takes_no_second(unit: str) -> None:
    """The patterns of users may take quadratic time."""
    patterns = {"val_accuracy": r"([0-9.]+)%", "a": r"acc.*?([0-9.]+)\s*/", "step_s": "tqdm"}
    settings = CommandSettings(
        argv="x", metrics=patterns, epoch_pattern=r"(\d+)/\d+:", step_pattern=r"(\w+) iter (\d+):"
    )
    reader, failure = CommandMetrics(settings), FailureCause([r"(\w+) foo"], [r"(\d+)nan"])
    line = "{" + unit * (10**6 // len(unit)) + "}"
    started_s = time.process_time()
    reader.line(line)
    failure.read("stderr", line)
    assert time.process_time() - started_s < 2  # 0.5 s on a slow core


def test_a_command_that_can_stop_ends_by_itself(tmp_path: Path) -> None:
    code = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.01)\nprint('saved')"
    command = Command(
        words=[sys.executable, "-S", "-c", code],
        environment={},
        cwd=tmp_path,
        stdout=tmp_path / "out",
        stderr=tmp_path / "err",
        timeout_s=None,
        grace_s=30.0,
    )

    class Stopping(CommandListener):
        asked = iter([False, True])

        def should_stop(self, *, progress: bool) -> bool:
            return next(self.asked)

        def ask_to_stop(self) -> bool:
            (tmp_path / "stop").touch()
            return True

    assert process.run(command, Stopping(), CpuTimes()).status is None
    assert (tmp_path / "out").read_text() == "saved\n"


BURN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def test_busy_processes_are_those_that_use_the_cpu() -> None:
    code = f"""
        import subprocess, sys
        burn = {BURN.format(seconds=20)!r}
        children = [subprocess.Popen([sys.executable, "-S", "-c", burn]) for _ in range(2)]
        children += [subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(20)"])]
        for child in children: child.wait()
    """
    parent = subprocess.Popen([sys.executable, "-S", "-c", textwrap.dedent(code)])
    try:
        busy = CpuTimes()
        deadline = time.monotonic() + 15
        while len(busy.cores()) != 2 and time.monotonic() < deadline:
            busy.look(parent.pid, reported=True)
            time.sleep(0.1)
        assert len(busy.cores()) == 2
    finally:
        for process in [*psutil.Process(parent.pid).children(recursive=True), psutil.Process(parent.pid)]:
            process.kill()
        parent.wait()

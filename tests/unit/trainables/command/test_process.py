import os
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from trainables.command import file_tail, process, process_tree
from trainables.command.failure import FailureCause
from trainables.command.output_parser import OutputParser
from trainables.command.process import Command, CommandListener
from trainables.command.process_tree import CpuTimes
from trainables.command.settings import CommandSettings
from trainables.context import TrialTimeoutError


def run(folder, words, timeout_s=None, on_line=None):
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
def test_no_output_escapes_a_time_limit(tmp_path, monkeypatch, how):
    code = (ENDLESS | SLOW_ENDLESS)[how]
    for name, number in {"LOG_MOST": 2**20, "LOG_KEPT": 2**16, "BACKLOG": 2**18}.items():
        monkeypatch.setattr(file_tail, name, number)
    monkeypatch.setattr(process_tree, "KILL_S", 1.0)

    def slow(stream, line):
        time.sleep(0.001)  # as for many patterns

    started = time.monotonic()
    with pytest.raises(TrialTimeoutError, match="timeout_s=1"):
        run(tmp_path, [sys.executable, "-S", "-c", f"import os, signal, sys\n{code}"], timeout_s=1.0, on_line=slow)
    assert time.monotonic() - started < 20
    assert (tmp_path / "stdout.log").stat().st_size <= 2**20


def test_a_process_without_session_and_environment_ends_with_the_command(tmp_path):
    daemon = "env -i setsid --fork sleep 87654"
    assert run(tmp_path, ["bash", "-c", f"{daemon}; exit 3"]).status == 3
    running = [process for process in psutil.process_iter() if _words(process) == ["sleep", "87654"]]
    assert not running


def test_a_command_is_among_the_descendants_of_its_rank(tmp_path):
    """Telemetry counts what those use as the trial's own, and everything else as foreign."""
    seen: list[bool] = []

    def see(stream, line):
        seen.append(int(line) in {process.pid for process in psutil.Process().children(recursive=True)})

    run(tmp_path, ["bash", "-c", "echo $$; sleep 1 & echo $!; wait"], on_line=see)
    assert seen == [True, True]


def test_a_command_ends_with_its_rank_and_the_children_of_that(tmp_path):
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


def _words(process):
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


def test_a_process_that_may_not_be_ended_is_told(tmp_path, monkeypatch):
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


def test_a_program_that_cannot_be_started_is_an_error(tmp_path):
    (tmp_path / "text").write_text("no program")
    with pytest.raises(PermissionError, match="text"):
        run(tmp_path, [str(tmp_path / "text")])
    with pytest.raises(OSError, match="null byte"):
        run(tmp_path, ["echo", "a\0b"])


@pytest.mark.parametrize("unit", ["1", "1.", "ab ", "1:", "{", "'", "\x1b[", "━"])
def test_a_line_of_a_megabyte_takes_no_second(unit):
    """The patterns of users may take quadratic time."""
    patterns = {"val_accuracy": r"([0-9.]+)%", "a": r"acc.*?([0-9.]+)\s*/", "step_s": "tqdm"}
    settings = CommandSettings(
        argv="x", metrics=patterns, epoch_pattern=r"(\d+)/\d+:", step_pattern=r"(\w+) iter (\d+):"
    )
    reader = OutputParser(settings)
    failure = FailureCause([r"(\w+) foo"], [r"(\d+)nan"])
    line = "{" + unit * (10**6 // len(unit)) + "}"
    started_s = time.process_time()
    reader.line(line)
    failure.read("stderr", line)
    assert time.process_time() - started_s < 2  # 0.5 s on a slow core


def test_a_command_that_can_stop_ends_by_itself(tmp_path):
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

        def should_stop(self, *, progress):
            return next(self.asked)

        def ask_to_stop(self):
            (tmp_path / "stop").touch()
            return True

    assert process.run(command, Stopping(), CpuTimes()).status is None
    assert (tmp_path / "out").read_text() == "saved\n"


BURN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def test_busy_processes_are_those_that_use_the_cpu():
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

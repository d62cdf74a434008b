import os
import queue
import signal
import subprocess
import sys
import time

import pytest

from orchestrator.run.interrupt import SIGNALS, Interrupt

BUSY = """
import hashlib, sys
from orchestrator.run import interrupt
interrupt.GRACE_S = float(sys.argv[1])
with interrupt.Interrupt() as received:
    if sys.argv[2:]:
        received.all_is_written()
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)  # for minutes, outside of the interpreter
"""


def start(grace_s, *written):
    command = [sys.executable, "-c", BUSY, str(grace_s), *written]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "busy\n"
    return process


def test_time_limit_starts_with_the_signal():
    process, began = start(0.5), time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "tables are not finished" in err
    assert 0.5 <= time.monotonic() - began < 60


def test_time_limit_after_all_is_written_does_not_mention_tables():
    process = start(0.5, "written")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "tables are not finished" not in err


def test_second_signal_ends_the_process_at_once():
    process = start(100.0)
    process.send_signal(signal.SIGINT)
    assert process.stderr and "interrupted" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_signals_that_come_together_are_one():
    """As of `timeout`, which signals the process and then its group."""
    process, began = start(1.0), time.monotonic()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "tables are not finished" in err
    assert 1.0 <= time.monotonic() - began


def test_second_sighup_does_not_end_the_shutdown():
    process, began = start(1.0), time.monotonic()
    process.send_signal(signal.SIGHUP)
    assert process.stderr and "interrupted" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 129 and "tables are not finished" in err
    assert 1.0 <= time.monotonic() - began


ENDED = """
import atexit, sys, time
from orchestrator.cli import app
from orchestrator.__main__ import main
atexit.register(time.sleep, int(sys.argv[1]))
app.main = lambda arguments: print("the tables") or int(sys.argv[2])
sys.exit(main())
"""


def test_interrupted_command_skips_exit_handlers():
    for waits_s, status in ((600, 143), (0, 1)):
        command = [sys.executable, "-c", ENDED, str(waits_s), str(status)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stdout, ended.stderr) == (status, "the tables\n", "")


def test_ignored_sighup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert interrupt.signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


STARTING = """
import hashlib, signal, sys
from orchestrator.run import interrupt
for number in interrupt.SIGNALS:
    signal.signal(number, interrupt.end_at_once if sys.argv[1] != "program" else signal.default_int_handler)
if sys.argv[1] == "background":  # of a script: its shell has it ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
with interrupt.Interrupt() as current:
    with current.ends_at_once():
        print("starting", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000 if sys.argv[1] == "program" else 1_000_000_000)
    sys.exit(f"went on after signal {current.signal}")
"""


@pytest.mark.parametrize(
    ("whose", "sent", "status", "said"),
    [
        ("command", signal.SIGINT, 130, "interrupted while starting"),
        ("background", signal.SIGTERM, 143, "interrupted while starting"),
        ("program", signal.SIGINT, 1, "went on after signal 2"),
    ],
)
def test_signal_during_start_ends_commands_not_programs(whose, sent, status, said):
    command = [sys.executable, "-c", STARTING, whose]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "starting\n"
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status and said in err


def test_unread_output_does_not_delay_the_end():
    process = start(0.5)
    assert process.stdout and process.stderr
    process.stdout.close()  # as Ctrl-C ends the `tee` behind a pipe
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_first_signal_is_kept_and_handlers_are_restored(capfd):
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupt() as interrupt:
        assert interrupt.signal is None
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.signal == signal.SIGTERM and interrupt.exit_status == 143
        deadline = time.monotonic() + 60
        while "again to end at once" not in capfd.readouterr().err:
            assert time.monotonic() < deadline
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_live_table_prints_the_message(capfd):
    heard = queue.SimpleQueue[str]()
    with Interrupt() as interrupt, interrupt.said_by(heard.put):
        signal.raise_signal(signal.SIGTERM)
        assert "to end at once" in heard.get(timeout=60)
    assert capfd.readouterr().err == ""


def test_message_says_that_no_trial_is_running():
    heard = queue.SimpleQueue[str]()
    with Interrupt() as interrupt, interrupt.said_by(heard.put):
        interrupt.nothing_runs()
        signal.raise_signal(signal.SIGTERM)
        said = heard.get(timeout=60)
    assert "no trial is running" in said and "stopping" not in said


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # from 3.12 on
def test_forked_process_handles_its_own_signals():
    with Interrupt() as interrupt:
        told, tells = os.pipe()
        child = os.fork()
        if not child:
            os.write(tells, b"!")  # its own settings are made
            time.sleep(60)
            os._exit(0)
        assert os.read(told, 1) == b"!"
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.1)
        assert interrupt.signal is None
        os.close(told)
        os.close(tells)

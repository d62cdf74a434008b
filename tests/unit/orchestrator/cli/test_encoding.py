import os
import subprocess
import sys


def test_a_locale_that_has_no_signs_for_what_is_told_is_refused_with_what_helps() -> None:
    odd = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "orchestrator", "sweep=batch_scaling", "mode=plan"]
    told = subprocess.run(command, env=os.environ | odd, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and told.stdout == "" and len(told.stderr.splitlines()) == 1
    assert "set PYTHONUTF8=1" in told.stderr


def test_signs_that_the_output_does_not_know_end_no_command() -> None:
    code = "from orchestrator.cli.streams import outlast_readers; outlast_readers(); print('0.9 † ±')"
    odd = {"PYTHONIOENCODING": "latin-1"}
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | odd, capture_output=True, timeout=60)
    assert told.returncode == 0 and told.stdout.decode("latin-1") == "0.9 ? ±\n"

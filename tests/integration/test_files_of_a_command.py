"""Files that a command names: those that its trials write do not identify trials, those that a user edits do."""

import os
import signal

import pytest

from tests.drivers.place import Place, wait_for

TRAIN = """
import pathlib, sys, time
log, config, batch = sys.argv[1:]
with open(log, "a") as file:
    file.write("a line\\n")
while batch == pathlib.Path(config).read_text():
    time.sleep(0.05)
print('{"accuracy": 0.9, "samples_per_s": 100}')
"""
COMMAND = (
    *("sweep=batch_scaling", "trainable=command", "trainable.cwd=source", "trainable.adapter=off", "report.html=false"),
    "trainable.argv='{python} -S train.py log.txt net.yaml {device_batch_size}'",
    *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[32,64]", "sweep.axes.lr_rule=[none]"),
    *("sweep.axes.seed=[0]", "resources.timing=shared"),
)


class Command(Place):
    @property
    def results(self):
        return self.folder / "results" / "batch_scaling"

    @property
    def runs(self):
        """How often the command has started."""
        return (self.folder / "log.txt").read_text().count("a line")


@pytest.fixture
def command(tmp_path):
    place = Command(tmp_path, *COMMAND)
    (place.folder / "train.py").write_text(TRAIN)
    (place.folder / "net.yaml").write_text("16")
    return place


@pytest.mark.slow
def test_a_file_that_trials_make_does_not_identify_them(command):
    for _ in range(2):
        status, out, err = command.run()
        assert status == 0 and command.runs == 2, out + err
    assert "every trial writes log.txt" in out and "2 of 2 trials were finished before" in out


@pytest.mark.slow
def test_a_file_that_a_user_edits_makes_other_trials(command):
    (command.folder / "log.txt").write_text("of a user, extended by trials\n")
    assert command.run()[0] == 0 and command.runs == 2
    (command.folder / "net.yaml").write_text("8")
    status, _, err = command.run()
    assert status == 2 and "source.files.net.yaml" in err and "log.txt" not in err
    status, out, err = command.run("allow_changed=true")
    assert status == 0 and command.runs == 4, out + err


@pytest.mark.slow
def test_sweep_continues_after_its_driver_was_killed(command):
    (command.folder / "net.yaml").write_text("64")
    driver = command.start()
    wait_for(lambda: len(command.finished()) == 1 and command.runs == 2, driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=60)
    status, out, err = command.run("sweep.axes.device_batch_size=[32]")
    assert status == 0 and "1 of 1 trials were finished before" in out, out + err
    assert command.runs == 2


@pytest.mark.slow  # which files are outputs is tested with the history
def test_config_edited_while_the_sweep_runs_is_no_output(command):
    (command.folder / "net.yaml").write_text("64")
    driver = command.start()
    wait_for(lambda: len(command.finished()) == 1 and command.runs == 2, driver)
    (command.folder / "net.yaml").write_text("16")
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 0, out + err
    status, _, err = command.run()
    assert status == 2 and "source.files.net.yaml" in err

"""Test drivers that are interrupted, and the command that continues."""

import signal

import pytest

from tests.drivers.place import wait_for


@pytest.mark.slow
def test_a_second_driver_exits_and_names_the_first(place):
    first = place.start("sweep=traced", HOLD_AFTER="0")
    wait_for(lambda: (place.results / "owner.json").exists(), first)
    status, _, err = place.run("sweep=traced")
    assert status == 2 and f"process {first.pid} on host" in err
    first.kill()
    first.communicate()
    assert place.run("sweep=traced", "sweep.axes.seed=[0]")[0] == 0


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_sweep_continues_after_a_signal(place, number, status):
    process = place.start("sweep=traced", HOLD_AFTER="2")
    wait_for(lambda: len(place.ran()) == 3, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    done = place.finished()
    assert done == place.ran()[:2] and "10 planned trials" in out
    assert place.run("sweep=traced", "sweep.axes.seed=[0,1]")[0] == 0
    assert len(place.finished()) == 8 and not set(done) & set(place.ran()[3:])

"""Test twenty drivers started at once in one directory: one runs, and the others name it."""

import signal
import time

import pytest

from tests.drivers.place import Place
from tests.faults.conftest import FOUR

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
STARTS = 20


def test_only_one_of_twenty_starts_runs(tmp_path):
    place = Place(tmp_path, *FOUR, "trainable.pause_s=100", "report.html=false")
    drivers = [place.start() for _ in range(STARTS)]
    until = time.monotonic() + 300
    while sum(process.poll() is None for process in drivers) > 1 or not place.ran():
        assert time.monotonic() < until
        time.sleep(0.1)
    (winner,) = [process for process in drivers if process.poll() is None]
    for driver in drivers:
        if driver is not winner:
            assert driver.poll() == 2 and f"process {winner.pid} on host" in driver.err(), driver.err()
    assert len(place.ran()) == 1
    winner.send_signal(signal.SIGINT)
    assert winner.wait(30) == 130
    print(f"{STARTS} starts at once: 1 ran, {STARTS - 1} ended with status 2 and named it")

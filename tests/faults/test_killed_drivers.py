"""The driver is ended at every named moment and at random ones; the same command goes on, and nothing is lost.

What ran is counted in a file that the trials write, outside of the product. ORCHESTRATOR_FAULT_SEED chooses other
moments, ORCHESTRATOR_FAULTS how many.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from orchestrator.crash_point import Moment
from tests.drivers.place import Place, Started, wait_for
from tests.faults.conftest import FOUR, Company

SEED = int(os.environ.get("ORCHESTRATOR_FAULT_SEED", "7"))
TRIALS = 4


def kill_and_continue(place: Place, *arguments: str, **environment: str) -> tuple[set[str], int]:
    """Start, let it die by itself, and return what was finished by then and how much had begun."""
    status, out, err = place.run(*arguments, **environment)
    assert status in (-signal.SIGKILL, 0), err
    return set(place.finished()), len(place.ran())


def check_whole(place: Place, deaths: list[tuple[set[str], int]], *arguments: str) -> None:
    """The last run has come to its end: everything was finished once, and nothing of it ran again."""
    assert sorted(place.finished()) == sorted(set(place.finished())) and len(place.finished()) == TRIALS
    for finished, begun in deaths:
        assert finished <= set(place.finished())
        assert not finished & set(place.ran()[begun:]), "a finished trial ran again"
    status, out, err = place.run("mode=verify", *arguments)
    assert (status, err) == (0, ""), out + err


def moments(every: bool) -> list[str]:
    """Each of them the first time it comes, and again later; the sample of a default run takes a few."""
    return [f"{moment}:{count}" for moment in Moment for count in (1, 3)] if every else [f"{Moment.RECORD_WRITTEN}:4"]


def crash_at(place: Place, moment: str) -> None:
    arguments = ("trainable.breaks=2", "retries=1")  # so that there is a trace, and a retry
    deaths = [kill_and_continue(place, *arguments, ORCHESTRATOR_CRASH_AT=moment)]
    status, out, err = place.run(*arguments)
    assert status == 1, out + err  # one seed breaks
    check_whole(place, deaths, *arguments)
    assert place.ran("done").count(next(iter(place.ran("done")))) <= 2


@pytest.mark.parametrize("moment", moments(every=False))
def test_a_driver_that_dies_at_a_named_moment_loses_nothing(place: Place, moment: str) -> None:
    crash_at(place, moment)


@pytest.mark.faults
@pytest.mark.parametrize("moment", moments(every=True))
def test_a_driver_that_dies_at_any_named_moment_loses_nothing(place: Place, moment: str) -> None:
    crash_at(place, moment)


def wait_for_work(place: Place, process: Started) -> None:
    """Until the driver has signed for the results folder, or is done."""
    owner = place.results / "owner.json"
    while process.poll() is None and not (owner.exists() and f'"pid": {process.pid},' in owner.read_text()):
        time.sleep(0.01)


def end_at_random(folder: Path, number: int, times: int, backend: str, longest_s: float, earliest_s: float) -> None:
    """End drivers by the signal at random moments until `times` were, each sweep to its end; 0 lost, 0 twice."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    ended, sweeps, slowest_s, longest_exit_s = 0, 0, 0.0, 0.0
    while ended < times:
        sweeps += 1
        place = Place(folder / f"{sweeps}", *FOUR)
        arguments = (f"backend={backend}", "trainable.pause_s=0.2", "cluster.dashboard=false", "report.html=false")
        deaths = []
        for _ in range(12):
            process = (place.start_afresh if backend == "ray" else place.start)(*arguments)
            company = Company(process)
            if chance.random() < 0.8:  # most at work, some on the way there, whatever the speed of the machine
                wait_for_work(place, process)
            until = time.monotonic() + earliest_s + chance.random() * (longest_s - earliest_s)
            while time.monotonic() < until and process.poll() is None:
                company.look()
                time.sleep(0.05)
            company.look()
            asked = time.monotonic()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            longest_exit_s = max(longest_exit_s, time.monotonic() - asked)
            slowest_s = max(slowest_s, company.gone_after_s())
            assert process.returncode in (0, -number, 128 + number), (process.returncode, err)
            if process.returncode == 0:
                break
            ended += 1
            deaths.append((set(place.finished()), len(place.ran())))
            if place.results.joinpath("journal.jsonl").exists() and ended % 5 == 0:
                status, out, err = place.run("mode=verify", *arguments)
                assert (status, err) == (0, ""), out + err
        status, out, err = place.run(*arguments)
        assert status == 0, out + err
        check_whole(place, deaths, *arguments)
    print(
        f"{backend}: {ended} times {signal.Signals(number).name} in {sweeps} sweeps: 0 finished trials lost, 0 run"
        f" twice; exit within {longest_exit_s:.1f} s, last process gone after {slowest_s:.1f} s"
    )
    assert longest_exit_s < 10.0


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_at_200_moments(tmp_path: Path, number: int) -> None:
    end_at_random(tmp_path, number, int(os.environ.get("ORCHESTRATOR_FAULTS", "200")), "inprocess", 2.0, 0.0)


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_on_ray(tmp_path: Path, number: int) -> None:
    end_at_random(tmp_path, number, 10, "ray", 25.0, 1.0)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)])
def test_asked_twice_it_ends_at_once(place: Place, number: int) -> None:
    process = place.start("trainable.pause_s=20")
    wait_for(place.ran, process)
    process.send_signal(number)
    wait_for(lambda: "once more ends at once" in process.err(), process)  # else the two would be one to the kernel
    process.send_signal(number)
    asked = time.monotonic()
    process.communicate(timeout=10)
    assert process.returncode == 128 + number and time.monotonic() - asked < 2.0

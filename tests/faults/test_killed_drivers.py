"""Test a driver killed at every named moment and at random ones: the same command continues, and nothing is lost.

Trials count their runs in a file outside of the product. ORCHESTRATOR_FAULT_SEED chooses other moments,
ORCHESTRATOR_FAULTS their number, ORCHESTRATOR_FAULTS_S the time limit; ORCHESTRATOR_FAULTS_LOG names a file for
the figures.
"""

import itertools
import os
import random
import signal
import time
from dataclasses import dataclass
from functools import partial

import pytest

from orchestrator.store.failpoints import Moment
from tests.drivers.place import Place, Prepared, wait_for
from tests.faults.conftest import FOUR, BackgroundWork

SEED = int(os.environ.get("ORCHESTRATOR_FAULT_SEED", "7"))
TIMES = int(os.environ.get("ORCHESTRATOR_FAULTS", "0"))
AT_MOST_S = float(os.environ.get("ORCHESTRATOR_FAULTS_S", "inf"))
LOG = os.environ.get("ORCHESTRATOR_FAULTS_LOG")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TRIALS = 4


def check_whole(place, deaths):
    """Check the end of the last run: everything finished once, and nothing ran again."""
    assert sorted(place.finished()) == sorted(set(place.finished())) and len(place.finished()) == TRIALS
    for finished, begun in deaths:
        assert finished <= set(place.finished())
        assert not finished & set(place.ran()[begun:]), "a finished trial ran again"
    status, out, err = place.run("mode=verify")
    assert (status, err) == (0, ""), out + err


def moments(every):
    """Return each moment at its first occurrence and at a later one; a default run takes a sample."""
    return [f"{moment}:{count}" for moment in Moment for count in (1, 3)] if every else [f"{Moment.RECORD_WRITTEN}:4"]


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """Return a trainable with a failing seed, so that there are a trace and a retry."""
    return Place(tmp_path_factory.mktemp("code"), *FOUR, "trainable.breaks=2", "retries=1")


def crash_at(place, moment, *arguments):
    status, _, err = place.run(*arguments, ORCHESTRATOR_CRASH_AT=moment)
    assert status == -signal.SIGKILL or (status, moment[-1]) == (1, "3"), err  # not all of them come three times
    deaths = [(set(place.finished()), len(place.ran()))]
    status, out, err = place.run(*arguments)
    assert status == 1, out + err  # one seed breaks
    check_whole(place, deaths)
    assert place.ran("done").count(next(iter(place.ran("done")))) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("moment", moments(every=False))
def test_a_driver_killed_at_a_sampled_moment_loses_nothing(code, tmp_path, moment):
    crash_at(Prepared(code, tmp_path / "it"), moment, "report.html=false")


@pytest.mark.faults
@pytest.mark.parametrize("moment", moments(every=True))
def test_a_driver_killed_at_any_moment_loses_nothing(code, tmp_path, moment):
    crash_at(Prepared(code, tmp_path / "it"), moment)


@dataclass
class Tally:
    """The figures of a run of kills, printed sweep by sweep, because the run is long."""

    name: str
    deaths: int = 0
    at_work: int = 0
    sweeps: int = 0
    longest_exit_s: float = 0.0
    slowest_s: float = 0.0

    def tell(self):
        told = (
            f"{self.name}, seed {SEED}: {self.deaths} deaths ({self.at_work} of them once a trial had begun) in"
            f" {self.sweeps} sweeps: 0 finished trials lost, 0 run twice, 0 violations; exit within"
            f" {self.longest_exit_s:.1f} s, last process gone after {self.slowest_s:.1f} s"
        )
        print(told)
        if LOG:
            with open(LOG, "a") as file:
                file.write(told + "\n")


@dataclass(frozen=True, kw_only=True)
class When:
    """The delay of a kill after the start of the driver, or for a share of the kills after the start of a trial."""

    start_s: tuple[float, float]
    trial_s: tuple[float, float] = (0.0, 0.0)
    at_work: float = 0.0


def die(tally, process, number, wait_s, begun):
    """Return whether the driver died of the signal at this delay after it had `begun`; all its processes are gone.

    `begun` is called until it returns true.
    """
    company, until = BackgroundWork(process), float("inf")
    while time.monotonic() < until and process.poll() is None:
        company.look()
        if until == float("inf") and begun():
            until = time.monotonic() + wait_s
        time.sleep(min(0.05, wait_s / 4))
    company.look()
    asked = time.monotonic()
    process.send_signal(number)
    process.wait(timeout=60)
    tally.longest_exit_s = max(tally.longest_exit_s, time.monotonic() - asked)
    _, err = process.communicate(timeout=60)
    tally.slowest_s = max(tally.slowest_s, company.gone_after_s())
    assert process.returncode in (0, -number, 128 + number), (process.returncode, err)
    return process.returncode != 0


def end_at_random(places, tally, number, times, when):
    """Kill drivers `times` times at random moments, each sweep to its end; none lost, none repeated."""
    chance = random.Random(SEED * 64 + number)
    until = time.monotonic() + AT_MOST_S
    while tally.deaths < times and time.monotonic() < until:
        place, deaths = next(places), list[tuple[set[str], int]]()
        for _ in range(12):
            before, at_work = len(place.ran()), chance.random() < when.at_work
            wait_s = chance.uniform(*(when.trial_s if at_work else when.start_s))
            begun = partial(has_begun, place, before) if at_work else at_once
            if not die(tally, start(place), number, wait_s, begun):
                break
            deaths.append((set(place.finished()), len(place.ran())))
            tally.deaths += 1
            tally.at_work += has_begun(place, before)
            if place.results.joinpath("journal.jsonl").exists() and tally.deaths % 5 == 0:
                status, out, err = place.run("mode=verify")
                assert (status, err) == (0, ""), out + err
        process = start(place)
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, out + err
        check_whole(place, deaths)
        tally.sweeps += 1
        tally.tell()
    assert tally.longest_exit_s < 10.0


def has_begun(place, before):
    """Return whether a trial has begun since this number of executions."""
    return len(place.ran()) > before


def at_once():
    """Start the delay with the driver."""
    return True


def start(place):
    """Start Ray in a separate process; a busy machine needs more than half a minute."""
    patient = {"RAY_raylet_start_wait_time_s": "120"}
    return place.start() if isinstance(place, Prepared) else place.start_afresh(**patient)


def in_process(folder):
    """Run sweeps whose drivers start at once, so that most kills come while they work."""
    code = Place(folder / "code", *FOUR, "trainable.pause_s=0.1", "report.html=false")
    yield from (Prepared(code, folder / f"{number}") for number in itertools.count())


def on_ray(folder):
    settings = ("backend=ray", "trainable.pause_s=2", "cluster.dashboard=false", "report.html=false")
    yield from (Place(folder / f"{number}", *FOUR, *settings) for number in itertools.count())


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", SIGNALS)
def test_killed_at_200_random_moments(tmp_path, number):
    tally = Tally(f"in-process {signal.Signals(number).name}")
    end_at_random(in_process(tmp_path), tally, number, TIMES or 200, When(start_s=(0.0, 1.5)))


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", SIGNALS)
def test_killed_on_ray(tmp_path, number):
    tally = Tally(f"Ray {signal.Signals(number).name}")
    when = When(start_s=(1.0, 25.0), trial_s=(0.0, 4.0), at_work=0.75)
    end_at_random(on_ray(tmp_path), tally, number, TIMES or 10, when)


@pytest.mark.faults
@pytest.mark.parametrize("after_s", [0.0, 1.0, 3.0])
def test_a_signal_during_rays_start_ends_cleanly(tmp_path, after_s):
    place = next(on_ray(tmp_path))
    process = place.start_afresh()
    company = BackgroundWork(process)
    while not any("raylet" in name for name in company.names()):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(after_s)
    company.look()
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    assert process.returncode == 143 and time.monotonic() - asked < 10.0, process.communicate()
    process.communicate()
    company.gone_after_s()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)])
def test_a_second_signal_ends_at_once(place, number):
    process = place.start("trainable.pause_s=20")
    wait_for(place.ran, process)
    process.send_signal(number)
    wait_for(lambda: "again to end at once" in process.err(), process)  # else the two would be one to the kernel
    process.send_signal(number)
    asked = time.monotonic()
    process.communicate(timeout=10)
    assert process.returncode == 128 + number and time.monotonic() - asked < 2.0

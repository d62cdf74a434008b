"""Test that no failing file operation is a silent success, once or permanently, and that the same command continues."""

import errno
import io
from importlib import import_module

import pytest
from rich.console import Console

from orchestrator.run import driver
from orchestrator.run.verify import JournalCheck, of_ended_trials, verify
from orchestrator.store import files
from orchestrator.store.history import History
from orchestrator.store.journal import replay
from orchestrator.store.results_folder import ResultsFolder
from tests.faults.counted_sweep import counted_sweep
from tests.faults.failing_disk import FAULTS, SHORT, FailingDisk
from tests.unit.orchestrator.requests import with_results

TRIALS = 3
PIECES = 8
"""Each with every so many operations: to be chosen with -k, where there is no hour for all of them."""


def name_of(fault):
    return errno.errorcode[fault] if isinstance(fault, int) else fault


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    with counted_sweep(tmp_path_factory.mktemp("own")) as configure:
        yield configure()


def run(configured, folder):
    """Return exit status and message of the command line."""
    checked = with_results(configured, folder)
    try:
        return driver.run(checked, Console(file=io.StringIO())), ""
    except OSError as error:
        assert files.is_at_fault(error, folder), error
        return 1, files.advice(error, folder)
    except ValueError as error:  # a results folder that cannot be made is told as a wrong request
        return 2, str(error)


def executions():
    """Return the trials in the order of their execution, as the trainable recorded them."""
    return list(import_module("counted_training").executions)


def ends(folder):
    journal = ResultsFolder(folder).journal
    return set(History(replay(journal).records).all_ends) if journal.exists() else set()


def violations(configured, root, *, tables=True):
    """Return the findings of mode=verify; without `tables` it takes a tenth of the time."""
    folder = ResultsFolder(root)
    if tables:
        planned = [trial.trial_id for trial in configured.trials(())]
        return list(verify(folder, planned, configured.fingerprint()).violations)
    records = replay(folder.journal).records
    return [*JournalCheck(records).violations, *of_ended_trials(folder, History(records))]


def try_fault(configured, folder, fault, at, *, for_good):
    """Run once with the fault, and once without it."""
    failing = FailingDisk(folder, fault, at, for_good=for_good)
    with pytest.MonkeyPatch.context() as patched:
        failing.install(patched)
        status, told = run(configured, folder)
    acknowledged, begun = ends(folder), len(executions())
    assert status != 0, "one seed breaks, and so the best there is is 1"
    if told:
        assert "cannot be" in told and ("the same command continues" in told or status == 2), told
    else:  # it came to its end all the same: then all of it must be there
        assert violations(configured, folder) == [] and len(acknowledged) == TRIALS, (at, fault)
    assert run(configured, folder) == (1, "")
    assert violations(configured, folder, tables=(at or 0) % 8 == 0) == []
    assert acknowledged <= ends(folder) and len(ends(folder)) == TRIALS
    assert not acknowledged & set(executions()[begun:]), "an acknowledged trial ran again"
    return failing


def operations(configured, folder):
    whole = try_fault(configured, folder / "whole", SHORT, None, for_good=False)
    assert whole.failed == 0
    return whole.count


@pytest.mark.slow
def test_some_operations_fail(configured, tmp_path):
    count = operations(configured, tmp_path)
    for at in range(3, count + 1, max(1, count // 2)):
        fault = FAULTS[at % len(FAULTS)]
        failing = try_fault(configured, tmp_path / str(at), fault, at, for_good=bool(at % 2))
        assert failing.failed or fault == SHORT


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for_good"])
@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
def test_every_operation_fails(configured, tmp_path, fault, for_good, piece):
    tried = range(1 + piece, operations(configured, tmp_path) + 1, PIECES)
    failing = [try_fault(configured, tmp_path / str(at), fault, at, for_good=for_good) for at in tried]
    failed = sum(bool(run.failed) for run in failing)
    reached = sum(run.count >= at for at, run in zip(tried, failing, strict=True))
    print(
        f"{name_of(fault)}, {'for good' if for_good else 'once'}: {failed} of {len(tried)} failed, 0 silent successes"
    )
    # On a busy machine a trial is long enough for telemetry, and a sweep has a few operations more than another.
    assert reached >= len(tried) - 1 and (failed == reached or fault == SHORT)

"""Check the contract of every back end, and below it that of gangs of processes."""

import gc
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from ray.tune import Callback

from orchestrator.backends.inprocess import InProcessBackend
from orchestrator.backends.ray.backend import RayBackend
from orchestrator.backends.ray.tune import Attempt
from orchestrator.backends.ray.tune_extensions import Extensions
from orchestrator.config.settings import SweepSection
from orchestrator.schedule.cluster import Node, why_infeasible
from orchestrator.schedule.queue import TrialQueue
from sweeps.status import Status
from tests.contract.trials import Recorder, beyond_reference, request, trial

ALSO_ON_RAY = pytest.mark.parametrize(
    "backend", ["inprocess", pytest.param("ray", marks=pytest.mark.slow)], indirect=True
)
"""Of both back ends, on Ray as a slow test: there a trial takes seconds to start."""
TRIALS = [
    trial("first", "quick", rows=100),
    trial("second", "quick", rows=12, pace_s=0.1),
    trial("raises", "failing", how="raise"),
    trial("diverges", "failing", how="diverge"),
    trial("fills", "failing", how="oom"),
    trial("last", "quick", rows=3),
]
OUTCOMES = {
    "first": (Status.OK, ""),
    "second": (Status.OK, ""),
    "raises": (Status.FAILED, "ValueError: no such luck"),
    "diverges": (Status.DIVERGED, "the loss is nan"),
    "fills": (Status.OOM, "CUDA out of memory"),
    "last": (Status.OK, ""),
}


class Overheard(Callback):
    """A Tune callback that records Tune's results of each trial."""

    def __init__(self):
        self.results: dict[str, list[dict[str, Any]]] = {}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        name = trial.trial_id.partition("-")[0]
        told = {key: result[key] for key in ("epoch", "samples", "accuracy", "done") if key in result}
        self.results.setdefault(name, []).append(told)


OVERHEARD = Overheard()
HERE = Node(name="here", cpus=2, gpus=0)


@pytest.fixture(scope="module")
def ray_backend():
    before = set(psutil.Process().children(recursive=True))
    handler = signal.getsignal(signal.SIGTERM)
    by_uv = ["uv", "run", "--python", "/nonexistent/python", "pytest"]  # no worker would start by this command
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray._private.runtime_env.uv_runtime_env_hook._get_uv_run_cmdline", lambda: by_uv)
        backend = RayBackend(request(), HERE, extensions=Extensions(callbacks=[OVERHEARD]))
    assert signal.getsignal(signal.SIGTERM) is handler
    words = set[str]()
    for started in set(psutil.Process().children(recursive=True)) - before:
        with suppress(psutil.NoSuchProcess):  # that ended meanwhile
            words |= {Path(word).name for word in started.cmdline()}
    assert "raylet" in words and not {"monitor.py", "log_monitor.py"} & words
    yield backend
    backend.close()
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left


def with_trials(results_dir):
    """Create the folder for the trials, as the driver does before it calls the back end."""
    (results_dir / "trials").mkdir()
    return results_dir


@pytest.fixture
def tmp_path(tmp_path):
    """Return a results directory for one test."""
    return with_trials(tmp_path)


@pytest.fixture(scope="module", params=["inprocess", "ray"])
def backend(request):
    return InProcessBackend() if request.param == "inprocess" else request.getfixturevalue("ray_backend")


@pytest.fixture(scope="module")
def results_dir(tmp_path_factory, backend):
    return with_trials(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def trials(backend):
    """Return the trials to run; on Ray, one failure suffices, because each is followed by the start of a process."""
    is_alone = isinstance(backend, InProcessBackend)
    return [trial for trial in TRIALS if is_alone or OUTCOMES[trial.trial_id][0] in (Status.OK, Status.FAILED)]


@pytest.fixture(scope="module")
def played(backend, trials, results_dir):
    told = results_dir / "told"

    def heard():
        if len(recorder.rows.get("last", ())) == 3:
            told.touch()

    recorder = Recorder(on_row=heard)
    last = replace(trials[-1], config={**trials[-1].config, "until": str(told)})  # all its rows are told before its end
    backend.run(TrialQueue([*trials[:-1], last]), results_dir, recorder)
    return recorder


def test_trials_start_report_and_finish_in_order(played, trials):
    order = [(event, name) for event, name in played.events if event != "reported"]
    assert order == [(event, trial.trial_id) for trial in trials for event in ("started", "finished")]
    reporting = [name for event, name in played.events if event == "reported"]
    assert sorted(reporting, key=[trial.trial_id for trial in trials].index) == reporting
    assert played.ticks > 0


@pytest.mark.parametrize(("name", "count"), [("first", 100), ("second", 12), ("raises", 1), ("last", 3)])
def test_every_row_arrives_once_and_in_order(played, name, count):
    assert [row["epoch"] for row in played.rows[name]] == list(range(1, count + 1))


def test_outcomes_have_status_and_reason(played):
    for name, outcome in played.outcomes.items():
        status, note = OUTCOMES[name]
        assert outcome.status is status
        assert note in outcome.note and len(outcome.note.splitlines()) <= 1


def test_figures_and_provenance_are_returned(played):
    outcome = played.outcomes["second"]
    assert outcome.metrics["accuracy"] == 0.5
    assert outcome.provenance["python"]
    assert 12 * 0.1 <= outcome.wall_s < 60


def test_a_trial_has_telemetry(played, results_dir):
    metrics = played.outcomes["second"].metrics
    assert metrics["peak_memory_gb"] > 0.01 and 0 <= metrics["cpu_util"] < 1
    samples = pd.read_parquet(results_dir / "trials" / "second" / "telemetry.parquet")
    reports = len(played.rows["second"])  # each may take a sample, as the end of the timed part
    assert 3 <= len(samples) <= 5 * samples["time_s"].max() + 3 + reports and (samples["rss_gb"] > 0).all()
    assert samples["gpu_util"].isna().all()


def test_a_failure_leaves_its_trace_in_the_log(played, results_dir):
    assert "trainables_for_tests.py" in played.outcomes["raises"].trace
    assert played.outcomes["raises"].trace in (results_dir / "trials" / "raises" / "rank0.log").read_text()


def test_a_process_is_kept_after_success(played):
    assert played.outcomes["first"].metrics["pid"] == played.outcomes["second"].metrics["pid"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ray"], indirect=True)
def test_a_process_is_replaced_after_a_failure(played):
    assert played.outcomes["first"].metrics["pid"] != played.outcomes["last"].metrics["pid"]


@pytest.mark.parametrize("backend", ["ray"], indirect=True)
def test_tunes_last_result_has_row_and_figures(played):
    *before, last = OVERHEARD.results["last"]
    assert last == {"epoch": 3, "samples": 24, "accuracy": 0.5, "done": True}
    assert before[-1] == {"epoch": 3, "samples": 24, "done": False}
    assert "accuracy" not in OVERHEARD.results["raises"][-1]


def test_a_stop_ends_running_trials_and_starts_none(backend, tmp_path):
    recorder = Recorder(stop_at_row=True)
    backend.run(
        TrialQueue([trial("runs", "polite"), trial("waits", "quick")]), tmp_path, recorder
    )  # which else has no end
    assert recorder.events == [("started", "runs"), ("reported", "runs")]


@ALSO_ON_RAY
def test_an_error_of_the_listener_ends_the_sweep(backend, tmp_path):
    def fill_the_disk():
        raise OSError(28, "No space left on device")

    recorder = Recorder(on_row=fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        backend.run(TrialQueue([trial("reports", "quick"), trial("waits", "quick")]), tmp_path, recorder)
    assert recorder.events == [("started", "reports"), ("reported", "reports")]


@ALSO_ON_RAY
def test_a_deleted_results_directory_is_not_made_again(backend, tmp_path):
    recorder = Recorder(on_row=lambda: shutil.rmtree(tmp_path, ignore_errors=True))
    with suppress(FileNotFoundError):
        backend.run(TrialQueue([trial("reports", "quick", rows=1), trial("next", "quick")]), tmp_path, recorder)
    assert recorder.outcomes["reports"].status is Status.OK and not tmp_path.exists()


def test_an_empty_sweep_runs_nothing(backend, tmp_path):
    backend.run(TrialQueue([]), tmp_path, Recorder())


def test_one_process_holds_one_rank():
    nodes = InProcessBackend().nodes()
    assert why_infeasible(trial("one", "quick").gang, nodes) == ""
    assert why_infeasible(trial("two", "quick", ranks=2).gang, nodes) != ""


@pytest.fixture(scope="module")
def gangs(ray_backend, tmp_path_factory):
    recorder, results_dir = Recorder(), with_trials(tmp_path_factory.mktemp("gangs"))
    gangs = [
        ("speaks", "quick", {}),
        ("sums", "collective", {}),
        ("sums again", "collective", {}),
        ("crashed", "failing", {"how": "crash", "who": 1}),
    ]
    ray_backend.run(
        TrialQueue([trial(name, function, ranks=2, timing="shared", **config) for name, function, config in gangs]),
        results_dir,
        recorder,
    )
    return recorder, results_dir


def test_every_rank_has_its_log(gangs):
    logs = [(gangs[1] / "trials" / "speaks" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert logs == [f"this is rank {rank} of speaks\nwritten past Python\n" for rank in range(2)]


def test_a_gang_computes_together(gangs):
    once, again = gangs[0].outcomes["sums"], gangs[0].outcomes["sums again"]
    assert (once.status, again.status) == (Status.OK, Status.OK)
    assert once.metrics["total"] == again.metrics["total"] == 1.0 + 2.0


def test_the_crashed_rank_is_named_and_leaves_its_stack(gangs):
    outcome = gangs[0].outcomes["crashed"]
    assert outcome.status is Status.FAILED and "trainables_for_tests.py" in outcome.trace
    assert outcome.note.startswith("rank 1: ") and "Segmentation fault" in outcome.note


@pytest.mark.slow
def test_a_rank_that_raises_in_a_collective_is_named(ray_backend, tmp_path):
    recorder = Recorder()
    ray_backend.run(TrialQueue([trial("breaks", "collective", ranks=2, who=1)]), tmp_path, recorder)
    outcome = recorder.outcomes["breaks"]
    assert outcome.status is Status.FAILED
    assert outcome.note.startswith("rank 1: ") and "ValueError: no such luck" in outcome.note


@pytest.mark.slow
def test_sharing_trials_run_side_by_side(ray_backend, tmp_path):
    """Each trial ends only if both run at the same time; the larger gang, the last of the queue, runs before them."""
    folder = tmp_path / "meeting"
    folder.mkdir()
    sharing = [trial(name, "meeting", timing="shared", folder=str(folder), trials=2) for name in ("beside", "side")]
    recorder = Recorder()
    ray_backend.run(TrialQueue([*sharing, trial("gang", "quick", ranks=2, timing="shared")]), tmp_path, recorder)
    started = [name for event, name in recorder.events if event == "started"]
    assert started[0] == "gang" and sorted(started[1:]) == ["beside", "side"]
    assert {outcome.status for outcome in recorder.outcomes.values()} == {Status.OK}


@pytest.mark.slow
def test_ranks_that_do_not_stop_are_killed(ray_backend, tmp_path):
    recorder = Recorder(stop_at_row=True)
    ray_backend.run(TrialQueue([trial("runs", "stubborn")]), tmp_path, recorder)
    assert recorder.events == [("started", "runs"), ("reported", "runs")]
    assert not _processes("contract/gpus=1,name=runs")


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"hang_s": 2.0}, {"time_limit_s": 8.0}])
def test_a_trial_times_out(backend, limits, tmp_path, monkeypatch):
    asked = request(**limits)
    part = ("_settings", asked.settings) if isinstance(backend, InProcessBackend) else ("_request", asked)
    monkeypatch.setattr(backend, *part)
    recorder = Recorder()
    backend.run(TrialQueue([trial("hangs", "stubborn"), trial("next", "quick")]), tmp_path, recorder)
    hung, following = recorder.outcomes["hangs"], recorder.outcomes["next"]
    assert (hung.status, following.status) == (Status.TIMEOUT, Status.OK)
    assert hung.cause == ("hang" if "hang_s" in limits else "time_limit")
    assert ("hang_s=2" if "hang_s" in limits else "time_limit_s=8") in hung.note
    assert 2.0 <= hung.wall_s < 12.0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "leave"])
def test_a_hanging_rank_is_named_and_all_ranks_end(ray_backend, how, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_backend, "_request", request(hang_s=3.0))
    recorder = Recorder()
    ray_backend.run(TrialQueue([trial("freezes", "freezing", ranks=2, how=how, who=1)]), tmp_path, recorder)
    outcome = recorder.outcomes["freezes"]
    assert (outcome.status, outcome.cause) == (Status.TIMEOUT, "hang")
    # Ranks that wait for one another stand still within one look at them: which of them was first is not to be seen.
    assert outcome.note.startswith("rank 1: does not answer" if how == "stop" else "rank ")
    assert how == "stop" or "trainables_for_tests.py" in outcome.trace
    deadline = time.monotonic() + 5
    while _processes("freezes") or _processes("/rank"):
        assert time.monotonic() < deadline


@pytest.mark.slow
def test_an_early_stop_keeps_the_processes(ray_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_backend, "_request", request(sweep=SweepSection(early_stop="asha")))
    recorder = Recorder()
    reaches = {"good": 0.9, "behind": 0.1, "close": 0.88}
    patience_s = {"behind": 30.0}
    trials = [
        trial(name, "learning", reaches=it, budget={"epochs": 10}, patience_s=patience_s.get(name, 0.0))
        for name, it in reaches.items()
    ]
    ray_backend.run(TrialQueue([beyond_reference(spec) for spec in trials]), tmp_path, recorder)
    assert {name: outcome.status.value for name, outcome in recorder.outcomes.items()} == {
        "good": "ok",
        "behind": "skipped",
        "close": "ok",
    }
    stopped = recorder.outcomes["behind"]
    assert stopped.skipped_by == "early_stop" and "0.1000 after 40 samples" in stopped.note
    assert stopped.metrics["epochs"] == 5 and "accuracy" not in stopped.metrics
    assert len({outcome.metrics["pid"] for outcome in recorder.outcomes.values()}) == 1


@pytest.mark.slow
def test_a_dead_supervisor_is_a_failed_trial(ray_backend, tmp_path):
    def kill_supervisors():
        for process in _processes("Supervisor"):
            process.kill()

    recorder = Recorder(on_row=kill_supervisors)
    ray_backend.run(TrialQueue([trial("orphan", "stubborn")]), tmp_path, recorder)
    assert recorder.outcomes["orphan"].status is Status.FAILED
    assert "supervisor" in recorder.outcomes["orphan"].note


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "processes"), [("warm", 1), ("per_seed", 2), ("fresh", 3)])
def test_workers_decide_which_trials_share_a_process(ray_backend, tmp_path, monkeypatch, workers, processes):
    monkeypatch.setattr(ray_backend, "_request", request(workers=workers))
    recorder = Recorder()
    trials = [trial("one", "quick"), trial("other", "quick"), replace(trial("one again", "quick"), seed=1)]
    ray_backend.run(TrialQueue(trials), tmp_path, recorder)
    pids = {trial_id: outcome.metrics["pid"] for trial_id, outcome in recorder.outcomes.items()}
    assert len(set(pids.values())) == processes
    assert (pids["one"] == pids["other"]) is (workers != "fresh")


@pytest.mark.slow
def test_tune_forgets_trials_that_have_ended(ray_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_backend, "_extensions", Extensions())  # the user's callbacks get all trials
    kept: list[int] = []

    def count():
        ours = [value for value in gc.get_referrers(Attempt) if isinstance(value, Attempt) and value.spec in trials]
        kept.append(len(ours))

    trials = [trial(f"trial {number}", "quick") for number in range(6)]
    ray_backend.run(TrialQueue(trials), tmp_path, Recorder(on_row=count))
    assert 1 <= max(kept) <= 3  # one runs, one has ended and its gang is handed over, one may wait


def _processes(title):
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    everybody = psutil.process_iter(["cmdline"])
    return [
        process for process in everybody if process.pid in children and title in " ".join(process.info["cmdline"] or ())
    ]

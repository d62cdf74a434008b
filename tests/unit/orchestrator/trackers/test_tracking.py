import logging
from dataclasses import replace

import pytest

from orchestrator.store.record import TrialOutcome
from orchestrator.store.secrets import Secrets
from orchestrator.trackers.tracking import Trackers, make_trackers, numbers, run_of, tracker_errors, tracker_remarks
from sweeps.errors import ConfigError
from tests.contract.trials import trial


class Notes:
    """A tracker that records its calls."""

    def __init__(self, breaks_at=None):
        self.told, self._breaks_at = [], breaks_at

    def _take(self, what, *values):
        if what == self._breaks_at:
            raise ConnectionError("no server")
        self.told.append((what, *values))

    def begin(self, trial_id, run):
        self._take("begin", trial_id, run.name)

    def log(self, trial_id, row, step):
        self._take("log", trial_id, row, step)

    def end(self, trial_id, figures, status, note):
        self._take("end", trial_id, figures, status, note)

    def close(self):
        self._take("close")


def play(*trackers):
    one = trial("one", "quick")
    listener = Trackers({f"tracker{n}": tracker for n, tracker in enumerate(trackers)})
    listener.started(one)
    listener.reported(one, [{"epoch": 1, "loss": 0.5, "note": "text"}, {"epoch": 2, "loss": float("nan")}])
    listener.finished(one, TrialOutcome(wall_s=2.0, metrics={"accuracy": 0.9, "shape": [1]}))
    listener.close()


def test_trackers_receive_the_events_of_trials():
    notes = Notes()
    play(notes)
    assert notes.told == [
        ("begin", "one", "gpus=1,name=one"),
        ("log", "one", {"epoch": 1.0, "loss": 0.5}, 1),
        ("log", "one", {"epoch": 2.0}, 2),
        ("end", "one", {"accuracy": 0.9, "wall_s": 2.0}, "ok", ""),
        ("close",),
    ]


@pytest.mark.parametrize("moment", ["begin", "log", "end", "close"])
def test_a_failing_tracker_is_disabled_and_no_other(moment, caplog):
    broken, sound = Notes(breaks_at=moment), Notes()
    with caplog.at_level(logging.WARNING):
        play(broken, sound)
    assert len(sound.told) == 5 and moment not in [what for what, *_ in broken.told]
    assert len(caplog.messages) == 1
    assert "tracker0" in caplog.messages[0] and "ConnectionError: no server" in caplog.messages[0]


def test_a_run_has_numbers_config_and_tags():
    run = run_of(trial("one", "quick", model={"name": "mlp", "width": None}))
    assert run.params["global_batch_size"] == 8 and run.params["model.name"] == "mlp" and run.params["axes.gpus"] == 1
    assert "model.width" not in run.params
    assert run.tags["cell_id"] == "one" and run.tags["timing"] == "exclusive"


def test_only_finite_numbers_are_logged():
    assert numbers({"a": 1, "b": True, "c": float("inf"), "d": "2", "e": None, "f": 0.5}) == {"a": 1.0, "f": 0.5}


def test_a_tracker_without_its_package_is_an_error(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (told,) = tracker_errors({"mlflow": {"enabled": True}, "wandb": {"enabled": False}})
    assert "tracker.mlflow" in told and "'sweep-orchestrator[mlflow]'" in told


def test_a_tracker_that_cannot_start_is_an_error(tmp_path):
    assert make_trackers({"tensorboard": {"enabled": False, "dir": None}}, "s", tmp_path) == {}
    with pytest.raises(ConfigError, match="tracker.tensorboard: TypeError"):
        make_trackers({"tensorboard": {"enabled": True, "folder": "x"}}, "s", tmp_path)


def test_runs_have_no_secrets():
    hidden = Secrets.of({}, {"trainable": {"api_key": "abcd-efgh-ijkl"}}, {})
    one = replace(trial("one", "quick"), config={"trainable": {"api_key": "abcd-efgh-ijkl", "depth": 3}})
    run = run_of(one, hidden)
    assert run.params["trainable.depth"] == 3 and "abcd-efgh-ijkl" not in str(run)
    assert "trainable.api_key" in run.params


def test_settings_of_a_tracker_that_is_off_are_remarked():
    section = {
        "wandb": {"enabled": False, "mode": "online", "project": "mine"},
        "mlflow": {"enabled": True, "uri": "x"},
    }
    (told,) = tracker_remarks(section)
    assert "tracker.wandb.project" in told and "tracker.wandb.enabled" in told

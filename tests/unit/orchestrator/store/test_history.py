import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store.history import (
    Earlier,
    difference,
    earlier,
    ends_under,
    latest,
    probes_under,
    read_results,
    sound_record,
    spent_gpu_s,
)
from orchestrator.store.journal import Journal, Kind, Record, encode
from orchestrator.store.layout import Layout
from sweeps.probe import stand_ins
from sweeps.status import Status
from tests.unit.orchestrator.plan.planned import TRIALS, ended
from tests.unit.orchestrator.report import demo


def fingerprint(**config):
    return Record(kind=Kind.SWEEP, value={"fingerprint": config})


def end(trial):
    return Record(kind=Kind.FINISHED, value=ended(trial).to_json())


def test_ends_count_only_where_the_same_was_asked():
    journal = [
        fingerprint(epochs=1),
        end(TRIALS[0]),
        fingerprint(epochs=2),
        end(TRIALS[1]),
        fingerprint(epochs=1),
        end(TRIALS[2]),
    ]
    assert set(ends_under(journal, {"epochs": 1})) == {TRIALS[0].trial_id, TRIALS[2].trial_id}
    assert set(ends_under(journal, {"epochs": 2})) == {TRIALS[1].trial_id}
    assert latest(journal) == {"epochs": 1}


def test_probes_count_only_where_the_same_was_asked_and_the_last_of_a_speed_does():
    def probed(speed, wall_s):
        return Record(kind=Kind.PROBED, value={"speed": speed, "wall_s": wall_s})

    journal = [
        fingerprint(epochs=1),
        probed("slow", 9),
        fingerprint(epochs=2),
        probed("slow", 1),
        fingerprint(epochs=1),
    ]
    journal += [probed("fast", 2), probed("fast", 3)]
    told = {speed: value["wall_s"] for speed, value in probes_under(journal, {"epochs": 1}).items()}
    assert told == {"slow": 9, "fast": 3}
    assert probes_under(journal, {"epochs": 3}) == {}


def test_a_fresh_journal_has_no_history():
    assert latest([]) is None and ends_under([], {}) == {}


def test_keys_that_changed_alike_share_a_line():
    before = {"source": {"a:train": "1f", "a:Model": "1f", "b": "3c"}, "epochs": 1}
    now = {"source": {"a:train": "2e", "a:Model": "2e", "b": "4d"}, "epochs": 1}
    assert difference(before, now) == ["source.a:train, source.a:Model: '1f' → '2e'", "source.b: '3c' → '4d'"]


def test_a_difference_names_keys_and_both_values():
    before = {"config": {"budget": {"epochs": 1}, "gone": 1}, "source": "a"}
    now = {"config": {"budget": {"epochs": 2}}, "source": "a", "new": {}}
    assert difference(before, now) == [
        "config.budget.epochs: 1 → 2",
        "config.gone: 1 → (absent)",
        "new: (absent) → {}",
    ]


ASKED = Record(kind=Kind.SWEEP, value={"fingerprint": {}})


def record(kind, attempt=1, wall_s=None, trial_id="a", **other):
    return Record(kind=kind, value={"trial_id": trial_id, "attempt": attempt, "wall_s": wall_s, **other})


def started(attempt=1, **other):
    return record(Kind.STARTED, attempt, **other)


@pytest.mark.parametrize(
    ("records", "before"),
    [
        ([started(), record(Kind.FINISHED)], Earlier()),
        ([started(), record(Kind.RETRIED, 1, 5.0), started(2), record(Kind.FINISHED, 2)], Earlier(wall_s=5.0)),
        ([started(), record(Kind.CUT_OFF, 1, 7.0), ASKED, started(2), record(Kind.FINISHED, 2)], Earlier(wall_s=7.0)),
        ([started(), ASKED, started(2), record(Kind.FINISHED, 2)], Earlier(unknown=1)),  # the driver was killed
        (
            [started(), started(2), record(Kind.RETRIED, 2, 3.0), started(3), record(Kind.FINISHED, 3)],
            Earlier(wall_s=3.0, unknown=1),
        ),
        ([started(), record(Kind.CUT_OFF, 1, "long"), started(2), record(Kind.FINISHED, 2)], Earlier(unknown=1)),
        ([Record(kind=Kind.STARTED, value=None), started(), record(Kind.FINISHED)], Earlier()),
    ],
)
def test_what_came_before_the_attempt_that_ended_a_trial(records, before):
    assert list(earlier([ASKED, *records]).values()) == [before]


def test_an_attempt_after_an_end_is_another_story():
    """It was asked for: rerun=all, or a disturbed timing."""
    first = [started(), record(Kind.RETRIED, 1, 5.0), started(2), record(Kind.FINISHED, 2, 1.0)]
    again = [started(3), record(Kind.FINISHED, 3, 1.0)]
    assert earlier([*first, *again]) == {("a", 2): Earlier(wall_s=5.0), ("a", 3): Earlier()}


def test_the_ends_of_a_sweep_know_it_and_the_journal_has_it_once():
    trial = TRIALS[0].trial_id
    end = replace(ended(TRIALS[0]), attempt=2)
    assert "earlier_s" not in end.to_json()
    journal = [ASKED, started(trial_id=trial), record(Kind.CUT_OFF, 1, 7.0, trial), started(2, trial_id=trial)]
    found = ends_under([*journal, Record(kind=Kind.FINISHED, value=end.to_json())], {})
    assert (found[trial].earlier_s, found[trial].wall_s) == (7.0, end.wall_s)


def test_all_attempts_count_as_spent_whatever_became_of_them():
    journal = [
        record(Kind.RETRIED, 1, 5.0, gpus_held=2),
        record(Kind.CUT_OFF, 2, 10.0, gpus_held=2),
        record(Kind.FINISHED, 3, 20.0, gpus=2),
        record(Kind.RETRIED, 1, 100.0, "b"),  # of an earlier version, which did not tell
        record(Kind.FINISHED, 2, 100.0, "b", gpus=1),
        record(Kind.PROBED, None, 1.0, "c", gpus=4),
    ]
    assert spent_gpu_s(journal) == 70 + 200 + 4


ACCURACIES = [0.9472, 0.9472, 0.9472, 0.9222, 0.9097, 0.9056]
"""Of the cells of the first version's journal, as its own tables told them."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return demo.results(tmp_path / "demo", demo.records()[:6])


def record_soundness() -> dict[str, Any]:
    return json.loads(json.dumps(demo.records()[0].to_json()))


@pytest.mark.parametrize(
    "change", [{"status": []}, {"status": {"a": 1}}, {"trial_id": ""}, {"trial_id": "../x"}, {"seed": 2**64}]
)
def test_ends_that_no_table_can_hold_are_left_out(change: dict[str, Any]) -> None:
    end, told = sound_record(record_soundness() | change)
    assert end is None and told.endswith("; left out")


def test_a_number_is_told_as_it_was_written() -> None:
    """Else the tables that mode=report makes are not those of the run, whole GPUs 1.0."""
    for gpus in (1, 0.5):
        end, _ = sound_record(record_soundness() | {"gpus": gpus})
        assert end and repr(end.gpus) == repr(gpus)


def test_what_is_sound_has_no_findings(layout: Layout) -> None:
    found = read_results(layout)
    assert len(found.ends) == 6 and found.findings == []
    assert found.driver["commit"] == demo.DRIVER["commit"]
    assert found.ends["1-32-none-0"] == demo.records()[0]


def test_a_torn_and_a_changed_line_are_told_and_the_rest_is_used(layout: Layout) -> None:
    lines = layout.journal.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b'"ok"', b'"no"')
    layout.journal.write_bytes(b"\n".join(lines[:-1])[:-40])
    found = read_results(layout)
    assert len(found.ends) == 4
    assert [str(finding).partition(" (")[0] for finding in found.findings] == [
        "journal.jsonl: line 3: corrupt: the checksum does not match",
        "journal.jsonl: line 13: torn: the line has no end",
    ]


def test_lines_of_another_program_are_told(layout: Layout) -> None:
    with layout.journal.open("ab") as file:
        for kind, value in (
            ("finished", {"nothing": 1}),
            ("finished", [1]),
            ("sweep", 3),
            ("later", {"trial_id": "x"}),
        ):
            file.write(encode(kind, value) + b"\n")  # type: ignore[arg-type]
    told = [str(finding) for finding in read_results(layout).findings]
    assert any("without trial_id; left out" in line for line in told)
    assert any("not an object; left out" in line for line in told)


def test_a_record_of_an_earlier_version_is_used_with_what_it_has() -> None:
    value = record_soundness()
    del value["timing"], value["provenance"], value["wall_s"]
    found, trouble = sound_record(value)
    assert found and found.timing == "" and found.provenance == {} and math.isnan(found.wall_s)
    assert trouble == "without timing, wall_s, provenance; used, those are empty"
    assert found.status is Status.OK


def test_unknown_fields_of_a_later_version_are_passed_over() -> None:
    found, trouble = sound_record(record_soundness() | {"colour": "red"})
    assert found == demo.records()[0] and trouble == ""


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("status", "great", "status is 'great'"),
        ("gpus", "two", "gpus is 'two'"),
        ("gpus", True, "gpus is True"),
        ("gpus", -1, "not above 0"),
        ("gpus", None, "not above 0"),
        ("seed", 0.5, "seed is 0.5"),
        ("metrics", [], "metrics is []"),
        ("cell_id", None, "cell_id is None"),
    ],
)
def test_a_record_of_another_form_is_left_out(field: str, value: Any, told: str) -> None:
    found, trouble = sound_record(record_soundness() | {field: value})
    assert found is None and told in trouble and "left out" in trouble


def test_trials_of_another_configuration_are_counted(layout: Layout) -> None:
    with Journal.open(layout.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {"config": {"budget": 3}}, "driver": {}})
        journal.append(Kind.FINISHED, demo.records()[20].to_json())
    found = read_results(layout)
    assert list(found.ends) == [demo.records()[20].trial_id]
    assert "journal.jsonl: 6 trials of another configuration are left out" in map(str, found.findings)


def test_a_journal_without_a_sweep_record_is_used(layout: Layout) -> None:
    lines = layout.journal.read_bytes().split(b"\n")
    layout.journal.write_bytes(b"\n".join(lines[1:]))
    assert len(read_results(layout).ends) == 6


def test_a_sweep_is_unfinished_until_a_driver_has_left_nothing_out(layout: Layout) -> None:
    told = [
        (Kind.SWEEP, {"fingerprint": {}}, True),
        (Kind.ENDED, {"missing": 2}, True),
        (Kind.ENDED, {"missing": 0}, False),
    ]
    for kind, value, unfinished in told:
        with Journal.open(layout.journal) as journal:
            journal.append(kind, value)
        assert read_results(layout).unfinished is unfinished


def test_the_folder_of_a_repetition_is_known_by_its_trial(layout: Layout) -> None:
    for stand_in in stand_ins(demo.records()[0].trial_id):
        (layout.trials / stand_in).mkdir()
    assert not read_results(layout).findings


def test_strangers_among_the_trials_are_named(layout: Layout) -> None:
    (layout.trials / "stranger").mkdir()
    (layout.trials / "notes.txt").write_text("mine")
    assert [str(each) for each in read_results(layout).findings] == [
        "trials: the journal knows no trial notes.txt, stranger; left out"
    ]


def test_without_the_trials_folder_the_ends_remain(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with Journal.open(layout.journal) as journal:
        journal.append(Kind.FINISHED, demo.records()[0].to_json())
    found = read_results(layout)
    assert len(found.ends) == 1 and [finding.where for finding in found.findings] == ["trials"]

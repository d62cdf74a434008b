import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.collection.collector import collect
from orchestrator.journal.journal import Journal
from orchestrator.journal.line import Kind, encode
from orchestrator.journal.sound_record import sound_record
from orchestrator.journal.soundness import read_results
from orchestrator.storage.layout import Layout
from sweeps.probe import stand_ins
from sweeps.status import Status
from tests.unit.orchestrator.report import demo

ACCURACIES = [0.9472, 0.9472, 0.9472, 0.9222, 0.9097, 0.9056]
"""Of the cells of the first version's journal, as its own tables told them."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return demo.results(tmp_path / "demo", demo.records()[:6])


def record() -> dict[str, Any]:
    return json.loads(json.dumps(demo.records()[0].to_json()))


@pytest.mark.parametrize(
    "change", [{"status": []}, {"status": {"a": 1}}, {"trial_id": ""}, {"trial_id": "../x"}, {"seed": 2**64}]
)
def test_ends_that_no_table_can_hold_are_left_out(change: dict[str, Any]) -> None:
    end, told = sound_record(record() | change)
    assert end is None and told.endswith("; left out")


def test_a_number_is_told_as_it_was_written() -> None:
    """Else the tables that mode=report makes are not those of the run, whole GPUs 1.0."""
    for gpus in (1, 0.5):
        end, _ = sound_record(record() | {"gpus": gpus})
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
    value = record()
    del value["timing"], value["provenance"], value["wall_s"]
    found, trouble = sound_record(value)
    assert found and found.timing == "" and found.provenance == {} and math.isnan(found.wall_s)
    assert trouble == "without timing, wall_s, provenance; used, those are empty"
    assert found.status is Status.OK


def test_a_journal_of_the_first_version_is_sound(tmp_path: Path) -> None:
    """Twelve trials that the first commit ran: every line of it is read, and means what it meant."""
    layout = Layout(tmp_path)
    layout.create()
    shutil.copy(Path(__file__).parent / "golden" / "journal_of_the_first_version.jsonl", layout.journal)
    found = read_results(layout)
    assert list(found.findings) == [] and {end.status for end in found.ends.values()} == {Status.OK}
    trials, cells = collect(list(found.ends.values()), scaling="weak", reference_batch_size=32)
    assert len(trials) == 12 and list(cells["n_ok"]) == [2] * 6
    assert cells["accuracy"].round(4).tolist() == ACCURACIES
    assert not trials["timing_valid"].any(), "its windows were .2 s long"


def test_unknown_fields_of_a_later_version_are_passed_over() -> None:
    found, trouble = sound_record(record() | {"colour": "red"})
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
    found, trouble = sound_record(record() | {field: value})
    assert found is None and told in trouble and "left out" in trouble


def test_trials_of_another_configuration_are_counted(layout: Layout) -> None:
    with Journal.open(layout.journal) as journal:
        journal.append(Kind.SWEEP, {"asked": {"config": {"budget": 3}}, "driver": {}})
        journal.append(Kind.FINISHED, demo.records()[20].to_json())
    found = read_results(layout)
    assert list(found.ends) == [demo.records()[20].trial_id]
    assert "journal.jsonl: 6 trials of another configuration are left out" in map(str, found.findings)


def test_a_journal_without_a_sweep_record_is_used(layout: Layout) -> None:
    lines = layout.journal.read_bytes().split(b"\n")
    layout.journal.write_bytes(b"\n".join(lines[1:]))
    assert len(read_results(layout).ends) == 6


def test_a_sweep_is_unfinished_until_a_driver_has_left_nothing_out(layout: Layout) -> None:
    told = [(Kind.SWEEP, {"asked": {}}, True), (Kind.ENDED, {"missing": 2}, True), (Kind.ENDED, {"missing": 0}, False)]
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

"""Results directories of other versions, damaged or incomplete."""

import json

import pytest

from orchestrator.store.journal import Journal, encode
from orchestrator.store.record import Kind
from orchestrator.store.record_checks import checked_record
from orchestrator.store.results import read_results
from orchestrator.store.results_folder import ResultsFolder
from sweeps.probe import probe_id
from tests.unit.orchestrator.report import demo


@pytest.fixture
def folder(tmp_path):
    return demo.results(tmp_path / "demo", demo.records()[:6])


def a_record():
    return json.loads(json.dumps(demo.records()[0].to_json()))


@pytest.mark.parametrize(
    "change", [{"status": []}, {"status": {"a": 1}}, {"trial_id": ""}, {"trial_id": "../x"}, {"seed": 2**64}]
)
def test_records_with_invalid_values_are_left_out(change):
    end, told = checked_record(a_record() | change)
    assert end is None and told


def test_numbers_keep_their_type():
    """Otherwise mode=report would write 1.0 GPUs, unlike the tables of the run."""
    for gpus in (1, 0.5):
        end, _ = checked_record(a_record() | {"gpus": gpus})
        assert end and repr(end.gpus) == repr(gpus)


def test_intact_results_have_no_problems(folder):
    results = read_results(folder)
    assert len(results.history.ends) == 6 and results.problems == []
    assert results.history.driver["commit"] == demo.DRIVER["commit"]
    assert results.history.ends["1-32-none-0"] == demo.records()[0]


def test_damaged_lines_are_reported_and_the_rest_is_used(folder):
    lines = folder.journal.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b'"ok"', b'"no"')
    folder.journal.write_bytes(b"\n".join(lines[:-1])[:-40])
    results = read_results(folder)
    assert len(results.history.ends) == 4
    assert [str(problem).split(": ")[:3] for problem in results.problems] == [
        ["journal.jsonl", "line 3", "corrupt"],
        ["journal.jsonl", "line 13", "torn"],
    ]


def test_records_of_another_program_are_reported(folder):
    with folder.journal.open("ab") as file:
        for kind, value in (
            ("finished", {"nothing": 1}),
            ("finished", [1]),
            ("sweep", 3),
            ("later", {"trial_id": "x"}),
        ):
            file.write(encode(kind, value) + b"\n")  # type: ignore[arg-type]
    told = [str(problem) for problem in read_results(folder).problems]
    assert any("without trial_id" in line for line in told)
    assert any("not an object" in line for line in told)


def test_unknown_fields_of_a_later_version_are_ignored():
    record, reason = checked_record(a_record() | {"colour": "red"})
    assert record == demo.records()[0] and reason == ""


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
def test_record_with_a_wrong_type_is_left_out(field, value, told):
    record, reason = checked_record(a_record() | {field: value})
    assert record is None and told in reason


def test_trials_of_another_configuration_are_counted(folder):
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {"config": {"budget": 3}}, "driver": {}})
        journal.append(Kind.FINISHED, demo.records()[20].to_json())
    results = read_results(folder)
    assert list(results.history.ends) == [demo.records()[20].trial_id]
    assert any("6 trials of another configuration" in problem.what for problem in results.problems)


def test_a_journal_without_a_sweep_record_is_used(folder):
    lines = folder.journal.read_bytes().split(b"\n")
    folder.journal.write_bytes(b"\n".join(lines[1:]))
    assert len(read_results(folder).history.ends) == 6


def test_folder_of_a_probe_is_no_problem(folder):
    (folder.trials / probe_id(demo.records()[0].trial_id)).mkdir()
    assert not read_results(folder).problems


def test_unknown_entries_among_the_trials_are_problems(folder):
    (folder.trials / "stranger").mkdir()
    (folder.trials / "notes.txt").write_text("mine")
    (problem,) = read_results(folder).problems
    assert problem.where == "trials" and "notes.txt, stranger" in problem.what


def test_rows_remain_without_the_trials_folder(tmp_path):
    folder = ResultsFolder(tmp_path)
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.FINISHED, demo.records()[0].to_json())
    results = read_results(folder)
    assert len(results.history.ends) == 1 and [problem.label for problem in results.problems] == ["Curves"]

"""Samples to the target, worked out by hand."""

import json
import math
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.curve_frame import _columns_of, curves_frame, one_row_an_epoch
from orchestrator.store.results_folder import ResultsFolder


def write(results_folder, trial_id, content):
    results_folder.trial(trial_id).mkdir()
    results_folder.metrics(trial_id).write_bytes(content)


def test_curves_become_one_tidy_frame(results_folder):
    write(results_folder, "a", b'{"epoch":1,"loss":0.5}\n{"epoch":2,"loss":null,"val_accuracy":0.9}\n')
    write(results_folder, "b", b"")
    write(results_folder, "c", b'{"epoch":1,"loss":0.25,"lr":0.1,"note":"warm"}\n')
    frame, problems = curves_frame(results_folder, ["a", "b", "c"])
    assert problems == []
    assert list(frame.columns) == ["trial_id", "epoch", "loss", "val_accuracy", "lr"]
    assert list(frame["trial_id"]) == ["a", "a", "c"] and list(frame["epoch"]) == [1, 2, 1]
    assert frame["loss"].tolist()[::2] == [0.5, 0.25] and math.isnan(frame["loss"][1])


def test_consistent_rows_of_one_epoch_are_joined(results_folder):
    write(
        results_folder,
        "a",
        b'{"epoch":1,"loss":0.5,"step":9}\n{"epoch":1,"step":9,"val_accuracy":0.8}\n{"epoch":2,"loss":0.4}\n',
    )
    write(results_folder, "b", b'{"epoch":2,"val_accuracy":0.7}\n')  # another trial's is another epoch
    write(
        results_folder, "c", b'{"epoch":1,"loss":0.5}\n{"epoch":1,"loss":0.6}\n'
    )  # found twice: who knows which is right
    frame, problems = curves_frame(results_folder, ["a", "b", "c"])
    assert problems == []
    assert list(zip(frame["trial_id"], frame["epoch"], strict=True)) == [
        ("a", 1),
        ("a", 2),
        ("b", 2),
        ("c", 1),
        ("c", 1),
    ]
    assert frame["loss"].tolist()[:2] == [0.5, 0.4] and frame["loss"].tolist()[3:] == [0.5, 0.6]
    assert frame["val_accuracy"][0] == 0.8 and frame["val_accuracy"][2] == 0.7 and math.isnan(frame["val_accuracy"][1])


def test_a_truncated_row_is_left_out(results_folder):
    write(results_folder, "a", b'{"epoch":1,"loss":0.5}\n{"epoch":2,"loss":0.4}\n{"epoch":3,"lo')
    frame, problems = curves_frame(results_folder, ["a"])
    assert list(frame["epoch"]) == [1, 2]
    (problem,) = map(str, problems)
    assert problem.startswith("trials/a/metrics.jsonl: ") and "1 of 3 rows" in problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x00\xff\xfe", "1 of 1 rows"),
        (b"[1]\n2\n", "2 of 2 rows"),
        (b'{"loss":1}\n', "no epoch"),
        (b'{"epoch":1,"loss":"low"}\n', "loss: not numbers"),
        (b'{"epoch":1,"loss":[]}\n', "loss: not numbers"),
        (b'{"epoch":"first"}\n', "no epoch"),
        (b'{"epoch":1},{"epoch":2}\n', "1 of 1 rows"),
    ],
)
def test_foreign_content_is_a_problem(results_folder, content, problem):
    write(results_folder, "a", content)
    assert problem in str(curves_frame(results_folder, ["a"])[1][0])


def test_a_missing_file_is_a_problem(results_folder):
    results_folder.metrics("a").mkdir(parents=True)
    results_folder.metrics("gone").parent.mkdir()
    problems = [str(problem) for problem in curves_frame(results_folder, ["a", "gone", "../away"])[1]]
    assert problems[0].startswith("trials/a/metrics.jsonl: ") and "not a file" in problems[0]
    assert problems[1].startswith("trials/gone/metrics.jsonl: ") and "no such file" in problems[1]
    assert "not a trial id" in problems[2]


def test_trials_that_were_not_copied_are_no_damage(results_folder):
    write(results_folder, "a", b'{"epoch":1,"loss":1}\n')
    frame, problems = curves_frame(results_folder, ["a", "b", "c"])
    assert [(problem.label, problem.where) for problem in problems] == [("Curves", "")] and len(frame) == 1
    assert str(problems[0]).endswith(": 2")


def test_many_missing_curves_are_abridged(results_folder):
    for number in range(1000):
        results_folder.metrics(f"t{number}").parent.mkdir(parents=True)
    problems = curves_frame(results_folder, [f"t{number}" for number in range(1000)])[1]
    assert len(problems) == 21 and "980 more" in str(problems[-1])


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
ROWS = st.dictionaries(st.sampled_from(["epoch", "loss", "val_accuracy", "lr", "note"]), VALUES)
SOUND = st.fixed_dictionaries({"epoch": st.integers(1, 9), "loss": st.floats(0, 9)})
ODD = [b"", b"\n", b'{"epoch":1}{"epoch":2}\n\n', b'{"epoch":1,"epoch":2}\n', b'{"epoch":\n1}\n', b"\xff"]
FILES = st.lists(
    st.one_of(
        st.lists(ROWS.map(json.dumps), max_size=4).map(lambda rows: "".join(f"{row}\n" for row in rows).encode()),
        st.lists(SOUND.map(json.dumps)).map(lambda rows: "\n".join(rows).encode()),
        st.sampled_from(ODD),
    ),
    max_size=5,
)


@settings(max_examples=12, deadline=None)
@given(FILES)
def test_files_of_several_trials_are_read_as_each_alone(contents):
    with tempfile.TemporaryDirectory() as folder:
        results_folder = ResultsFolder(Path(folder))
        results_folder.create()
        names = [f"t{number}" for number in range(len(contents))]
        for name, content in zip(names, contents, strict=True):
            write(results_folder, name, content)
        together, problems = curves_frame(results_folder, names)
        expected = [_columns_of(content) for content in contents]
    assert [problem.what for problem in problems] == [damage for _, damages in expected for damage in damages]
    groups = {name: group.drop(columns="trial_id") for name, group in together.groupby("trial_id", observed=True)}
    for name, (columns, _) in zip(names, expected, strict=True):
        if columns and len(columns["epoch"]):
            measured = groups.pop(name).dropna(axis="columns", how="all")
            alone = pd.DataFrame(columns).assign(trial_id=pd.Categorical([name] * len(columns["epoch"])))
            wanted = one_row_an_epoch(alone).drop(columns="trial_id").dropna(axis="columns", how="all")
            pd.testing.assert_frame_equal(measured.reset_index(drop=True), wanted, check_like=True, check_exact=True)
    assert not groups


def test_without_trials_the_frame_is_empty(results_folder):
    frame, problems = curves_frame(results_folder, [])
    assert len(frame) == 0 and problems == [] and list(frame.columns) == ["trial_id", "epoch", "loss"]

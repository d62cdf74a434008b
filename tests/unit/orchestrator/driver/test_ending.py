from orchestrator.driver.ending import Ending
from orchestrator.storage.layout import Layout
from sweeps.status import Status

SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({}x64 and 10x10)"


def test_failures_that_differ_in_numbers_are_one_line_with_the_trace_of_the_first(tmp_path, record_of):
    layout = Layout(tmp_path)
    notes = [SHAPES.format(32), SHAPES.format(128), "ValueError: something else"]
    ends = [record_of(status=Status.FAILED, trial_id=f"t{n}", note=note) for n, note in enumerate(notes)]
    layout.trial("t0").mkdir(parents=True)
    layout.trace("t0").write_text("Traceback …")
    ending = Ending(reported=None, findings=(), ends=ends, missing=0, layout=layout)
    assert ending.failures() == [
        f"2 of 3 trials failed: {SHAPES.format(32)} (see {layout.trace('t0')})",
        f"1 of 3 trials failed: ValueError: something else (see {layout.trial('t2')})",
    ]


def test_a_file_that_is_found_only_where_one_stands_is_told_with_the_remedy(tmp_path, record_of, monkeypatch):
    layout = Layout(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/houses.npz").touch()
    notes = {"command": "data/houses.npz", "function": "data/houses.npz", "absent": "data/other.npz"}
    ends = [
        record_of(status=Status.FAILED, trial_id=trial, note=f"No such file or directory: '{path}' ({trial})")
        for trial, path in notes.items()
    ]
    for trial in ("command", "absent"):
        (layout.trial(trial) / "work").mkdir(parents=True)
    told = Ending(reported=None, findings=(), ends=ends, missing=0, layout=layout).failures()
    assert ["trainable.cwd=source" in line for line in told] == [True, False, False]
    assert "{source_dir}/data/houses.npz" in told[0]

from orchestrator.driver.ending import Ending, have_not_run
from orchestrator.storage.layout import Layout
from sweeps.status import Status

SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({}x64 and 10x10)"


def test_how_many_trials_have_not_run():
    assert [have_not_run(count).partition(" not run")[0] for count in (0, 1, 2)] == [
        "0 planned trials have",
        "1 planned trial has",
        "2 planned trials have",
    ]


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

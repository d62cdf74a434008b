import io
import stat
from pathlib import Path

import pandas as pd

from orchestrator.store.record import TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.files import write_tables
from orchestrator.tables.speedup import speedup_markdown
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def empty_is_none(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype("object").where(frame.notna(), None).rename_axis(columns=None)


def test_files_hold_the_frames(records: list[TrialRecord], tmp_path: Path) -> None:
    results_folder = ResultsFolder(tmp_path / "demo")
    results_folder.create()
    trials, summary = collect(records, scaling="weak", reference_batch_size=32)
    written = write_tables(results_folder, trials, summary)
    assert sorted(path.name for path in written) == sorted(path.name for path in results_folder.tables.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    for frame, name in ((trials, "trials"), (summary, "summary")):
        read = pd.read_csv(results_folder.table(f"{name}.csv"))
        assert list(read.columns) == list(frame.columns)
        for column in ("gpus", "samples_per_s", "accuracy"):
            if column in frame:
                pd.testing.assert_series_equal(read[column], frame[column], check_dtype=False)
        stored = empty_is_none(pd.read_parquet(results_folder.table(f"{name}.parquet")))
        pd.testing.assert_frame_equal(stored, empty_is_none(frame), check_column_type=False)
    assert results_folder.table("speedup.md").read_text() == speedup_markdown(summary)
    assert results_folder.table("accuracy.md").read_text() == accuracy_markdown(summary)


def test_text_is_no_formula_and_mixed_values_fit_in_parquet(results_folder: ResultsFolder) -> None:
    records = [
        record_of(1, axes={"=evil": "@SUM(A1)", "width": "auto"}, note="=1+1", metrics={"accuracy": -0.5}),
        record_of(1, axes={"=evil": "fine", "width": 0.5}),
    ]
    write_tables(results_folder, *collect(records, scaling="weak"))
    trials = pd.read_csv(io.BytesIO(results_folder.table("trials.csv").read_bytes()))
    assert list(trials["'=evil"]) == ["'@SUM(A1)", "fine"]
    assert trials["note"][0] == "'=1+1"
    assert trials["accuracy"][0] == -0.5
    assert list(pd.read_parquet(results_folder.table("trials.parquet"))["width"]) == ["auto", "0.5"]

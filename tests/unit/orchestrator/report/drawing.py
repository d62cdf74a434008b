"""Charts of made-up cells, and the texts that they draw."""

import xml.etree.ElementTree as ET

import pandas as pd

from orchestrator.report.cell_rows import cell_rows, with_times
from orchestrator.report.plot import Plot, svg
from orchestrator.store.record import TrialRecord
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo

STEP = {"step_s": 1.0, "step_data_s": 0.1, "step_host_s": 0.1, "step_communication_s": 0.0, "step_imbalance_s": 0.0}

TIMED = {"val_accuracy": 0.9, "train_s": 10.0, "samples": 1000, "window_s": 2.5, "window_steps": 500}


def texts(plot: Plot, rows: list[dict]) -> list[str]:
    """Return the texts of the drawn chart, in the order of the drawing."""
    assert plot.spec is not None, plot.absent
    drawing = ET.fromstring(svg(plot, rows))
    return [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text") if element.text]


def made(records: list[TrialRecord], **options: object) -> tuple[pd.DataFrame, list[dict]]:
    """Return the cells, and the rows of their charts without a recommendation."""
    trials, cells = collect(records, **{"scaling": "weak", **options})  # type: ignore[arg-type]
    return cells, cell_rows(with_times(cells, trials), demo.NOT_MADE)


def scaling(gpus: int, seed: int = 0, rate: float = 1000.0, **more: float) -> TrialRecord:
    return record_of(gpus, seed, metrics={**STEP, "step_compute_s": 0.8, "samples_per_s": rate, **more})

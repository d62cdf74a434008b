"""The files of a sweep's tables: CSV, Parquet and Markdown."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.store.files import make_directory, write_durably
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text.numbers import not_a_formula


def write_tables(
    folder: ResultsFolder,
    trials: pd.DataFrame,
    cells: pd.DataFrame,
    texts: Mapping[str, str] | None = None,
    metric: Metric = VAL_ACCURACY,
) -> list[Path]:
    """Write every table of the sweep and further `texts` by name, each file whole or not at all; return the paths."""
    contents = {
        **{name: text.encode() for name, text in (texts or {}).items()},
        "trials.csv": _csv(trials),
        "trials.parquet": parquet(trials),
        "summary.csv": _csv(cells),
        "summary.parquet": parquet(cells),
        "speedup.md": speedup_markdown(cells).encode(),
        "accuracy.md": accuracy_markdown(cells, metric).encode(),
    }
    # Durable, because the journal counts the sweep as ended once its tables are written.
    make_directory(folder.tables)
    for name, content in contents.items():
        write_durably(folder.table(name), content)
    return [folder.table(name) for name in contents]


def _csv(frame: pd.DataFrame) -> bytes:
    # A sweep that somebody else configured must not run formulas in a spreadsheet.
    text = [column for column in frame.columns if not pd.api.types.is_numeric_dtype(frame[column])]
    safe = frame.assign(**{column: frame[column].map(not_a_formula) for column in text})
    return safe.rename(columns=not_a_formula).to_csv(index=False).encode()


def parquet(frame: pd.DataFrame) -> bytes:
    """Return the frame as Parquet. A column of mixed types becomes text."""
    # A Parquet column has one type, and an axis may mix numbers and words, such as `auto`.
    objects = [column for column in frame.columns if pd.api.types.is_object_dtype(frame[column])]
    mixed = [column for column in objects if frame[column].dropna().map(type).nunique() > 1]
    one_type = frame.assign(**{column: frame[column].map(str, na_action="ignore") for column in mixed})
    file = io.BytesIO()
    one_type.to_parquet(file, index=False)
    return file.getvalue()

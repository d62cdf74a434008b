"""The accuracy table for people."""

from __future__ import annotations

import pandas as pd

from orchestrator.analysis.validity import FEWEST_STEPS, is_untrained
from orchestrator.text import figures
from orchestrator.text.rows import Row, axis, cell_label, head, in_order, markdown, method, not_ok, status, varying
from sweeps.status import Status

NONE = "No trial reported an accuracy."
_UNTRAINED = (
    f"No accuracies are shown: after fewer than {FEWEST_STEPS} optimizer steps, as here, they say nothing about batches"
    " or learning rates (they are in summary.csv)."
)


def accuracy_markdown(cells: pd.DataFrame) -> str:
    """A row for each batch and GPU count, a column for each LR rule; followed by what is worse and what is not ok."""
    if cells.empty:
        return "# Accuracy\n\nNo trial has ended yet.\n"
    differing = varying(cells)
    ordered = in_order(cells, [*_rows(cells), "lr_rule"])
    failed = _section("Not ok:", [figures.plain(f"- {line}") for line in not_ok(ordered, differing)])
    if told := why_none(cells):
        return "\n".join([*head(cells, "Accuracy"), told, "", *failed])
    if cells["accuracy"].isna().all():
        return "\n".join([*head(cells, "Accuracy"), *_by_validation(cells), "", *failed])
    about = [
        f"On the test set, which is not used to choose cells. ±: half-width of the 95% interval over the ok seeds"
        f" ({method(cells)}); brackets: its ends, if it is asymmetric.",
        _compared_with(cells),
    ]
    return "\n".join(
        [
            *[*head(cells, "Accuracy"), *about, "", markdown(accuracy_frame(cells)), ""],
            *_section("Worse than at the reference batch:", _worse(ordered, differing)),
            *failed,
        ]
    )


def why_none(cells: pd.DataFrame) -> str:
    """Why there is no accuracy to show; empty if there is one."""
    known = cells["accuracy"].notna() | cells["val_accuracy"].notna()
    if not known.any():
        return NONE
    return _UNTRAINED if is_untrained(cells[known]).all() else ""


def _by_validation(cells: pd.DataFrame) -> list[str]:
    about = (
        "No trial reported an accuracy on a test set. This is val_accuracy, which is used to choose cells. ±:"
        f" half-width of the 95% interval over the ok seeds ({method(cells)}). It is not compared with the reference"
        " batch."
    )
    return [about, "", markdown(validation_frame(cells))]


def validation_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """The same table of val_accuracy, all that a script tells which prints one accuracy."""
    return accuracy_frame(cells.assign(**{f"accuracy{end}": cells[f"val_accuracy{end}"] for end in ("", "_lo", "_hi")}))


def only_validation(cells: pd.DataFrame) -> bool:
    """Whether only validation accuracy is known."""
    return bool(cells["val_accuracy"].notna().any() and cells["accuracy"].isna().all())


def accuracy_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """The table as text: a row for each batch and GPU count, a column for each LR rule."""
    rows = _rows(cells)
    return _pivot(in_order(cells, [*rows, "lr_rule"]), rows)


def _rows(cells: pd.DataFrame) -> list[str]:
    return [*varying(cells), "device_batch_size", "gpus", "global_batch_size"]


def _pivot(cells: pd.DataFrame, rows: list[str]) -> pd.DataFrame:
    texts = pd.Series([_text(row) for row in cells.to_dict("records")], index=cells.index)
    keys = [cells[column].map(figures.asked) for column in (*rows, "lr_rule")]
    pivot = texts.groupby(keys, sort=False, dropna=False).agg(" / ".join).unstack("lr_rule")
    names = {"device_batch_size": "device batch", "global_batch_size": "global batch"}
    return pivot.fillna("").reset_index().rename(columns=lambda column: names.get(column, axis(column)))


def _text(row: Row) -> str:
    mark = "▼" if row["accuracy_difference_hi"] < 0 else "▲" if row["accuracy_difference_lo"] > 0 else ""
    reference = "(reference)" if row["cell_id"] == row["reference_cell_id"] else ""
    accuracy = _accuracy(row)
    few = f"({figures.counted(int(row['steps']), 'step', 'steps')})" if accuracy and row["steps"] < FEWEST_STEPS else ""
    text = " ".join(filter(None, (accuracy, mark, few, reference)))
    if row["status"] == Status.OK.value:
        return text
    return f"{text} ({status(row)})" if text else status(row)


def _accuracy(row: Row) -> str:
    return figures.plus_minus(row["accuracy"], row["accuracy_lo"], row["accuracy_hi"])


def _compared_with(cells: pd.DataFrame) -> str:
    references = cells[cells["cell_id"].isin(cells["reference_cell_id"])]
    if references.empty:
        return "Not compared: no ok cell is known to be at the reference batch."
    compared = cells["accuracy_difference_lo"].notna() & ~cells["cell_id"].isin(references["cell_id"])
    count = int(compared.sum())
    if not count:
        return "No difference from the reference batch has an interval, which requires two seeds per cell."
    return (
        f"▼ worse, ▲ better than the corresponding cell at the reference batch of"
        f" {references['global_batch_size'].iloc[0]}: the 95% interval of the difference excludes 0."
        f" {figures.counted(count, 'comparison', 'comparisons')}, without correction for their number"
        f"{_by_chance(count)}."
    )


def _by_chance(count: int) -> str:
    """How many of this many intervals exclude 0 by chance: one in 20."""
    return ": if nothing differed, about one in 20 would be marked" if count >= 10 else ""


def _worse(cells: pd.DataFrame, differing: list[str]) -> list[str]:
    return [
        figures.plain(f"- {cell_label(row, differing)}: {row['accuracy_difference']:+.3f} ")
        + f" [{row['accuracy_difference_lo']:+.3f}, {row['accuracy_difference_hi']:+.3f}]"
        for row in cells[cells["accuracy_difference_hi"] < 0].to_dict("records")
    ]


def _section(title: str, lines: list[str]) -> list[str]:
    return [title, "", *lines, ""] if lines else []

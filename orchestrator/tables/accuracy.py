"""The accuracy table in Markdown: which batch sizes and learning-rate rules lose accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from orchestrator.analysis.cells import further_metrics
from orchestrator.analysis.validity import FEWEST_STEPS, is_untrained
from orchestrator.text import figures
from orchestrator.text.rows import Row, cell_label, head, in_order, markdown, method, not_ok, status, varying
from sweeps.status import Status

NONE = "No trial reported an accuracy."
_UNTRAINED = (
    f"No accuracies are shown: after fewer than {FEWEST_STEPS} optimizer steps, they say nothing about batches or"
    " learning rates. summary.csv has them."
)


def accuracy_markdown(cells: pd.DataFrame) -> str:
    """Return the document: the table, the cells with a lower accuracy, and the cells that are not ok."""
    if cells.empty:
        return "# Accuracy\n\nNo trial has ended yet.\n"
    differing = varying(cells)
    ordered = in_order(cells, [*_order(cells), "lr_rule"])
    if absent := why_none(cells):
        content = [absent, ""]
    elif only_validation(cells):
        about = (
            "No trial reported an accuracy on a test set. This is val_accuracy, which is used to choose cells. ±:"
            f" half-width of the 95% interval over the ok seeds ({method(cells)}). It is not compared with the"
            " reference batch."
        )
        content = [about, "", markdown(validation_frame(cells)), ""]
    else:
        about = (
            "On the test set, which is not used to choose cells. ±: half-width of the 95% interval over the ok seeds"
            f" ({method(cells)}); brackets: the ends of an asymmetric interval."
        )
        content = [about, _compared_with(cells), "", markdown(accuracy_frame(cells)), ""]
        worse = [
            figures.plain(f"- {cell_label(row, differing)}: {row['accuracy_difference']:+.3f} ")
            + f" [{row['accuracy_difference_lo']:+.3f}, {row['accuracy_difference_hi']:+.3f}]"
            for row in ordered[ordered["accuracy_difference_hi"] < 0].to_dict("records")
        ]
        if worse:
            content += ["Worse than at the reference batch:", "", *worse, ""]
    if names := further_metrics(cells):
        content += ["Other metrics, with 95% intervals:", "", markdown(metrics_frame(ordered, names)), ""]
    failed = [figures.plain(f"- {line}") for line in not_ok(ordered, differing)]
    if failed:
        content += ["Not ok:", "", *failed, ""]
    return "\n".join([*head(cells, "Accuracy"), *content])


def why_none(cells: pd.DataFrame) -> str:
    """Return why there is no accuracy to show; empty if there is one."""
    known = cells["accuracy"].notna() | cells["val_accuracy"].notna()
    if not known.any():
        return NONE
    return _UNTRAINED if is_untrained(cells[known]).all() else ""


def only_validation(cells: pd.DataFrame) -> bool:
    """Return whether only validation accuracy is known."""
    return bool(cells["val_accuracy"].notna().any() and cells["accuracy"].isna().all())


def validation_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `accuracy_frame` with val_accuracy, for sweeps that report nothing else."""
    return accuracy_frame(cells.assign(**{f"accuracy{end}": cells[f"val_accuracy{end}"] for end in ("", "_lo", "_hi")}))


def accuracy_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text: a row for each batch and GPU count, a column for each learning-rate rule."""
    differing = varying(cells)
    ordered = in_order(cells, [*_order(cells), "lr_rule"])
    records = ordered.to_dict("records")
    texts = pd.Series([_text(row) for row in records])
    batches = [cell_label({key: row[key] for key in row if key != "lr_rule"}, differing) for row in records]
    keys = {
        "cell": batches,
        "global batch": ordered["global_batch_size"].to_list(),
        "lr_rule": ordered["lr_rule"].map(figures.asked).to_list(),
    }
    grouped = texts.groupby([pd.Series(values, name=name) for name, values in keys.items()], sort=False, dropna=False)
    return grouped.agg(" / ".join).unstack("lr_rule").fillna("").reset_index().rename_axis(columns=None)


def metrics_frame(cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return a row for each cell with these metrics as text."""
    differing = varying(cells)
    return pd.DataFrame(
        {"cell": cell_label(row, differing)}
        | {
            name: figures.with_interval(row[name], row[f"{name}_lo"], row[f"{name}_hi"], figures.number)
            for name in names
        }
        for row in cells.to_dict("records")
    )


def _order(cells: pd.DataFrame) -> list[str]:
    return [*varying(cells), "device_batch_size", "gpus", "global_batch_size"]


def _text(row: Row) -> str:
    accuracy = figures.plus_minus(row["accuracy"], row["accuracy_lo"], row["accuracy_hi"])
    mark = "▼" if row["accuracy_difference_hi"] < 0 else "▲" if row["accuracy_difference_lo"] > 0 else ""
    few = f"({figures.counted(int(row['steps']), 'step', 'steps')})" if accuracy and row["steps"] < FEWEST_STEPS else ""
    reference = "(reference)" if row["cell_id"] == row["reference_cell_id"] else ""
    text = " ".join(filter(None, (accuracy, mark, few, reference)))
    if row["status"] == Status.OK.value:
        return text
    return f"{text} ({status(row)})" if text else status(row)


def _compared_with(cells: pd.DataFrame) -> str:
    """Return the sentence on the comparison with the reference batch, and how many marks chance would explain."""
    references = cells[cells["cell_id"].isin(cells["reference_cell_id"])]
    if references.empty:
        return "Not compared: no ok cell has the reference batch."
    compared = cells["accuracy_difference_lo"].notna() & ~cells["cell_id"].isin(references["cell_id"])
    count = int(compared.sum())
    if not count:
        return "No difference from the reference batch has an interval, which requires two seeds per cell."
    by_chance = ": if nothing differed, about one in 20 would be marked" if count >= 10 else ""
    return (
        f"▼ worse, ▲ better than the corresponding cell at the reference batch of"
        f" {references['global_batch_size'].iloc[0]}: the 95% interval of the difference excludes 0."
        f" {figures.counted(count, 'comparison', 'comparisons')}, not corrected for their number{by_chance}."
    )

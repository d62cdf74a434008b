"""The accuracy table in Markdown: which batch sizes and learning-rate rules lose accuracy.

It shows accuracies on the test set if there are any, else on the validation set. A sweep that compares cells by another
metric, such as a loss, has that metric in the same table.
"""

from __future__ import annotations

import pandas as pd

from orchestrator.analysis.summary import further_metrics
from orchestrator.analysis.validity import FEWEST_STEPS, is_untrained
from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.text import numbers
from orchestrator.text.cell_labels import Row, cell_label, figure, head, in_order, method, status, varying
from orchestrator.text.failed_cells import not_ok
from orchestrator.text.text_tables import markdown
from sweeps.status import Status


def accuracy_markdown(cells: pd.DataFrame, metric: Metric = VAL_ACCURACY) -> str:
    """Return the document: the table, the cells with a lower accuracy, and the cells that are not ok.

    `metric` is the metric of choice.
    """
    if cells.empty:
        return "# Accuracy\n\nNo trial has ended yet.\n"
    differing = varying(cells)
    ordered = in_order(cells, [*_order(cells), "lr_rule"])
    column = shown_column(cells, metric)
    # Only accuracies on the test set are compared here: those on the validation set have the recommendation.
    if absent := why_none(cells, metric):
        content = [absent, ""]
    elif column != "accuracy":
        no_test = "No trial reported an accuracy on a test set. " if metric == VAL_ACCURACY else ""
        about = (
            f"{no_test}This is {column} ({metric.better} is better), which is used to choose cells. ±: half-width of"
            f" the 95% interval over the ok seeds ({method(cells)}). It is not compared with the reference batch."
        )
        content = [about, "", markdown(accuracy_frame(cells, metric)), ""]
    else:
        about = (
            "On the test set, which is not used to choose cells. ±: half-width of the 95% interval over the ok seeds"
            f" ({method(cells)}); brackets: the ends of an asymmetric interval."
        )
        content = [about, _compared_with(cells), "", markdown(accuracy_frame(cells)), ""]
        worse = [
            numbers.plain(f"- {cell_label(row, differing)}: ")
            + f" {figure(row, 'accuracy_difference', '{:+.3f}'.format)}"
            for row in ordered[ordered["accuracy_difference_hi"] < 0].to_dict("records")
        ]
        if worse:
            content += ["Worse than at the reference batch:", "", *worse, ""]
    if names := further_metrics(cells):
        rows = ordered.to_dict("records")
        texts = {"cell": [cell_label(row, differing) for row in rows]}
        texts |= {name: [figure(row, name) for row in rows] for name in names}
        content += ["Other metrics, with 95% intervals:", "", markdown(pd.DataFrame(texts)), ""]
    failed = [numbers.plain(f"- {line}") for line in not_ok(ordered, differing)]
    if failed:
        content += ["Not ok:", "", *failed, ""]
    title = "Accuracy" if metric == VAL_ACCURACY else metric.label.capitalize()
    return "\n".join([*head(cells, title), *content])


def why_none(cells: pd.DataFrame, metric: Metric = VAL_ACCURACY) -> str:
    """Return why there is nothing to show; empty if there is something."""
    column = shown_column(cells, metric)
    word = "accuracy" if metric == VAL_ACCURACY else column
    # Accuracies after a few steps are near chance, so a table of them would mislead.
    known = cells[cells[column].notna()] if column in cells else cells.iloc[:0]
    if known.empty:
        return f"No trial reported {'an accuracy' if metric == VAL_ACCURACY else column}."
    if not is_untrained(known).all():
        return ""
    steps = f"after fewer than {FEWEST_STEPS} optimizer steps"
    return f"No {word} is shown: {steps}, it says nothing about batches or learning rates. summary.csv has it."


def shown_column(cells: pd.DataFrame, metric: Metric = VAL_ACCURACY) -> str:
    """Return the column that the table shows: the metric of choice; of accuracies that of the test set if known."""
    return "accuracy" if metric == VAL_ACCURACY and cells["accuracy"].notna().any() else metric.name


def accuracy_frame(cells: pd.DataFrame, metric: Metric = VAL_ACCURACY) -> pd.DataFrame:
    """Return the table as text: a row for each batch and GPU count, a column for each learning-rate rule."""
    differing, column = varying(cells), shown_column(cells, metric)
    if column in cells and column != "accuracy":
        cells = cells.assign(**{f"accuracy{end}": cells[f"{column}{end}"] for end in ("", "_lo", "_hi")})
    ordered = in_order(cells, [*_order(cells), "lr_rule"])
    records = ordered.to_dict("records")
    # Cells that differ in an axis that has no column share a field, separated by slashes.
    texts = pd.Series([_text(row) for row in records])
    batches = [cell_label({key: row[key] for key in row if key != "lr_rule"}, differing) for row in records]
    keys = {
        "cell": batches,
        "global batch": ordered["global_batch_size"].to_list(),
        "lr_rule": ordered["lr_rule"].map(numbers.config_value).to_list(),
    }
    grouped = texts.groupby([pd.Series(values, name=name) for name, values in keys.items()], sort=False, dropna=False)
    return grouped.agg(" / ".join).unstack("lr_rule").fillna("").reset_index().rename_axis(columns=None)


def _order(cells: pd.DataFrame) -> list[str]:
    return [*varying(cells), "device_batch_size", "gpus", "global_batch_size"]


def _text(row: Row) -> str:
    accuracy = numbers.plus_minus(row["accuracy"], row["accuracy_lo"], row["accuracy_hi"])
    # Signs and not colours, because the table is also read as plain text.
    mark = "▼" if row["accuracy_difference_hi"] < 0 else "▲" if row["accuracy_difference_lo"] > 0 else ""
    few = f"({numbers.counted(int(row['steps']), 'step', 'steps')})" if accuracy and row["steps"] < FEWEST_STEPS else ""
    reference = "(reference)" if row["cell_id"] == row["reference_cell_id"] else ""
    text = " ".join(filter(None, (accuracy, mark, few, reference)))
    if row["status"] == Status.OK.value:
        return text
    return f"{text} ({status(row)})" if text else status(row)


def _compared_with(cells: pd.DataFrame) -> str:
    """Return the sentence on the comparison with the reference batch, and how many marks chance would explain."""
    # Differences have an interval only with two seeds of both cells.
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
        f" {numbers.counted(count, 'comparison', 'comparisons')}, not corrected for their number{by_chance}."
    )

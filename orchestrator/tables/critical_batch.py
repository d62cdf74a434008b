"""The critical batch size by branching: between the batches that are shown to be within the margin, and beyond it.

A branch leaves its base after some tokens and trains a fixed window of tokens at its own batch. It is compared, seed by
seed, with the branch at the reference batch, which continues the base as it was (Merrill et al. 2025, "Critical batch
size revisited", section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.summary import further_axes
from orchestrator.config.request import Metric, Terms
from orchestrator.statistics.intervals import Array, Moments, student_quantile
from orchestrator.statistics.margins import excess
from orchestrator.statistics.variances import moderated
from orchestrator.text.cell_labels import Row, figure, named
from orchestrator.text.text_tables import Document, TextTable
from sweeps.branch import BRANCH_TOKENS
from sweeps.status import Status

CRITICAL_BATCH = "critical_batch.md"

_SIDE = "global_batch_size"


def critical_batch(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms, reference: int | None) -> Document | None:
    """Return the document on the critical batch by branching from the `reference` batch; None without branches."""
    if reference is None:
        return None
    rows = branches(trials, cells, terms.metric, terms.report.margin, reference)
    if rows.empty:
        return None
    table = critical_batch_table(rows, terms.metric, terms.report.margin, reference)
    line = ("Branches", f"critical batch {in_one_line(rows)}")
    return Document(text=table.document(table.title), tables=[table], rows=rows, line=line)


def branches(trials: pd.DataFrame, cells: pd.DataFrame, metric: Metric, margin: float, reference: int) -> pd.DataFrame:
    """Return a row for each batch at each branch point, in the order of the points; empty without branches.

    `worse_by` is how much worse the metric is than at the `reference` batch, with the interval over paired seeds,
    whose variances inform each other. `within` and `beyond` are whether all of the interval is on one side of the
    margin. The critical batch is at least that of the row `is_lower_end`: it and all smaller ones above the reference
    are within. It is below that of the row `is_upper_end`, the first one beyond. Rows with equal values in the
    remaining axes (`group`) belong together.
    """
    if BRANCH_TOKENS not in trials:
        return pd.DataFrame()
    ok = trials[trials[BRANCH_TOKENS].notna() & (trials["status"] == Status.OK.value)]
    ok = ok.assign(score=metric.score(ok)).dropna(subset="score")
    keys = ["lr_rule", "lr_multiplier", "gpus", *(axis for axis in further_axes(cells) if axis != BRANCH_TOKENS)]
    branched = _with_references(ok, keys, reference)
    # The branch at the reference batch has seen the same tokens in the same order, so seeds are compared in pairs.
    pair = [*keys, BRANCH_TOKENS, "seed"]
    at_reference = branched.loc[branched[_SIDE] == reference, [*pair, "score"]]
    branched = branched.merge(at_reference, on=pair, how="left", suffixes=("", "_at_reference"))
    branched["worse_by"] = branched["score_at_reference"] - branched["score"]
    varied = [key for key in keys if branched[key].nunique(dropna=False) > 1]
    groups = branched.groupby([*keys, BRANCH_TOKENS, _SIDE], dropna=False)
    rows = [_row(group, keys, varied, metric) for _, group in groups]
    if not rows:
        return pd.DataFrame()
    frame = _with_intervals(pd.DataFrame(rows), [group["worse_by"].to_numpy(dtype="float64") for _, group in groups])
    frame["within"] = (excess(frame["worse_by_hi"].to_numpy(), margin) <= 0) | (frame[_SIDE] == reference)
    frame["beyond"] = (excess(frame["worse_by_lo"].to_numpy(), margin) > 0) & (frame[_SIDE] > reference)
    frame = frame.sort_values(["group", "tokens", _SIDE], kind="stable", ignore_index=True)
    point = [frame["group"], frame["tokens"]]
    # A batch counts only if all smaller ones above the reference are within: one lucky larger batch is no limit.
    reached = (frame["within"] | (frame[_SIDE] <= reference)).groupby(point).cummin() & (frame[_SIDE] >= reference)
    last = frame[_SIDE].where(reached).groupby(point).transform("max")
    first = frame[_SIDE].where(frame["beyond"]).groupby(point).transform("min")
    return frame.assign(is_lower_end=frame[_SIDE] == last, is_upper_end=frame[_SIDE] == first)


def _with_intervals(frame: pd.DataFrame, losses: Sequence[Array]) -> pd.DataFrame:
    """Return the rows with the 95% interval of each loss."""
    moments = [Moments.of(values) for values in losses]
    n, mean, variance = (np.array([getattr(row, name) for row in moments]) for name in ("n", "mean", "variance"))
    # The branches at the reference batch are compared with themselves and do not vary.
    varies = np.where(variance > 0, variance, np.nan)
    pooled, freedom = moderated(varies, n - 1)
    half = student_quantile(freedom) * np.sqrt(pooled / n)
    half = np.where(variance == 0, 0.0, half)
    return frame.assign(worse_by=mean, worse_by_lo=mean - half, worse_by_hi=mean + half)


def _with_references(ok: pd.DataFrame, keys: Sequence[str], reference: int) -> pd.DataFrame:
    """Return the branches, with those at the reference batch for each rule: they are the same for all rules."""
    rule = ["lr_rule", "lr_multiplier"]
    others = [key for key in keys if key not in rule]
    is_reference = ok[_SIDE] == reference
    plain = ok[is_reference & (ok["lr_multiplier"] == 1)]
    plain = plain.drop_duplicates([*others, BRANCH_TOKENS, "seed"]).drop(columns=rule)
    for_each_rule = ok[[*rule, *others, BRANCH_TOKENS]].drop_duplicates().merge(plain, on=[*others, BRANCH_TOKENS])
    return pd.concat([ok[~is_reference], for_each_rule], ignore_index=True)


def _row(group: pd.DataFrame, keys: Sequence[str], varied: Sequence[str], metric: Metric) -> dict[str, Any]:
    """Return the row of the branches that differ in the seed only, without their loss."""
    first = group.to_dict("records")[0]
    return {
        **{key: first[key] for key in keys},
        "group": named(first, varied),
        "tokens": int(first[BRANCH_TOKENS]),
        "window_tokens": int(first["tokens"] - first[BRANCH_TOKENS]),
        _SIDE: int(first[_SIDE]),
        "batch_tokens": int(first[_SIDE] * first["sequence_length"]),
        metric.name: metric.sign * float(group["score"].mean()),
        "n_seeds": int(group["worse_by"].notna().sum()),
    }


def critical_batch_table(branched: pd.DataFrame, metric: Metric, margin: float, reference: int) -> TextTable:
    """Return a row for each branch point with the range of its critical batch, and the losses at its ends."""
    word, rows = metric.label, []
    for (group, tokens), point in branched.groupby(["group", "tokens"], sort=False):
        largest = point[point["is_lower_end"]].to_dict("records")
        if not largest:
            continue
        limit = point[point["is_upper_end"]].to_dict("records")
        rows.append(
            {
                **({"branches": group} if branched["group"].nunique() > 1 else {}),
                "after tokens": f"{tokens:,}",
                "critical batch": _range(point),
                "at least, in tokens": f"{largest[0]['batch_tokens']:,}",
                f"{word} there": f"{largest[0][metric.name]:.3f}",
                f"worse than at {reference}": _difference(largest[0]) if largest[0][_SIDE] != reference else "",
                "at the upper end": _difference(limit[0]) if limit else "",
                "seeds": str(int(point["n_seeds"].min())),
            }
        )
    window = ", ".join(f"{tokens:,}" for tokens in sorted(branched["window_tokens"].unique()))
    return TextTable(
        name="critical_batch_by_branching",
        title="Critical batch size",
        about=[
            f"Branches start from the checkpoints of a run at a batch of {reference}, and train {window} tokens at "
            f"their own batch. Up to the lower end of the range, the {word} is shown to be at most {margin:g} "
            f"{metric.worse} than that of the branch at {reference}; at the upper end, to be more. Brackets: "
            "95% intervals over paired seeds."
        ],
        frame=pd.DataFrame(rows),
    )


def _range(point: pd.DataFrame) -> str:
    """Return the range of a branch point's critical batch."""
    (least,) = point.loc[point["is_lower_end"], _SIDE]
    limits = point.loc[point["is_upper_end"], _SIDE].tolist()
    return f"{least:,} to {limits[0]:,}" if limits else f"≥ {least:,}"


def _difference(row: Row) -> str:
    return figure(row, "worse_by", "{:+.3f}".format)


def in_one_line(branched: pd.DataFrame) -> str:
    """Return the ranges in a sentence: `16 to 64 after 16,384 tokens, ≥ 64 after 65,536 (lr_rule=sqrt); …`."""
    groups = []
    for name, group in branched.groupby("group", sort=False):
        points = [(tokens, point) for tokens, point in group.groupby("tokens") if point["is_lower_end"].any()]
        ranges = ", ".join(f"{_range(point)} after {tokens:,}" for tokens, point in points)
        groups.append(f"{ranges} tokens{f' ({name!s})' if name else ''}")
    return "; ".join(groups)

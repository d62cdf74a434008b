"""Joins rows of a learning curve that hold different figures of the same epoch."""

from __future__ import annotations

import pandas as pd


def one_row_an_epoch(rows: pd.DataFrame) -> pd.DataFrame:
    """Join consecutive rows of a trial that have the same epoch and do not contradict one another.

    Hugging Face's Trainer, for example, reports the loss of an epoch first, and its evaluation later. They are joined
    here and not as they are read, because early stopping must not wait for the next epoch.
    """
    goes_on = (rows["trial_id"].cat.codes.diff() == 0) & (rows["epoch"].diff() == 0)
    if not goes_on.any():
        return rows
    stretch = (~goes_on).cumsum()
    several = stretch.isin(stretch[goes_on])
    groups = rows[several].groupby(stretch[several])
    figures = groups[[name for name in rows.columns if name not in ("trial_id", "epoch")]]
    joinable = (figures.nunique() <= 1).all(axis="columns")
    joined = figures.first()[joinable]
    kept = ~stretch.isin(joined.index) | ~goes_on
    found = rows[kept].copy()
    first = stretch[kept].isin(joined.index)
    found.loc[first, joined.columns] = joined.to_numpy()
    return found.reset_index(drop=True)

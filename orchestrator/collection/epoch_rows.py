"""Rows of a learning curve that tell different things of the same epoch, as one."""

from __future__ import annotations

import pandas as pd


def one_row_an_epoch(rows: pd.DataFrame) -> pd.DataFrame:
    """What follows one another in a trial with the same epoch, and does not contradict itself, is one row.

    Hugging Face's Trainer, for one, tells the loss of an epoch, and then how it evaluates. It is joined here and not
    where it is read, because what stops a trial early is not to wait for the next epoch.
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

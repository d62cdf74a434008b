"""The critical batch by branching, from losses that are known."""

import pytest

from orchestrator.config.request import Metric
from orchestrator.tables.critical_batch import branches, critical_batch_table, in_one_line
from sweeps.branch import BRANCH_TOKENS
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

LOSS = Metric(name="val_loss", higher_is_better=False)
WORSE = {8: {8: 0.0, 16: 0.05, 32: 0.01}, 64: {8: 0.0, 16: -0.01, 32: 0.015, 64: 0.03}}
"""{point: {batch: how much worse it is than at 8}}"""


def critical(worse=WORSE, more=(), **other):
    base = record_of(1, 0, batch=8, axes={BRANCH_TOKENS: None}, metrics={"val_loss": 1.0, "tokens": 80})
    return branches(*collect([base, *records(worse, **other), *more], scaling="strong"), LOSS, 0.02, 8)


def records(worse, lr_rule="sqrt", **other):
    return [
        record_of(
            1,
            seed,
            batch=batch,
            axes={BRANCH_TOKENS: point, "global_batch_size": batch},
            metrics={
                "val_loss": 3 - point / 100 + seed + loss + seed * loss / 10,
                "tokens": point + 8,
                "sequence_length": 4,
            },
            lr_rule=lr_rule,
            **other,
        )
        for point, losses in worse.items()
        for batch, loss in losses.items()
        for seed in (0, 1)
    ]


def test_critical_batch_is_between_shown_within_and_shown_beyond():
    rows = critical()
    ends = [
        {row["tokens"]: row["global_batch_size"] for row in rows[rows[end]].to_dict("records")}
        for end in ("is_lower_end", "is_upper_end")
    ]
    assert ends == [{8: 8, 64: 32}, {8: 16, 64: 64}]
    assert rows["within"].tolist() == [True, False, True, True, True, True, False]
    assert rows["beyond"].tolist() == [False, True, False, False, False, False, True]
    assert rows["window_tokens"].unique().tolist() == [8] and rows["batch_tokens"].max() == 256


def test_seeds_are_paired():
    [row] = critical()[lambda rows: (rows["tokens"] == 64) & (rows["global_batch_size"] == 64)].to_dict("records")
    assert row["worse_by"] == pytest.approx(0.0315) and row["n_seeds"] == 2  # the seeds' own losses differ by 1
    assert 2 * 0.0015 < row["worse_by_hi"] - row["worse_by"] < 12.706 * 0.0015  # other batches tell of the spread
    assert row["val_loss"] == pytest.approx(3 - 0.64 + 0.5 + 0.0315)


def test_table_and_line_tell_what_was_tried():
    rows = critical()
    table = critical_batch_table(rows, LOSS, 0.02, 8).frame
    assert table["critical batch"].tolist() == ["8 to 16", "32 to 64"]
    assert in_one_line(rows) == "8 to 16 after 8, 32 to 64 after 64 tokens"
    open_ended = critical({8: {8: 0.0, 16: 0.0}})
    assert critical_batch_table(open_ended, LOSS, 0.02, 8).frame["critical batch"].tolist() == ["≥ 16"]
    assert in_one_line(open_ended) == "≥ 16 after 8 tokens"


def test_rules_share_the_branches_at_the_reference_batch():
    rows = critical({64: {8: 0.0, 16: 0.01}}, records({64: {16: 0.05}}, "linear"))
    largest = {row["lr_rule"]: row["global_batch_size"] for row in rows[rows["is_lower_end"]].to_dict("records")}
    assert largest == {"sqrt": 16, "linear": 8}
    assert in_one_line(rows).count("after 64 tokens") == 2


def test_sweeps_without_branches_have_none():
    frames = collect([record_of(1, 0, metrics={"val_loss": 1.0})], scaling="strong")
    assert branches(*frames, LOSS, 0.02, 8).empty
    assert critical(status=Status.FAILED).empty

from itertools import product

import pandas as pd
import pytest

from orchestrator.text.failed_cells import not_ok, not_ok_by_status

ROOM = "needs 4 ranks; there is room for 2"


def cells(**unlike):
    """Return cells on 1, 2 and 4 GPUs; 4 GPUs are infeasible. `unlike` changes the independent ones of them."""
    rows = []
    for gpus, batch, strategy in product((1, 2, 4), (32, 64), ("ddp", "independent")):
        row = {"gpus": gpus, "device_batch_size": batch, "lr_rule": "linear", "strategy": strategy}
        ended = (
            {"status": "infeasible", "note": ROOM, "n_ok": 0} if gpus == 4 else {"status": "ok", "note": "", "n_ok": 1}
        )
        rows.append(row | {"n_seeds": 1} | ended | (unlike if gpus == 4 and strategy == "independent" else {}))
    return pd.DataFrame(rows)


def grouped():
    several = pd.concat([cells(), cells().assign(device_batch_size=lambda frame: frame["device_batch_size"] * 4)])
    several = several.reset_index(drop=True)
    others = several["strategy"].eq("independent") & several["gpus"].eq(2)
    several.loc[others, ["status", "note", "n_ok"]] = ["infeasible", ROOM, 0]
    return several


def single():
    one = cells().assign(status="ok", n_ok=1)
    one.loc[0, ["status", "note", "n_ok"]] = ["oom", "CUDA out of memory", 0]
    return one


IMPLIED = cells().assign(**{"trainable.input": lambda frame: frame["gpus"].map({1: "a", 2: "a", 4: "b"})})


@pytest.mark.parametrize(
    ("frame", "lines"),
    [
        (cells(), [f"all 4 cells with gpus=4: infeasible; {ROOM}"]),
        (
            cells(note="needs 1 rank"),
            [
                f"4×{batch} linear, {strategy}: infeasible; {note}"
                for strategy, note in (("ddp", ROOM), ("independent", "needs 1 rank"))
                for batch in (32, 64)
            ],
        ),
        (
            grouped(),
            [
                f"all 4 cells with gpus=2, independent: infeasible; {ROOM}",
                f"all 8 cells with gpus=4: infeasible; {ROOM}",
            ],
        ),
        (IMPLIED, [f"all 4 cells with gpus=4: infeasible; {ROOM}"]),
        (cells().assign(status="failed", note="ImportError", n_ok=0), ["all 12 cells: failed; ImportError"]),
        (single(), ["1×32 linear, ddp: oom; CUDA out of memory"]),
    ],
)
def test_cells_that_are_not_ok_share_a_line_if_all_of_some_values_are(frame, lines):
    differing = [column for column in ("strategy", "trainable.input") if column in frame]
    assert not_ok(frame, differing) == lines


def test_cells_that_are_not_ok_are_counted_by_status():
    rows = [("ok", 3), ("oom", 0), ("oom", 0), ("failed", 1)]
    columns = {"device": "cpu", "lr_multiplier": 1.0, "lr_rule": "none", "gpus": 1}
    batches = [{"status": status, "n_ok": n, "device_batch_size": 2**place} for place, (status, n) in enumerate(rows)]
    cells = pd.DataFrame([columns | row for row in batches])
    assert not_ok_by_status(cells) == "oom: 1×2 none and 1 other cell; failed: 1×8 none"
    assert not_ok_by_status(cells.head(1)) == "" == not_ok_by_status(cells.assign(n_ok=0))

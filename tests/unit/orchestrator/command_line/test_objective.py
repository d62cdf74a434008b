"""What a Hydra sweeper receives for a sweep."""

import pytest

from orchestrator.command_line.objective import objective_of

SUMMARY = """\
cell_id,status,val_accuracy,epoch_s
a,ok,0.9,30
b,ok,0.8,20
c,ok,,40
d,oom,0.99,1
"""


@pytest.fixture
def layout(layout):
    layout.table("summary.csv").write_text(SUMMARY)
    return layout


@pytest.mark.parametrize(
    ("column", "best", "value"), [("val_accuracy", "max", 0.9), ("val_accuracy", "min", 0.8), ("epoch_s", "min", 20.0)]
)
def test_it_is_the_best_figure_of_the_ok_cells(layout, column, best, value):
    assert objective_of(layout.root, {"column": column, "best": best}) == value


def test_a_sweep_without_the_figure_has_none(layout, tmp_path):
    assert objective_of(layout.root, {"column": None, "best": "max"}) is None
    assert objective_of(tmp_path / "elsewhere", {"column": "epoch_s", "best": "max"}) is None
    layout.table("summary.csv").write_text(SUMMARY.splitlines()[0] + "\nc,ok,,\nd,oom,0.99,1\n")
    assert objective_of(layout.root, {"column": "epoch_s", "best": "min"}) is None
    layout.table("summary.csv").write_text(SUMMARY.splitlines()[0] + "\n")
    assert objective_of(layout.root, {"column": "epoch_s", "best": "min"}) is None


def test_a_column_that_the_table_lacks_is_named_with_those_that_it_has(layout):
    with pytest.raises(KeyError, match=r"objective.column='acuracy' is not one of cell_id, status, val_accuracy"):
        objective_of(layout.root, {"column": "acuracy", "best": "max"})

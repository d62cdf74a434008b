"""Test a search on the command line: it tries the requested number of cells, and more on request."""

import pytest

GRID = ("sweep=traced", "sweep.axes.device_batch_size=[8,16,32,64,128]", "sweep.axes.seed=[0,1]")


@pytest.mark.slow
def test_a_search_continues_from_the_journal(place):
    pytest.importorskip("optuna")
    for cells in (3, 5):
        status, out, err = place.run(*GRID, "sweep.search=optuna", f"sweep.search_cells={cells}")
        assert status == 0, out + err
        executed = place.ran()
        assert len(executed) == 2 * cells == len(set(executed))
    last = {each["value"]["trial_id"]: each["value"] for each in place.journal() if each["kind"] == "finished"}
    assert len(last) == 20 and sum(end["status"] == "ok" for end in last.values()) == 10
    assert {end["skipped_by"] for end in last.values() if end["status"] == "skipped"} == {"search"}

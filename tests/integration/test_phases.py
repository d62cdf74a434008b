"""Test phases on the command line: every cell gets its first seed; more seeds run only if they matter."""

import json

import pytest

SEEDS = "sweep.axes.seed=[0,1,2,3]"
BATCHES = "sweep.axes.device_batch_size=[8,16,64,256]"


def told(place):
    ends = [record["value"] for record in place.journal() if record["kind"] == "finished"]
    return {(end["device_batch_size"], end["lr_rule"], end["seed"]): end for end in ends}


@pytest.mark.slow
def test_more_seeds_run_only_where_they_matter(place):
    status, out, err = place.run("sweep=traced", SEEDS, BATCHES, "sweep.phases=[probe,train]")
    assert status == 0, out + err
    ends = told(place)
    assert len(ends) == 32
    firsts = [end for (_, _, seed), end in ends.items() if seed == 0]
    # At the reference batch both rules come to the same, but a trainable of the user is told the rule's name.
    assert len(firsts) == 8 and all(end["status"] == "ok" for end in firsts)
    skipped = [end for end in ends.values() if end["status"] == "skipped"]
    assert len(place.ran()) == 32 - len(skipped) < 32
    assert {end["skipped_by"] for end in skipped} == {"phases"}
    assert all("the answer" in end["note"] for end in skipped)
    status, out, err = place.run("sweep=traced", SEEDS, BATCHES, "mode=plan", "format=json")
    assert json.loads(out)["to_run"] == len(skipped)  # without phases they are asked for

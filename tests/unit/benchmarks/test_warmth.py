import dataclasses
import random

from benchmarks.warmth import cold_starts
from orchestrator.schedule.cluster import Footprint, Node, Occupancy
from orchestrator.schedule.simulation import ScheduledTrial, simulate
from sweeps.layout import Gang
from tests.contract.trials import trial

FOUR = (Node(name="a", cpus=8, gpus=4),)


def gang(name, gpus, seed=0):
    held = Gang(ranks=gpus, gpus_per_rank=1, cpus_per_rank=1)
    return dataclasses.replace(trial(name, "quick", timing="device"), gpus=gpus, gang=held, device="cuda", seed=seed)


def stays(*asked):
    """(name, GPUs, start, end) one after the other, each where it has room."""
    made, running, room = [], [], Occupancy(FOUR)
    for name, gpus, start_s, end_s in asked:
        for over in [stay for stay in running if stay.end_s <= start_s]:
            running.remove(over)
            room.release(over.placement)
        one = gang(name, gpus)
        placement = room.place(Footprint.of(one))
        room.take(placement)
        running.append(ScheduledTrial(trial=one, placement=placement, start_s=start_s, end_s=end_s))
        made.append(running[-1])
    return made


def cold(*asked):
    return [stay.trial.trial_id for stay in cold_starts(stays(*asked), FOUR)]


def test_trials_of_a_shape_follow_one_another_in_its_processes():
    assert cold(("a", 2, 0, 1), ("b", 2, 1, 2), ("c", 2, 1, 2), ("d", 2, 2, 3)) == ["a", "c"]


def test_a_gang_idles_until_somebody_needs_its_room():
    small = ("small", 1, 0, 1)
    assert cold(small, ("three", 3, 1, 2), ("again", 1, 2, 3)) == ["small", "three"]
    assert cold(small, ("four", 4, 1, 2), ("again", 1, 2, 3)) == ["small", "four", "again"]


def test_a_mixed_sweep_starts_about_as_many_gangs_as_fill_the_node_once_in_each_shape():
    rng = random.Random(0)
    trials = [gang(str(n), rng.choice([1, 2, 4])) for n in range(200)]
    takes = {trial.trial_id: rng.lognormvariate(0, 0.5) for trial in trials}
    thought = {key: seconds * rng.uniform(0.7, 1.3) for key, seconds in takes.items()}
    made = simulate(trials, FOUR, lambda t: thought[t.trial_id], lambda t: takes[t.trial_id])
    assert len(cold_starts(made, FOUR)) <= 4 + 2 + 1 + 2

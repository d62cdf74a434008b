from unittest.mock import patch

import psutil
import pytest

from sweeps.rank_exit import Cause
from tests.unit.trainables.ranks import Processes, rendezvous, request, run, without_times
from trainables import process_group
from trainables.context import Context
from trainables.process_group import RankGroup


def both(pair, **other):
    return pair.call(
        run, *((request("trainables.noop:train", rank=rank, shares=(4, 4), **other),) for rank in range(2))
    )


def test_a_gang_stays_connected_until_it_changes(pair):
    first = both(pair, gang_id="a", rendezvous=rendezvous())
    assert [answer["status"] for answer in first] == ["ok", "ok"], first[0]["trace"]
    assert first[0]["rows"][0]["ranks"] == 2 and first[1]["rows"] == []
    # Without a place to meet only a connection that is still there can serve.
    assert [answer["status"] for answer in both(pair, gang_id="a")] == ["ok", "ok"]
    assert [answer["status"] for answer in both(pair, gang_id="b")] == ["failed", "failed"]
    assert [answer["status"] for answer in both(pair, gang_id="b", rendezvous=rendezvous())] == ["ok", "ok"]


def test_single_rank_after_a_gang_equals_new_process(pair):
    alone = request(gang_id="alone")
    seen = []
    for turn in range(2):
        meeting = {"gang_id": f"pair {turn}", "rendezvous": rendezvous()}
        seen.append(
            [
                without_times(answer)
                for answer in pair.call(run, *((request(rank=rank, shares=(32, 32), **meeting),) for rank in range(2)))
            ]
        )
        pair.call(process_group.leave, (), ())
        (first,) = pair.call(run, (alone,))
        seen.append(without_times(first))
    assert [answer["status"] for answer in (*seen[0], seen[1])] == ["ok"] * 3
    assert seen[0] == seen[2] and seen[1] == seen[3]
    new = Processes(1)
    try:
        assert [without_times(answer) for answer in new.call(run, (alone,))] == [seen[1]]
    finally:
        new.close()


def test_ranks_need_a_rendezvous():
    with pytest.raises(ValueError, match="tcp://host:port"):
        process_group.join(Context.alone(world_size=2))


@pytest.mark.parametrize(("count", "ranks"), [(7, 2), (1, 3), (12, 4), (0, 2)])
def test_shares_are_disjoint_and_complete(count, ranks):
    gangs = [RankGroup(rank=rank, world_size=ranks, device="cpu", gang_id="") for rank in range(ranks)]
    assert [place for rank_group in gangs for place in range(count)[rank_group.share_of(count)]] == list(range(count))


def listened(rank, meet):
    """Connect; return the addresses on which this process listens."""
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    connections = psutil.Process().net_connections(kind="inet")
    return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]


def test_ranks_with_the_same_samples_have_the_same_share():
    groups = [RankGroup(rank=rank, world_size=4, device="cpu", gang_id="", tensor=2) for rank in range(4)]
    assert [group.share_of(9) for group in groups] == [slice(0, 4), slice(0, 4), slice(4, 9), slice(4, 9)]


def run_on_node(asked, node):
    """Run a trial as a rank of a node with this name."""
    with patch("socket.gethostname", return_value=node):
        return run(asked)


@pytest.mark.parametrize(("nodes", "causes"), [(("a", "a"), [Cause.NONE] * 2), (("a", "b"), [Cause.REQUEST] * 2)])
def test_ranks_that_divide_layers_are_on_one_node(pair, nodes, causes):
    meet = rendezvous()
    halved = {"strategy": "fsdp", "shares": (8,), "tensor": 2, "rendezvous": meet, "gang_id": meet}
    asked = [request("trainables.noop:train", rank=rank, **halved) for rank in range(2)]
    answers = pair.call(run_on_node, *zip(asked, nodes, strict=True))
    assert [answer["cause"] for answer in answers] == causes


def test_ranks_of_one_machine_listen_on_the_loopback(pair):
    meet = rendezvous()
    first, second = pair.call(listened, (0, meet), (1, meet))
    assert set(first) | set(second) == {"127.0.0.1"}


def rank_local(rank, meet):
    def work():
        return 1 // (1 - rank)

    rank_group = process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    try:
        return f"{rank_group.rank_local(lambda: rank)} {rank_group.rank_local(work)}"
    except (ZeroDivisionError, ConnectionAbortedError) as error:
        return repr(error)


def test_a_failed_rank_stops_the_others(pair):
    meet = rendezvous()
    waits, failed = pair.call(rank_local, (0, meet), (1, meet))
    assert failed.startswith("ZeroDivisionError") and waits.startswith("ConnectionAbortedError('connection closed: ")


def test_a_rank_keeps_its_own_error():
    class Deaf(RankGroup):
        def largest(self, *values):
            raise RuntimeError("the device does nothing any more")

    def work():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Deaf(rank=0, world_size=2, device="cpu", gang_id="").rank_local(work)

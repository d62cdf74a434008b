import pytest

from trainables.context import Batch, Context
from trainables.rank_environment import rank_environment


def test_a_rank_is_the_only_one_of_its_node():
    batch = Batch(global_batch_size=64, shares=(32, 32))
    context = Context.alone(rank=1, world_size=2, batch=batch, rendezvous="tcp://10.0.0.1:1234")
    told = rank_environment(context)
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"], told["NODE_RANK"]) == ("1", "2", "0", "1")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "1234")


def test_a_single_rank_has_nobody_to_meet():
    assert rank_environment(Context.alone()) == {}


@pytest.mark.parametrize("rendezvous", [None, "file:///tmp/x", "tcp://host"])
def test_several_need_a_place(rendezvous):
    with pytest.raises(ValueError, match="need tcp://host:port"):
        rank_environment(Context.alone(world_size=2, rendezvous=rendezvous))

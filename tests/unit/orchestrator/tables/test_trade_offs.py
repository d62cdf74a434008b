"""The tables of what GPUs are worth, and of the cells that nothing beats."""

from orchestrator.decision.recommendation import GpuCount, Recommendation, TradeOff
from orchestrator.tables.trade_offs import front_table, gpu_count_table

SLOW, FAST, ACCURATE = (
    TradeOff(cell_id=name, name=name, time_s=time_s, val_accuracy=val_accuracy, cost=1.0)
    for name, time_s, val_accuracy in (("slow", 3.0, 0.90), ("fast", 1.0, 0.89), ("accurate", 4.0, 0.95))
)
BESTS = tuple(GpuCount(gpus=gpus, name=f"{gpus} GPUs", best=best) for gpus, best in ((1, SLOW), (2, FAST)))


def found(*front: TradeOff) -> Recommendation:
    return Recommendation(
        objective="time", measure="", margin=0.01, lead="", provisional=False, front=front, gpu_counts=BESTS
    )


def test_cells_that_nothing_beats_are_listed_unless_the_gpu_counts_have_them_all() -> None:
    assert gpu_count_table(found(FAST, SLOW)) is not None and front_table(found(FAST, SLOW)) is None
    assert (listed := front_table(found(FAST, ACCURATE))) is not None and len(listed.frame) == 2

from dataclasses import replace

from orchestrator.config.request import Terms
from orchestrator.decision.recommendation import GpuCount, Recommendation, TradeOff, remark
from orchestrator.tables.choice_cells import front_table, gpu_count_table

SLOW, FAST, ACCURATE = (
    TradeOff(cell_id=name, name=name, time_s=time_s, metric=val_accuracy, cost=1.0)
    for name, time_s, val_accuracy in (("slow", 3.0, 0.90), ("fast", 1.0, 0.89), ("accurate", 4.0, 0.95))
)
CHOICE = Recommendation(
    terms=Terms(),
    measure="time",
    cell_id="a",
    headline=remark("not_made"),
    provisional=True,
    gpu_counts=tuple(GpuCount(gpus=gpus, name=f"{gpus} GPUs", best=best) for gpus, best in ((1, SLOW), (2, FAST))),
)


def test_the_front_is_omitted_if_gpu_counts_cover_it() -> None:
    assert gpu_count_table(CHOICE) is not None and front_table(replace(CHOICE, front=(FAST, SLOW))) is None
    listed = front_table(replace(CHOICE, front=(FAST, ACCURATE)))
    assert listed is not None and len(listed.frame) == 2

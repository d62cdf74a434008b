import pytest

from orchestrator.analysis.trials import collect
from orchestrator.report.matplotlib import bars_svg
from orchestrator.report.plots import why_not_linear
from tests.unit.orchestrator.report import demo

STEP = {"step_s": 1.0, "step_data_s": 0.1, "step_host_s": 0.1, "step_communication_s": 0.0, "step_imbalance_s": 0.0}

CAPTURED = {"step_s": 1.0, "step_data_s": 0.1}


def test_a_bar_adds_up_to_an_ideal_speedup_and_names_the_remedy() -> None:
    one, other = demo.records()[0], demo.records()[27 + 9]
    metrics = {**STEP, "step_compute_s": 0.8, "samples_per_s": 1000.0}
    waiting = {**metrics, "samples_per_s": 1600.0, "step_communication_s": 0.2, "step_compute_s": 0.64}
    same = {"device_batch_size": 32, "lr_rule": "none", "seed": 0}
    records = [
        demo.replaced(one, gpus=1, global_batch_size=32, metrics=metrics, **same),
        demo.replaced(other, gpus=2, global_batch_size=64, metrics=waiting, status=one.status, note="", **same),
    ]
    plot = why_not_linear(collect(records, scaling="weak")[1])
    assert len(plot.bars) == 1 and sum(plot.bars[0].parts) == pytest.approx(1)
    assert plot.bars[0].parts[0] == pytest.approx(0.8)
    assert dict(zip(plot.legend, plot.bars[0].parts, strict=True))["exchanging gradients"] == pytest.approx(0.2)
    assert any("exchanging gradients" in remark for remark in plot.remarks)
    assert "2×32" in bars_svg(plot).decode()


def test_without_the_parts_of_a_step_it_is_not_measured() -> None:
    assert not why_not_linear(collect(demo.records()[:3], scaling="weak")[1]).is_drawn


def test_captured_steps_are_drawn_as_far_as_they_are_known() -> None:
    one, other = demo.records()[0], demo.records()[27 + 9]
    same = {"device_batch_size": 32, "lr_rule": "none", "seed": 0, "status": one.status, "note": ""}
    records = [
        demo.replaced(one, gpus=1, global_batch_size=32, metrics={**CAPTURED, "samples_per_s": 1000.0}, **same),
        demo.replaced(other, gpus=2, global_batch_size=64, metrics={**CAPTURED, "samples_per_s": 1600.0}, **same),
    ]
    plot = why_not_linear(collect(records, scaling="weak")[1])
    drawn = dict(zip(plot.legend, plot.bars[0].parts, strict=True))
    assert (drawn["kept"], drawn["the rest"]) == (pytest.approx(0.8), pytest.approx(0.18))
    assert "Where steps are captured, the rest is everything but waiting for data." in plot.remarks
    assert "2×32" in bars_svg(plot).decode()

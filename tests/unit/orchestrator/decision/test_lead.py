"""What a decision begins with where nothing is recommended."""

from orchestrator.collection.collector import collect
from orchestrator.config.terms import Terms
from orchestrator.decision.claim import Claim
from orchestrator.decision.claims import verdicts
from orchestrator.decision.decision import decide
from orchestrator.journal.record import TrialRecord
from orchestrator.tables.recommendation import recommendation_markdown
from tests.unit.orchestrator.decision.deciding import AXES, RecordOf, measured


def test_cells_of_different_work_get_no_recommendation(records: list[TrialRecord]) -> None:
    claims = [Claim.of({"sentence": each, "expression": each}) for each in ("gpus(gpus=2) > 1.5", "accuracy() > 2")]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    found = decide(*frames, Terms(objective="none", axes=AXES), verdicts(claims, *frames))
    assert (found.cell_id, found.provisional, found.more_seeds, found.front) == (None, False, (), ())
    assert found.sentence == (
        "Claims: 1 confirmed, 1 inconclusive. The largest speed-up is 3.00× [3.00, 3.00], 75% of the ideal, for 4 GPUs"
        " with a batch of 32 each (128 in all). Nothing is recommended, as requested (report.objective=none)."
    )
    assert recommendation_markdown(found, "demo").startswith("# In short: demo\n\n**Claims: 1 confirmed")


def test_a_sweep_that_no_more_gpus_speed_up_says_so(record_of: RecordOf) -> None:
    frames = collect([record_of(g, metrics=measured(100 / g, 0.9)) for g in (1, 2)], scaling="weak")
    told = decide(*frames, Terms(objective="none", axes=AXES)).sentence
    assert told.startswith(
        "No cell is faster with more GPUs: the best speed-up is 0.50×, 25% of the ideal, for 2 GPUs with a batch of 32"
    )


def test_the_largest_speed_up_is_one_whose_timing_is_valid(record_of: RecordOf) -> None:
    def told(*timings: str) -> str:
        records = [
            record_of(g, metrics=measured(90 * g, 0.9), timing=each) for g, each in zip((1, 2, 4), timings, strict=True)
        ]
        return decide(*collect(records, scaling="weak"), Terms(objective="none", axes=AXES)).sentence

    assert "The largest speed-up is 2.00×, 100% of the ideal, for 2 GPUs with a batch of 32 each " in told(
        "device", "device", "shared"
    )
    assert "(128 in all) (its timing is not valid)." in told("device", "shared", "shared")

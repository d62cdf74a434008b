import pytest

from orchestrator.config.request import Metric
from orchestrator.tables.accuracy import accuracy_frame, accuracy_markdown, shown_column, why_none
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.tables.markdown import table_rows


def test_accuracies_are_compared_with_the_reference_batch(records):
    text = accuracy_markdown(collect(records, scaling="weak", reference_batch_size=32)[1])
    assert [tuple(row.values()) for row in table_rows(text)] == [
        ("1×32", "32", "0.950 [0.823, 1.000] (reference)", ""),
        ("2×32", "64", "0.920 [0.793, 1.000] ▼", "0.940 (oom, 1 of 2 ok)"),
        ("4×32", "128", "0.950 ± 0.000", ""),
        ("8×32", "256", "", "infeasible"),
    ]
    assert list(table_rows(text)[0]) == ["cell", "global batch", "none", "sqrt"]
    assert [line.partition(": ")[0] for line in text.splitlines() if line.startswith("- ")] == [
        *("- 2×32 none", "- 2×32 sqrt", "- 8×32 sqrt")
    ]
    assert "- 2×32 none: -0.030 [-0.030, -0.030]" in text and "2 \\| 3 &lt;GiB>" in text


def test_a_missing_accuracy_is_explained():
    cells = collect([record_of(gpus, metrics={"samples_per_s": 100 * gpus}) for gpus in (1, 2)], scaling="strong")[1]
    assert why_none(cells) and why_none(cells) in accuracy_markdown(cells)


def test_other_metrics_follow():
    records = [record_of(1, seed, metrics={"accuracy": 0.9, "perplexity": 12.0}) for seed in (0, 1)]
    text = accuracy_markdown(collect(records, scaling="weak")[1])
    assert table_rows(text.partition("Other metrics")[2]) == [{"cell": "1×32 none", "perplexity": "12.0 [12.0, 12.0]"}]


def test_without_a_reference_nothing_is_compared():
    cells = collect([record_of(gpus, metrics={"accuracy": 0.9}) for gpus in (1, 2)], scaling="strong")[1]
    assert "Not compared:" in accuracy_markdown(cells)


LOSS = Metric(name="val_loss", higher_is_better=False)


@pytest.mark.parametrize(
    ("metrics", "metric", "text"),
    [
        ([{"val_accuracy": 0.91}], Metric(), "0.910"),
        # t(2) = 4.303, s = .01
        ([{"val_accuracy": 0.9 + seed / 100} for seed in range(3)], Metric(), "0.910 ± 0.025"),
        ([{"val_accuracy": 0.3, "val_loss": 2.5}] * 2, LOSS, "2.500 ± 0.000"),
    ],
)
def test_the_metric_of_choice_replaces_a_missing_test_accuracy(metrics, metric, text):
    cells = collect(
        [record_of(1, seed, metrics=seed_metrics) for seed, seed_metrics in enumerate(metrics)], scaling="weak"
    )[1]
    assert shown_column(cells, metric) == metric.name
    assert [row["none"] for row in table_rows(accuracy_markdown(cells, metric))] == [text]
    assert why_none(cells, Metric(name="perplexity"))


@pytest.mark.parametrize(("name", "steps"), [("accuracy", (2, 9)), ("val_accuracy", (2, 2))])
def test_accuracies_after_a_few_steps_are_hidden(name, steps):
    records = [
        record_of(2**i, metrics={name: 0.1 + i / 100, "steps": step_count}) for i, step_count in enumerate(steps)
    ]
    cells = collect(records, scaling="weak", reference_batch_size=32)[1]
    assert "10 optimizer steps" in why_none(cells) and "0.1" not in accuracy_markdown(cells)


def test_few_steps_beside_many_are_marked():
    records = [record_of(2**i, metrics={"accuracy": 0.1 + i / 100, "steps": n}) for i, n in enumerate((10, 1, 2))]
    frame = accuracy_frame(collect(records, scaling="weak", reference_batch_size=32)[1])
    assert frame["none"].tolist() == ["0.100 (reference)", "0.110 (1 step)", "0.120 (2 steps)"]


def test_document_without_trials_is_short():
    assert accuracy_markdown(collect([], scaling="weak")[1]).startswith("# Accuracy\n\n")

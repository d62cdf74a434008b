from orchestrator.journal.history import difference, ends_under, latest, probes_under
from orchestrator.journal.line import Kind, Record
from tests.unit.orchestrator.plan.planned import TRIALS, ended


def asked(**config):
    return Record(kind=Kind.SWEEP, value={"asked": config})


def end(trial):
    return Record(kind=Kind.FINISHED, value=ended(trial).to_json())


def test_ends_count_only_where_the_same_was_asked():
    journal = [asked(epochs=1), end(TRIALS[0]), asked(epochs=2), end(TRIALS[1]), asked(epochs=1), end(TRIALS[2])]
    assert set(ends_under(journal, {"epochs": 1})) == {TRIALS[0].trial_id, TRIALS[2].trial_id}
    assert set(ends_under(journal, {"epochs": 2})) == {TRIALS[1].trial_id}
    assert latest(journal) == {"epochs": 1}


def test_probes_count_only_where_the_same_was_asked_and_the_last_of_a_speed_does():
    def probed(speed, wall_s):
        return Record(kind=Kind.PROBED, value={"speed": speed, "wall_s": wall_s})

    journal = [asked(epochs=1), probed("slow", 9), asked(epochs=2), probed("slow", 1), asked(epochs=1)]
    journal += [probed("fast", 2), probed("fast", 3)]
    told = {speed: value["wall_s"] for speed, value in probes_under(journal, {"epochs": 1}).items()}
    assert told == {"slow": 9, "fast": 3}
    assert probes_under(journal, {"epochs": 3}) == {}


def test_a_fresh_journal_has_no_history():
    assert latest([]) is None and ends_under([], {}) == {}


def test_keys_that_changed_alike_share_a_line():
    before = {"source": {"a:train": "1f", "a:Model": "1f", "b": "3c"}, "epochs": 1}
    now = {"source": {"a:train": "2e", "a:Model": "2e", "b": "4d"}, "epochs": 1}
    assert difference(before, now) == ["source.a:train, source.a:Model: '1f' → '2e'", "source.b: '3c' → '4d'"]


def test_a_difference_names_keys_and_both_values():
    before = {"config": {"budget": {"epochs": 1}, "gone": 1}, "source": "a"}
    now = {"config": {"budget": {"epochs": 2}}, "source": "a", "new": {}}
    assert difference(before, now) == [
        "config.budget.epochs: 1 → 2",
        "config.gone: 1 → (absent)",
        "new: (absent) → {}",
    ]

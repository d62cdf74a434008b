import io
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator.config.request import Metric
from orchestrator.run import live_view as display_module
from orchestrator.run.interim_results import InterimResults
from orchestrator.run.live_view import Display
from orchestrator.schedule.time_left import TimeLeft
from orchestrator.store.record import TrialOutcome
from orchestrator.telemetry.timing_gate import FAULTS, OUTVOTED, VALID, Fault, Judgement
from sweeps.rank_exit import Cause
from sweeps.trial import Purpose
from tests.unit.orchestrator.plan.planned import TRIALS

AXES = "1×8 none, seed=0"
DISTURBED = Judgement(fault=Fault.DISTURBED, reasons=["others took 40% of the cores' time"])


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def watched(screen):
    with Display(screen, waiting=TRIALS[:2]) as display:
        assert display.left_s() is None
        for trial in TRIALS[:2]:
            display.started(trial)
            display.reported(trial, [{"epoch": 3, "loss": 0.25, "val_accuracy": 0.5}])
            display.refresh()
        display.finished(TRIALS[0], TrialOutcome(wall_s=1.5, metrics={"val_accuracy": 0.75}))
        display.finished(TRIALS[1], TrialOutcome(cause=Cause.ERROR, wall_s=2.0, note="it broke [sic]"))
        assert display.left_s() == 0
    return screen.file.getvalue()


def test_without_a_terminal_a_trial_is_one_line():
    lines = watched(console(terminal=False)).splitlines()
    assert lines == [
        f"[1/2] ok          1.5 s  {TRIALS[0].trial_id[:8]}  {AXES}  val acc 0.7500",
        f"[2/2] failed      2.0 s  {TRIALS[1].trial_id[:8]}  1×8 none, seed=1  it broke [sic]",
    ]


@pytest.mark.parametrize(("cause", "times"), [(Cause.NONE, 1), (Cause.ERROR, 2)])
def test_a_note_that_ok_trials_share_is_printed_once(cause, times):
    screen = console(terminal=False)
    with Display(screen, waiting=TRIALS[:2]) as display:
        for trial in TRIALS[:2]:
            display.started(trial)
            display.finished(trial, TrialOutcome(cause=cause, wall_s=1.0, note="nothing reports an accuracy"))
    assert screen.file.getvalue().count("nothing reports an accuracy") == times


@pytest.mark.parametrize(
    ("trials", "line"),
    [
        (TRIALS[:1], f"infeasible  {TRIALS[0].trial_id[:8]}  {AXES}  needs 4 ranks\n"),
        (TRIALS[:2], "infeasible  2 trials: needs 4 ranks\n"),
    ],
)
def test_skipped_trials_with_one_reason_share_a_line(trials, line):
    screen = console(terminal=False)
    with Display(screen, waiting=TRIALS[:0]) as display:
        end = TrialOutcome(cause=Cause.NO_ROOM, wall_s=0.0, note="needs 4 ranks")
        display.skipped([(trial, end) for trial in trials])
    assert screen.file.getvalue() == line


def test_a_terminal_shows_running_trials_and_the_best():
    shown = watched(console(terminal=True))
    assert "2 running, 0 waiting" in shown and "0.25" in shown
    assert f"0.7500, {AXES}" in shown
    assert "it broke [sic]" in shown


def test_a_disturbed_trial_is_marked():
    shown = {}
    for terminal in (True, False):
        with Display(console(terminal), waiting=TRIALS[:2]) as display:
            for trial, judgement in zip(TRIALS[:2], (VALID, DISTURBED), strict=True):
                display.started(trial)
                display.finished(trial, TrialOutcome(wall_s=1.5), judgement)
            shown[terminal] = display._console.file.getvalue()
    live = shown[True].splitlines()
    assert any(TRIALS[1].trial_id[:8] in line and "disturbed" in line for line in live)
    assert not any(TRIALS[0].trial_id[:8] in line and "disturbed" in line for line in live)
    assert "2 ok (timings: 1 disturbed)" in shown[True]
    assert "disturbed (others took 40%" in shown[False] and shown[False].count("disturbed") == 1


def test_a_valid_repetition_replaces_a_disturbed_timing():
    trial = replace(TRIALS[0], axes={**TRIALS[0].axes, "repetition": True}, purpose=Purpose.WINDOW)
    repetition = replace(trial, measures=TRIALS[0].trial_id)
    shown = shown_after([(TRIALS[0], 100.0, DISTURBED), (repetition, 120.0, VALID)])
    assert "timings:" not in shown and "120 samples/s" in shown and "repetition" not in shown


@pytest.mark.parametrize(
    ("cause", "disturbed", "remaining"),
    [(Cause.NONE, "", 0), (Cause.ERROR, "", 1), (Cause.NONE, "it ran on other hardware, or with other software", 1)],
)
def test_a_repetition_that_failed_or_is_discarded_replaces_no_timing(cause, disturbed, remaining):
    repetition = replace(TRIALS[0], trial_id="again", purpose=Purpose.WINDOW, measures=TRIALS[0].trial_id)
    with Display(console(terminal=False), waiting=TRIALS[:2]) as display:
        display.finished(TRIALS[0], TrialOutcome(wall_s=1.5, metrics={"samples_per_s": 100.0}), DISTURBED)
        outcome = TrialOutcome(cause=cause, wall_s=1.5, metrics={"samples_per_s": 120.0})
        display.finished(repetition, outcome, VALID, disturbed)
        invalid = display._interim.invalid()
        assert sum(map(len, invalid.values())) == remaining
        assert any("fastest" in line for line in display._interim.lines()) is not bool(remaining)


def test_a_speed_that_is_not_known_has_its_reason_and_remedy():
    two = replace(TRIALS[1], gpus=2.0, device="cuda")
    shown = shown_after([(TRIALS[0], 100.0, DISTURBED), (two, 200.0, DISTURBED)])
    assert "no speed so far, timings: 2 disturbed" in shown and DISTURBED.reasons[0] in shown and "mode=settle" in shown
    shown = shown_after([(TRIALS[0], 100.0, VALID), (two, 200.0, DISTURBED)])
    assert "no speed of 2 GPUs so far, timings: 1 disturbed" in shown and "100 samples/s" in shown


def test_a_fault_without_reasons_has_no_empty_list_of_them():
    live = shown_after([(TRIALS[0], 100.0, OUTVOTED)])
    with Display(console(terminal=False), waiting=TRIALS[:1]) as display:
        display.finished(TRIALS[0], TrialOutcome(wall_s=1.5), OUTVOTED)
        line = display._console.file.getvalue().rstrip()
    word = FAULTS[Fault.STRAGGLER][0]
    assert f"timings: 1 {word}. " in live and line.endswith(word)


def test_text_of_trials_is_never_markup():
    screen = console(terminal=True)
    with Display(screen, waiting=TRIALS[:1]) as display:
        display.started(TRIALS[0])
        display.finished(TRIALS[0], TrialOutcome(cause=Cause.ERROR, wall_s=0.0, note="[red]not markup[/]"))
    assert "[red]not markup[/]" in screen.file.getvalue()


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ({"samples_per_s": 10663.2, "val_accuracy": 0.97222}, "samples/s 10,663  val acc 0.9722"),
        ({"samples_per_s": 10663.2, "sequence_length": 100}, "tokens/s 1,066,320"),
        ({"tokens_per_s": 5.5}, "tokens/s 5.5"),
    ],
)
def test_figures_of_an_ended_trial_are_written_out(figures, shown):
    screen = console(terminal=False)
    with Display(screen, waiting=TRIALS[:1]) as display:
        display.started(TRIALS[0])
        display.finished(TRIALS[0], TrialOutcome(wall_s=1.5, metrics=figures))
    assert screen.file.getvalue().rstrip().endswith(shown)


def test_waiting_without_a_running_trial_is_explained_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display_module.time, "monotonic", lambda: now[0])
    screen = console(terminal=False)
    with Display(screen, waiting=TRIALS[:2]) as display:
        for now[0] in (5.0, display_module.IDLE_S + 1.0, display_module.IDLE_S + 2.0):
            display.refresh()
        assert screen.file.getvalue().count("2 trials wait") == 1
        display.started(TRIALS[0])
        now[0] += 100
        display.refresh()
        display.finished(TRIALS[0], TrialOutcome(wall_s=100.0))
        display.refresh()
    assert screen.file.getvalue().count("nothing has started") == 1


def test_a_narrow_terminal_shows_whole_labels_below_messages():
    screen = Console(file=io.StringIO(), force_terminal=True, width=50, color_system=None)
    with Display(screen, waiting=TRIALS[:1]) as display:
        display.started(TRIALS[0])
        display.refresh()
        assert display.say
        display.say("interrupted")
    told, table = screen.file.getvalue(), ""
    assert told.rindex("interrupted") < told.rindex("running")
    lines = told.rpartition("1 running")[2].splitlines()
    (head,) = [line for line in lines if line.startswith("trial") and "cell" in line]
    for line in lines[lines.index(head) + 1 :]:
        table += line[head.index("cell") : head.index("val acc")].strip()
    assert AXES.replace(" ", "") in table.replace(" ", "") and "…" not in told
    assert Display(console(terminal=False), waiting=TRIALS[:1]).say is None


def test_time_left_ignores_the_start_of_the_first_trial(monkeypatch):
    now = [0.0]
    eight = [replace(TRIALS[0], trial_id=str(number)) for number in range(8)]
    monkeypatch.setattr(display_module.time, "monotonic", lambda: now[0])
    with Display(console(terminal=False), waiting=eight) as display:

        def take(trials, seconds):
            for trial in trials:
                display.started(trial)
            now[0] += seconds
            for trial in trials:
                display.finished(trial, TrialOutcome(wall_s=seconds))

        now[0] = 100.0  # Ray has started
        take(eight[:1], 60)
        assert display.left_s() is None  # an unknown part of it was the start of its processes
        take(eight[1:2], 10)
        take(eight[2:3], 10)
        assert display.left_s() == 5 * 10
        take(eight[3:5], 10)  # two at once: four trials in 30 s
        assert display.left_s() == pytest.approx(3 * 30 / 4)
        take(eight[5:], 10)
        assert display.left_s() == 0


def shown_after(outcomes, height=40, **given):
    """Return the last picture of a live table after these ends of (trial, rate, judgement of its timing)."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, height=height, color_system=None)
    with Display(screen, waiting=TRIALS, **given) as display:
        for trial, rate, judgement in outcomes:
            display.started(trial)
            metrics = {"samples_per_s": rate, "val_accuracy": 0.17}
            display.finished(trial, TrialOutcome(wall_s=1.5, metrics=metrics), judgement)
        text = screen.file.getvalue()
    return text[text.rindex("0 running") :]


def test_the_leader_and_the_speed_up_so_far_come_from_undisturbed_timings():
    two = replace(TRIALS[1], gpus=2.0, device="cuda")
    shown = shown_after([(TRIALS[0], 100.0, VALID), (two, 150.0, VALID), (two, 900.0, DISTURBED)])
    assert (
        "2 GPUs 1.50× (2×8 against 1×8)" in shown
        and "150 samples/s" in shown.partition("fastest so far")[2].splitlines()[0]
    )


def test_a_failed_trial_is_no_best():
    display = Display(console(terminal=False), waiting=TRIALS[:2], interim=InterimResults(Metric(), 0.02))
    for trial, status, accuracy in ((TRIALS[0], Cause.NONE, 0.9), (TRIALS[1], Cause.ERROR, 0.97)):
        metrics = {"samples_per_s": 100.0, "val_accuracy": accuracy}
        display.finished(trial, TrialOutcome(cause=status, wall_s=1.0, metrics=metrics))
    told = "\n".join(display._interim.lines())
    assert "100 samples/s" in told and "0.9000" in told and "0.97" not in told


def test_a_rate_of_zero_gives_no_speed_up():
    two = replace(TRIALS[1], gpus=2.0, device="cuda")
    shown = shown_after([(TRIALS[0], 0.0, VALID), (two, 150.0, VALID)])
    assert "150 samples/s" in shown and "speed-up" not in shown


@pytest.mark.parametrize("purpose", [Purpose.WINDOW, Purpose.REPETITION])
def test_a_repeated_timing_has_a_rate_but_no_accuracy(purpose):
    trial = replace(TRIALS[0], purpose=purpose, measures="abc")
    shown = shown_after([(trial, 100.0, VALID)])
    assert "timed again" in shown and "100 samples/s" in shown and "0.17" not in shown
    with Display(console(terminal=False), waiting=TRIALS[:1]) as display:
        display.finished(trial, TrialOutcome(wall_s=1.5, metrics={"val_accuracy": 0.17}))
        assert display._console.file.getvalue().rstrip().endswith("timed again")


@pytest.mark.parametrize(("height", "count"), [(40, 10), (14, 8)])
def test_the_last_ended_trials_are_shown_as_far_as_the_terminal_is_high_enough(height, count):
    shown = shown_after([(TRIALS[0], 100.0, VALID)] * 12, height)
    assert shown.count(TRIALS[0].trial_id[:8]) == count


def test_results_are_gone_through_only_when_a_trial_has_ended(monkeypatch):
    passes = []
    for name in ("lines", "invalid"):
        original = getattr(InterimResults, name)
        monkeypatch.setattr(InterimResults, name, lambda self, of=original: passes.append(of) or of(self))
    with Display(console(terminal=True), waiting=TRIALS[:2]) as display:
        for trial in TRIALS[:2]:
            display.started(trial)
            display.finished(trial, TrialOutcome(wall_s=1.5, metrics={"samples_per_s": 100.0}), DISTURBED)
            known = len(passes)
            display.refresh()
            assert len(passes) == known > 0
    shown = display._console.file.getvalue()
    assert "no speed so far, timings: 2 disturbed" in shown and "2 ok (timings: 2 disturbed)" in shown


def test_the_time_left_is_the_plans_at_the_pace_so_far():
    time_left = TimeLeft()
    time_left.queued({"a": 10.0, "b": 10.0, "c": 20.0, "copy": 0.0})
    assert time_left.left_s(99.0, []) == 40
    time_left.started(100.0)
    assert time_left.left_s(104.0, ["a"]) == 36
    assert time_left.left_s(115.0, ["a"]) == 30  # its processes had to start
    assert time_left.left_s(150.0, ["a"]) == 48.75  # it is overdue: the other two take longer, too
    time_left.ended("a", 150.0)
    assert time_left.left_s(150.0, ["b"]) == 48.75  # and its end changes nothing
    time_left.ended("probe", 151.0)
    time_left.ended("copy", 151.0)
    time_left.queued({"d": None})
    for trial_id in ("b", "c", "d"):
        assert time_left.left_s(160.0, [trial_id]) > 0
        time_left.ended(trial_id, 160.0)
    assert time_left.left_s(161.0, []) == 0
    unknown, settling = TimeLeft(), TimeLeft()
    unknown.queued({"a": None})
    settling.queued({})
    settling.queued({"e": 5.0})  # nothing was to run before
    assert (unknown.left_s(0.0, []), settling.left_s(0.0, [])) == (None, 5)


@pytest.mark.parametrize(("rule", "told"), [("linear", "= linear's"), ("none", f"= {TRIALS[1].trial_id[:8]}'s")])
def test_a_trial_with_the_timing_of_another_one_says_so(rule, told):
    trial = TRIALS[0].with_settings(timed_with=TRIALS[1].trial_id)
    other = replace(TRIALS[1], lr=replace(TRIALS[1].lr, rule=rule))
    shown = {}
    for terminal in (True, False):
        with Display(console(terminal), waiting=TRIALS[:2]) as display:
            display.started(other)
            display.started(trial)
            display.finished(trial, TrialOutcome(wall_s=1.5))
            shown[terminal] = display._console.file.getvalue()
    assert told in shown[True] and TRIALS[1].trial_id[:8] in shown[False]


def test_one_repetition_may_serve_several_disturbed_trials():
    with Display(console(terminal=True), TRIALS[:2], InterimResults(Metric(), repeats=1.0)) as display:
        for trial in TRIALS[:2]:
            display.started(trial)
            display.finished(trial, TrialOutcome(wall_s=10.0), DISTURBED)
        display.refresh()
        assert "2 disturbed, up to 2 timed again" in display._console.file.getvalue()


def test_the_time_left_has_the_repetitions_that_are_known():
    shares_s = {trial.trial_id: 10.0 for trial in TRIALS[:2]}
    with Display(console(terminal=True), TRIALS[:2], InterimResults(Metric(), repeats=0.1), shares_s) as display:
        for trial in TRIALS[:2]:
            display.started(trial)
            display.finished(trial, TrialOutcome(wall_s=10.0), DISTURBED)
        assert display.left_s() == pytest.approx(10, rel=0.5)
        display.refresh()
        assert "(timings: 2 disturbed, 1 timed again at the end)" in display._console.file.getvalue()
        display.queued({"again": 5.0}, "timed again")
        assert display.left_s() < 6


def test_the_counts_are_those_of_the_trials_however_they_end():
    screen = console(terminal=True)
    probe, repetition = (
        replace(TRIALS[0], trial_id=f"{kind}-{TRIALS[0].trial_id}", measures=TRIALS[0].trial_id) for kind in "pr"
    )
    slow, no_money = (TrialOutcome(note=rule, wall_s=0.0, skipped_by=rule) for rule in ("phases", "budget"))
    shown = []

    def count():
        display.refresh()
        title = next(line for line in screen.file.getvalue().splitlines()[::-1] if "waiting" in line)
        (bar,) = display._bar.tasks
        shown.append((title[title.index("running") - 2 :].strip(), bar.completed, bar.total))

    with Display(screen, waiting=TRIALS[:3]) as display:
        display.started(probe)
        count()
        display.finished(probe, TrialOutcome(wall_s=1.0))
        display.started(TRIALS[0])
        display.retried(TRIALS[0], TrialOutcome(cause=Cause.ERROR, wall_s=1.0))
        count()
        display.started(TRIALS[0])
        display.finished(TRIALS[0], TrialOutcome(wall_s=1.0))
        display.queued(dict.fromkeys((repetition.trial_id, TRIALS[3].trial_id)), "further")
        count()
        display.dequeued([*TRIALS[1:4], repetition])
        display.skipped([(TRIALS[1], slow), (TRIALS[2], no_money), (repetition, no_money)])
        count()
        assert display.left_s() == 0
    assert shown == [
        ("1 running, 3 waiting", 0, 4),
        ("0 running, 3 waiting, 1 ok", 1, 4),
        ("0 running, 4 waiting, 2 ok", 2, 6),
        ("0 running, 0 waiting, 2 ok, 2 skipped", 4, 4),
    ]


def test_a_timing_that_another_trial_replaces_is_not_counted_as_disturbed():
    with Display(console(terminal=False), waiting=TRIALS[:2]) as display:
        for trial in TRIALS[:2]:
            display.started(trial)
            display.finished(trial, TrialOutcome(wall_s=1.5, metrics={"samples_per_s": 9.0}), DISTURBED)
        display.timed_with({TRIALS[0].trial_id: TRIALS[1].trial_id, "unknown": TRIALS[1].trial_id})
        display.timed_with({TRIALS[0].trial_id: TRIALS[1].trial_id})
        assert sum(map(len, display._interim.invalid().values())) == 1
        told = display._console.file.getvalue()
    assert told.count("disturbed or doubtful: 1 timing is replaced by that of other trials") == 1

"""Prints the end of a sweep on at most 24 lines: the verdict, the candidates, and what to know about them.

The verdict is in the first and the last sentence, because the first one may have scrolled away. No meaning depends on
colour alone, and rich omits colours if NO_COLOR is set. Lines wrap, and nothing is cut. Everything else is in files.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.recommendation import CLEAR, NO_OBJECTIVE
from orchestrator.store.results import Problem
from orchestrator.tables.candidates import Candidates, Column
from orchestrator.tables.recommendation import RecommendationText, cost_of_settling, in_sentences
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.telemetry.timing_gate import FOREIGN_CPU, SHORTEST_WINDOW_S, SLOWER, SWAPPED_PAGES, Fault
from orchestrator.text.numbers import counted, duration, one_line
from orchestrator.text.rows import not_ok_by_status
from sweeps.status import Status

MOST_LINES = 24
"""The lines of a usual terminal."""

_UNLIMITED = 10_000
"""The width of a log, whose reader wraps the lines."""

_INDENT = 15
"""Width of the labels before the lines below the table."""

_LEAST_LABEL = 16
"""The fewest characters for the cells' labels."""

_BEFORE_RANK = 4, 36
"""Columns of this rank or a higher one leave that much room for labels, where labels need it."""

_STYLES = {CLEAR: "bold green"}
"""By verdict; others are yellow."""


def show(end: SweepEnd, console: Console) -> None:
    """Print the last lines of a sweep; if no trial has ended, its problems and where its journal is."""
    if end.trials.empty:
        show_problems(end.problems, console)
        console.print(f"journal: {end.layout.journal}", markup=False, soft_wrap=True)
        return
    for line in lines_of(end, console.width if console.is_terminal else _UNLIMITED):
        console.print(line, soft_wrap=True)


def show_problems(problems: Iterable[Problem], console: Console) -> None:
    """Print a line for each problem."""
    for problem in problems:
        console.print(f"{problem.label}: {problem}", markup=False, soft_wrap=True)


def lines_of(end: SweepEnd, width: int) -> list[Text]:
    """Return the lines; with fewer candidates, then with fewer facts, if there would be more than MOST_LINES."""
    text = in_sentences(end.recommendation)
    facts = _facts(end, text)
    most_rows = [(rows, len(facts), True) for rows in range(8, 3, -1)]
    # A safer cell or a rival, as the third row, is worth more than facts that answer no usual question.
    counts = range(len(facts), sum(rank <= 1 for rank, *_ in facts) - 1, -1)
    three_rows = [(3, count, has_space) for has_space in (True, False) for count in counts]
    fewer_facts = [(2, count, False) for count in range(len(facts), -1, -1)]
    lines: list[Text] = []
    for rows, count, has_space in [*most_rows, *three_rows, *fewer_facts, (0, 0, False)]:
        lines = [
            *_wrapped(_heading(end), width, style="dim"),
            *_headline(text, width),
            *_block(_table(Candidates.of(end.recommendation, rows), width), has_space=has_space),
            *_block([*_most_valuable(facts, count, width), *_next(end, text, width)], has_space=has_space),
            _last(text, str(end.layout.page if end.has_page else end.layout.tables)),
        ]
        if sum(max(1, math.ceil(line.cell_len / width)) for line in lines) <= MOST_LINES:
            break
    return lines


def _block(lines: Sequence[Text], *, has_space: bool) -> list[Text]:
    """Return the lines below an empty one, which is left out where facts need its room."""
    return [Text(), *lines] if lines and has_space else list(lines)


def _heading(end: SweepEnd) -> str:
    """Return the sweep, its training, its devices and its counts."""
    ok = end.trials["status"] == Status.OK.value
    timed = int((ok & is_valid(end.trials["timing_valid"])).sum())
    trials = counted(len(ok), "trial", "trials")
    counts = f"{trials} ok" if ok.all() else f"{ok.sum()} of {trials} ok"
    statuses = end.trials.loc[~ok, "status"].value_counts()
    parts = [counts, *(f"{count} {status}" for status, count in statuses.items())]
    # Timings matter only where cells are compared, and there is one only of an ok trial.
    if _has_objective(end) and ok.any():
        undisturbed = "undisturbed" if ok.all() else "timings undisturbed"
        parts.append(undisturbed if timed == ok.sum() else f"{timed} of {ok.sum()} timings valid")
    devices = ["CPU" if device == "cpu" else str(device) for device in end.cells["device"].dropna().unique()]
    took = "" if end.took_s is None else f"took {duration(end.took_s)}"
    return " · ".join(filter(None, [end.sweep, end.trained(most=40), " + ".join(devices), ", ".join(parts), took]))


def _headline(text: RecommendationText, width: int) -> list[Text]:
    badge, indent = f" {text.verdict}  " if text.verdict else " ", "   "
    # The verdict is part of the text that is wrapped, and then gets another style.
    first, *others = _wrapped(f"{'_' * len(badge)}{text.lead}", width - len(indent), style="bold")
    if text.details:
        others += _wrapped(" ".join(text.details), width - len(indent))
    head = Text.assemble((badge, _style(text)), first[len(badge) :])
    return [head, *(Text.assemble(indent, line) for line in others)]


def _has_objective(end: SweepEnd) -> bool:
    """Return whether cells were compared, so that the validity of timings matters."""
    return end.recommendation.terms.report.objective != NO_OBJECTIVE


def _style(text: RecommendationText) -> str:
    return _STYLES.get(text.verdict.lower(), "bold yellow")


def _wrapped(text: str, room: int, style: str = "") -> list[Text]:
    """Return the text on as many lines as it needs, without control sequences."""
    # On one line first: a line feed within a message would break the indentation.
    plain = one_line(text, most=len(text) + 1)
    lines = textwrap.wrap(plain, max(_LEAST_LABEL, room), break_on_hyphens=False)
    return [Text(line, style) for line in lines or [""]]


def _table(candidates: Candidates | None, width: int) -> list[Text]:
    """Return the table with as many columns as fit; long labels are wrapped."""
    if candidates is None:
        return []
    room = width - len("   ")
    columns, is_divided = _fitting(candidates, room)
    widths = [_column_width(column, divided=is_divided) for column in columns]
    label_width = max(_LEAST_LABEL, room - sum(2 + column_width for column_width in widths))
    label_width = min(label_width, max(map(cell_len, [candidates.heading, *candidates.labels])))
    heads = [[line.plain for line in _wrapped(candidates.heading, label_width)]]
    heads += [_title(column, divided=is_divided) for column in columns]
    lines: list[Text] = []
    # Titles of fewer lines stand on the last ones.
    for left in reversed(range(max(map(len, heads)))):
        row = [head[-1 - left] if left < len(head) else "" for head in heads]
        lines += _row(row, widths, label_width, " ", "dim")
    for place, label in enumerate(candidates.labels):
        is_chosen = place == candidates.chosen
        row = [label, *(column.texts[place] for column in columns)]
        lines += _row(row, widths, label_width, ">" if is_chosen else " ", "bold" if is_chosen else "")
    return lines


def _row(row: Sequence[str], widths: Sequence[int], label_width: int, mark: str, style: str) -> list[Text]:
    """Return the lines of a row: its label may need several."""
    label, *values = row
    first, *others = _wrapped(label, label_width)
    text = "".join(f"  {one_line(value):>{width}}" for value, width in zip(values, widths, strict=True))
    line = f" {mark} {set_cell_size(first.plain, label_width)}{text}".rstrip()
    return [Text(line, style), *(Text(f"   {other.plain}", style) for other in others)]


def _fitting(candidates: Candidates, room: int) -> tuple[list[Column], bool]:
    """Return the columns that fit beside labels on two lines, and whether their titles take a line for each word."""
    columns: list[Column] = list(candidates.columns)
    longest = max(map(cell_len, candidates.labels))
    # From half of the longest label, because a stranger's may have 100,000 characters.
    widths = range(max(_LEAST_LABEL, longest // 2), longest + 1)
    fitting = (width for width in widths if all(len(_wrapped(label, width)) <= 2 for label in candidates.labels))
    # Characters without a width take more places than cells.
    two_lines = next(fitting, max(_LEAST_LABEL, longest))
    rank, wide = _BEFORE_RANK
    for most in sorted({column.rank for column in columns}, reverse=True):
        columns = [column for column in columns if column.rank <= most]
        least = max(two_lines, min(longest, wide)) if most >= rank else two_lines
        # A second line of titles takes less room than second lines of several labels.
        for label_room, is_divided in ((longest, False), (longest, True), (least, False), (least, True)):
            if label_room + sum(2 + _column_width(column, divided=is_divided) for column in columns) <= room:
                return columns, is_divided
    return columns, True


def _column_width(column: Column, *, divided: bool) -> int:
    return max(map(cell_len, [*_title(column, divided=divided), *column.texts]))


def _title(column: Column, *, divided: bool) -> list[str]:
    """Return the lines of a title: one, or two that are as short as its words allow."""
    if not divided:
        return [column.title]
    widths = range(max(map(len, column.title.split())), len(column.title) + 1)
    return next(
        lines for width in widths if len(lines := textwrap.wrap(column.title, width, break_on_hyphens=False)) <= 2
    )


def _facts(end: SweepEnd, text: RecommendationText) -> list[tuple[int, str, str]]:
    """Return what to know about the choice and the trials, as (rank, label, text); problems come last."""
    doubts = [*text.facts, *(_timings(end.trials) if _has_objective(end) else ())]
    not_ok = not_ok_by_status(end.cells)
    problems = [(problem.label, str(problem)) for problem in end.problems]
    problems += [document.line for document in end.documents.values() if document.line]
    return [
        # The first doubt is that of the verdict, and the first problem often the cause of the others.
        *((1, label, answer) for label, answer in text.answers),
        *((min(place, 1) * 2, label, doubt) for place, (label, doubt) in enumerate(doubts)),
        *([(1, "Not ok", not_ok)] if not_ok else []),
        *((min(place, 1) * 3, label, problem) for place, (label, problem) in enumerate(problems)),
    ]


def _most_valuable(facts: Sequence[tuple[int, str, str]], count: int, width: int) -> list[Text]:
    """Return the lines of the facts of the lowest ranks, in their order, and a line with the labels of the others."""
    kept = sorted(facts, key=lambda fact: fact[0])[:count]
    lines = [line for fact in facts if fact in kept for line in _labelled(*fact[1:], width)]
    missing = dict.fromkeys(fact[1] for fact in facts if fact not in kept)
    if missing:
        lines += _labelled("In the report", ", ".join(missing), width)
    return lines


def _labelled(label: str, text: str, width: int) -> list[Text]:
    first, *others = _wrapped(text, width - _INDENT)
    return [Text.assemble(_label(label), first), *(Text.assemble(" " * _INDENT, other) for other in others)]


def _label(label: str) -> tuple[str, str]:
    return f" {label:<{_INDENT - 1}}", "dim"


_CAUSES = (
    ("foreign_cpu", FOREIGN_CPU, "other programs, up to {:.0%} CPU"),
    ("foreign_gpu_processes", 0, "other processes on the GPUs, up to {:.0f}"),
    ("throttled_periods", 0, "the CPU quota ran out"),
    ("swapped_pages", SWAPPED_PAGES, "swapping"),
)
"""Causes of a disturbed timing: the column, the value above which it does, and words for its largest value."""


def _timings(trials: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield a line for each fault of timings, with the causes of disturbances."""
    ok = trials[trials["status"] == Status.OK.value]
    disturbed = ok[ok["timing_fault"] == Fault.DISTURBED.value]
    words = {
        Fault.DISTURBED: ("Disturbed", "; ".join(_causes(disturbed))),
        Fault.TOO_SHORT: ("Too short", f"less than {SHORTEST_WINDOW_S:g} s or 50 steps; raise the trials' budget"),
        Fault.ASSUMED_SAMPLES: ("Assumed", "steps × the trial's batch; declare trainable.samples_per_epoch"),
        Fault.TOO_FEW_WORKERS: ("Too few", "fewer processes than GPUs: nothing is known about more GPUs"),
        Fault.SEVERAL_MODELS: ("Mixed", "several device models; cluster.gpu_type chooses one"),
        Fault.STRAGGLER: ("Slow", f"{SLOWER:g} times the median time or more, against other seeds of their cell"),
        Fault.SHARED: ("Shared", "trials ran side by side; resources.timing=auto runs them alone"),
    }
    for fault, (label, why) in words.items():
        if count := int((ok["timing_fault"] == fault.value).sum()):
            yield label, f"{count} of {len(ok)} timings ({why})"


def _causes(disturbed: pd.DataFrame) -> Iterator[str]:
    """Yield the causes of these disturbances, each once."""
    # A disturbance without a measured cause was noticed by the clocks alone.
    unexplained = pd.Series(True, index=disturbed.index)
    programs = disturbed["foreign_cpu_by"].dropna() if "foreign_cpu_by" in disturbed else pd.Series(dtype=object)
    for column, limit, words in _CAUSES:
        if column not in disturbed:
            continue
        values = pd.to_numeric(disturbed[column], errors="coerce")
        if (values > limit).any():
            unexplained &= ~(values > limit)
            mostly = f", mostly {programs.mode().iloc[0]}" if column == "foreign_cpu" and len(programs) else ""
            yield words.format(values.max()) + mostly
    if unexplained.any():
        yield "slow or throttled clocks"


def _next(end: SweepEnd, text: RecommendationText, width: int) -> list[Text]:
    """Return what to do next: if a command settles the verdict, on one line, so that it can be copied."""
    if not end.recommendation.commands:
        return _labelled("Next", text.next, width) if text.next else []
    cost = f"({cost_of_settling(end.recommendation, end.trials, end.cells)})"
    # The command is never cut, so that it can be copied.
    command = one_line(end.recommendation.commands[0], most=2000)
    line = Text.assemble(_label("Next"), command)
    if line.cell_len + 3 + len(cost) <= width:
        return [line.append(f"   {cost}", "dim")]
    return [line, Text(" " * _INDENT + cost, "dim")]


def _last(text: RecommendationText, files: str) -> Text:
    report = f"report  {one_line(files, most=2000)}"
    return Text.assemble((f" {text.verdict}  ", _style(text)), report) if text.verdict else Text(f" {report}")

"""Prints the end of a sweep on at most 24 lines: the verdict, the candidates, and what to know about them.

The verdict is in the first and the last sentence, because the first one may have scrolled away. No meaning depends on
colour alone, and rich omits colours if NO_COLOR is set. Lines wrap, and nothing is cut. Everything else is in files.
"""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.recommendation import CLEAR
from orchestrator.store.results import Problem
from orchestrator.tables.candidates import Candidates, Column
from orchestrator.tables.not_counted import details_of_not_counted, not_counted
from orchestrator.tables.recommendation import RUNNER_UP, RecommendationText, cost_of_settling, in_sentences
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.text.numbers import counted, duration, one_line
from sweeps.status import Status

MOST_LINES = 20
"""A usual terminal has 24, of which the prompt and the command that is typed next take some."""

_UNLIMITED = 10_000
"""The width of a log, whose reader wraps the lines."""

_INDENT = 15
"""Width of the labels before the lines below the table."""

_LEAST_LABEL = 16
"""The fewest characters for the cells' labels."""

_BEFORE_RANK = 3, 36
"""Columns of this rank or a higher one leave that much room for labels, where labels need it."""

_STYLES = {CLEAR: "bold green"}
"""By verdict; others are yellow."""


def show(end: SweepEnd, console: Console) -> None:
    """Print the last lines of a sweep; if no trial has ended, its problems and where its journal is."""
    if end.trials.empty:
        show_problems(end.problems, console)
        console.print(f"journal: {end.folder.journal}", markup=False, soft_wrap=True)
        return
    for line in lines_of(end, console.width if console.is_terminal else _UNLIMITED):
        console.print(line, soft_wrap=True)


def show_problems(problems: Iterable[Problem], console: Console) -> None:
    """Print a line for each problem."""
    for problem in problems:
        console.print(f"{problem.label}: {problem}", markup=False, soft_wrap=True)


def lines_of(end: SweepEnd, width: int) -> list[Text]:
    """Return the lines; with fewer candidates and fewer facts if there would be more than MOST_LINES."""
    text = in_sentences(end.recommendation)
    facts = _facts(end, text)
    essential, answers = (sum(rank <= limit for rank, *_ in facts) for limit in (1, 2))
    # Five rows are worth more than facts that answer no usual question, and answers more than the other rows. Four rows
    # are worth more than the runner-up: the chosen cell, the baseline, the safe one, and one with more GPUs.
    all_rows = [
        (rows, count, has_space)
        for count in range(len(facts), answers - 1, -1)
        for rows in range(8, 4, -1)
        for has_space in (True, False)
    ]
    few_rows = [(rows, count, False) for rows in (4, 3) for count in (answers, essential)]
    fewer_facts = [(2, count, False) for count in range(answers, -1, -1)]
    # All of them have these lines, and many have the same table.
    before = [*_wrapped(_heading(end), width, style="dim"), *_headline(text, width)]
    next_step = _next(end, text, width)
    last = _last(text, str(end.folder.page if end.has_page else end.folder.tables))
    table = functools.cache(lambda rows: _table(Candidates.of(end.recommendation, rows), width))
    lines: list[Text] = []
    for rows, count, has_space in [*all_rows, *few_rows, *fewer_facts, (0, 0, False)]:
        lines = [
            *before,
            *_block(table(rows), has_space=has_space),
            *_block([*_most_valuable(facts, count, width), *next_step], has_space=has_space),
            last,
        ]
        if sum(max(1, math.ceil(line.cell_len / width)) for line in lines) <= MOST_LINES:
            break
    return lines


def _block(lines: Sequence[Text], *, has_space: bool) -> list[Text]:
    """Return the lines below an empty one, which is left out where facts need its room."""
    return [Text(), *lines] if lines and has_space else list(lines)


def _heading(end: SweepEnd) -> str:
    """Return the sweep, its training, its devices, its trials and its time; a fact has what of them does not count."""
    trials = counted(len(end.trials), "trial", "trials")
    if (end.trials["status"] == Status.OK.value).all():
        trials += " ok, undisturbed" if is_valid(end.trials["timing_valid"]).all() else " ok"
    took = "" if end.took_s is None else f", {duration(end.took_s)}"
    devices = ["CPU" if device == "cpu" else str(device) for device in end.cells["device"].dropna().unique()]
    parts = [end.sweep, end.trained(most=40), " + ".join(devices), f"{trials}{took}"]
    return " · ".join(filter(None, parts))


def _headline(text: RecommendationText, width: int) -> list[Text]:
    """Return the recommendation as one paragraph: its first sentence is bold, and its details follow."""
    badge, indent = f" {text.verdict}  " if text.verdict else " ", " "
    # The verdict is part of the text that is wrapped, and then gets another style.
    paragraph = " ".join([f"{'_' * len(badge)}{text.lead}", *text.details])
    first, *others = _wrapped(paragraph, width - len(indent))
    lines = [Text.assemble((badge, _style(text)), (first.plain[len(badge) :], "bold"))]
    bold = len(badge) + len(text.lead) - len(first)
    for line in others:
        lines.append(Text.assemble(indent, (line.plain[: max(0, bold)], "bold"), line.plain[max(0, bold) :]))
        bold -= len(line) + 1
    return lines


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
    trials = not_counted(end)
    details = details_of_not_counted(end)
    problems = [(problem.label, str(problem)) for problem in end.problems]
    problems += [document.line for document in end.documents.values() if document.line]
    return [
        # The first doubt is that of the verdict, and the first problem often the cause of the others.
        *((2 if label == RUNNER_UP else 1, label, answer) for label, answer in text.answers),
        *((min(place, 1) * 3, label, doubt) for place, (label, doubt) in enumerate(text.facts)),
        *([(1, "Trials", trials)] if trials else []),
        *((3, label, detail) for label, detail in details),
        *((min(place, 1) * 4, label, problem) for place, (label, problem) in enumerate(problems)),
    ]


def _most_valuable(facts: Sequence[tuple[int, str, str]], count: int, width: int) -> list[Text]:
    """Return the lines of the facts of the lowest ranks, in their order; the report has all of them."""
    kept = sorted(facts, key=lambda fact: fact[0])[:count]
    return [line for fact in facts if fact in kept for line in _labelled(*fact[1:], width)]


def _labelled(label: str, text: str, width: int) -> list[Text]:
    first, *others = _wrapped(text, width - _INDENT)
    return [Text.assemble(_label(label), first), *(Text.assemble(" " * _INDENT, other) for other in others)]


def _label(label: str) -> tuple[str, str]:
    return f" {label:<{_INDENT - 1}}", "dim"


def _next(end: SweepEnd, text: RecommendationText, width: int) -> list[Text]:
    """Return what to do next: if a command settles the verdict, on one line, so that it can be copied."""
    if not end.recommendation.commands:
        return _labelled("Next", text.next, width) if text.next else []
    settling = f"({text.settles}: {cost_of_settling(end.recommendation, end.trials)})"
    # The command is never cut, so that it can be copied.
    command = one_line(end.recommendation.commands[0], most=2000)
    line = Text.assemble(_label("Next"), command)
    if line.cell_len + 3 + len(settling) <= width:
        return [line.append(f"   {settling}", "dim")]
    return [line, *(Text(" " * _INDENT + part.plain, "dim") for part in _wrapped(settling, width - _INDENT))]


def _last(text: RecommendationText, files: str) -> Text:
    report = f"report  {one_line(files, most=2000)}"
    return Text.assemble((f" {text.verdict}  ", _style(text)), report) if text.verdict else Text(f" {report}")

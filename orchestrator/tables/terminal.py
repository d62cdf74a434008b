"""Prints the end of a sweep on few lines: the verdict, the candidates, and what to know about them.

The verdict is in the first and the last sentence, because the first one may have scrolled away. No meaning depends on
colour alone, and rich omits colours if NO_COLOR is set. Lines wrap, and nothing is cut. Everything else is in files.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product, zip_longest
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.recommendation import CLEAR, Recommendation
from orchestrator.store.results import Problem
from orchestrator.tables.candidates import Candidates
from orchestrator.tables.next_step import next_step
from orchestrator.tables.not_counted import details_of_not_counted, not_counted
from orchestrator.tables.recommendation import (
    RUNNER_UP,
    TIE_LABEL,
    RecommendationText,
    in_sentences,
)
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.text.numbers import counted, duration, one_line
from sweeps.status import Status

MOST_LINES = 20
"""A usual terminal has 24, of which the prompt and the command that is typed next take some."""

UNLIMITED = 10_000
"""The width of a log, whose reader wraps the lines."""

_INDENT = 14
"""Width of the labels before the lines below the table."""

_LEAST_ROOM = 16
"""The fewest characters on a line of a name."""

_MOST_COLUMNS = 6
"""The most candidates, of which a narrow terminal has fewer."""

_HIGHEST_COMMAND = 2
"""The most rows of a command; figures of the answer are worth more than a longer one."""

_MINOR = 4
"""Figures and facts of this rank or a higher one answer no usual question."""

_HEADING = 3
"""The rank of the line on what was trained."""

_NAME = re.compile(r"(\d[×→]\d+) ")
"""The start of a cell's name or of a step, which stays on a line with the next word."""

_STYLES = {CLEAR: "bold green"}
"""By verdict; others are yellow."""


def show(end: SweepEnd, console: Console) -> None:
    """Print the last lines of a sweep; if no trial has ended, its problems and where its journal is."""
    if end.trials.empty:
        show_problems(end.problems, console)
        console.print(f"no trial has ended; journal: {end.folder.journal}", markup=False, soft_wrap=True)
        return
    for line in lines_of(end, console.width if console.is_terminal else UNLIMITED):
        console.print(line, soft_wrap=True)


def show_problems(problems: Iterable[Problem], console: Console) -> None:
    """Print a line for each problem."""
    for problem in problems:
        console.print(f"{problem.label}: {problem}", markup=False, soft_wrap=True)


def lines_of(end: SweepEnd, width: int) -> list[Text]:
    """Return the lines; figures and facts are left out, the least valuable first, if there is no room for them."""
    text = in_sentences(end.recommendation)
    table = _table(end.recommendation, width)
    facts = [(rank, _labelled(label, fact, width)) for rank, label, fact in _facts(end, text)]
    headline, last_step, last = _headline(text, width), _next(end, width), _last(end, text)
    # The user knows what was trained: the heading is worth less than the figures and the answers.
    blocks = [(_HEADING, _wrapped(_heading(end, width), width, style="dim")), *table, *facts]
    room = MOST_LINES - _height([*headline, *last_step, last], width)
    kept: set[int] = set()
    for place, (rank, lines) in sorted(enumerate(blocks), key=lambda numbered: numbered[1][0]):
        # The least valuable ones leave room for two empty lines. No figure stands without the names of the cells.
        least = 2 if rank >= _MINOR else 0
        if _height(lines, width) <= room - least and (place <= 1 or place > len(table) or 1 in kept):
            kept.add(place)
            room -= _height(lines, width)
    heading, figures, known = (
        [line for place in places if place in kept for line in blocks[place][1]]
        for places in (range(1), range(1, len(table) + 1), range(len(table) + 1, len(blocks)))
    )
    whole = _last(end, text, f"{_trials(end)}; ")
    if not heading and (more := _height([whole], width) - _height([last], width)) <= room:
        last, room = whole, room - more
    has_space = room >= 2
    before = [*heading, *headline]
    return [*before, *_block(figures, has_space=has_space), *_block([*known, *last_step], has_space=has_space), last]


def _height(lines: Sequence[Text], width: int) -> int:
    """Return how many rows of the terminal these lines take."""
    return sum(max(1, math.ceil(line.cell_len / width)) for line in lines)


def _block(lines: Sequence[Text], *, has_space: bool) -> list[Text]:
    """Return the lines below an empty one, which is left out where facts need its room."""
    return [Text(), *lines] if lines and has_space else list(lines)


def _heading(end: SweepEnd, width: int) -> str:
    """Return the sweep, its training, its devices and their price, its trials and its time.

    Without room, the sweep is left out, which the command and the report's folder name.
    """
    took = "" if end.took_s is None else f", {duration(end.took_s)}"
    training = " · ".join(filter(None, [end.trained(most=40), end.devices, f"{_trials(end)}{took}"]))
    whole = f"{end.sweep} · {training}"
    return whole if cell_len(whole) <= width else training


def _trials(end: SweepEnd) -> str:
    """Return how many trials are ok, and whether all timings are valid: `53 of 54 trials ok, timings valid`."""
    trials = counted(len(end.trials), "trial", "trials")
    is_ok = end.trials["status"] == Status.OK.value
    if not is_ok.all():
        trials = f"{is_ok.sum()} of {trials} ok"
    if is_ok.any() and is_valid(end.trials.loc[is_ok, "timing_valid"]).all():
        trials += f"{' ok' if is_ok.all() else ''}, timings valid"
    return trials


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
    plain = _NAME.sub("\\1\N{NO-BREAK SPACE}", one_line(text, most=len(text) + 1))
    lines = textwrap.wrap(plain, max(1, room), break_on_hyphens=False)
    return [Text(line.replace("\N{NO-BREAK SPACE}", " "), style) for line in lines or [""]]


def _table(recommendation: Recommendation, width: int) -> list[tuple[int, list[Text]]]:
    """Return the names and the lines of the table, each with its rank, with as many candidates as fit."""
    candidates = Candidates.of(recommendation, _MOST_COLUMNS)
    if candidates is None:
        return []
    rows: list[list[str]] = []
    widths: list[int] = []
    longest = max(map(len, candidates.names))
    # From half of the longest name, because a stranger's may have 100,000 characters.
    rooms = range(max(_LEAST_ROOM, longest // 2), longest + 1)
    two_lines = next((room for room in rooms if all(len(_divided(name, room)) <= 2 for name in candidates.names)), 0)
    # A column is worth more than notes, and than names and roles on one line.
    for count, has_notes, room in product(range(len(candidates.cells), 0, -1), (True, False), (width, 24, 16, 11)):
        if count < len(candidates.cells):
            candidates = Candidates.of(recommendation, count) or candidates
        notes = [line.note if has_notes else line.short_note for line in candidates.lines]
        titles = [
            line.title + (f" ({note})" if note else "") for line, note in zip(candidates.lines, notes, strict=True)
        ]
        figures = zip(titles, (line.texts for line in candidates.lines), strict=True)
        rows = [
            *_heads(candidates, room, max(two_lines, room)),
            *([*map(one_line, (title, *texts))] for title, texts in figures),
        ]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        if len(" ") + sum(widths) + len("  ") * count <= width:
            break
    lines = [_row(row, widths, candidates.n_called) for row in rows]
    ranks = [line.rank for line in candidates.lines]
    head, others = lines[: -len(ranks)], lines[-len(ranks) :]
    return [(0, head), *((rank, [line]) for rank, line in zip(ranks, others, strict=True))]


def _heads(candidates: Candidates, of_roles: int, of_names: int) -> list[list[str]]:
    """Return the rows of roles and names, which have lines of at most this many characters."""
    roles = [_divided(role, of_roles) for role in candidates.roles]
    if max(map(len, roles)) > 1:
        # A second role is not worth a line.
        roles = [_divided(role.partition(", ")[0], of_roles) for role in candidates.roles]
    names = [_divided(name, of_names) for name in candidates.names]
    height = max(map(len, roles))
    # A short role stands on the last row, and a short name on the first.
    above = zip(*([""] * (height - len(role)) + role for role in roles), strict=True)
    below = zip_longest(*names, fillvalue="")
    rows = [["", *row] for row in above if any(row)]
    return rows + [["" if place else candidates.heading, *row] for place, row in enumerate(below)]


@cache
def _divided(text: str, room: int) -> list[str]:
    return [line.plain for line in _wrapped(text, room)]


def _row(row: Sequence[str], widths: Sequence[int], n_bold: int) -> Text:
    """Return a row of the table as a line, its label dim and the first columns bold."""
    label, *values = (set_cell_size(text, width) for text, width in zip(row, widths, strict=True))
    line = Text.assemble((f" {label}", "dim"))
    for place, value in enumerate(values):
        line.append(f"  {value}", "bold" if place < n_bold else "")
    line.rstrip()
    return line


def _facts(end: SweepEnd, text: RecommendationText) -> list[tuple[int, str, str]]:
    """Return what to know about the choice and the trials, as (rank, label, text); problems come last."""
    trials = not_counted(end)
    details = details_of_not_counted(end)
    problems = [(problem.label, str(problem)) for problem in end.problems]
    problems += [document.line for document in end.documents.values() if document.line]
    return [
        # The first doubt is that of the verdict, and the first problem often the cause of the others.
        *(({RUNNER_UP: 2, TIE_LABEL: 0}.get(label, 1), label, answer) for label, answer in text.answers),
        *((min(place, 1) * 5, label, doubt) for place, (label, doubt) in enumerate(text.facts)),
        *([(1, "Trials", trials)] if trials else []),
        *((4, label, detail) for label, detail in details),
        *((min(place, 1) * 6, label, problem) for place, (label, problem) in enumerate(problems)),
    ]


def _labelled(label: str, text: str, width: int) -> list[Text]:
    name = _label(label)
    # The first line starts later behind a long label, which has no room for another word.
    first, *others = _wrapped(f"{'_' * max(0, len(name[0]) - _INDENT)}{text}", width - _INDENT)
    first = first[max(0, len(name[0]) - _INDENT) :]
    return [Text.assemble(name, first), *(Text.assemble(" " * _INDENT, other) for other in others)]


def _label(label: str) -> tuple[str, str]:
    return f" {label:<{_INDENT - 2}} ", "dim"


def _next(end: SweepEnd, width: int) -> list[Text]:
    """Return what to do next, and a command for it on one line, so that it can be copied.

    What it takes and decides stands behind a short command, and before a long one. The longest would take the room of
    the answer; recommendation.md has it.
    """
    step = next_step(end.recommendation, end.trials)
    # The command is never cut, so that it can be copied.
    text, command = (one_line(part, most=2000) for part in (step.text, step.command))
    if not command:
        return _labelled("Next", text, width) if text else []
    line = Text.assemble(_label("Next"), command, (f"   ({text})", "dim"))
    if line.cell_len <= width:
        return [line]
    line = Text(" " * _INDENT + command)
    # A step that the answer does not need has no more than the room of its words.
    if _height([line], width) > (_HIGHEST_COMMAND if end.recommendation.commands else 1):
        return _labelled("Next", f"{text}: {step.short or 'see the report'}", width)
    return [*_labelled("Next", f"{text}:", width), line]


def _last(end: SweepEnd, text: RecommendationText, trials: str = "") -> Text:
    """Return the verdict, and the report or the folder of the tables; if no trial is ok, the log of a failure."""
    failed = end.trials.loc[end.trials["status"] == Status.FAILED.value, "trial_id"]
    is_log = end.recommendation.headline.code == "none_ok" and len(failed) > 0
    path = end.folder.page if end.has_page else end.folder.tables
    if is_log:
        path = end.folder.evidence_of(failed.iloc[0])
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    files = f"{trials}{'log' if is_log else 'report'}  {one_line(str(shown), most=2000)}"
    if not is_log and not end.has_page and end.folder.page.exists():
        files += "  (report.html is older: mode=report report.html=true)"
    return Text.assemble((f" {text.verdict}  ", _style(text)), files) if text.verdict else Text(f" {files}")

"""Prints the end of a sweep on at most 20 lines: the verdict, the cells in question, and what to know about them.

The verdict is in the first and the last sentence, because the first one may have scrolled away. No meaning depends on
colour alone, and rich omits colours if NO_COLOR is set. Everything else is in files; `report.show=all` prints the
tables of speed-up and accuracy before these lines.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.recommendation import CLEAR, NO_OBJECTIVE, GpuStep, Recommendation
from orchestrator.tables.choice_cells import key_cells, step_text
from orchestrator.tables.recommendation import RecommendationText, in_sentences
from orchestrator.telemetry.timing_gate import FOREIGN_CPU, SHORTEST_WINDOW_S, SLOWER, SWAPPED_PAGES, Fault
from orchestrator.text.numbers import one_line
from orchestrator.text.rows import Row
from sweeps.status import Status

MOST_LINES = 20

_INDENT = 14
"""Width of the labels before the lines below the table."""

_LEAST_LABEL = 20
"""The fewest characters for a cell's label; columns are left out for it."""

_STYLES = {CLEAR: "bold green"}
"""By verdict; others are yellow."""


@dataclass(frozen=True, kw_only=True)
class SweepEnd:
    """The contents of the last lines of a sweep."""

    recommendation: Recommendation
    trials: pd.DataFrame
    cells: pd.DataFrame
    """At least one row."""
    trained: str = ""
    """The training in words, such as `small_cnn on digits, 10 epochs`."""
    took_s: float | None = None
    """Seconds since the driver began; None if it ran nothing."""
    files: str = ""
    """The path of the report, or of the tables."""
    problems: Sequence[tuple[str, str]] = ()
    """Problems that need attention, as (label, text): failures, budgets, claims, damaged files."""

    @property
    def has_objective(self) -> bool:
        """True if cells were compared, so that the validity of timings matters."""
        return self.recommendation.terms.report.objective != NO_OBJECTIVE


_DETAILS = ((5, 2, True), (4, 2, True), (4, 2, False), (4, 1, False), (3, 1, False), (2, 1, False), (0, 1, False))
"""The most rows of the table, the most lines of a fact, and whether facts are shown that decide nothing. The first
level that fits on MOST_LINES is shown, else the last one."""


def show(end: SweepEnd, console: Console) -> None:
    """Print the last lines of a sweep."""
    for line in lines_of(end, console.width):
        console.print(line, soft_wrap=True)


def lines_of(end: SweepEnd, width: int) -> list[Text]:
    """Return the lines; with fewer rows and facts, and shorter sentences, if there would be more than MOST_LINES."""
    text = in_sentences(end.recommendation)
    lines: list[Text] = []
    for rows, most, all_facts in _DETAILS:
        lines = [
            Text(one_line(_heading(end, width), width), "dim"),
            *_block(_headline(text, width)),
            *_block(_table(end.recommendation, rows, width)),
            *_block(_facts(end, text, width, most, all_facts=all_facts)),
            Text(),
            _last(text, end.files),
        ]
        if sum(max(1, math.ceil(line.cell_len / width)) for line in lines) <= MOST_LINES:
            break
    return lines


def _block(lines: Sequence[Text]) -> list[Text]:
    return [Text(), *lines] if lines else []


def _heading(end: SweepEnd, width: int) -> str:
    """Return the sweep and its counts; the training and the devices only as far as they fit."""
    # Timings matter only where cells are compared.
    ok = end.trials["status"] == Status.OK.value
    timed = int((ok & is_valid(end.trials["timing_valid"])).sum())
    counts = f"{int(ok.sum())}/{len(ok)} ok"
    if end.has_objective:
        counts += ", all timings undisturbed" if timed == ok.sum() else f", {timed} timed"
    devices = ["CPU" if device == "cpu" else str(device) for device in end.cells["device"].dropna().unique()]
    name, took = str(end.cells["sweep"].iloc[0]), "" if end.took_s is None else _duration(end.took_s)
    line = ""
    # What was trained is dispensable first, then the devices.
    for parts in ([end.trained, " + ".join(devices)], [" + ".join(devices)], []):
        line = " · ".join(filter(None, [name, *parts, counts, took]))
        if cell_len(line) <= width:
            break
    return line


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _headline(text: RecommendationText, width: int) -> list[Text]:
    # Further lines are aligned with the sentence, not with the verdict.
    badge = f" {text.verdict}  " if text.verdict else " "
    room = max(20, width - len(badge))
    first, *others = _wrapped(text.lead, room, 4)
    others += [line for detail in text.details for line in _wrapped(detail, room, 2)]
    head = Text.assemble((badge, _style(text)), (first, "bold"))
    return [head, *(Text(" " * len(badge) + line) for line in others)]


def _style(text: RecommendationText) -> str:
    return _STYLES.get(text.verdict.lower(), "bold yellow")


def _wrapped(text: str, room: int, most: int) -> list[str]:
    """Return the text on at most `most` lines without control sequences; a longer text is cut."""
    # On one line first: a line feed within a message would break the indentation.
    plain = one_line(text, most=len(text) + 1)
    return textwrap.wrap(plain, room, max_lines=most, placeholder=" …", break_on_hyphens=False) or [""]


def _table(recommendation: Recommendation, rows: int, width: int) -> list[Text]:
    """Return the rows of the cells in question, with as many columns as fit."""
    table = key_cells(recommendation, rows)
    if table is None or not rows:
        return []
    frame = table.frame.map(lambda value: one_line(str(value)))
    widths = {column: max(map(cell_len, [column, *frame[column]])) for column in frame.columns}
    first, *others = widths
    # These columns go first, until the labels have room.
    for dispensable in ("LR", "training cost", "energy", "P(within)"):
        room = width - 3 - sum(2 + widths[column] for column in others)
        if room < min(widths[first], _LEAST_LABEL + 8):
            others = [column for column in others if not column.startswith(dispensable)]
    room = max(_LEAST_LABEL, width - 4 - sum(2 + widths[column] for column in others))
    label_width = min(widths[first], room)
    records: list[Row] = [{column: column for column in widths}, *frame.to_dict("records")]
    lines = []
    for place, row in enumerate(records):
        label = row[first] if cell_len(row[first]) <= label_width else f"{set_cell_size(row[first], label_width - 1)}…"
        values = "".join(f"  {row[column]:>{widths[column]}}" for column in others)
        chosen = place == 1 and recommendation.cell_id is not None
        line = f" {'>' if chosen else ' '} {set_cell_size(label, label_width)}{values}".rstrip()
        lines.append(Text(line, "bold" if chosen else "dim" if place == 0 else ""))
    return lines


def _facts(end: SweepEnd, text: RecommendationText, width: int, most: int, *, all_facts: bool) -> list[Text]:
    """Return the lines below the table, each fact on at most `most` lines."""
    facts = [(step.name, _step(step, end.recommendation, width, most)) for step in end.recommendation.gpu_steps]
    if all_facts:
        facts += [*text.larger_batch, *text.how_sure]
    facts += [*text.facts, *(_timings(end.trials) if end.has_objective else ()), *_not_ok(end.trials)]
    lines = [line for label, fact in facts for line in _labelled(label, fact, width, most)]
    shown = 2 * most - 1
    # Problems come last, next to the command that continues.
    problems = list(end.problems[:shown])
    if len(end.problems) > shown:
        problems.append(("", f"{len(end.problems) - shown} more in the report"))
    # On three lines, because the path of a trace must not be cut.
    lines += [line for label, problem in problems for line in _labelled(label, problem, width, 3)]
    return [*lines, *_settle(end, text, width)]


def _step(step: GpuStep, recommendation: Recommendation, width: int, most: int) -> str:
    """Return what a step of the GPU axis is worth, by batch if that fits a line or the only step has two lines."""
    text = step_text(step, recommendation, by_batch=True)
    fits = len(text) <= width - _INDENT - 1
    only = most > 1 and len(recommendation.gpu_steps) == 1
    return text if fits or only else step_text(step, recommendation, by_batch=False)


def _labelled(label: str, text: str, width: int, most: int = 2) -> list[Text]:
    first, *others = _wrapped(text, max(20, width - _INDENT), most)
    return [Text.assemble(_label(label), first), *(Text(" " * _INDENT + line) for line in others)]


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


def _not_ok(trials: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the number of trials by each status that is not ok."""
    counts = trials.loc[trials["status"] != Status.OK.value, "status"].value_counts()
    if len(counts):
        by_status = ", ".join(f"{count} {status}" for status, count in counts.items())
        yield "Not ok", f"{int(counts.sum())} of {len(trials)} trials: {by_status}"


def _settle(end: SweepEnd, text: RecommendationText, width: int) -> list[Text]:
    """Return the command that settles the verdict, with what it costs; on one line, so that it can be copied."""
    if not end.recommendation.commands:
        return [line for reason in text.unsettled[:1] for line in _labelled("Settle it", reason, width)]
    # Disturbed timings and stragglers are repeated by mode=settle, too.
    seconds = end.cells.set_index("cell_id")["wall_s"].fillna(0.0).to_dict()
    again = end.trials[end.trials["timing_fault"].isin([Fault.DISTURBED.value, Fault.STRAGGLER.value])]
    more_seeds = end.recommendation.more_seeds
    trials = sum(more.seeds for more in more_seeds) + len(again)
    took_s = sum(more.seeds * seconds.get(more.cell_id, 0.0) for more in more_seeds) + again["wall_s"].sum()
    cost = f"(+{trials} trials, about {_roughly(took_s)})"
    # The command is never cut, so that it can be copied.
    command = one_line(end.recommendation.commands[0], most=2000)
    line = Text.assemble(_label("Settle it"), command)
    if line.cell_len + 3 + len(cost) <= width:
        return [line.append(f"   {cost}", "dim")]
    return [line, Text(" " * _INDENT + cost, "dim")]


def _roughly(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _last(text: RecommendationText, files: str) -> Text:
    report = f"report  {one_line(files, most=2000)}"
    return Text.assemble((f" {text.verdict}  ", _style(text)), report) if text.verdict else Text(f" {report}")

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
from typing import Any

import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.recommendation import CLEAR, NO_OBJECTIVE, GpuStep, Recommendation
from orchestrator.tables.recommendation import RecommendationText, in_sentences, key_cells, step_text
from orchestrator.telemetry.timing_gate import FOREIGN_CPU, SHORTEST_WINDOW_S, SLOWER, SWAPPED_PAGES, Fault
from orchestrator.text.numbers import one_line
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

    found: Recommendation
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


def show(end: SweepEnd, console: Console) -> None:
    """Print the last lines of a sweep."""
    for line in lines_of(end, console.width):
        console.print(line, soft_wrap=True)


def lines_of(end: SweepEnd, width: int) -> list[Text]:
    """Return the lines; with fewer rows and facts, and shorter sentences, if there would be more than MOST_LINES."""
    text = in_sentences(end.found)
    found: list[Text] = []
    for rows, detailed, most, whole in (
        (5, True, 2, True),
        (4, True, 2, True),
        (4, False, 2, True),
        (4, False, 2, False),
        (4, False, 1, False),
        (3, False, 1, False),
        (2, False, 1, False),
        (0, False, 1, False),
    ):
        found = [
            Text(one_line(_heading(end, width), width), "dim"),
            *_block(_headline(text, width)),
            *_block(_table(end.found, rows, width)),
            *_block(_facts(end, text, width, detailed=detailed, most=most, whole=whole)),
            Text(),
            _last(text, end.files),
        ]
        if sum(max(1, math.ceil(line.cell_len / width)) for line in found) <= MOST_LINES:
            break
    return found


def _block(lines: Sequence[Text]) -> list[Text]:
    return [Text(), *lines] if lines else []


def _heading(end: SweepEnd, width: int) -> str:
    """Return the sweep and its counts; the training and the devices only as far as they fit."""
    ok = end.trials["status"] == Status.OK.value
    timed = int((ok & is_valid(end.trials["timing_valid"])).sum())
    devices = ["CPU" if each == "cpu" else str(each) for each in end.cells["device"].dropna().unique()]
    took = "" if end.took_s is None else _duration(end.took_s)
    counts = f"{int(ok.sum())}/{len(ok)} ok"
    if end.found.objective != NO_OBJECTIVE:
        counts += ", all timings undisturbed" if timed == ok.sum() else f", {timed} timed"
    name, device = str(end.cells["sweep"].iloc[0]), " + ".join(devices)
    for parts in ([name, end.trained, device, counts, took], [name, device, counts, took]):
        line = " · ".join(filter(None, parts))
        if cell_len(line) <= width:
            return line
    return " · ".join(filter(None, [name, counts, took]))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _headline(text: RecommendationText, width: int) -> list[Text]:
    badge = f" {text.verdict}  " if text.verdict else " "
    room = max(20, width - len(badge))
    lines = [*_wrapped(text.lead, room, 3), *(line for each in text.details for line in _wrapped(each, room, 2))]
    first, *others = lines
    head = Text.assemble((badge, _style(text)), (first, "bold"))
    return [head, *(Text(" " * len(badge) + line) for line in others)]


def _style(text: RecommendationText) -> str:
    return _STYLES.get(text.verdict.lower(), "bold yellow")


def _wrapped(text: str, room: int, most: int) -> list[str]:
    """Return the text on at most `most` lines without control sequences; a longer text is cut."""
    plain = one_line(text, most=len(text) + 1)
    return textwrap.wrap(plain, room, max_lines=most, placeholder=" …", break_on_hyphens=False) or [""]


def _table(found: Recommendation, rows: int, width: int) -> list[Text]:
    """Return the rows of the cells in question, with as many columns as fit."""
    table = key_cells(found, rows)
    if table is None or not rows:
        return []
    frame = table.frame.map(lambda value: one_line(str(value)))
    for column in ("LR", "training cost", "energy", "P(within)"):  # the first to go
        label = width - 3 - sum(2 + _width(frame, other) for other in frame.columns[1:])
        named = [other for other in frame.columns[1:] if other.startswith(column)]
        if named and label < min(_width(frame, frame.columns[0]), _LEAST_LABEL + 8):
            frame = frame.drop(columns=named)
    others = {column: _width(frame, column) for column in frame.columns[1:]}
    room = max(_LEAST_LABEL, width - 4 - sum(2 + wide for wide in others.values()))
    label = min(_width(frame, frame.columns[0]), room)
    lines = []
    for place, row in enumerate([list(frame.columns), *frame.itertuples(index=False, name=None)]):
        chosen = place == 1 and found.cell_id is not None
        name = str(row[0]) if cell_len(str(row[0])) <= label else f"{set_cell_size(str(row[0]), label - 1)}…"
        cells = "".join(f"  {value:>{wide}}" for value, wide in zip(row[1:], others.values(), strict=True))
        line = f" {'>' if chosen else ' '} {set_cell_size(name, label)}{cells}".rstrip()
        lines.append(Text(line, "bold" if chosen else "dim" if place == 0 else ""))
    return lines


def _width(frame: pd.DataFrame, column: str) -> int:
    return max(map(cell_len, [column, *frame[column]]))


def _facts(
    end: SweepEnd, text: RecommendationText, width: int, *, detailed: bool, most: int, whole: bool
) -> list[Text]:
    """Return the lines below the table, each fact on at most `most` lines; if not `whole`, only the decisive ones."""
    lines = [(step.name, _step(step, end.found, width, detailed=detailed)) for step in end.found.gpu_steps]
    lines += [*text.larger_batch, *text.how_sure] if whole else []
    timings = _timings(end.trials) if end.found.objective != NO_OBJECTIVE else ()
    lines += [*text.facts, *timings, *_not_ok(end.trials)]
    found = [line for label, sentence in lines for line in _labelled(label, sentence, width, most)]
    problems = _shortened(end.problems, 2 * most - 1)  # with the path of their trace, which is not cut
    found += [line for label, sentence in problems for line in _labelled(label, sentence, width, 3)]
    return [*found, *_settle(end, text, width)]


def _step(step: GpuStep, found: Recommendation, width: int, *, detailed: bool) -> str:
    """Return what a step of the GPU axis is worth, by batch if that fits a line or there is only one step."""
    text = step_text(step, found, by_batch=True)
    fits = len(text) <= width - _INDENT - 1
    return text if fits or (detailed and len(found.gpu_steps) == 1) else step_text(step, found, by_batch=False)


def _labelled(label: str, text: str, width: int, most: int = 2) -> list[Text]:
    first, *others = _wrapped(text, max(20, width - _INDENT), most)
    head = Text.assemble((f" {label:<{_INDENT - 1}}", "dim"), first)
    return [head, *(Text(" " * _INDENT + line) for line in others)]


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
    unexplained = pd.Series(True, index=disturbed.index)
    for column, limit, words in _CAUSES:
        values = pd.to_numeric(disturbed[column], errors="coerce") if column in disturbed else pd.Series(dtype=float)
        above = values > limit
        if above.any():
            unexplained[above[above].index] = False
            by = disturbed["foreign_cpu_by"].dropna() if "foreign_cpu_by" in disturbed else pd.Series(dtype=object)
            most = f", mostly {by.mode().iloc[0]}" if column == "foreign_cpu" and len(by) else ""
            yield words.format(values.max()) + most
    if unexplained.any():
        yield "slow or throttled clocks"


def _not_ok(trials: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the number of trials by each status that is not ok."""
    counts = trials.loc[trials["status"] != Status.OK.value, "status"].value_counts()
    if len(counts):
        each = ", ".join(f"{count} {status}" for status, count in counts.items())
        yield "Not ok", f"{int(counts.sum())} of {len(trials)} trials: {each}"


def _shortened(problems: Sequence[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    more = [("", f"{len(problems) - most} more in the report")] if len(problems) > most else []
    return [*problems[:most], *more]


def _settle(end: SweepEnd, text: RecommendationText, width: int) -> list[Text]:
    """Return the command that settles the verdict, with what it costs; on one line, so that it can be copied."""
    if not text.commands:
        return [line for each in text.unsettled[:1] for line in _labelled("Settle it", each, width)]
    seconds = dict(zip(end.cells["cell_id"], end.cells["wall_s"], strict=True))
    again = end.trials[end.trials["timing_fault"].isin([Fault.DISTURBED.value, Fault.STRAGGLER.value])]
    trials = sum(more.seeds for more in text.more_seeds) + len(again)
    took_s = sum(more.seeds * _known(seconds.get(more.cell_id)) for more in text.more_seeds) + again["wall_s"].sum()
    cost = f"(+{trials} trials, about {_roughly(took_s)})"
    command, label = one_line(text.commands[0], most=2000), f" {'Settle it':<{_INDENT - 1}}"
    if len(label) + len(command) + 3 + len(cost) <= width:
        return [Text.assemble((label, "dim"), command, (f"   {cost}", "dim"))]
    return [Text.assemble((label, "dim"), command), Text(" " * _INDENT + cost, "dim")]


def _known(value: Any) -> float:
    return 0.0 if value is None or math.isnan(value) else float(value)


def _roughly(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _last(text: RecommendationText, files: str) -> Text:
    badge = (f" {text.verdict}  ", _style(text)) if text.verdict else ""
    return Text.assemble(badge, ("" if badge else " ") + f"report  {one_line(files, most=2000)}")

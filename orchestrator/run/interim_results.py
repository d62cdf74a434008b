"""The results of a running sweep so far: fastest trials, speed-ups, the best metric, or why one is not known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from statistics import fmean
from typing import Any

from orchestrator.config.request import Metric, Request
from orchestrator.decision.recommendation import NO_OBJECTIVE
from orchestrator.statistics.margins import excess
from orchestrator.store.trial_metrics import metric_value, tokens_per_s
from orchestrator.telemetry.timing_gate import FAULTS, VALID, Fault, Judgement, with_reasons
from orchestrator.text.cell_labels import gpus_in_words, trial_label
from orchestrator.text.numbers import short_number
from sweeps.status import Status
from sweeps.trial import Purpose


class InterimResults:
    """The fastest trial of each number of GPUs and the best metric among those that ended, or why one is not known."""

    def __init__(self, metric: Metric, margin: float = math.inf, repeats: float = 0.0) -> None:
        """A cell is among the fastest only if its metric is within the margin of the best one.

        At most `repeats`, a fraction of the trials, are timed again.
        """
        self.metric, self._margin, self._repeats = metric, margin, repeats
        self._rows: dict[str, tuple[Mapping[str, Any], Judgement]] = {}  # by trial, with the judgement of its timing
        self._rates: dict[str, tuple[float, str, Mapping[str, Any]]] = {}
        """The valid rates by trial, each with its unit and the row that has it."""
        self._on_cpu = False

    @staticmethod
    def of(request: Request) -> InterimResults:
        """Return no results yet; without an objective, no cells are compared."""
        settings = request.settings
        margin = math.inf if settings.report.objective == NO_OBJECTIVE else settings.report.margin
        return InterimResults(request.metric, margin, 1.0 if settings.mode == "settle" else settings.rerun_invalid)

    def figures(self, metrics: Mapping[str, Any], purpose: str) -> dict[str, float]:
        """Return a trial's rate and metric of choice by their names, as far as they are known."""
        tokens, samples = tokens_per_s(metrics), metric_value(metrics, "samples_per_s")
        figures: dict[str, float | None] = {"samples/s": samples} if tokens is None else {"tokens/s": tokens}
        if purpose == Purpose.TRAIN:
            figures[self.metric.short_label] = metric_value(metrics, self.metric.name)
        return {name: value for name, value in figures.items() if value is not None}

    def take(self, row: Mapping[str, Any], judgement: Judgement) -> None:
        """Take an ended trial under the names of its row's columns; its rate counts only if its timing is valid."""
        self._on_cpu = row["device"] == "cpu"
        if row["purpose"] == Purpose.TRAIN:
            self._rows[row["trial_id"]] = row, judgement
        elif row["status"] != Status.OK or row["disturbed"]:
            # As in the journal: this repetition replaces no timing.
            return
        elif row["measures"] in self._rows:
            self._rows[row["measures"]] = self._rows[row["measures"]][0], judgement
        if row["status"] != Status.OK:
            return
        unit, rate = next(iter(self.figures(row["metrics"], row["purpose"]).items()), ("", 0.0))
        # A command may report no sample at all, and speed-ups divide by the rate.
        if not judgement.fault and unit.endswith("/s") and rate > 0:
            self._rates[row["measures"] or row["trial_id"]] = (rate, unit, row)

    def timed_with_others(self, trial_ids: Iterable[str]) -> None:
        """Take note that these trials have valid timings, which others measured."""
        for trial_id in trial_ids:
            if trial_id in self._rows:
                self._rows[trial_id] = self._rows[trial_id][0], VALID

    def _metrics(self) -> dict[str, float]:
        """Return the metric of choice by ok trial, as far as it is known."""
        ok = {key: row for key, (row, _) in self._rows.items() if row["status"] == Status.OK}
        known = {key: metric_value(row["metrics"], self.metric.name) for key, row in ok.items()}
        return {key: value for key, value in known.items() if value is not None}

    def _fastest(self) -> dict[float, tuple[float, str, str]]:
        """Return the highest valid rate, its unit and its trial by the number of GPUs, of cells within the margin."""
        scores: dict[str, list[float]] = {}
        for trial_id, value in self._metrics().items():
            scores.setdefault(self._rows[trial_id][0]["cell_id"], []).append(self.metric.sign * value)
        cells = {cell: fmean(values) for cell, values in scores.items()}
        best = max(cells.values(), default=-math.inf)
        fastest: dict[float, tuple[float, str, str]] = {}
        for trial_id, (rate, unit, row) in self._rates.items():
            cell_id = self._rows.get(trial_id, (row, VALID))[0]["cell_id"]
            is_within = excess(best - cells.get(cell_id, math.inf), self._margin) <= 0
            if is_within and rate > fastest.get(row["gpus"], (0.0,))[0]:
                fastest[row["gpus"]] = (rate, unit, trial_label(row))
        return fastest

    def invalid(self) -> dict[float, list[Judgement]]:
        """Return the judgements of the ok trials whose timing is not valid, by their number of GPUs."""
        invalid: dict[float, list[Judgement]] = {}
        for row, judgement in self._rows.values():
            if row["status"] == Status.OK and judgement.fault:
                invalid.setdefault(row["gpus"], []).append(judgement)
        return invalid

    def to_repeat(self) -> list[str]:
        """Return the trials that will be timed again, as far as the timings so far tell."""
        most = max(1, int(self._repeats * len(self._rows))) if self._repeats else 0
        disturbed = (key for key, (_, judgement) in self._rows.items() if judgement.fault is Fault.DISTURBED)
        return [*islice(disturbed, most)]

    def lines(self) -> Iterator[str]:
        """Yield a line each for the fastest trial, the speed-up and the best metric, or why one is not known."""
        yield from self._without_result()
        metrics, fastest = self._metrics(), self._fastest()
        if fastest:
            rate, unit, trial = max(fastest.values())
            has_margin = metrics and self._margin < math.inf
            within = f"; its {self.metric.word} is within {self._margin:g} of the best" if has_margin else ""
            yield f"fastest so far: {trial}, {short_number(rate)} {unit}{within}"
            fewest, *others = sorted(fastest)
            words = partial(gpus_in_words, on_cpu=self._on_cpu)
            # The batches may differ, too.
            size = {gpus: label.partition(" ")[0] for gpus, (_, _, label) in fastest.items()}
            gains = [
                f"{words(gpus)} {fastest[gpus][0] / fastest[fewest][0]:.2f}× ({size[gpus]} against {size[fewest]})"
                for gpus in others
            ]
            if gains:
                yield f"speed-up so far over {words(fewest)}: {', '.join(gains)}"
        yield from self._without_speed()
        if metrics:
            best = max(metrics, key=lambda trial_id: self.metric.sign * metrics[trial_id])
            yield f"best {self.metric.label} so far: {metrics[best]:.4f}, {trial_label(self._rows[best][0])}"

    def _without_result(self) -> Iterator[str]:
        """Yield a line for each value of an axis with which all trials failed, at least two."""
        kinds: dict[str, list[str]] = {}
        for trial_id, (row, _) in self._rows.items():
            for axis, value in row["axes"].items():
                if axis != "seed":
                    kinds.setdefault(f"{axis}={value}", []).append(trial_id)
        failed = {trial_id: row for trial_id, (row, _) in self._rows.items() if row["status"] != Status.OK}
        if len(failed) == len(self._rows):  # the axes do not matter
            kinds = {"": [*failed]}
        told: set[str] = set()
        for kind, trials in sorted(kinds.items(), key=lambda item: -len(item[1])):
            # Another axis may name the same trials.
            if len(trials) < 2 or not failed.keys() >= {*trials} or told >= {*trials}:
                continue
            told |= {*trials}
            last = failed[trials[-1]]
            remedy = "" if Status(last["status"]).is_result() else "; once that is mended, rerun=failed repeats them"
            count, of = len(trials), f" with {kind}" if kind else ""
            yield f"no result{of} so far: {count} of {count} trials {last['status']}: {last['note']}{remedy}"

    def _without_speed(self) -> Iterator[str]:
        """Yield a line for each number of GPUs none of whose timings is valid, with the reason and the remedy."""
        invalid = self.invalid()
        timed = {row["gpus"] for _, _, row in self._rates.values()}
        groups = {gpus: judgements for gpus, judgements in invalid.items() if gpus not in timed}
        if not timed:  # one line for all
            groups = {0.0: list(chain(*invalid.values()))}
        for gpus, judgements in groups.items():
            of = f" of {gpus_in_words(gpus, on_cpu=self._on_cpu)}" if gpus else ""
            if judgements and (fault := judgements[-1].fault):
                why = with_reasons(faults_in_words(judgements), judgements[-1])
                yield f"no speed{of} so far, timings: {why}. {FAULTS[fault][1]}"


def faults_in_words(judgements: Iterable[Judgement]) -> str:
    """Return the numbers of timings by their fault: `2 disturbed, 1 too short`."""
    faults = Counter(FAULTS[judgement.fault][0] for judgement in judgements if judgement.fault)
    return ", ".join(f"{count} {fault}" for fault, count in faults.items())

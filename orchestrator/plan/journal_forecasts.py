"""Forecasts of further trials from a sweep's journal: from their own cell, from fewer GPUs, and from other batches."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from orchestrator.plan.estimates import Estimate, Forecast, Network, of_step, training_s
from orchestrator.plan.forecast_accuracy import BESIDE, TIME
from orchestrator.store.grouping_keys import but_for_batch, but_for_gpus
from orchestrator.store.record import TrialRecord
from orchestrator.store.trial_metrics import metric_value, samples_to_target
from orchestrator.telemetry.timing_gate import judgements_of
from sweeps.identity import SHOWN_DIGITS
from sweeps.status import Status
from sweeps.trial import TrialSpec

FROM_JOURNAL = "journal"  # the source of a forecast from trials of the same cell
FEWER_GPUS = "fewer GPUs"  # the source of a forecast from trials that differ in GPUs


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The records of a journal, grouped by what their trials have in common once a forecast asks for them."""

    records: Sequence[TrialRecord] = ()

    @cached_property
    def cells(self) -> Mapping[str, Sequence[TrialRecord]]:
        """The ok records by cell."""
        return self._grouped(lambda record: record.cell_id)

    @cached_property
    def lines(self) -> Mapping[str, Sequence[TrialRecord]]:
        """The ok records that differ in GPUs, and in the side of the batch that follows from them."""
        return self._grouped(but_for_gpus)

    @cached_property
    def economies(self) -> Mapping[str, Sequence[TrialRecord]]:
        """The ok records that differ in GPUs and batch."""
        return self._grouped(but_for_batch)

    @cached_property
    def timed(self) -> Collection[str]:
        """The trials whose timing is valid: no speed follows from the others."""
        return {trial_id for trial_id, judgement in judgements_of(self.records).items() if not judgement.fault}

    def _grouped(self, key_of: Callable[[TrialRecord], str]) -> Mapping[str, Sequence[TrialRecord]]:
        groups = defaultdict[str, list[TrialRecord]](list)
        for record in self.records:
            if record.status is Status.OK:
                groups[key_of(record)].append(record)
        return groups

    def of_cell(self, trial: TrialSpec) -> Forecast | None:
        """Return what the seeds of the trial's cell had: the median, and an interval that holds all of them.

        Its speed is known only from valid timings. The duration may be off by what is beside the training.
        """
        if trial.cell_id not in self.cells:
            return None
        records = self.cells[trial.cell_id]

        def of(values: Iterable[float | None]) -> Estimate | None:
            known = [value for value in values if value is not None and 0 < value < math.inf]
            if not known:
                return None
            within = Estimate.within(statistics.median(known), TIME.rehearsed)
            return Estimate(value=within.value, lo=min(within.lo, *known), hi=max(within.hi, *known))

        timed = [record for record in records if record.trial_id in self.timed]
        rate = of(metric_value(record.metrics, "samples_per_s") for record in timed)
        samples = trial.batch.global_batch_size
        training = of(metric_value(record.metrics, "train_s") for record in timed)
        duration = of(record.wall_s for record in records)
        if training and duration:
            beside = Estimate.within(max(0.0, duration.value - training.value), BESIDE)
            whole = training.plus(beside)
            duration = replace(duration, lo=min(duration.lo, whole.lo), hi=max(duration.hi, whole.hi))
        return Forecast(
            fits="yes",
            why="" if timed else "none of its timings is valid",
            peak_memory_gb=of(metric_value(record.metrics, "peak_memory_gb") for record in records),
            step_s=rate.map(lambda samples_per_s: samples / samples_per_s) if rate else None,
            samples_per_s=rate,
            train_s=training,
            duration_s=duration,
            source=FROM_JOURNAL,
        )

    def of_line(self, trial: TrialSpec, network: Network) -> Forecast | None:
        """Return the forecast from other GPU counts, or why they allow none; None if fewer than two were measured.

        `network` has the nodes of the trial.
        """
        records = self.lines.get(but_for_gpus(trial), ())
        # To judge timings takes a pass through the journal.
        if len({record.gpus for record in records}) < 2:
            return None
        records = [record for record in records if record.trial_id in self.timed]
        rates: dict[float, dict[int, float]] = defaultdict(dict)
        for record in records:
            samples_per_s = metric_value(record.metrics, "samples_per_s")
            if samples_per_s and samples_per_s > 0:
                rates[record.gpus][record.seed] = samples_per_s
        if len(rates) < 2:
            return None
        from orchestrator.statistics.extrapolation import NoExtrapolationError, extrapolated, paired

        try:
            interval = extrapolated(paired(rates), trial.gpus)
        except NoExtrapolationError as error:
            return Forecast(fits="unsure", source=FEWER_GPUS, why=str(error))
        rate = _estimate(interval)
        # The trial with the most GPUs is the nearest to the one that is forecast.
        largest = max(records, key=lambda record: record.gpus)
        step = rate.map(lambda samples_per_s: trial.batch.global_batch_size / samples_per_s)
        n_params = metric_value(largest.metrics, "n_params")
        # What several nodes cost is in the rates if the largest count took several.
        why = ""
        takes_first_network = network.node_count > 1 and largest.nodes == 1
        if takes_first_network and n_params:
            step = step.plus(network.exchange(n_params))
        elif takes_first_network:
            why = f"what {network.node_count} nodes exchange is not included, because n_params is unknown"
        figures = {"sequence_length": metric_value(largest.metrics, "sequence_length")}
        samples, epochs = (metric_value(largest.metrics, name) for name in ("samples", "epochs"))
        if len(trial.length) != 1 or not (samples and epochs):
            return replace(of_step(trial, step, None, 0.0), source=FEWER_GPUS, why=why)
        training = training_s(trial, figures | {"epoch_samples": samples / epochs}, step)
        # Start-up, evaluation and compilation take about as long on more GPUs. The median, because trials in processes
        # that another one has started take less.
        times_s = [(record.wall_s, metric_value(record.metrics, "train_s")) for record in records]
        beside_s = statistics.median(
            [max(0.0, wall_s - trained_s) for wall_s, trained_s in times_s if trained_s] or [0.0]
        )
        return replace(of_step(trial, step, training, beside_s), source=FEWER_GPUS, why=why)

    def overrides_to_measure(self, trials: Sequence[TrialSpec]) -> list[str]:
        """Return the overrides of a sweep that measures the GPU counts from which these trials can be extrapolated."""
        from orchestrator.statistics.extrapolation import counts_to_measure

        lines = {but_for_gpus(trial) for trial in trials}
        records = [record for line in sorted(lines) for record in self.lines.get(line, ())]
        timed = {record.gpus for record in records if record.trial_id in self.timed}
        counts = counts_to_measure(timed, {trial.gpus for trial in trials})
        again = [record.trial_id[:SHOWN_DIGITS] for record in records if record.gpus in {*counts} - timed]
        rerun = [f"rerun=[{','.join(again)}]"] if again else []
        return [f"sweep.axes.gpus=[{','.join(f'{count:g}' for count in counts)}]", *rerun]

    def samples_to_target(self, trial: TrialSpec) -> Estimate | None:
        """Return the samples to the target at the trial's batch: as measured, or from three other batches."""
        batch, by_batch = trial.batch.global_batch_size, defaultdict[int, list[float]](list)
        for record in self.economies.get(but_for_batch(trial), ()):
            samples = samples_to_target(record.metrics)
            if samples is not None:
                by_batch[record.global_batch_size].append(samples)
        if not by_batch:
            return None
        import numpy as np

        from orchestrator.statistics.critical_batch import BatchEconomy, TooFewBatchesError
        from orchestrator.statistics.intervals import UPPER_90, Moments, student

        if len(by_batch.get(batch, ())) > 1:
            interval = student(Moments.of(np.log(by_batch[batch])), UPPER_90).map(np.exp)
        else:
            pairs = np.array([(size, value) for size, values in by_batch.items() for value in values])
            try:
                interval = BatchEconomy.of(*pairs.T).samples_at(batch)
            except TooFewBatchesError:
                return None
        return _estimate(interval)


def _estimate(interval: Any) -> Estimate:
    return Estimate(value=float(interval.point), lo=float(interval.lo), hi=float(interval.hi))

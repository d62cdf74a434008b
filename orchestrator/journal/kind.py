"""What a journal has records of, and what each of them holds."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a record is about."""

    SWEEP = "sweep"
    """A driver took up the sweep: its config outside `sweep.axes`, the driver's provenance, what trials will run on."""
    STARTED = "started"
    """`{trial_id, attempt}`: the gang was told to start."""
    RETRIED = "retried"
    """`{trial_id, attempt, cause, note, wall_s, gpus_held}`: the attempt failed, and there will be another one."""
    CUT_OFF = "cut_off"
    """`{trial_id, attempt, wall_s, gpus_held}`: the sweep was interrupted in the middle of the attempt."""
    FINISHED = "finished"
    """A `TrialRecord`, and with it `files`: the SHA-256 of the trial's files, by name."""
    PROBED = "probed"
    """`{trial_id, probes, speed, size, gpus, status, note, wall_s, samples_per_s, epoch_s, reserved_memory_gb,
    device_memory_gb}`: a short trial ended."""
    SPOILED = "spoiled"
    """`{trial_ids}`: something spoiled the timing of these trials that have ended, and they run once more."""
    ENDED = "ended"
    """`{missing}`: the tables were written, and so many planned trials have no end."""

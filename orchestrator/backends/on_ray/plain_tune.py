"""Tune without what it does beside running trials."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ray.air._internal import usage
from ray.tune import tune

from orchestrator.backends.on_ray.controller import GangController
from orchestrator.backends.on_ray.temporary import environment, patched

_TUNE = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # the journal decides what is done, not Tune's experiment state
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # TrialQueue holds trials back, not Tune
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}


@contextmanager
def plain_tune(*, verbose: bool) -> Iterator[None]:
    """Tune as it is wanted here, for a while; it says what it has to say only if `verbose`."""
    with (
        environment(_TUNE),
        _quiet(not verbose),
        # To tell Ray's makers who uses their callbacks, Tune imports Comet, MLflow and W&B where they are, for seconds.
        patched(usage, "tag_callbacks", lambda callbacks: False),
        patched(tune, "TuneController", GangController),
    ):
        yield


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Silence Tune's logger for a while: every end it reports reaches the listener anyway."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL if quiet else level)
    try:
        yield
    finally:
        logger.setLevel(level)

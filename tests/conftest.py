"""What holds for all tests."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if "CI" not in os.environ:  # where Hypothesis has such a profile of its own
    settings.load_profile("any machine")


# In the background of a script, and below `nohup`, these are ignored, and would be by every process that a test starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """Files are begun in their order: those with Ray, of few tests but the longest, first and not last of all."""
    config.option.loadscopereorder = False

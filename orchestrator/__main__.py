"""`python -m orchestrator sweep=…`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """The command line; returns the exit status."""
    from orchestrator.command_line.outlet import outlast_readers
    from orchestrator.driver.interrupt import SIGNALS, end_at_once

    outlast_readers()
    for number in SIGNALS:  # until a sweep runs, nothing has begun that would have to be ended
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_at_once)
    from orchestrator.app import main as app

    if os.getcwd() not in sys.path and "" not in sys.path:  # as `python -m` has it: the user's own code is here
        sys.path.insert(0, os.getcwd())
    return app(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

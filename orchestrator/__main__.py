"""`python -m orchestrator sweep=…`."""

from __future__ import annotations

import codecs
import locale
import os
import signal
import sys


def main() -> int:
    """The command line; returns the exit status."""
    if codecs.lookup(encoding := locale.getpreferredencoding(False)).name != "utf-8":
        told = "set PYTHONUTF8=1, or a locale such as C.UTF-8"
        print(f"the encoding here is {encoding}, and configs, results and tables are UTF-8: {told}", file=sys.stderr)
        return 2
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

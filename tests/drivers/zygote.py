"""Forks drivers from one process that has done their imports, which take longer than most drivers.

A separate program: it reads one request per line, `{arguments, folder, environment, results, out, err, status}`, and
answers with the process id. When that process ends, its wait status goes to the file `status`. Ends with its standard
input. Linux only (pidfd).
"""

import contextlib
import importlib
import io
import json
import os
import random
import select
import signal
import sys
from pathlib import Path
from typing import Any

IMPORTED = (
    *("orchestrator.cli.app", "orchestrator.run.driver", "orchestrator.run.finish", "orchestrator.report.page"),
    *("orchestrator.backends.inprocess", "orchestrator.telemetry.columns", "orchestrator.telemetry.columns"),
    *("orchestrator.run.verify", "hydra.main", "hydra._internal.hydra"),
    *("pandas", "pyarrow.parquet", "scipy.stats", "scipy.optimize", "tabulate"),
)


_configured: dict[tuple[str, ...], Any] = {}


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    compose_once()
    decide_once()
    waiting, children = select.poll(), dict[int, tuple[int, str]]()
    waiting.register(0, select.POLLIN)
    requests = os.fdopen(0, "rb", buffering=0, closefd=False)
    while True:
        for file, _ in waiting.poll():
            if file in children:
                pid, status = children.pop(file)
                waiting.unregister(file)
                os.close(file)
                tell(Path(status), os.waitpid(pid, 0)[1])
            elif line := requests.readline():
                request = json.loads(line)
                configured = prepared(request) if request["results"] else None
                pid = os.fork()
                if not pid:
                    return drive(request, configured)
                ended = os.pidfd_open(pid)
                children[ended] = (pid, request["status"])
                waiting.register(ended, select.POLLIN)
                os.write(1, f"{pid}\n".encode())
            else:
                return


def compose_once() -> None:
    """Compose once: the grammar of overrides is fast from the second time on."""
    from orchestrator.cli.app import main as orchestrator

    with contextlib.redirect_stdout(io.StringIO()):
        orchestrator(["sweep=batch_scaling", "backend=inprocess", "mode=plan", "sweep.axes.device_batch_size=[8]"])


def decide_once() -> None:
    """Make the tables of two trials: pandas, scipy and jinja2 are fast from the second time on."""
    from orchestrator.tables.recommendation import recommendation_markdown
    from orchestrator.tables.speedup import speedup_markdown
    from tests.unit.orchestrator.decision.deciding import decided_with_frames, measured
    from tests.unit.orchestrator.records import record_of

    trials, cells, recommendation = decided_with_frames(
        [record_of(g, s, metrics=measured(g, 0.9)) for g in (1, 2) for s in (0, 1)]
    )
    recommendation_markdown(recommendation, trials, "demo")
    speedup_markdown(cells)


def tell(path: Path, status: int) -> None:
    aside = path.with_suffix(".aside")
    aside.write_text(str(status))
    aside.rename(path)


def prepared(request: dict[str, Any]) -> Any:
    """Return the sweep of these arguments, composed once, with other results."""
    from orchestrator.cli.sweep_checks import checked
    from orchestrator.config.compose import Composition, initialised
    from orchestrator.config.overrides import rewritten
    from tests.unit.orchestrator.requests import with_results

    key = tuple(request["arguments"])
    if key not in _configured:
        os.chdir(request["folder"])
        sys.path[:0] = paths(request["environment"])
        with initialised():
            _configured[key] = checked(Composition(rewritten(request["arguments"])))
            _configured[key].fingerprint()
    return with_results(_configured[key], Path(request["results"]))


def paths(environment: dict[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(":") if path and path not in sys.path]


def drive(request: dict[str, Any], configured: Any) -> None:
    """Run `python -m orchestrator` as if it had just been started; a `configured` sweep is composed already."""
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = paths(request["environment"])
    sys.argv = ["orchestrator", *request["arguments"]]
    random.seed()
    from orchestrator.__main__ import main as orchestrator
    from orchestrator.cli.modes import MODES
    from orchestrator.run.interrupt import SIGNALS, end_at_once
    from orchestrator.store import failpoints

    for number in SIGNALS if configured else ():  # as the program itself begins
        signal.signal(number, end_at_once)
    failpoints.arm()
    sys.exit(MODES[configured.request.settings.mode](configured) if configured else orchestrator())


if __name__ == "__main__":
    main()

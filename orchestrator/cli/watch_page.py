"""`mode=watch`: a page on the loopback that shows a sweep while it runs; it only reads, and runs none of its code."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
from rich.console import Console

from orchestrator.cli.status import recommendation_in, state_of
from orchestrator.config.request import Request
from orchestrator.report.plot import SERIES
from orchestrator.run.interim_results import InterimResults
from orchestrator.store import curve_file, files
from orchestrator.store.history import History
from orchestrator.store.record import TrialRecord
from orchestrator.store.results import read_results
from orchestrator.store.results_folder import JOURNAL, TRACE, ResultsFolder
from orchestrator.store.secrets import HIDDEN, Secrets, is_secret_name
from orchestrator.telemetry.gpu import Gpus, gpu_models
from orchestrator.telemetry.timing_gate import FAULTS, VALID, Fault, judgements_of, with_reasons
from orchestrator.text.cell_labels import trial_label
from sweeps.axes import is_number
from sweeps.errors import ConfigError

SHARE = 0.005  # the part of one core that answers may take: the page asks again and again
EVERY_S = 2.0  # the shortest time between two answers
MOST_TRIALS = 500  # how many of the ended trials the page lists, the last first
MOST_CURVES = 8
MOST_POINTS = 200
MOST_OF_CURVE = 1 << 24  # bytes at the end of a learning curve that are read
MOST_LOGS = 8
MOST_CONNECTIONS = 32  # a browser has six
LOG_CHARACTERS = 16_384  # the most characters at the end of a log that are shown
_LONGEST_SECRET = 8_192  # bytes before them that are searched, too, because a secret may begin there

_PAGE = Path(__file__).with_name("watch_page.html")
_STYLE = Path(__file__).parents[1] / "report" / "page.css"


class WatchedSweep:
    """Makes the JSON value that the page shows from a results directory."""

    def __init__(self, request: Request, secrets: Secrets) -> None:
        self._request = request
        psutil.cpu_percent()  # the first call returns 0, later ones the use since the call before
        self._folder = ResultsFolder(request.results_dir)
        self._metric = request.metric
        # The log of a running trial may contain what only its end hides.
        environment = {value: HIDDEN for name, value in os.environ.items() if value and is_secret_name(name)}
        self._secrets = Secrets({**environment, **secrets.hidden})
        self._gpus = Gpus(len(gpu_models()))
        self._journal: tuple[int, int] | None = None  # the size and the time of change of the journal as it was read
        self._history = History()
        self._rows: Mapping[str, TrialRecord] = {}
        self._ended: Sequence[Mapping[str, Any]] = ()
        self._with_curve: Sequence[str] = ()
        self._leaders: Sequence[str] = ()

    def answer(self, trial_id: str = "") -> dict[str, Any]:
        """Return the state of the sweep, and the curve and the logs of one trial if it is in the journal."""
        # The thread's own time on a core: waiting for a disk disturbs no trial.
        began_s = time.thread_time()
        self._read()
        history = self._history
        state = state_of(self._folder, history, self._rows)
        running = []
        for trial in state["running"]:
            last = (self._metrics(trial["trial_id"]) or [{}])[-1]
            word = "timed again" if trial["measures"] else "running"
            running.append(trial | {"state": word, "epoch": last.get("epoch"), "metric": last.get(self._metric.name)})
        # A trial that runs again is also among the ended ones.
        shown = list(dict.fromkeys([*(trial["trial_id"] for trial in running), *self._with_curve]))[:MOST_CURVES]
        if trial_id in history.trials and trial_id not in shown:
            # Each curve has a colour alone.
            shown = [*shown[: MOST_CURVES - 1], trial_id]
        has_ended = history.missing is not None
        recommendation = recommendation_in(self._folder) if has_ended else {}
        value = {
            "sweep": self._folder.root.name,
            "state": state,
            "metric": {"label": self._metric.label.capitalize(), "short": self._metric.short_label},
            "answer": {name: recommendation.get(name) for name in ("verdict", "sentence")},
            "machine": {"host": socket.gethostname(), "devices": self._devices()},
            "running": running,
            "logs": self._logs(trial_id) if trial_id in history.trials else [],
            "folder": str(self._folder.trial(trial_id)) if trial_id in history.trials else "",
            "leaders": _next(recommendation) if has_ended else self._leaders,
            "report": str(self._folder.page) if has_ended and self._folder.page.is_file() else "",
        }
        answer: dict[str, Any] = self._secrets.value(value)
        curves = {shown_id: self._curve(shown_id) for shown_id in shown}
        answer |= {"ended": self._ended, "curves": curves}
        return answer | {"again_s": max(EVERY_S, (time.thread_time() - began_s) / SHARE)}

    def _read(self) -> None:
        """Read the journal if it has changed."""
        try:
            status = self._folder.journal.stat()
        except OSError:  # a folder that was moved keeps its last state
            return
        # A journal of thousands of trials takes longer to read than all the rest of an answer.
        if self._journal == (status.st_size, status.st_mtime_ns):
            return
        self._history = read_results(self._folder).history
        self._rows = self._history.ends
        records = sorted(self._rows.values(), key=lambda record: record.finished_at, reverse=True)
        interim = InterimResults.of(self._request.with_metric_of(record.metrics for record in records))
        self._metric = interim.metric
        # A row that repeats another one's training has the same curve.
        self._with_curve = [record.trial_id for record in records if not record.same_as][:MOST_CURVES]
        judgements = judgements_of(records)
        rows = []
        for record in reversed(records):  # as the driver takes them, so that of equal rates both name the same trial
            columns = {field.name: getattr(record, field.name) for field in fields(record)}
            columns["status"] = record.status
            judgement = judgements.get(record.trial_id, VALID)
            interim.take(columns, judgement)
            figures = interim.figures(record.metrics, record.purpose)
            why = with_reasons(FAULTS[judgement.fault][0], judgement) if judgement.fault else ""
            unit = next((name for name in figures if name.endswith("/s")), "")
            row = {
                "trial_id": record.trial_id,
                "cell": trial_label(columns),
                "state": "disturbed" if judgement.fault is Fault.DISTURBED else record.status.value,
                "epoch": record.metrics.get("epochs"),
                "metric": record.metrics.get(self._metric.name),
                "rate": figures.get(unit),
                "unit": unit,
                "seconds": record.wall_s,
                "gpu_util": record.metrics.get("gpu_util"),
                "facts": _facts(record),
                "note": "; ".join(filter(None, [why, record.note])),
            }
            rows.append(row)
        self._ended = self._secrets.value(rows[::-1][:MOST_TRIALS])
        self._leaders = self._secrets.value(list(interim.lines()))
        self._journal = (status.st_size, status.st_mtime_ns)

    def _metrics(self, trial_id: str) -> list[dict[str, Any]]:
        path = self._folder.metrics(trial_id)
        try:
            files.refuse_link(path.parent)
            files.refuse_link(path)
            return curve_file.parsed(files.read_regular(path, MOST_OF_CURVE))[0]
        except OSError:  # no row yet, or a link that leads elsewhere
            return []

    def _curve(self, trial_id: str) -> list[list[float | None]]:
        """Return the epochs, losses and metrics of a trial, thinned out; always with the last row."""
        rows = self._metrics(trial_id)
        step = max(1, len(rows) // MOST_POINTS)
        kept = [row for place, row in enumerate(rows) if place % step == 0 or place == len(rows) - 1]
        values = ([row.get(name) for name in ("epoch", "loss", self._metric.name)] for row in kept)
        return [[value if is_number(value) else None for value in point] for point in values]

    def _logs(self, trial_id: str) -> list[dict[str, str]]:
        """Return the ends of a trial's logs and of its trace, without secrets. Links and pipes are left out."""
        folder, logs = self._folder.trial(trial_id), []
        for path in [folder / TRACE, *sorted(folder.glob("*.log"))[:MOST_LOGS]]:
            with suppress(OSError):  # no such file, or a link that leads elsewhere
                self._folder.refuse_links(trial_id)
                files.refuse_link(path)
                content = files.read_regular(path, LOG_CHARACTERS + _LONGEST_SECRET)
                text = self._secrets.text(content.decode(errors="replace"))
                # A secret that began before these bytes is not recognised, and has at most so many characters here.
                is_cut = len(content) == LOG_CHARACTERS + _LONGEST_SECRET
                logs.append({"name": path.name, "text": text[_LONGEST_SECRET if is_cut else 0 :][-LOG_CHARACTERS:]})
        return logs

    def _devices(self) -> list[Mapping[str, Any]]:
        """Return how busy the GPUs of this machine are, or else its processors."""
        if not self._gpus.taps:
            return [{"name": "CPU", "used": psutil.cpu_percent() / 100}]
        readings = {name: tap.read(counters=False) for name, tap in self._gpus.taps.items()}
        return [
            {
                "name": name.replace("gpu", "GPU "),
                "used": figures.get("gpu_util"),
                "memory_gb": figures.get("memory_used_gb"),
                "power_w": figures.get("power_w"),
            }
            for name, figures in readings.items()
        ]


def _next(recommendation: Mapping[str, Any]) -> list[str]:
    """Return the line with the command that settles the verdict in the content of `recommendation.json`, if any."""
    undecided = recommendation.get("undecided")
    commands = undecided.get("commands") if isinstance(undecided, Mapping) else None
    return [f"Next: {command}" for command in commands[:1]] if isinstance(commands, list) else []


def _facts(record: TrialRecord) -> str:
    """Return what the columns of the page lack: rate, global batch, loss, and when the trial ended."""
    loss = record.metrics.get("loss")
    parts = [f"LR {record.lr:.3g}", f"global batch {record.global_batch_size:,}"]
    parts += [f"training loss {loss:.4g}"] if is_number(loss) else []
    return ", ".join([*parts, f"ended {record.finished_at}"])


class Server(ThreadingHTTPServer):
    """Serves the page and its values on a free port of the loopback, to those who know the token."""

    daemon_threads = True
    request_queue_size = 128  # a flood of connections must not delay the next one by the second of a lost packet

    def __init__(self, watch: WatchedSweep) -> None:
        self.watch = watch
        self.lock = threading.Lock()
        # Other users of the machine reach the loopback as well.
        self.token = token_urlsafe(16)
        self.nonce = token_urlsafe(16)
        filled = {"css": _STYLE.read_text(), "nonce": self.nonce, "colours": json.dumps(SERIES)}
        page = _PAGE.read_text()
        for name, text in filled.items():
            page = page.replace(f"{{{{ {name} }}}}", text)
        self.page = page.encode()
        self._connections: dict[Any, None] = {}  # the oldest first
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; the oldest one ends once there are too many."""
        # Programs of other users can open connections and send nothing: they would use up the files of this process.
        self._connections[request] = None
        for oldest in list(self._connections)[:-MOST_CONNECTIONS]:
            self._connections.pop(oldest, None)
            with suppress(OSError):  # it has ended by itself
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, unless the browser has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for all requests of a page
    timeout = 60
    server: Server

    def do_GET(self) -> None:
        """Answer with the page or with its value."""
        path, _, rest = self.path.partition("?")
        query = {name: values[-1] for name, values in parse_qs(rest).items()}
        # In constant time, so that nobody can guess the token one character after another.
        if not self._is_from_here() or not compare_digest(query.get("token", "").encode(), self.server.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"Open the address that mode=watch prints.\n")
        elif path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.page)
        elif path == "/state":
            # Threads serve several browser tabs, and `WatchedSweep` keeps what it has read.
            with self.server.lock:
                value = self.server.watch.answer(query.get("trial", ""))
            self._send(HTTPStatus.OK, "application/json", files.encode(value))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n")

    def _is_from_here(self) -> bool:
        """Return whether the request names the loopback: a foreign page can bind its own host name to this address."""
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in ("127.0.0.1", "localhost", "::1")
        except ValueError:
            return False

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        policy = f"default-src 'none'; style-src 'nonce-{self.server.nonce}'; script-src 'nonce-{self.server.nonce}';"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        # The address contains the token.
        self.send_header("Referrer-Policy", "no-referrer")
        limits = "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        self.send_header("Content-Security-Policy", f"{policy} {limits}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a line for each request would hide the address."""


def serve(request: Request, secrets: Secrets, console: Console) -> int:
    """Serve the page until Ctrl-C. Raises ConfigError if the folder has no journal."""
    folder = ResultsFolder(request.results_dir)
    if not folder.journal.is_file():
        raise ConfigError([f"there are no results in {folder.root}: it has no {JOURNAL}"])
    with Server(WatchedSweep(request, secrets)) as server:
        port = server.server_port
        console.print(f"{server.url}   (Ctrl-C ends)", markup=False, soft_wrap=True)
        tunnel = f"ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"
        console.print(f"from another machine, first: {tunnel}", markup=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0

"""mode=watch: the value that its page shows, who may read it, and what it never contains."""

import json
import os
import socket
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from orchestrator.cli import watch_page
from orchestrator.cli.app import main
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind
from orchestrator.telemetry.timing_gate import FAULTS, Fault
from tests.unit.orchestrator.cli.watched import EVIL, RUNNING, SECRET, served, write_end, write_epochs, write_sweep
from tests.unit.orchestrator.records import record_of


@pytest.fixture
def server(results_folder):
    with Journal.open(results_folder.journal) as journal:
        write_sweep(journal, results_folder)
        with served(results_folder.root) as server:
            yield server


def reply(server, path, **headers):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    method = headers.pop("method", "GET")
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.headers)


def value(server, trial_id=""):
    status, body, _ = reply(server, f"/state?token={server.token}&trial={trial_id}")
    assert status == 200
    return dict(json.loads(body))


def test_value_of_a_running_sweep(server, results_folder):
    told = value(server)
    assert told["state"]["state"] == "running"
    assert told["state"]["trials"] == {"failed": 1, "ok": 3, "running": 1, "waiting": 1}
    assert told["state"]["left_s"] > 0
    (trial,) = told["running"]
    assert {name: trial[name] for name in ("cell", "state", "epoch", "metric")} == {
        "cell": "2×32 sqrt, seed=0",
        "state": "running",
        "epoch": 2,
        "metric": 0.75,
    }
    assert told["curves"][RUNNING] == [[1, 1.0, 0.75], [2, 0.5, 0.75]]
    assert [device["name"] for device in told["machine"]["devices"]]
    write_epochs(results_folder, 3)
    assert value(server)["running"][0]["epoch"] == 3


def test_disturbed_timings_are_no_leaders(server):
    told = value(server)
    by_id = {row["trial_id"]: row for row in told["ended"]}
    assert by_id["ok-2-1"]["rate"] == 9000 and "disturbed" in by_id["ok-2-1"]["note"]
    assert by_id["ok-2-1"]["state"] == "disturbed"
    assert by_id["ok-2-1"]["facts"].startswith("LR 0.1, global batch 64, ")
    assert "1,800 samples/s" in told["leaders"][0] and "2 GPUs 1.80×" in told["leaders"][1]


def test_a_straggler_is_noted_without_reasons(results_folder):
    with Journal.open(results_folder.journal) as journal, served(results_folder.root) as server:
        journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {}})
        for seed, rate in enumerate((1000.0, 1001.0, 1002.0, 500.0)):
            metrics = {"samples_per_s": rate, "window_s": 60.0, "window_steps": 1000}
            write_end(journal, results_folder, record_of(1, seed, metrics=metrics).to_json())
        notes = {row["trial_id"][-1]: row["note"] for row in value(server)["ended"]}
    assert notes == {"0": "", "1": "", "2": "", "3": FAULTS[Fault.STRAGGLER][0]}


def test_a_trial_that_ends_is_shown_without_another_start(results_folder):
    with Journal.open(results_folder.journal) as journal, served(results_folder.root) as server:
        write_sweep(journal, results_folder)
        before = value(server)["ended"]
        write_end(journal, results_folder, record_of(8, trial_id="new-1").to_json())
        assert len(value(server)["ended"]) == len(before) + 1


REFUSED = {
    403: [
        *(("/state?token=TOKEN", {"Host": host}) for host in ("evil.example", "127.0.0.1.evil.example", "", "[")),
        *((path, {}) for path in ("/", "/state", "/state?token=", "/?token=wrong", "/state?token=%E2%82%AC")),
    ],
    404: [
        (f"{path}?token=TOKEN", {})  # no file of the folder is served
        for path in ("/journal.jsonl", "/../journal.jsonl", "/state/", "/trials/failed-1/trace.txt", "ws://[/")
    ],
    501: [("/state?token=TOKEN", {"method": method}) for method in ("POST", "PUT", "DELETE", "OPTIONS")],
}


@pytest.mark.parametrize("status", REFUSED)
def test_only_the_page_is_served_to_this_machine_with_the_token(server, status):
    for path, headers in REFUSED[status]:
        told, body, _ = reply(server, path.replace("TOKEN", server.token), **headers)
        assert told == status and "trials" not in body, (path, headers)
    for host in ("localhost:9", "127.0.0.1", "[::1]:80"):  # behind a tunnel
        assert reply(server, f"/?token={server.token}", Host=host)[0] == 200


def test_connections_that_send_nothing_keep_nobody_out(server):
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=60))
            for _ in range(2 * watch_page.MOST_CONNECTIONS)
        ]
        assert value(server)["state"]
        assert silent[0].recv(1) == b""  # the oldest have been closed
        with pytest.raises(TimeoutError):
            silent[-1].settimeout(0.01)
            silent[-1].recv(1)


def test_the_page_may_load_nothing_from_elsewhere(server):
    status, body, headers = reply(server, f"/?token={server.token}")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
    assert policy.count(f"'nonce-{server.nonce}'") == body.count(f'nonce="{server.nonce}"') == 2
    assert "{{" not in body and server.token not in body
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")


def test_logs_have_no_secrets(server, monkeypatch):
    told = value(server, RUNNING)
    (log,) = told["logs"]
    assert log["name"] == "rank0.log" and log["text"].endswith("last line\n") and EVIL in log["text"]
    assert SECRET not in json.dumps(told) and "<hidden>" in json.dumps(told)


@pytest.mark.parametrize(
    "end",
    [
        "y" * (watch_page.LOG_CHARACTERS - 10),  # the end of the secret is the first that would be shown
        "█"
        * ((watch_page.LOG_CHARACTERS + watch_page._LONGEST_SECRET - 10) // 3),  # what is read begins within the secret
    ],
)
def test_only_the_end_of_a_log_is_sent_and_no_half_secret(server, results_folder, end):
    path = results_folder.trial(RUNNING) / "rank0.log"
    path.write_text("x" * 30_000 + SECRET + end)
    (log,) = value(server, RUNNING)["logs"]
    assert 0 < len(log["text"]) <= watch_page.LOG_CHARACTERS and SECRET[-9:] not in log["text"]
    assert log["text"].strip(end[0] + "<hidden>") == ""


def test_logs_of_other_folders_are_not_read(server):
    for trial_id in ("..", "../..", "%2e%2e%2f", "unknown", "a" * 100, "%00"):
        told = value(server, trial_id)
        assert told["logs"] == [] and "root" not in told["curves"]


def test_links_and_pipes_in_a_foreign_folder_are_left_out(server, results_folder):
    folder = results_folder.trial("failed-1")
    (results_folder.root / "private").write_text("private")
    (folder / "a.log").symlink_to(results_folder.root / "private")
    os.mkfifo(folder / "b.log")
    (folder / "c.log").write_text("mine")
    os.mkfifo(results_folder.trial("ok-1-0") / "once.log")
    results_folder.metrics("ok-1-0").unlink()
    os.mkfifo(results_folder.metrics("ok-1-0"))
    os.truncate(results_folder.metrics(RUNNING), 2**34)  # more than fits into memory
    results_folder.metrics("failed-1").unlink(missing_ok=True)
    results_folder.metrics("failed-1").symlink_to(results_folder.metrics("ok-2-0"))
    told = value(server, "failed-1")
    assert [log["name"] for log in told["logs"]] == ["c.log"] and told["curves"]["ok-1-0"] == []
    assert results_folder.metrics("ok-2-0").read_text() and told["curves"]["failed-1"] == []


def test_odd_files_of_a_running_trial_do_not_end_the_page(server, results_folder):
    results_folder.metrics(RUNNING).write_text('{"epoch": "one", "loss": [1]}\nnull\n')
    for text in ("", "[", "- 1", "{batch: 1}", "{axes: {}, batch: {shares: []}, lr: 1}"):
        results_folder.config(RUNNING).write_text(text)
        told = value(server)
        assert told["running"][0]["cell"] == "" and told["curves"][RUNNING] == [[None, None, None]]


def test_a_dead_and_a_finished_sweep_are_shown(results_folder):
    with Journal.open(results_folder.journal) as journal:
        write_sweep(journal, results_folder)
    with served(results_folder.root) as server:
        told = value(server)
        assert (told["state"]["state"], told["state"]["interrupted"]) == ("not finished", 1)
        assert told["answer"]["sentence"] is None
        results_folder.table("recommendation.json").write_text('{"verdict": "clear", "sentence": "Use it."}')
        with Journal.open(results_folder.journal) as journal:
            journal.append(Kind.ENDED, {"missing": 0})
        told = value(server)
        assert told["state"]["state"] == "finished"
        assert told["answer"] == {"verdict": "clear", "sentence": "Use it."}
        assert (told["leaders"], told["report"]) == ([], "")
        more = {"verdict": "tied", "undecided": {"commands": ["settle", "second"]}}
        results_folder.table("recommendation.json").write_text(json.dumps(more))
        assert value(server)["leaders"] == ["Next: settle"]
        results_folder.page.touch()
        assert value(server)["report"] == str(results_folder.page)


def test_the_page_asks_so_seldom_that_answers_take_a_small_share(server, monkeypatch):
    assert value(server)["again_s"] >= watch_page.EVERY_S
    clock = iter((10.0, 10.5))
    monkeypatch.setattr(watch_page.time, "thread_time", lambda: next(clock))
    assert value(server)["again_s"] == pytest.approx(0.5 / watch_page.SHARE)


def test_watch_without_results_is_refused(tmp_path, capsys):
    assert main(["mode=watch", "sweep=batch_scaling", f"results_dir={tmp_path}"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_chosen_trial_replaces_the_oldest_curve(results_folder):
    with Journal.open(results_folder.journal) as journal, served(results_folder.root) as server:
        write_sweep(journal, results_folder)
        for number in range(watch_page.MOST_CURVES):
            write_end(journal, results_folder, record_of(8, number, trial_id=f"more-{number}").to_json())
        told = value(server)["curves"]
        chosen = next(row["trial_id"] for row in value(server)["ended"] if row["trial_id"] not in told)
        with_chosen = value(server, chosen)["curves"]
    assert len(told) == len(with_chosen) == watch_page.MOST_CURVES
    assert set(with_chosen) - set(told) == {chosen} and RUNNING in with_chosen

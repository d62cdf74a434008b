"""Test malicious configs, names and strings: none has a side effect or reaches files that others read."""

import os
import shutil
import stat

import pytest

from orchestrator.cli.app import main
from orchestrator.config.schema import SCHEMA
from tests.drivers.forked import ROOT, Forked
from tests.drivers.place import SMALL, Place

SECRETS = {"DB_PASSWORD": "hunter22-and-more", "PLACE": "somewhere-private", "HF_TOKEN": "hf_" + "a1B2c3D4" * 4}

TRAINING = """
import os


def train(config, context):
    print("my token is", os.environ["HF_TOKEN"], config["trainable"]["password"], flush=True)
    context.report({"epoch": 1, "loss": 1.0, "said": os.environ["HF_TOKEN"]})
    if context.seed == 1:
        raise RuntimeError("cannot log in with " + config["trainable"]["password"])
    context.remark("=cmd|' /C calc'!A0 <script>alert(1)</script>")
    context.summarize({"samples_per_s": 1.0, "accuracy": 0.5, "where": config["trainable"]["where"]})
"""


def orchestrate(folder, *arguments, **environment):
    """Return the exit status, stdout and stderr."""
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"} | environment
    driver = Forked(["backend=inprocess", *arguments], folder, variables)
    out, err = driver.communicate()
    return driver.wait(), out, err


HOSTILE = {
    "trusting itself": "trainable:\n  _target_: os:system\ntrusted_modules: [os]\n",
    "check": "trainable:\n  _check_: builtins:exec\n",
    "python object": "trainable:\n  lr: !!python/object/apply:os.system ['touch witness']\n",
    "python name": "trainable:\n  lr: !!python/name:os.system\n",
    "callback": "hydra:\n  callbacks:\n    x:\n      _target_: subprocess.call\n      args: [touch, witness]\n",
    "handler": "hydra:\n  job_logging:\n    handlers:\n      x:\n        (): subprocess.call\n        args: date\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_malicious_config_has_no_effect(folder, text, capsys):
    sweep = folder / "conf" / "sweep" / "evil.yaml"
    sweep.parent.mkdir(parents=True)
    sweep.write_text(f"# @package _global_\nsweep:\n  name: evil\n  axes: {{device_batch_size: [8]}}\n{text}")
    search = f"hydra.searchpath=[file://{folder}/conf]"
    assert main(["backend=inprocess", search, "sweep=evil", "trainable=noop"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["conf"]


NAMES = ("../up", "..", ".", ".hidden", "a/b", "/abs", "a\\b", "x" * 300, "a\x01b", "nl\nnl", "a b\x00", "", None, 5)


def test_a_name_stays_inside_the_results(folder):
    assert not any(map(SCHEMA["sweep.name"].admits, NAMES)) and SCHEMA["sweep.name"].admits("mine 1.0")
    assert main(["backend=inprocess", "sweep=batch_scaling", "trainable=noop", "sweep.name=../up", "mode=plan"]) == 2
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_results_hold_no_secrets_and_are_private(tmp_path):
    (tmp_path / "loud_training.py").write_text(TRAINING)
    status, out, err = orchestrate(
        tmp_path,
        *("sweep=batch_scaling", "trainable=function", "trainable._target_=loud_training:train"),
        *("trusted_modules=[loud_training]", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[8]"),
        *("sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0,1]"),
        *(
            "+trainable.password=${oc.env:DB_PASSWORD}",
            "+trainable.where=${oc.env:PLACE}",
            "+trainable.api_key=abcd-12345",
        ),
        **SECRETS,
    )
    assert status == 1, err
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "loud_training.py"]
    assert len(written) > 8
    for path in written:
        content = path.read_bytes().decode("utf-8", "replace")
        for secret in (*SECRETS.values(), "abcd-12345"):
            assert secret not in content, (path, secret)
    told = [line for line in (out + err).splitlines() if not line.startswith("my token is")]
    for secret in SECRETS.values():
        assert secret not in "\n".join(told)
    results = tmp_path / "results" / "batch_scaling"
    for folder in (results, results / "trials", results / "tables", *(results / "trials").iterdir()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    table = (results / "tables" / "trials.csv").read_text()
    assert ",=cmd" not in table and '"=cmd' not in table
    status, out, _ = orchestrate(tmp_path, "sweep=batch_scaling", "mode=report", "report.html=false")
    assert status in (0, 1) and "<script>" not in out


BREAKING = ("sweep=traced", *SMALL, "trainable.breaks=0", "retries=1")
KINDS = ("started", "retried", "finished", "ended")


@pytest.mark.slow
def test_values_of_the_environment_hide_no_names_and_ids(tmp_path):
    """Words of the journal and a part of an id, which settings of the report take from the environment."""
    first = Place(tmp_path / "first", *BREAKING)
    assert first.run()[0] == 1
    trial_ids = first.finished()  # which settings of the report do not change
    words = ["finished", "seed", "trial_id", "status", "ended", trial_ids[0][3:9]]
    environment = {f"WORD_{place}": word for place, word in enumerate(words)} | {"METRIC": "accuracy"}
    currency = " ".join(f"${{oc.env:{name}}}" for name in environment if name != "METRIC")
    settings = ("report.metric=${oc.env:METRIC}", f"report.currency='{currency}'")
    place = Place(tmp_path / "second", *BREAKING, *settings)
    assert place.run(**environment)[0] == 1
    values = {kind: [record["value"] for record in place.journal() if record["kind"] == kind] for kind in KINDS}
    assert {value["trial_id"] for kind in KINDS[:3] for value in values[kind]} == set(trial_ids)
    assert [value["metrics"]["accuracy"] for value in values["finished"] if value["status"] == "ok"] == [0.9] * 3
    tables = values["ended"][0]["tables"]
    assert set(tables) <= {path.name for path in (place.results / "tables").iterdir()} and "trials.csv" in tables
    status, out, err = place.run("mode=verify", **environment)
    assert status == 0, out + err
    assert "<WORD_1 " in (place.results / "journal.jsonl").read_text()  # in the command, `seed` is hidden


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run a sweep of one failing trial, which leaves traces and logs."""
    one = ("sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]")
    place = Place(tmp_path_factory.mktemp("finished"), "sweep=traced", *one, "trainable.breaks=0")
    assert place.run()[0] == 1
    return place


LINKS = {
    "tables": (2, True),
    "trials": (2, True),
    "trials/*": (1, True),
    "trials/*/checkpoint": (1, True),
    "journal.jsonl": (1, False),
    "lock": (1, False),
    "owner.json": (1, False),
    "tables/summary.csv": (1, False),
    "tables/trials.parquet": (1, False),
    "report.html": (1, False),
    "trials/*/config.yaml": (1, False),
    "trials/*/metrics.jsonl": (1, False),
    "trials/*/trace.txt": (1, False),
    "trials/*/rank0.log": (1, False),
    "trials/*/telemetry.parquet": (1, False),
}
"""What may be a link in somebody else's results: the exit status then (1: the trial breaks); whether to a folder."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LINKS)
def test_links_do_not_leave_the_results(finished, tmp_path, name):
    status, is_folder = LINKS[name]
    shutil.copytree(finished.results, tmp_path / "theirs/traced")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(b"" if name == "journal.jsonl" else b"mine")
    (trial,) = (tmp_path / "theirs/traced/trials").iterdir()
    path = tmp_path / "theirs/traced" / name.replace("*", trial.name)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(outside if is_folder else outside / "mine")
    for arguments in (("rerun=all",), ("mode=report",)):
        exit_status, _, err = finished.run(f"results_dir={tmp_path}/theirs", *arguments)
        assert exit_status == status or arguments[0] != "rerun=all", err
        assert "Traceback" not in err
        assert [path.name for path in outside.iterdir()] == ["mine"]
        assert (outside / "mine").read_bytes() == (b"" if name == "journal.jsonl" else b"mine")


@pytest.mark.slow
def test_the_results_folder_may_be_a_link(finished, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/traced").symlink_to(tmp_path / "large")
    assert finished.run(f"results_dir={tmp_path}/results")[0] == 1
    assert (tmp_path / "large/tables/trials.csv").exists()


@pytest.mark.slow
def test_multirun_yaml_holds_no_secrets(tmp_path):
    place = Place(tmp_path, "sweep=traced", *SMALL, "report.html=false")
    secrets = ("+trainable.api_key='abcd 12345'", "+trainable.password=${oc.env:PASS}")
    where = "+trainable.where='https://me:open-sesame@host/x'"
    arguments = ("sweep.axes.seed=[0],[1]", *secrets, where, "--multirun")
    status, out, err = place.run(*arguments, PASS="hunter22-and-more")
    assert status == 0, err
    accounts = list(tmp_path.rglob("multirun.yaml"))
    assert accounts and "+trainable.api_key=<hidden>" in accounts[0].read_text()
    for path in tmp_path.rglob("*"):
        content = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
        assert not any(secret in content for secret in ("abcd 12345", "hunter22", "open-sesame")), path

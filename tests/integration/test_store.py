"""Test results in a bucket of a local S3 server: started on one machine, continued on another."""

import json

import pytest

from tests.drivers import command

moto_server = pytest.importorskip("moto.server", reason="pip install 'sweep-orchestrator[frameworks]'")
pytestmark = pytest.mark.slow

ASKED = (
    *("sweep=batch_scaling", "backend=inprocess", "trainable=noop", "sweep.axes.gpus=[1]", "sweep.axes.lr_rule=[none]"),
    *("sweep.axes.device_batch_size=[32]", "report.html=false"),
)


@pytest.fixture
def bucket(monkeypatch):
    """Return the URI of an empty bucket."""
    import boto3

    for name, value in (("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "any")):
        monkeypatch.setenv(name, value)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    address = f"{host}:{port}"
    boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1").create_bucket(Bucket="lab")
    yield f"s3://lab/sweeps?scheme=http&region=us-east-1&endpoint_override={address}"
    server.stop()


def test_another_machine_continues_from_the_bucket(bucket, tmp_path):
    def orchestrate(machine, *more):
        (tmp_path / machine).mkdir(exist_ok=True)
        return command.orchestrate(tmp_path / machine, *ASKED, f"results_dir='{bucket}'", *more)

    begun = orchestrate("one", "sweep.axes.seed=[0,1]")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert "not up to date" not in begun.stdout
    continued = orchestrate("other", "sweep.axes.seed=[0,1,2]")
    assert continued.returncode == 0, continued.stdout + continued.stderr
    results = tmp_path / "other/results/batch_scaling"
    records = [json.loads(line) for line in (results / "journal.jsonl").read_text().splitlines()]
    ended = [record["value"]["seed"] for record in records if record["kind"] == "finished"]
    assert ended == [0, 1, 2]  # none of them twice
    assert (results / "tables/summary.csv").read_text().count("batch_scaling") == 1
    read = orchestrate("third", "mode=report")
    assert read.returncode == 0, read.stdout + read.stderr
    assert (tmp_path / "third/results/batch_scaling/tables/summary.csv").is_file()

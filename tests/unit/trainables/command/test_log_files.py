"""Logs that are found in the working folder of a command."""

import struct

import pytest

from trainables.command.log_files import logs_in, rows_of


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def event(step, tag, value, *, as_tensor):
    """An event of TensorBoard with one scalar, as protocol buffers and records are defined."""
    number = struct.pack("<f", value)
    tensor = bytes([1 << 3, 1]) + field(4, number)
    scalar = field(8, tensor) if as_tensor else bytes([2 << 3 | 5]) + number
    body = bytes([1 << 3 | 1]) + struct.pack("<d", 0.0) + bytes([2 << 3, step])
    body += field(5, field(1, field(1, tag.encode()) + scalar))
    return struct.pack("<Q", len(body)) + b"----" + body + b"----"


@pytest.mark.parametrize("as_tensor", [True, False])
def test_scalars_of_tensorboard_are_rows(as_tensor, tmp_path):
    log = tmp_path / "runs" / "events.out.tfevents.1.host"
    log.parent.mkdir()
    events = [
        event(step, f"val/{name}", value, as_tensor=as_tensor)
        for step, name, value in ((10, "loss", 0.5), (10, "acc", 0.25), (20, "loss", 0.125))
    ]
    damaged = struct.pack("<Q", 4) + b"----" + 4 * b"\xff" + b"----"
    log.write_bytes(events[0] + damaged + b"".join(events[1:]) + events[0][:20])
    assert logs_in(tmp_path) == [log]
    assert list(rows_of(log)) == [{"step": 10, "val/loss": 0.5, "val/acc": 0.25}, {"step": 20, "val/loss": 0.125}]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            "epoch, acc ,loss\n1,0.5,\n2,0.75,0.1\n",
            [{"epoch": "1", "acc": "0.5"}, {"epoch": "2", "acc": "0.75", "loss": "0.1"}],
        ),
        ("name,size\na,1\n", []),  # no log
    ],
)
def test_tables_with_epochs_are_logs(text, rows, tmp_path):
    (tmp_path / "log.csv").write_text(text)
    assert list(rows_of(tmp_path / "log.csv")) == rows


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", b"epoch,loss\n1," + b"x" * 200_000),
        ("events.out.tfevents.1", struct.pack("<Q", 2**63) + b"x" * 100),
        *(
            ("events.out.tfevents.1", struct.pack("<Q", len(body)) + b"----" + body + b"----")
            for body in (b"\x10\xff", b"\x12\x01x", b"\x28\x05", field(5, field(1, b"\x08\xff\xff\xff\xff\x0f")))
        ),
    ],
)
def test_a_damaged_log_is_no_error(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert not any("loss" in row for row in rows_of(tmp_path / name))

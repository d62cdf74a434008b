import pytest

from orchestrator.telemetry.machine import _quota, machine_id, this_machine, visible

TWO = ("A", "B")


@pytest.mark.parametrize(
    ("restriction", "left"),
    [
        (None, TWO),
        ("", ()),
        ("0", ("A",)),
        ("1,0", ("B", "A")),
        ("0,7,1", ("A",)),
        ("-1", ()),
        ("GPU-123", ("A",)),
    ],
)
def test_cuda_visible_devices(restriction, left):
    assert visible(TWO, restriction) == left


@pytest.mark.parametrize(("text", "cores"), [("250000 100000", 2), ("50000 100000", 1)])
def test_a_quota_counts_in_whole_cores(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert _quota(tmp_path / "cpu.max") == cores


def test_no_quota_is_all_cores(tmp_path):
    (tmp_path / "cpu.max").write_text("max 100000")
    assert _quota(tmp_path / "cpu.max") == _quota(tmp_path / "absent") >= 1


def test_a_machine_has_a_name_and_cores():
    machine = this_machine()
    assert machine.name and machine.cpus >= 1 and machine.gpus >= 0


def test_a_machine_is_told_from_others_by_what_tells_nothing_else(tmp_path):
    boots = [tmp_path / name for name in ("one", "again", "other", "absent")]
    for file, boot_id in zip(boots, ("11111111-2222", "11111111-2222", "33333333-4444"), strict=False):
        file.write_text(f"{boot_id}\n")
    one, again, other, absent = map(machine_id, boots)
    assert one == again != other and absent == ""
    assert len(one) == 8 and "1111" not in one

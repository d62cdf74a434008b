"""mode=forecast rehearses in child processes; plans and a run use what it found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SWEEP = [
    *("sweep=batch_scaling", "model=mlp", "sweep.axes.gpus=[1,2]", "sweep.axes.device_batch_size=[32,64,128]"),
    *("sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0,1]", "budget.epochs=2", "format=json"),
]


def told(folder, mode):
    code = (
        "import sys\n"
        "from orchestrator.cli.app import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    slow = {'torch', 'ray'} | ({'pandas'} if 'mode=plan' in sys.argv else set())\n"  # labels need pandas
        "    assert not slow & set(sys.modules)\n"
    )
    arguments = [*SWEEP, f"results_dir={folder}", f"mode={mode}"]
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, object] = json.loads(ended.stdout)
    return answer


@pytest.mark.slow
def test_a_forecast_is_kept_and_plans_use_it(tmp_path):
    assert told(tmp_path, "plan")["trials_of_unknown_duration"] == 12
    forecast = told(tmp_path, "forecast")
    cells = forecast["cells"]
    assert isinstance(cells, list) and len(cells) == 6
    sources = {cell["source"] for cell in cells}
    assert sources <= {"rehearsal", "rehearsal, disturbed"} and all(cell["samples_per_s"] for cell in cells)
    kept = json.loads((tmp_path / "batch_scaling" / "rehearsals.json").read_text())["rehearsals"]
    assert sorted(rehearsal["micro_batch"] for rehearsal in kept) == [32, 32, 128, 128]
    assert not any(rehearsal["figures"]["is_alone"] for rehearsal in kept)  # both processes of a trial rehearsed
    plan = told(tmp_path, "plan")
    assert plan["trials_of_unknown_duration"] == 0 and plan["expected_makespan_s"] == forecast["expected_makespan_s"]
    # Nothing is rehearsed twice, but for what other programs have disturbed.
    assert told(tmp_path, "forecast")["cells"] == cells or sources != {"rehearsal"}


@pytest.mark.slow
def test_cells_without_room_on_cpus_name_a_line_that_forecasts_them_for_a_gpu(tmp_path):
    arguments = ["sweep=batch_scaling", "model=mlp", "sweep.axes.gpus=[1,512]", "sweep.axes.device_batch_size=[1]"]
    command = [sys.executable, "-m", "orchestrator", *arguments, f"results_dir={tmp_path}", "mode=forecast"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 1
    line = next(line for line in ended.stdout.splitlines() if "forecast.device=" in line)
    again = subprocess.run(
        f"{sys.executable} -m {line.partition(' -m ')[2]}", capture_output=True, text=True, shell=True
    )
    assert again.returncode == 0, again.stderr
    assert "512×1" in again.stdout and "from shapes" in again.stdout

"""Commands as trainables, in real processes."""

import json
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from sweeps.layout import Layout
from sweeps.trial import Batch
from tests.unit.trainables.ranks import Processes
from trainables.command.failure import CommandError
from trainables.command.training import train
from trainables.context import Context, DivergedError, TrialTimeoutError
from trainables.supervised.loop import TrainingLength

PYTHON = [sys.executable, "-S"]  # without site-packages: it starts in a few hundredths of a second


def script(folder, text, name="train.py"):
    (folder / name).write_text(textwrap.dedent(text))
    return name


def context(folder, **other):
    batch = Batch(global_batch_size=64, shares=(64,), parts_per_rank=2)
    layout = Layout(strategy="own_ranks", replicas=2)
    return Context.alone(trial_dir=folder / "trial", batch=batch, **{"layout": layout} | other)


def run(folder, argv, trial=None, *, budget=None, **settings):
    trial = trial or context(folder)
    (folder / "trial").mkdir(exist_ok=True)
    section = {"argv": argv, "source_dir": str(folder), "grace_s": 0.5} | settings
    train({"trainable": section, "budget": budget or {"epochs": 3}, "model": {"depth": 7}}, trial)
    return trial


def test_values_reach_the_command_by_words_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")  # of another launcher
    monkeypatch.setenv("KEPT", "as it was")
    script(tmp_path, "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ), os.getcwd()]))")
    words = "{devices} {device_batch_size} {global_batch_size} {lr} {seed} {epochs} {model.depth} {master_port} {{}}"
    run(tmp_path, [*PYTHON, "train.py", *words.split()], context(tmp_path, lr=0.25, seed=5), env={"MINE": "lr={lr}"})
    argv, environment, cwd = json.loads((tmp_path / "trial/stdout.log").read_text())
    assert argv[0] == str(tmp_path / "train.py")
    assert argv[1:8] == ["0,1", "32", "64", "0.25", "5", "3", "7"] and argv[9] == "{}"
    assert environment["SWEEP_DEVICE_BATCH_SIZE"] == "32" and environment["SWEEP_TRIAL_ID"] == "alone"
    assert environment["SWEEP_MASTER_PORT"] == environment["MASTER_PORT"] == argv[8] and int(argv[8]) >= 20_000
    assert environment["MINE"] == "lr=0.25" and environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["ACCELERATE_USE_CPU"] == "true"
    assert "RANK" not in environment and environment["KEPT"] == "as it was"
    assert cwd == str(tmp_path / "trial" / "work") and environment["SWEEP_SOURCE_DIR"] == str(tmp_path)


OF_A_RANK = "LOCAL_RANK NODE_RANK PET_NNODES TORCHELASTIC_RUN_ID OMPI_COMM_WORLD_SIZE PMI_RANK PMIX_RANK".split()
OF_A_RANK += "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_ID SLURM_STEP_NUM_TASKS SLURM_STEP_NODELIST".split()
OF_A_RANK += (
    "SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_CPUS_ON_NODE PET_NODE_RANK".split()
)
OF_A_RANK += "HOROVOD_RANK HOROVOD_LOCAL_SIZE FLUX_TASK_RANK PALS_RANKID MPIRUN_RANK LOCAL_SIZE CROSS_RANK".split()
OF_THE_ALLOCATION = "SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NAME SLURM_NODELIST SLURM_JOB_NODELIST OMPI_MCA_btl".split()
OF_THE_ALLOCATION += "HOROVOD_FUSION_THRESHOLD MY_RANK".split()


@pytest.mark.parametrize(("words", "is_launcher"), [([], False), (["srun"], True), (["--model", "flux"], False)])
def test_no_command_takes_itself_for_a_rank_of_another_launcher(tmp_path, monkeypatch, words, is_launcher):
    for name in [*OF_A_RANK, *OF_THE_ALLOCATION]:
        monkeypatch.setenv(name, "2")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    run(tmp_path, [*PYTHON, "-c", code.replace("{", "{{"), *words], env={"PMI_RANK": "7"})
    environment = json.loads((tmp_path / "trial/stdout.log").read_text())
    assert all(environment[name] == "2" for name in OF_THE_ALLOCATION)
    assert {name for name in OF_A_RANK if name in environment} == (set(OF_A_RANK) if is_launcher else {"PMI_RANK"})
    assert environment["PMI_RANK"] == "7"


def test_model_parallelism_reaches_the_command(tmp_path):
    script(tmp_path, "import sys; print(sys.argv)")
    there = context(tmp_path, layout=Layout(strategy="own_ranks", replicas=2, tensor=2))
    run(tmp_path, [*PYTHON, "train.py", *"{gpus} {dp} {tp} {cp} {pp} {device_batch_size}".split()], there)
    assert (tmp_path / "trial/stdout.log").read_text().strip().endswith("'4', '2', '2', '1', '1', '32']")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"samples": 6400}, ["6400", "100"]),
        ({"samples": 6401}, ["6401", "101"]),
        ({"samples": 10}, ["10", "1"]),
        ({"epochs": None, "samples": None, "steps": 50}, ["3200", "50"]),
    ],
)
def test_samples_and_steps_imply_each_other(tmp_path, budget, words):
    script(tmp_path, "import sys; print(*sys.argv[1:])")
    run(tmp_path, [*PYTHON, "train.py", "{samples}", "{steps}"], budget=budget)
    assert (tmp_path / "trial/stdout.log").read_text().split() == words
    asked = {"epochs": None, "samples": None, "steps": None} | budget
    of_loop = TrainingLength.of(asked, epoch_samples=64, global_batch_size=64)
    assert of_loop.room(0, 0.0, step_samples=64) == int(words[1])


def test_a_value_with_a_space_stays_one_word(tmp_path):
    script(tmp_path, "import sys; print(len(sys.argv))", "my script.py")
    run(tmp_path, f"{sys.executable} -S 'my script.py' --dir={{source_dir}}")
    assert (tmp_path / "trial/stdout.log").read_text() == "2\n"


def test_rows_and_metrics_come_from_both_streams(tmp_path):
    script(
        tmp_path,
        """
        import sys
        for epoch in range(2):
            print(f"Epoch time: {epoch + 1}.0", file=sys.stderr, end="\\r")
            print('{"accuracy": 0.5}')
        """,
    )
    rows: list[dict[str, Any]] = []
    trial = context(tmp_path, emit=rows.append)
    run(tmp_path, [*PYTHON, "train.py"], trial, metrics={"epoch_s": "Epoch time: ([0-9.]+)", "accuracy": None})
    assert rows == [{"epoch": 1, "epoch_s": 1.0}, {"epoch": 2, "epoch_s": 2.0}]
    assert trial.metrics["accuracy"] == 0.5 and trial.metrics["train_s"] == 3.0 and trial.metrics["epochs"] == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.jsonl", '{"epoch": 1, "loss": 2}\n{"epoch": 2, "loss": 1}\n'),
        ("log.json", '[{"epoch": 1, "loss": 2}, {"epoch": 2, "loss": 1}]'),
        ("log.csv", "epoch,loss\n1,2\n2,1\n"),
    ],
)
def test_metrics_may_be_in_a_file(tmp_path, name, text):
    (tmp_path / "trial" / "work").mkdir(parents=True)
    (tmp_path / "trial" / "work" / name).write_text("of an earlier attempt")
    rows: list[dict[str, Any]] = []
    argv = [*PYTHON, "-c", f"open({name!r}, 'w').write({text!r})".replace("{", "{{").replace("}", "}}")]
    run(tmp_path, argv, context(tmp_path, emit=rows.append), metrics_file=name, metrics={"loss": None})
    assert rows == [{"epoch": 1, "loss": 2}, {"epoch": 2, "loss": 1}]


def test_a_metrics_table_is_followed_while_it_grows(tmp_path):
    """It gets a further column with the second row, and is written anew, as by Lightning."""
    table = tmp_path / "trial" / "work" / "metrics.csv"
    script(
        tmp_path,
        """
        import pathlib, time
        table, seen = pathlib.Path("metrics.csv"), pathlib.Path("seen")
        table.write_text("epoch,loss\\n1, 0.5\\n")
        end = time.monotonic() + 60
        while not seen.exists() and time.monotonic() < end:
            time.sleep(0.02)
        table.write_text("epoch,loss,val_accuracy\\n1,0.5,\\n2,0.25,0.75\\n")
        """.replace("\\\\", "\\"),
    )
    rows: list[dict[str, Any]] = []

    def emit(row):
        rows.append(row)
        (table.parent / "seen").touch()

    metrics = {"loss": None, "val_accuracy": None}
    run(tmp_path, [*PYTHON, "train.py"], context(tmp_path, emit=emit), metrics_file="metrics.csv", metrics=metrics)
    assert rows == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "val_accuracy": 0.75}]


def test_evaluations_of_hugging_face_are_no_training(tmp_path):
    script(
        tmp_path,
        """
        for epoch in (1, 2):
            print({"eval_loss": 1.0, "eval_runtime": "1.5", "epoch": epoch})
        print({"train_runtime": "10.0", "epoch": 2})
        """,
    )
    trial = run(tmp_path, [*PYTHON, "train.py"], metrics={"train_s": {"json": "train_runtime"}})
    assert trial.metrics["train_s"] == 7.0


def test_tokens_follow_from_samples(tmp_path):
    script(tmp_path, "import sys; print(*sys.argv[1:]); print('rate 4.0')")
    argv = [*PYTHON, "train.py", "{tokens}", "{python}"]
    settings = {"tokens_per_sample": 128, "python": "/venv/bin/python", "metrics": {"samples_per_s": "rate (.+)"}}
    trial = run(tmp_path, argv, budget={"samples": 6400}, **settings)
    assert (tmp_path / "trial/stdout.log").read_text().split()[:2] == ["819200", "/venv/bin/python"]
    assert trial.metrics["tokens_per_s"] == 512.0


def test_a_missing_metrics_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="log.csv"):
        run(tmp_path, [*PYTHON, "-c", "pass"], metrics_file="log.csv")


@pytest.mark.parametrize(
    ("code", "error", "match"),
    [
        ("raise MemoryError", MemoryError, "MemoryError"),
        ("raise RuntimeError('CUDA out of memory.')", MemoryError, "CUDA out of memory"),
        ("raise ValueError('no data')", CommandError, "status 1: ValueError: no data"),
        ("print('loss: nan\\n' * 2)", DivergedError, "loss of nan"),
    ],
)
@pytest.mark.parametrize("metrics_file", [None, "never.jsonl", "never.json"])
def test_a_failure_raises_its_cause(tmp_path, code, error, match, metrics_file):
    with pytest.raises(error, match=match):
        run(tmp_path, [*PYTHON, "-c", code], metrics={"loss": "loss: (.+)"}, metrics_file=metrics_file)
    assert (tmp_path / "trial/stderr.log").exists()


def test_a_missing_program_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run(tmp_path, ["no-such-program"])


TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import time; print('{{}}', flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-S", "-c", child])
subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
        time.sleep(60)
    os._exit(0)
time.sleep(60)
""".replace("{{}}", "up")


def processes_of(folder):
    """Return the command's processes; other tests may run commands of theirs."""
    processes = []
    for process in psutil.process_iter():
        try:
            is_of_command = process.environ().get("SWEEP_SOURCE_DIR") == str(folder)
            if is_of_command and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            pass
    return processes


def wait_until_gone(folder):
    deadline = time.monotonic() + 60
    while processes_of(folder) and time.monotonic() < deadline:  # a killed process may be listed for a moment
        time.sleep(0.05)
    assert processes_of(folder) == []


def test_a_timeout_ends_the_whole_process_tree(tmp_path):
    script(tmp_path, TREE)
    with pytest.raises(TrialTimeoutError, match="timeout_s=1"):
        run(tmp_path, [*PYTHON, "train.py"], timeout_s=1.0)
    wait_until_gone(tmp_path)


def test_a_stop_request_ends_the_whole_process_tree(tmp_path):
    script(tmp_path, TREE)
    started = time.monotonic()
    trial = context(tmp_path, stop_requested=lambda **_: time.monotonic() > started + 0.5)
    run(tmp_path, [*PYTHON, "train.py"], trial)
    wait_until_gone(tmp_path)
    assert time.monotonic() < started + 40


def test_the_process_tree_ends_with_a_killed_parent(tmp_path):
    script(tmp_path, TREE)
    parent = Processes(1)
    output = tmp_path / "trial/stdout.log"
    deadline = time.monotonic() + 200  # the first process of these tests imports torch
    with ThreadPoolExecutor() as background:
        answer = background.submit(parent.call, run, (tmp_path, [*PYTHON, "train.py"]))
        while not (output.exists() and output.read_text().count("up") == 3) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(processes_of(tmp_path)) >= 4
        parent.kill()
        with pytest.raises(EOFError):
            answer.result()
    wait_until_gone(tmp_path)


def test_work_folder_is_emptied_unless_kept(tmp_path):
    code = "import os; print(os.path.exists('left')); open('left', 'w')"
    outputs = []
    for settings in ({}, {}, {"keep_work": True}):
        run(tmp_path, [*PYTHON, "-c", code], **settings)
        outputs.append((tmp_path / "trial/stdout.log").read_text().strip())
    assert outputs == ["False", "False", "True"]


def test_missing_metrics_are_remarked(tmp_path):
    script(tmp_path, "print('Epoch time: 1.0')")
    argv = [*PYTHON, "train.py", "{gpus}"]
    slip = run(tmp_path, argv, metrics={"epoch_s": "Epoch time: (.+)", "accuracy": "Acc (.+)"})
    pattern, speed = slip.remarks
    assert "trainable.metrics.accuracy" in pattern and "trainable.samples_per_epoch" in speed
    mute = run(tmp_path, argv, metrics={"epoch_s": None})
    assert len(mute.remarks) == 1 and "trials/alone/stdout.log" in mute.remarks[0]


@pytest.mark.parametrize(
    ("metrics", "is_named"), [({}, True), ({"f1": "f1 (.+)"}, False), ({"accuracy": "acc (.+)"}, False)]
)
def test_an_accuracy_that_nothing_reads_is_remarked(tmp_path, metrics, is_named):
    script(tmp_path, "print('Epoch time: 1.0 val acc 0.5'); print('f1 0.5')")
    trial = run(tmp_path, [*PYTHON, "train.py", "{gpus}"], metrics={"epoch_s": "Epoch time: (.+) v", **metrics})
    assert any("trainable.metrics.val_accuracy=" in remark for remark in trial.remarks) is is_named


@pytest.mark.parametrize(
    ("text", "words", "remarked"),
    [
        ("pass", [], True),
        ("pass", ["{gpus}"], False),
        ("pass", ["--bs={global_batch_size}"], False),
        ("import os; os.environ['SWEEP_GPUS']", [], False),
    ],
)
def test_a_command_without_its_gpu_count_is_remarked(tmp_path, text, words, remarked):
    script(tmp_path, text)
    trial = run(tmp_path, [*PYTHON, "train.py", *words])
    assert any("has no {gpus}" in remark for remark in trial.remarks) is remarked


@pytest.mark.parametrize(
    ("words", "samples_per_s"), [([], None), (["{gpus}"], 256.0), (["--bs={global_batch_size}"], 256.0)]
)
def test_step_seconds_give_throughput_if_the_batch_is_known(tmp_path, words, samples_per_s):
    """64 samples in .25 s; a script that may have used one of its two GPUs had perhaps the half."""
    script(tmp_path, "print('step 0.25 s')")
    trial = run(tmp_path, [*PYTHON, "train.py", *words], metrics={"step_s": r"step (\S+) s"})
    assert trial.metrics.get("samples_per_s") == samples_per_s
    assert any("no samples_per_s" in remark for remark in trial.remarks) is (samples_per_s is None)


def test_output_and_cpu_time_are_progress_and_polling_is_not(tmp_path):
    commands = {
        "kill -STOP $$": False,
        "sleep 60": False,
        "while :; do :; done": True,
        "while :; do echo step; sleep 0.3; done": True,
    }
    with ThreadPoolExecutor() as side_by_side:  # each takes seconds, in which it is only watched
        progress = side_by_side.map(moves, commands, [tmp_path / str(number) for number in range(len(commands))])
    assert dict(zip(commands, progress, strict=True)) == commands


def moves(text, folder):
    """Return whether a command is seen to progress once it runs."""
    asked: list[tuple[float, bool]] = []
    started = time.monotonic()

    def stop_requested(*, progress=True):
        asked.append((time.monotonic() - started, progress))
        return asked[-1][0] > 4.0

    folder.mkdir()
    run(folder, ["bash", "-c", text], context(folder, stop_requested=stop_requested))
    assert asked[0][1]  # a started command counts, so that the time limit for a first step does not apply
    return any(progress for seconds, progress in asked if seconds > 2.0)

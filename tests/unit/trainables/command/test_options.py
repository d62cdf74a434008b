from pathlib import Path

import pytest

from trainables.command.options import rates_in, varied

ADDED = "--bs {device_batch_size} --lr {lr}"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python t.py", "python t.py --bs {device_batch_size} --lr {lr}"),
        (
            "torchrun --nproc-per-node 2 t.py --batch-size 64",
            "torchrun --nproc-per-node {gpus} t.py --batch-size {device_batch_size} --lr {lr}",
        ),
        (
            "accelerate launch --num_processes=2 t.py --per_device_train_batch_size=8 --learning_rate=5e-5 --epochs 3",
            "accelerate launch --num_processes={gpus} t.py --per_device_train_batch_size={device_batch_size}"
            " --learning_rate={lr} --epochs 3",
        ),
        (
            "torchrun --nproc_per_node=gpu t.py -b 4",
            "torchrun --nproc_per_node={gpus} t.py -b {device_batch_size} --lr {lr}",
        ),
        (
            "accelerate launch t.py",
            f"accelerate launch --num_processes={{gpus}} --main_process_port={{master_port}} t.py {ADDED}",
        ),
        ("deepspeed t.py", f"torchrun --nproc_per_node={{gpus}} t.py {ADDED}"),
        ("deepspeed --num_gpus 4 t.py", f"torchrun --nproc_per_node={{gpus}} t.py {ADDED}"),
        ("deepspeed --include localhost:0,1 t.py", f"torchrun --nproc_per_node={{gpus}} t.py {ADDED}"),
        (
            "deepspeed --num_nodes=1 t.py --include x --deepspeed",
            f"torchrun --nproc_per_node={{gpus}} t.py --include x --deepspeed {ADDED}",
        ),
        (
            "mpirun --bind-to none -np 4 python t.py -n 3",
            f"mpirun --bind-to none -np {{gpus}} python t.py -n 3 {ADDED}",
        ),
        ("python t.py --devices 0", f"python t.py --devices 0 {ADDED}"),
        ("python t.py --devices 2", f"python t.py --devices {{gpus}} {ADDED}"),
        ("python t.py --lr .001 -b .", "python t.py --lr {lr} -b . --bs {device_batch_size}"),
        ("python t.py --lr=5E-4", "python t.py --lr={lr} --bs {device_batch_size}"),
        ("mpirun -n 4 python t.py", f"mpirun -n {{gpus}} python t.py {ADDED}"),
        ("horovodrun python t.py", f"horovodrun -np {{gpus}} python t.py {ADDED}"),
        ("torchrun --nproc_per_node={gpus_per_node} t.py", f"torchrun --nproc_per_node={{gpus_per_node}} t.py {ADDED}"),
        ("python t.py -n 4", f"python t.py -n 4 {ADDED}"),
        ("python t.py --lr cosine --gpus", "python t.py --lr cosine --gpus --bs {device_batch_size} --lr {lr}"),
    ],
)
def test_the_line_to_type_varies_the_numbers_of_a_command(command, told):
    assert " ".join(varied(command.split(), has_epochs=True)) == told


@pytest.mark.parametrize(
    ("source", "added"),
    [
        (
            'add_argument("--micro-batch", "-m")\nadd_argument("--base_lr")',
            "--micro-batch {device_batch_size} --base_lr {lr}",
        ),
        ("@option('-b', '--lr')", "-b {device_batch_size} --lr {lr}"),
        (
            'HfArgumentParser("--eval-batch")',
            "--per_device_train_batch_size {device_batch_size} --learning_rate {lr} --num_train_epochs {epochs}",
        ),
        ('add_argument("--eval-epochs")', ADDED),
        ('add_argument("--epochs")', f"{ADDED} --epochs {{epochs}}"),
        ('add_argument("--num-epochs")', f"{ADDED} --num-epochs {{epochs}}"),
    ],
)
def test_added_options_are_those_of_the_script(source, added, tmp_path):
    script = tmp_path / "t.py"
    script.write_text(source)
    for launcher in (["python"], ["torchrun", "--nproc_per_node={gpus}"]):
        assert " ".join(varied([*launcher, str(script)], has_epochs=True)) == " ".join([*launcher, str(script), added])


def test_a_script_that_cannot_be_read_has_the_usual_options(tmp_path, monkeypatch):
    unreadable = tmp_path / "t.py"
    unreadable.touch()

    def denied(*_, **__):
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", denied)
    for script in (str(unreadable), f"{'x' * 300}.py"):
        assert " ".join(varied([script], has_epochs=True)) == f"{script} {ADDED}"


def test_epochs_are_passed_to_scripts_that_are_given_none(tmp_path):
    script = tmp_path / "t.py"
    script.write_text('add_argument("--epochs")')
    for given, has_epochs, count in ((["--epochs=3"], True, 0), (["{epochs}"], True, 1), ([], False, 0), ([], True, 1)):
        assert " ".join(varied(["python", str(script), *given], has_epochs=has_epochs)).count("{epochs}") == count


@pytest.mark.parametrize(
    ("command", "rates"),
    [
        ("python t.py -b 64 --lr=5e-4", ["trainable.lr=5e-4", "trainable.reference_batch_size=64"]),
        ("python t.py --lr {lr} --batch-size x", []),
    ],
)
def test_numbers_of_a_command_are_its_tuned_rate_and_batch(command, rates):
    assert rates_in(command.split()) == rates

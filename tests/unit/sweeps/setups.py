"""A setup, and the trials of small sweeps with it."""

from sweeps.sweep import Setup, Sweep, trials


def setup(**changed):
    given = {
        "trainable": "trainables.supervised.training:train",
        "config": {"model": {"name": "cnn"}, "optimizer": {"name": "sgd"}},
        "reference_lr": 0.1,
        "reference_batch_size": 32,
        "optimizer": {"name": "sgd"},
        "strategy": "auto",
        "device": "cpu",
        "cpus_per_worker": None,
        "cores_per_gpu": 1,
        "timing": "exclusive",
        "grad_accum_steps": 1,
        "uneven_batch": False,
        "warmup_epochs": 5,
        "identity": {"config": "abc"},
    }
    return Setup(**given | changed)


def expanded(axes, own_setup=None, **sweep):
    return trials(Sweep(name="s", axes=axes, **sweep), lambda axes: own_setup or setup())


GRID = {"gpus": [1, 2], "device_batch_size": [32, 64], "lr_rule": ["none", "linear"], "seed": [0, 1]}

"""Test sweeps from a Python program."""

import json
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from orchestrator import ConfigError, load_results, plan_sweep, run_sweep

SMALL = {
    "backend": "inprocess",
    "trainable": "noop",
    "report": {"html": False},
    "sweep": {"name": "mine", "axes": {"gpus": [1], "device_batch_size": [8, 16], "seed": [0, 1]}},
}


pytestmark = pytest.mark.usefixtures("folder")


def test_a_plan_is_a_frame_and_starts_nothing(folder):
    plan = plan_sweep(SMALL, "sweep.axes.gpus=[1,4096]")
    assert plan.state.tolist() == ["to run"] * 4 + ["infeasible"] * 4 and plan.trial_id.is_unique
    assert sorted(plan.device_batch_size) == [8] * 4 + [16] * 4 and plan.global_batch_size.max() == 16 * 4096
    assert plan.note[4].startswith("needs 4096 ranks") and not list(folder.iterdir())
    assert ["device_batch_size" in remark for remark in plan.attrs["remarks"]] == [True]
    with pytest.raises(ConfigError, match="lr_rule 'double'"):
        plan_sweep(SMALL, "sweep.axes.lr_rule=[double]")


def test_a_sweep_from_a_dict_is_frames(folder, capsys):
    results = run_sweep(SMALL, "sweep.axes.device_batch_size=[8]", quiet=True)
    assert (results.exit_status, results.folder) == (0, results.folder) and results.folder.name == "mine"
    assert capsys.readouterr().out == "" and not (folder / "outputs").exists()
    assert len(results.trials) == 2 and results.summary.n_ok.tolist() == [2]
    curves = results.curves()
    assert curves.epoch.tolist() == [1, 1] and sorted(curves.seed) == [0, 1] and set(curves.device_batch_size) == {8}
    assert "# Scaling: mine" in results.markdown("speedup")

    again = run_sweep(OmegaConf.create(SMALL))
    assert "2 of 4 trials" in capsys.readouterr().out
    assert len(again.trials) == 4
    loaded = load_results("results/mine")
    assert loaded.trials.equals(again.trials) and loaded.exit_status is None
    assert loaded.recommendation["verdict"].upper() in loaded.markdown("recommendation")

    other = run_sweep(SMALL, "sweep.name=other", "sweep.axes.device_batch_size=[16]", quiet=True)
    assert "1 cell is in both" in loaded.compare(other) and "Only in results/mine: 1 cell" in loaded.compare("other")
    with pytest.raises(FileNotFoundError, match="report.html=false"):
        _ = other.plots


@pytest.mark.slow
def test_plots_are_shown_inline(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    speeds = {"trainable": {"_target_": "speeds:train", "lr": 0.1, "reference_batch_size": 8}}
    (folder / "speeds.py").write_text(
        "def train(config, context):\n"
        "    for epoch in (1, 2): context.report({'epoch': epoch, 'loss': 1.0 / epoch})\n"
        "    context.summarize({'samples_per_s': 100.0 * context.seed + 50, 'accuracy': 0.9 - 0.1 * context.seed})\n"
    )
    results = run_sweep(SMALL | speeds, "sweep.name=speeds", "trusted_modules=[speeds]", "report.html=true", quiet=True)
    plots = results.plots
    told = json.loads((results.folder / "journal.jsonl").read_text().splitlines()[0])["value"]["driver"]["arguments"]
    assert "trainable=<of the program>" in told and "sweep.name=speeds" in told
    assert {"accuracy", "loss"} <= set(plots) and plots["loss"].svg.startswith("<svg")
    shown = plots._repr_html_()
    assert shown.count("<img ") == len(plots) and "data:image/svg+xml;base64," in shown
    assert plots["loss"].save(folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert plots["loss"].save(folder / "loss.svg").read_text() == plots["loss"].svg
    with pytest.raises(ValueError, match="svg or .png"):
        plots["loss"].save("loss.pdf")
    with pytest.raises(KeyError, match="'speed' is not one of .*loss"):
        plots["speed"]


def test_a_whole_section_replaces_the_default():
    model = {"name": "mypackage.models:build", "width": 4}
    with pytest.raises(ConfigError) as told:
        run_sweep(
            SMALL | {"model": model, "trainable": {"_target_": "nowhere:train", "lr": 1, "reference_batch_size": 1}},
            "trusted_modules=[nowhere,mypackage]",
        )
    assert "no package or module" in str(told.value)


@pytest.mark.slow
def test_a_later_sweep_uses_the_current_folder(folder, monkeypatch):
    run_sweep(SMALL, quiet=True)
    (folder / "there").mkdir()
    monkeypatch.chdir(folder / "there")
    run_sweep(SMALL, quiet=True)
    assert Path.cwd() == folder / "there" and len(load_results(folder / "there/results/mine").trials) == 4


def test_all_errors_are_reported_before_anything_starts(folder):
    with pytest.raises(ConfigError) as told:  # an error of composition hides no other
        run_sweep(SMALL | {"report": {"margn": 0.1}}, "resources.timing=fast", "workers=cold")
    assert [any(word in error for error in told.value.errors) for word in ("margn", "fast", "cold")] == [True] * 3
    with pytest.raises(ConfigError) as told:
        run_sweep(SMALL | {"workers": "cold"}, "sweep.axes.gpus=[0]")
    assert len(told.value.errors) == 2
    with pytest.raises(ConfigError, match="mode=plan"):
        run_sweep(SMALL, "mode=plan")
    assert not list(folder.iterdir())


def test_a_program_may_use_hydra_itself(folder):
    (folder / "config.yaml").write_text("a: 1")
    with pytest.raises(FileNotFoundError, match="no journal.jsonl"):
        load_results("results")
    with hydra.initialize_config_dir(str(folder), version_base="1.3"):
        assert run_sweep(SMALL, quiet=True).exit_status == 0
        assert hydra.compose("config").a == 1
        assert set(plan_sweep(SMALL).state) == {"finished: ok"}
    assert not GlobalHydra.instance().is_initialized()
    with pytest.raises(FileNotFoundError, match="results/mine"):
        load_results("results")

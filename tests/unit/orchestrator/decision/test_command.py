import json
import shlex

from orchestrator.app import main
from orchestrator.decision.command import command, narrowed_to, with_more


def test_the_smallest_free_seeds_come_next():
    assert with_more([0, 1, 2], 2) == [0, 1, 2, 3, 4]
    assert with_more([1, 7], 2) == [0, 1, 2, 7]


def test_the_command_repeats_what_was_asked_but_for_mode_and_axes():
    given = ["sweep=demo", "mode=report", "sweep.axes.gpus=[1,2]", '++sweep.axes={"a.b":[1]}', "budget.epochs=5"]
    told = command(given, narrowed_to([{"gpus": 2.0, "a.b": "x y", "model": "mlp"}], [0, 1]))
    assert shlex.split(told)[3:] == [
        "sweep=demo",
        "budget.epochs=5",
        "sweep.axes.gpus=[2]",
        'sweep.axes."a.b"=["x y"]',
        "sweep.axes.model=[mlp]",
        "sweep.axes.seed=[0,1]",
    ]


def test_of_a_section_that_only_a_program_can_give_it_is_the_programs_call():
    told = command(["sweep.name=mine", "trainable=<of the program>"], narrowed_to([{"gpus": 1, "a.b": "x y"}], [0, 1]))
    assert told == """run_sweep(…, 'sweep.axes.gpus=[1]', 'sweep.axes."a.b"=["x y"]', 'sweep.axes.seed=[0,1]')"""


def test_the_command_plans_the_same_cell_with_more_seeds(capsys):
    given = ["sweep=batch_scaling", "sweep.axes.gpus=[1]", "resources.device=cpu"]
    axes = {"gpus": 1, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.8}

    def planned(*arguments):
        assert main([*arguments, "mode=plan", "plan.format=json"]) == 0
        return json.loads(capsys.readouterr().out)["trials"]

    before = planned(*given, 'sweep.axes."optimizer.momentum"=[0.8,0.9]')
    after = planned(*shlex.split(command(given, narrowed_to([axes], list(range(7)))))[3:])
    known = {trial["trial_id"] for trial in before} & {trial["trial_id"] for trial in after}
    assert (len(after), len(known)) == (7, 3)


CELLS = [
    {"gpus": 1, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.8},
    {"gpus": 2, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.9},
    {"gpus": 1, "device_batch_size": 32, "lr_rule": "none", "optimizer.momentum": 0.8},
]


def test_one_command_has_several_cells_and_no_other_one(capsys):
    given = ["sweep=batch_scaling", "resources.device=cpu", "sweep.zip=[[gpus,lr_rule]]"]
    given += ["sweep.exclude=[{gpus: 1, device_batch_size: 512}]"]
    told = command(given, narrowed_to(CELLS, [0, 1, 2, 7], excludes=True))
    assert "'sweep.axes.gpus=[1,2,1]' 'sweep.axes.device_batch_size=[32]'" in told
    assert main([*shlex.split(told)[3:], "mode=plan", "plan.format=json"]) == 0
    planned = json.loads(capsys.readouterr().out)["trials"]
    points = {tuple(trial["axes"][axis] for axis in (*CELLS[0], "seed")) for trial in planned}
    assert points == {(*cell.values(), seed) for cell in CELLS for seed in (0, 1, 2, 7)} and len(planned) == 12


def test_cells_that_make_a_grid_need_no_zip():
    told = command(["sweep=demo", "sweep.zip=[[a,b]]"], narrowed_to(CELLS[::2], [0]))
    assert "'sweep.axes.lr_rule=[sqrt,none]'" in told and told.count("zip") == 1


def test_axes_that_advance_together_do_so_no_more_where_cells_are_narrowed_to_a_grid():
    told = command(["sweep=demo", "sweep.zip=[[gpus,lr_rule]]"], narrowed_to(CELLS[::2], [0], zips=True))
    assert told.endswith("sweep.zip=[]") or "'sweep.zip=[]'" in told
    assert told.count("zip") == 1


def test_what_was_set_to_null_for_the_user_is_not_told_to_type():
    asked = ["budget.epochs=4", "budget.samples=null", "budget.steps=null", "sweep.budget.wall_s=null"]
    assert "budget.epochs=4 sweep.budget.wall_s=null 'sweep.axes" in command(asked, narrowed_to([{"gpus": 1}], [0, 1]))


def test_values_that_are_lists_or_mappings_are_those_of_the_sweep(capsys):
    given = ["sweep=batch_scaling", "optimizer=adamw"]
    cell = {"gpus": 1, "device_batch_size": 32, "lr_rule": "none", "optimizer.betas": [0.9, 0.99]}
    cell["trainable.slow_down"] = {"rank": 0, "factor": 2.0}
    told = command(given, narrowed_to([cell], [0]))
    assert main([*shlex.split(told)[3:], "resources.device=cpu", "mode=plan", "plan.format=json"]) == 0
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    assert cell.items() <= trial["axes"].items()

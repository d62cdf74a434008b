from orchestrator.backends.ray import cluster
from orchestrator.backends.ray.cluster import stage
from orchestrator.config.content_hashes import python_files


def folder_with(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    return root


def test_only_own_code_is_shipped(tmp_path):
    here = folder_with(
        tmp_path,
        *("mine.py", "package/data/loader.py"),
        *(".env", ".git/hook.py", "data/labels.py", "results/x.py", "outputs/x.py", "table.csv", ".secret.py"),
        *("venv/pyvenv.cfg", "venv/lib/torch.py", "package/__pycache__/loader.py"),
    )
    shipped = {str(file.relative_to(here)) for file in python_files(here)}
    assert shipped == {"mine.py", "package/data/loader.py"}


def test_own_packages_are_shipped(tmp_path):
    here, target = folder_with(tmp_path / "here", "mine.py"), tmp_path / "target"
    assert stage(target, here, {}) == {"working_dir": str(target)}
    assert (target / "mine.py").exists()
    assert (target / "orchestrator/backends/ray/rank.py").exists() and (target / "trainables/data").is_dir()
    assert not list(target.rglob("__pycache__"))


def test_submitted_job_ships_only_the_packages(tmp_path):
    here, target = folder_with(tmp_path / "here", "mine.py"), tmp_path / "target"
    environment = stage(target, here, {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"})
    assert environment == {"py_modules": [str(target / room) for room in cluster._ROOMS]}
    assert not (target / "mine.py").exists()

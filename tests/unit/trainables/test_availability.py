import subprocess
import sys

import pytest

from trainables.availability import absent
from trainables.data import DataError, load


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "npz", "imagefolder"])
def test_messages_equal_those_of_reading(name, tmp_path):
    config = {
        "name": name,
        **({"path": str(tmp_path / "x.npz")} if name in ("npz", "imagefolder") else {"root": str(tmp_path)}),
    }
    messages = list(absent(config))
    with pytest.raises(DataError) as error:
        load(config)
    assert messages == [str(error.value)]


@pytest.mark.parametrize(
    "config",
    [
        {"name": "digits"},
        {"name": "cifar10", "root": "{folder}/none", "download": True},
        {"name": "cifar10", "root": "{folder}"},
        {"name": "npz", "path": "{folder}/there.npz"},
        {"name": "mypackage.data:Mine", "root": "{folder}/none", "path": "{folder}/none"},
    ],
)
def test_present_and_downloadable_data_give_no_message(config, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "there.npz").touch()
    given = {
        key: value.replace("{folder}", str(tmp_path)) if isinstance(value, str) else value
        for key, value in config.items()
    }
    assert list(absent(given)) == []


def test_checks_import_neither_torch_nor_numpy():
    code = "import sys, trainables.availability; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})

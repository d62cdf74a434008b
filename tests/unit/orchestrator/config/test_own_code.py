import sys

import pytest

from orchestrator.config.own_code import import_mistakes

FILES = {
    "mine/__init__.py": "",
    "mine/training.py": "import json, torch\nfrom mine import parts\nfrom . import more\n",
    "mine/parts.py": "try:\n    import absent_one\nexcept ImportError:\n    pass\ndef train():\n    import absent\n",
    "mine/more.py": "import yaml.nodes\nfrom mine.parts import train\n",
    "mine/lacking.py": "from mine import deeper\n",
    "mine/deeper.py": "import os\nimport absent_library.part\n",
    "mine/broken.py": "import absent_library\ndef train(config, context)\n    pass\n",
    "mine/reaching.py": "import sys\nsys.path.append('/elsewhere')\nimport absent_library\n",
    "single.py": "from .siblings import x\nimport mine.lacking\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine.training:train", None),
        ("mine.reaching:train", None),
        ("trainables.supervised.training:train", None),
        ("mine.lacking:train", ("deeper", "line 2: there is no module 'absent_library' in this environment")),
        ("single:train", ("deeper", "line 2: there is no module 'absent_library' in this environment")),
        ("mine.broken:train", ("broken", "line 2: SyntaxError: expected ':'")),
    ],
)
def test_what_cannot_be_imported_is_told_with_its_place(folder, name, told):
    expected = [f"{folder / 'mine' / told[0]}.py, {told[1]}"] if told else []
    assert list(import_mistakes([name], installed=True)) == expected
    assert not {"mine", "single", "absent_library"} & set(sys.modules)


def test_where_other_machines_will_import_it_only_syntax_counts(folder):
    assert list(import_mistakes(["mine.lacking:train"], installed=False)) == []
    assert len(list(import_mistakes(["mine.broken:train", "mine.broken:other"], installed=False))) == 1

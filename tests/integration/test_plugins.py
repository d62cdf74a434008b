"""Test a package that offers a model and data by entry points, installed as by pip."""

import sys

import pytest
import torch

from orchestrator.config.content_hashes import Versions
from orchestrator.config.fingerprint import _plugins, fingerprint
from tests.unit.orchestrator.config.resolved import config
from trainables import data, models


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    code = """
from dataclasses import dataclass

import torch
from torch import nn

from trainables.data.dataset import Samples

def build(*, input_shape, num_classes, depth):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], num_classes))

@dataclass(frozen=True, kw_only=True)
class Noise:
    count: int

    def files(self):
        return []

    def read(self, device):
        x, y = torch.randint(0, 256, (self.count, 1, 4, 4), dtype=torch.uint8), torch.arange(self.count) % 2
        return Samples(x[10:], y[10:], x[:10], y[:10], 2)
"""
    (tmp_path / "netplugin.py").write_text(code)
    info = tmp_path / "netplugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: netplugin\nVersion: 1.0\n")
    offered = "[sweep_orchestrator.models]\npluginnet = netplugin:build\n"
    offered += "[sweep_orchestrator.data]\nplugindata = netplugin:Noise\n"
    (info / "entry_points.txt").write_text(offered)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "netplugin", raising=False)
    _plugins.cache_clear()
    yield tmp_path
    _plugins.cache_clear()


def test_a_plugin_model_is_found_by_name(plugin):
    model = models.build({"name": "pluginnet", "depth": 2}, input_shape=(1, 8, 8), num_classes=3)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    with pytest.raises(ValueError, match="small_cnn.*pluginnet"):
        models.build({"name": "plugin"}, input_shape=(1, 8, 8), num_classes=3)


def test_plugin_data_are_found_by_name(plugin):
    loaded = data.load({"name": "plugindata", "count": 30})
    assert loaded.num_classes == 2 and len(loaded.train_x) == 20
    with pytest.raises(ValueError, match="not one of .*digits.*plugindata"):
        data.load({"name": "nothing"})


def test_plugin_code_is_part_of_the_identity(plugin):
    given = config(model={"name": "pluginnet", "depth": 2})
    before = fingerprint(given, Versions())["source"]
    (plugin / "netplugin.py").write_text((plugin / "netplugin.py").read_text() + "# changed\n")
    assert "netplugin:build" in before and fingerprint(given, Versions())["source"] != before

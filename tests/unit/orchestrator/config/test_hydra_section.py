import contextlib
from io import StringIO

from omegaconf import OmegaConf

from orchestrator.config.hydra_section import saved_without_secrets


def test_saved_configs_have_no_secrets_even_after_an_error(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cr3t-value")
    config = OmegaConf.create({"token": "abcdefgh", "where": "${oc.env:HF_TOKEN}", "told": "not s3cr3t-value"})
    save, file = OmegaConf.save, StringIO()
    with contextlib.suppress(RuntimeError), saved_without_secrets():
        OmegaConf.save(config, file, resolve=True)
        raise RuntimeError("a sweep that ends so")
    assert "abcdefgh" not in file.getvalue() and "s3cr3t-value" not in file.getvalue()
    assert "${oc.env:HF_TOKEN}" in file.getvalue()
    assert OmegaConf.save is save

import contextlib
from io import StringIO

from omegaconf import OmegaConf

from orchestrator.config.hydra_section import saved_without_secrets


def test_what_is_saved_meanwhile_is_clean_and_all_is_as_before_also_after_an_error(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cr3t-value")
    config = OmegaConf.create({"token": "abcdefgh", "where": "${oc.env:HF_TOKEN}", "told": "not s3cr3t-value"})
    save, file = OmegaConf.save, StringIO()
    with contextlib.suppress(RuntimeError), saved_without_secrets():
        OmegaConf.save(config, file, resolve=True)
        raise RuntimeError("a sweep that ends so")
    assert "abcdefgh" not in file.getvalue() and "s3cr3t-value" not in file.getvalue()
    assert "${oc.env:HF_TOKEN}" in file.getvalue()
    assert OmegaConf.save is save

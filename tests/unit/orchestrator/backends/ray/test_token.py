import os
import stat

import pytest

from orchestrator.backends.ray.token import keep_token_private, require_token, show_token_if_any, token_place
from sweeps.errors import ConfigError


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_new_token_is_private(tmp_path):
    token = tmp_path / ".ray" / "auth_token"
    keep_token_private(token)
    assert mode_of(token) == 0o600
    assert len(token.read_text()) == 64


def test_existing_token_is_kept_and_made_private(tmp_path):
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(0o644)
    keep_token_private(token)
    assert (mode_of(token), token.read_text()) == (0o600, "secret")


def test_leftover_of_a_killed_start_is_ignored(tmp_path):
    (tmp_path / f"auth_token.{os.getpid()}").write_text("half")  # in a container numbers of processes come again soon
    keep_token_private(tmp_path / "auth_token")
    assert len((tmp_path / "auth_token").read_text()) == 64


@pytest.mark.parametrize("home", ["file", "h" * 300])  # the other cannot even be looked into, as somebody else's home
def test_read_only_home_puts_the_token_in_the_environment(home, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file is no folder, even for root")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # as good as none
    keep_token_private(tmp_path / home / ".ray" / "auth_token")
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64 and "RAY_AUTH_TOKEN" in token_place()
    keep_token_private(tmp_path / "auth_token")
    assert os.environ["RAY_AUTH_TOKEN"] == token and not (tmp_path / "auth_token").exists()


@pytest.mark.parametrize(("token", "mode"), [("", None), ("secret", "token")])
def test_authentication_mode_follows_the_token(token, mode, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "to be restored")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / ("h" * 300) / "auth_token"))
    show_token_if_any()
    assert os.environ.get("RAY_AUTH_MODE") == mode


def test_a_cluster_started_here_always_asks_for_a_token(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    require_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=disabled"):
        require_token()

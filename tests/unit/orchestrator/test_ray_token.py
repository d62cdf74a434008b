import stat
from pathlib import Path

from orchestrator.ray_token import keep_token_private


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    keep_token_private(token)
    assert mode_of(token) == 0o600
    assert len(token.read_text()) == 64


def test_a_token_that_is_there_is_kept_and_closed_to_others(tmp_path: Path) -> None:
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(0o644)
    keep_token_private(token)
    assert (mode_of(token), token.read_text()) == (0o600, "secret")

"""The token of a Ray cluster: keeping it private, and using it. Does not import ray, before which it must be set."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from sweeps.errors import ConfigError


def token_file() -> Path:
    """Return the file in which Ray keeps the token."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token_place() -> str:
    """Describe the place of the token of a cluster that was started here."""
    return "the environment of this sweep, RAY_AUTH_TOKEN" if _in_environment() else str(token_file())


def show_token_if_any() -> None:
    """Authenticate with the token, if there is one: with an explicit address, Ray would not.

    Must be called before ray is imported, because Ray reads the mode then.
    """
    if _in_environment() or _is_there(token_file()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def require_token() -> None:
    """Make a cluster started here require the token. Raises ConfigError if the environment forbids that."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token":
        raise ConfigError(
            [f"RAY_AUTH_MODE={mode}: without a token, anyone who reaches the Ray cluster can run code on it; unset it"]
        )


def keep_token_private(path: Path) -> None:
    """Create Ray's token file before Ray does, atomically and readable by its owner only; fix an existing one's mode.

    If the file cannot be written, as in a read-only home, an existing token is kept, and a new one is put into the
    environment, which Ray's processes inherit. A token in the environment takes precedence over any file.
    """
    if _in_environment():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # 0600
    except OSError:
        if not _is_there(path):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        return
    try:
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        os.link(draft, path)  # fails, rather than replace a token that others already use
    except FileExistsError:
        path.chmod(0o600)
    finally:
        os.unlink(draft)


def _in_environment() -> bool:
    """Return whether the environment has the token; Ray treats an empty one as none."""
    return bool(os.environ.get("RAY_AUTH_TOKEN"))


def _is_there(path: Path) -> bool:
    """Return whether the file exists and is visible: Ray cannot use one in another user's home either."""
    return os.path.exists(path)

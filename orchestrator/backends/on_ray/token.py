"""The token that a Ray cluster asks for: who may read it, and that it is shown. No ray here: that would be too late."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from sweeps.mistakes import MistakesError


def token_file() -> Path:
    """Where Ray keeps the token unless the environment names another place."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token_place() -> str:
    """Where the token of a cluster that was started here is, in words."""
    return "the environment of this sweep, RAY_AUTH_TOKEN" if _in_environment() else str(token_file())


def show_token_if_any() -> None:
    """Authenticate with the token, if there is one: to an explicit address Ray would go without.

    To be called before ray is imported, because Ray reads the mode then.
    """
    if _in_environment() or _is_there(token_file()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def require_token() -> None:
    """Make Ray ask for the token in a cluster started here. MistakesError if the environment says it must not."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token":
        raise MistakesError(
            [f"RAY_AUTH_MODE={mode}: whoever reaches a Ray cluster without a token can run code on it; unset it"]
        )


def keep_token_private(path: Path) -> None:
    """Make the file with Ray's token before Ray does, whole and for its owner alone; one that is there is closed.

    Where the file cannot be written, as in a home that is read-only, a token that is there stays as it is, and a new
    one is in the environment alone, which Ray's processes inherit. One that is there already goes before any file.
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
    """Whether the token itself is there; to Ray an empty one is none."""
    return bool(os.environ.get("RAY_AUTH_TOKEN"))


def _is_there(path: Path) -> bool:
    """Also in a folder that is closed to us, as another user's home is: what cannot be seen is not there for Ray."""
    return os.path.exists(path)

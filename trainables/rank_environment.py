"""A rank's place in its gang as torchrun would tell it, for frameworks that look for it in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from trainables.context import Context


def rank_environment(context: Context) -> Mapping[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, …, MASTER_ADDR and MASTER_PORT, for `os.environ.update`; empty for a single rank.

    Each rank sees only its own device, and so it is rank 0 of a node of its own. A process that takes further trials
    gets its own environment back between them. ValueError where several ranks have no rendezvous `tcp://host:port`.
    """
    if context.world_size == 1:
        return {}
    meeting = urlsplit(context.rendezvous or "")
    if not meeting.hostname or not meeting.port:
        raise ValueError(f"rendezvous={context.rendezvous!r}: {context.world_size} ranks need tcp://host:port")
    return {
        "RANK": str(context.rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(context.rank),
        "GROUP_RANK": str(context.rank),
        "MASTER_ADDR": meeting.hostname,
        "MASTER_PORT": str(meeting.port),
    }

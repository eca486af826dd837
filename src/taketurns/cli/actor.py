"""Who is at the command line, for the audit."""

from __future__ import annotations

import getpass
import os
import socket

from taketurns.storage.audit import Actor, ActorKind


def actor() -> Actor:
    """The user of this process, on this host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return Actor(kind=ActorKind.COMMAND, name=user, address=socket.gethostname())

"""PostgreSQL without an installation: finds the programs, makes the data directory, runs the server.

Everybody who uses one home shares one server, which stops when its last user has left or died.
"""

from taketurns.storage.embedded.errors import (
    BinariesNotFound,
    EmbeddedServerError,
    ServerNotStarted,
    WrongDataVersion,
)
from taketurns.storage.embedded.server import PostgresServer, throwaway

__all__ = [
    "BinariesNotFound",
    "EmbeddedServerError",
    "PostgresServer",
    "ServerNotStarted",
    "WrongDataVersion",
    "throwaway",
]

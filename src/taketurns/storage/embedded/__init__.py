"""PostgreSQL and Valkey without an installation: finds the programs, makes the data directory, runs the server.

Everybody who uses one home shares one server, which stops when its last user has left or died.
"""

from taketurns.storage.embedded.errors import (
    BinariesNotFound,
    EmbeddedServerError,
    ServerNotStarted,
    WrongDataVersion,
)
from taketurns.storage.embedded.postgres import PostgresServer, throwaway
from taketurns.storage.embedded.valkey import ValkeyServer

__all__ = [
    "BinariesNotFound",
    "EmbeddedServerError",
    "PostgresServer",
    "ServerNotStarted",
    "ValkeyServer",
    "WrongDataVersion",
    "throwaway",
]

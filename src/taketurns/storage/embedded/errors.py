"""What can keep an embedded server from running. Each message says what to do.

EmbeddedServerError
├── BinariesNotFound    no program of the server that can be used is installed
├── WrongDataVersion    the data was written by another major version
└── ServerNotStarted    the server, or the making of its data directory, failed
"""


class EmbeddedServerError(RuntimeError):
    """The embedded server cannot be used."""


class BinariesNotFound(EmbeddedServerError):
    """No program of the server that can be used is installed."""


class WrongDataVersion(EmbeddedServerError):
    """The data directory was written by another major version of PostgreSQL."""


class ServerNotStarted(EmbeddedServerError):
    """The server did not start; the message ends with what it said."""

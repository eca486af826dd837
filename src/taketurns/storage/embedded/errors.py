"""What can keep an embedded server from running. Each message says what to do.

EmbeddedServerError
├── BinariesNotFoundError   no PostgreSQL that can be used is installed
├── DataVersionError        the data was written by another major version
└── ServerStartError        the server, or the making of its data directory, failed
"""


class EmbeddedServerError(RuntimeError):
    """The embedded server cannot be used."""


class BinariesNotFoundError(EmbeddedServerError):
    """No PostgreSQL that can be used is installed."""


class DataVersionError(EmbeddedServerError):
    """The data directory was written by another major version of PostgreSQL."""


class ServerStartError(EmbeddedServerError):
    """The server did not start; the message ends with what it said."""

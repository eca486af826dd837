"""The PostgreSQL broker keeps what every broker keeps."""

from tests.brokers.contract import Contract


class TestPostgresBroker(Contract):
    """On the fixture `cell` of this directory."""

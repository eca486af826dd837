"""The Redis broker keeps what every broker keeps."""

from tests.brokers.contract import Contract


class TestRedisBroker(Contract):
    """On the fixture `cell` of this directory."""

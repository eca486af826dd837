"""The durable broker: tasks wait in PostgreSQL, and one function a verb moves them."""

from taketurns.brokers.postgres.broker import PostgresBroker

__all__ = ["PostgresBroker"]

"""The interactive broker: jobs wait in Redis or Valkey, and one script a verb moves them."""

from taketurns.brokers.redis.broker import RedisBroker

__all__ = ["RedisBroker"]

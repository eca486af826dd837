"""The addresses of servers, and clients for them that never send anything twice.

`redis://`, `rediss://` (TLS) and `unix://` are those of redis-py. With `redis+cluster://` or `rediss+cluster://` the
address is that of any node of a cluster, or of several, separated by commas.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from taketurns.engine.errors import ConfigurationError

_CLUSTER: Final = "+cluster"
_SCHEMES: Final = ("redis", "rediss", "unix", f"redis{_CLUSTER}", f"rediss{_CLUSTER}")


def is_cluster(url: str) -> bool:
    return urlsplit(url).scheme.endswith(_CLUSTER)


def without_password(url: str) -> str:
    """An address that may be shown."""
    credentials, at, rest = url.rpartition("@")
    return f"{credentials.partition('://')[0]}://{rest}" if at else url


def check(url: str) -> None:
    """Raises ConfigurationError for an address that no client can be made for."""
    if urlsplit(url).scheme not in _SCHEMES:
        raise ConfigurationError(
            f"{without_password(url)!r} is no address of Redis or Valkey: it begins with one of"
            f" {', '.join(f'{scheme}://' for scheme in _SCHEMES)}"
        )


def open_pool(url: str, *, pool_size: int, pool_timeout: float, timeout: float, name: str) -> redis.asyncio.Redis:
    """A client that takes at most `timeout` seconds to connect, and waits `pool_timeout` for one of its connections;
    how long a command may take is its user's affair."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=pool_size,
        timeout=pool_timeout,
        socket_timeout=None,
        retry=AsyncRetry(NoBackoff(), 0),
        **_options(timeout, name),
    )
    return redis.asyncio.Redis.from_pool(pool)


def open_sync(url: str, *, timeout: float, name: str) -> redis.Redis:
    """A client for one thread, on one connection, whose commands take at most `timeout` seconds."""
    options = _options(timeout, name) | {"socket_timeout": timeout} | {"retry": Retry(NoBackoff(), 0)}
    return redis.Redis.from_url(url, single_connection_client=True, **options)


def of_nodes(url: str) -> list[str]:
    """The addresses of the servers that an address names, each as that of a single one."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    scheme = parts.scheme.removesuffix(_CLUSTER)
    return [parts._replace(scheme=scheme, netloc=f"{credentials}{at}{host}").geturl() for host in hosts.split(",")]


def of_node(url: str, *, host: str | None, port: int) -> str:
    """The address of another server than that of `url`, on the same host if no other is told."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    host = host or parts.hostname or "localhost"
    bracketed = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{credentials}{at}{bracketed}:{port}").geturl()


def _options(timeout: float, name: str) -> dict[str, Any]:
    return {"socket_connect_timeout": timeout, "client_name": name, "protocol": 2}

"""Connections to one cell: a pool through which scripts are run by name, each once.

Nothing is sent a second time when an answer is lost: whoever asked is told so, and can look for what it made by id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import redis
import redis.asyncio
from redis.exceptions import (
    ClusterError,
    ConnectionError,
    NoScriptError,
    RedisClusterException,
    RedisError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from taketurns.brokers.redis import addresses, scripts
from taketurns.brokers.redis.scripts import Script
from taketurns.engine.errors import Unavailable

_PASSING: Final = {
    *("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS"),
    *("OOM", "READONLY", "TRYAGAIN", "UNKILLABLE", "WRONGPASS"),
}
"""What a server says while it cannot do what it otherwise would."""
_AWAY: Final = (ConnectionError, RedisTimeoutError, ClusterError, RedisClusterException, OSError)


def cell_key(cell: str) -> str:
    """What every key of a cell begins with: a hash tag, so that all of them are in one slot of a cluster."""
    return f"{{taketurns:{cell}}}"


class Server:
    """The pool of one process. `pool_timeout` and `timeout` are seconds; past either, and while the server is away or
    refuses to work, calls raise Unavailable."""

    def __init__(
        self,
        url: str,
        *,
        cell: str = "taketurns",
        pool_size: int = 10,
        pool_timeout: float = 5.0,
        timeout: float = 5.0,
        name: str = "taketurns",
    ) -> None:
        addresses.check(url)
        self.url = url
        self.cell = cell_key(cell)
        self._timeout = timeout
        self._pool_timeout = pool_timeout
        self._name = name
        # The client of a cluster does not wait for a free connection, nor for others that find out its nodes.
        self._free = asyncio.Semaphore(pool_size) if addresses.is_cluster(url) else contextlib.nullcontext()
        self._finding_nodes = asyncio.Lock()
        self._client = addresses.open_async(
            url, pool_size=pool_size, pool_timeout=pool_timeout, timeout=timeout, name=name
        )

    async def close(self) -> None:
        await self._client.aclose()

    def key(self, *parts: object) -> str:
        return ":".join([self.cell, *map(str, parts)])

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Run the script of a verb on the cell."""
        return await self.run(scripts.load(verb), *arguments)

    async def run(self, script: Script, *arguments: Any) -> Any:
        async with self._in_time():
            try:
                return await self._client.evalsha(script.sha, 1, self.cell, *arguments)
            except NoScriptError:
                return await self._client.eval(script.text, 1, self.cell, *arguments)

    async def run_durably(self, script: Script, *arguments: Any, patience_seconds: float) -> Any:
        """Run a script, and wait until what it wrote is on the disk. Raises Unavailable when that is not so in time,
        though it may be later."""
        async with self._in_time(more_seconds=patience_seconds), self._primary() as client:
            try:
                answer, written = await self._with_waitaof(client, "EVALSHA", script.sha, arguments, patience_seconds)
            except NoScriptError:
                answer, written = await self._with_waitaof(client, "EVAL", script.text, arguments, patience_seconds)
        if written[0] < 1:
            raise Unavailable(
                f"Redis at {addresses.without_password(self.url)} did not confirm within {patience_seconds:g} s that"
                " its append-only file has what was sent"
            )
        return answer

    async def _with_waitaof(
        self,
        client: redis.asyncio.Redis,
        command: str,
        script: str,
        arguments: Sequence[Any],
        patience_seconds: float,
    ) -> tuple[Any, list[int]]:
        """Both commands on one connection: the second waits for what that connection wrote."""
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command(command, script, 1, self.cell, *arguments)
        pipeline.execute_command("WAITAOF", 1, 0, int(patience_seconds * 1000))
        answer, written = await pipeline.execute(raise_on_error=False)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(written, Exception):
            raise Unavailable(f"Redis cannot say that its append-only file has what was sent: {written}") from written
        return answer, written

    async def command(self, *arguments: Any) -> Any:
        """One command on a key of the cell."""
        async with self._in_time():
            return await self._client.execute_command(*arguments)

    async def inform(self, section: str) -> dict[str, Any]:
        """What the server that has the cell says of itself."""
        async with self._in_time(), self._primary() as client:
            return dict(await client.info(section))

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[redis.asyncio.client.PubSub]:
        """Listen on a connection of its own. Raises Unavailable when none can be made."""
        with told_as_unavailable(self.url):
            async with self._single() as client, client.pubsub() as pubsub:
                await pubsub.subscribe(channel)
                if await pubsub.get_message(timeout=self._timeout) is None:
                    raise Unavailable(f"Redis at {addresses.without_password(self.url)} did not answer in time")
                yield pubsub

    @asynccontextmanager
    async def _in_time(self, *, more_seconds: float = 0.0) -> AsyncIterator[None]:
        """The one limit of time for a call: the client's own are kept by `asyncio.wait_for`, which before Python 3.12
        may swallow a cancellation."""
        with told_as_unavailable(self.url):
            try:
                async with asyncio.timeout(self._pool_timeout + self._timeout + more_seconds), self._free:
                    await self._find_nodes()
                    yield
            except TimeoutError as error:
                raise TimeoutError("it did not answer in time") from error

    async def _find_nodes(self) -> None:
        if isinstance(self._client, redis.asyncio.RedisCluster):
            async with self._finding_nodes:
                await self._client.initialize()  # type: ignore[unused-awaitable]

    @asynccontextmanager
    async def _primary(self) -> AsyncIterator[redis.asyncio.Redis]:
        """A client of the one server that has the cell's slot."""
        if isinstance(self._client, redis.asyncio.Redis):
            yield self._client
        else:
            async with self._single() as client:
                yield client

    @asynccontextmanager
    async def _single(self) -> AsyncIterator[redis.asyncio.Redis]:
        """The same with a connection of its own. In a cluster it is made anew each time, for slots move."""
        url = self.url
        if isinstance(self._client, redis.asyncio.RedisCluster):
            await self._find_nodes()
            node = self._client.get_node_from_key(self.cell)
            if node is None:
                raise RedisClusterException(f"no node has the slot of {self.cell}")
            url = addresses.of_node(url, host=node.host, port=node.port)
        async with addresses.open_one(url, timeout=self._timeout, name=self._name) as client:
            yield client


@contextmanager
def told_as_unavailable(url: str) -> Iterator[None]:
    """Every way in which a server can be away, or refuse to work for now, is one error."""
    try:
        yield
    except (RedisError, OSError) as error:
        if not isinstance(error, _AWAY) and getattr(error, "status_code", _code(error)) not in _PASSING:
            raise
        what = str(error).strip().partition("\n")[0] or repr(error)
        raise Unavailable(f"Redis at {addresses.without_password(url)} is not available: {what}") from error


def _code(error: Exception) -> str:
    return str(error).partition(" ")[0]

"""Connections to one cell: a line on which scripts are run by name, each once, and a pool for what is asked seldom.

Nothing is sent a second time when an answer is lost: whoever asked is told so, and can look for what it made by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import redis
import redis.asyncio
from redis.exceptions import (
    AskError,
    ClusterError,
    ConnectionError,
    MovedError,
    NoScriptError,
    RedisError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from taketurns.brokers.redis import addresses, scripts
from taketurns.brokers.redis.line import Line, open_line
from taketurns.brokers.redis.nodes import Nodes
from taketurns.brokers.redis.scripts import Script
from taketurns.engine.errors import Unavailable

Answer = TypeVar("Answer")

_PASSING: Final = {
    *("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS"),
    *("OOM", "READONLY", "TRYAGAIN", "UNKILLABLE", "WRONGPASS"),
}
"""What a server says while it cannot do what it otherwise would."""
_AWAY: Final = (ConnectionError, RedisTimeoutError, ClusterError, OSError)


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
        self._pool_size = pool_size
        self._name = name
        self.nodes = Nodes(url, cell=self.cell, name=name)
        self._node: str | None = None
        self._search = asyncio.Lock()
        self._clients: dict[str, redis.asyncio.Redis] = {}
        self._opening = asyncio.Lock()
        self._lines: dict[str, Line] = {}

    async def close(self) -> None:
        self._drop_lines()
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()

    def key(self, *parts: object) -> str:
        return ":".join([self.cell, *map(str, parts)])

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Run the script of a verb on the cell."""
        return await self.run(scripts.load(verb), *arguments)

    async def run(self, script: Script, *arguments: Any) -> Any:
        async def ask(node: str) -> Any:
            line = await self._line(node)
            try:
                return await line.call("EVALSHA", script.sha, 1, self.cell, *arguments)
            except NoScriptError:
                return await line.call("EVAL", script.text, 1, self.cell, *arguments)

        return await self._answer(ask)

    async def run_durably(self, script: Script, *arguments: Any, patience_seconds: float) -> tuple[Any, str | None]:
        """Run a script, and wait until what it wrote is on the disk; answers why that is in doubt as well, or None."""

        async def ask(node: str) -> tuple[Any, str | None]:
            client = self._client(node)
            try:
                return await self._with_waitaof(client, "EVALSHA", script.sha, arguments, patience_seconds)
            except NoScriptError:
                return await self._with_waitaof(client, "EVAL", script.text, arguments, patience_seconds)

        return await self._answer(ask, more_seconds=patience_seconds)

    async def _with_waitaof(
        self,
        client: redis.asyncio.Redis,
        command: str,
        script: str,
        arguments: Sequence[Any],
        patience_seconds: float,
    ) -> tuple[Any, str | None]:
        """Both commands on one connection: the second waits for what that connection wrote."""
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command(command, script, 1, self.cell, *arguments)
        pipeline.execute_command("WAITAOF", 1, 0, int(patience_seconds * 1000))
        answer, written = await pipeline.execute(raise_on_error=False)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(written, Exception):
            return answer, f"Redis cannot say that its append-only file has it: {written}"
        if written[0] < 1:
            return answer, f"Redis did not say within {patience_seconds:g} s that its append-only file has it"
        return answer, None

    async def command(self, *arguments: Any) -> Any:
        """One command on a key of the cell."""

        async def ask(node: str) -> Any:
            line = await self._line(node)
            return await line.call(*arguments)

        return await self._answer(ask)

    async def inform(self, section: str) -> dict[str, Any]:
        """What the server that has the cell says of itself."""
        return dict(await self._answer(lambda node: self._client(node).info(section)))

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[Line]:
        """Listen on a line of its own. Raises Unavailable when none can be made.

        What is published at one node of a cluster is heard at all of them: who listens need not follow the cell.
        """
        with self._told_as_unavailable():
            async with asyncio.timeout(self._timeout):
                line = await open_line(await self._find(), name=self._name)
            try:
                async with asyncio.timeout(self._timeout):
                    await line.listen(channel)
                yield line
            finally:
                line.drop()

    async def _answer(self, ask: Callable[[str], Awaitable[Answer]], *, more_seconds: float = 0.0) -> Answer:
        """Ask the node that has the cell, or the one that it has moved to: what was refused for that is not done."""
        async with self._in_time(more_seconds=more_seconds):
            node = self._node or await self._find()
            try:
                return await ask(node)
            except MovedError as moved:
                if not self.nodes.is_cluster:
                    raise
                self._node = self.nodes.moved_to(moved, told_by=node)
                return await ask(self._node)

    async def _find(self) -> str:
        async with self._search:
            if self._node is None:
                self._node = await asyncio.to_thread(self.nodes.find)
            return self._node

    async def _line(self, node: str) -> Line:
        """Lines to nodes that the cell has left stay open: calls may be under way there."""
        line = self._lines.get(node)
        if line is None or not line.is_open:
            async with self._opening:
                line = self._lines.get(node)
                if line is None or not line.is_open:
                    line = self._lines[node] = await open_line(node, name=self._name)
        return line

    def _drop_lines(self) -> None:
        while self._lines:
            _, line = self._lines.popitem()
            line.drop()

    def _client(self, node: str) -> redis.asyncio.Redis:
        """The clients of nodes that the cell has left stay open: calls may be under way there."""
        if node not in self._clients:
            self._clients[node] = addresses.open_pool(
                node,
                pool_size=self._pool_size,
                pool_timeout=self._pool_timeout,
                timeout=self._timeout,
                name=self._name,
            )
        return self._clients[node]

    @asynccontextmanager
    async def _in_time(self, *, more_seconds: float = 0.0) -> AsyncIterator[None]:
        """The one limit of time for a call: the client's own are kept by `asyncio.wait_for`, which before Python 3.12
        may swallow a cancellation."""
        with self._told_as_unavailable():
            try:
                async with asyncio.timeout(self._pool_timeout + self._timeout + more_seconds):
                    yield
            except TimeoutError as error:
                self._drop_lines()  # what is not answered may never be, and the next call asks anew
                raise TimeoutError("it did not answer in time") from error

    @contextmanager
    def _told_as_unavailable(self) -> Iterator[None]:
        """After that, where the cell is has to be found anew."""
        try:
            with told_as_unavailable(self.url):
                yield
        except Unavailable:
            self._node = None
            raise


@contextmanager
def told_as_unavailable(url: str) -> Iterator[None]:
    """Every way in which a server can be away, or refuse to work for now, is one error."""
    try:
        yield
    except (RedisError, OSError) as error:
        if not isinstance(error, _AWAY) and getattr(error, "status_code", _code(error)) not in _PASSING:
            raise
        what = str(error).strip().partition("\n")[0] or repr(error)
        if isinstance(error, AskError):
            what = f"the cell has moved, or is moving, to another node of a cluster: {what}"
        raise Unavailable(f"Redis at {addresses.without_password(url)} is not available: {what}") from error


def _code(error: Exception) -> str:
    return str(error).partition(" ")[0]

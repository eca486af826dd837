"""The Valkey that tests run on: one server for all processes of a run, and servers and clusters of a test's own."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from taketurns.storage.embedded import valkey
from taketurns.storage.embedded.home import quick_directory
from taketurns.storage.embedded.keeper import signalled_when_parent_ends

ADDRESS = "TAKETURNS_TEST_REDIS_URL"
PATIENCE_SECONDS = 20.0
SLOTS = 16_384
_PAUSE_SECONDS = 0.005


@contextlib.contextmanager
def shared_valkey(run: str) -> Iterator[str]:
    """The address of the server named in TAKETURNS_TEST_REDIS_URL, or else of the one that a run's processes share.

    The latter and its home are gone when the last process is, however it ended.
    """
    if address := os.environ.get(ADDRESS):
        yield address
    else:
        with valkey.throwaway(f"test-{run}") as server:
            yield server.url


def forget(address: str, name: str) -> None:
    """Delete every key that has the name in it."""
    with redis.Redis.from_url(address) as client:
        for key in client.scan_iter(match=f"*{name}*", count=1_000):
            client.unlink(key)


class Valkey:
    """A server of a test's own, which may be killed and started again; its append-only file outlives it.

    Settings are those of the embedded server unless told otherwise. It listens on a socket, or on a port of 127.0.0.1.
    """

    def __init__(self, directory: Path, *, port: int | None = None, **settings: str) -> None:
        self._directory = directory
        self._port = port
        self._settings = {name.replace("_", "-"): value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}" if self._port is None else f"redis://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        assert self._port is not None, "it listens on a socket only"
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self._directory / "server.log").read_text()

    def start(self) -> Self:
        """Start it on the data that is there; returns when it answers."""
        self.begin()
        wait_until(self.answers, f"Valkey answers at {self.url}")
        return self

    def begin(self) -> None:
        """Start it without waiting for it."""
        assert self._process is None, "it runs already"
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=signalled_when_parent_ends(signal.SIGKILL),  # noqa: PLW1509  it makes one system call
            )

    def kill(self) -> None:
        """As `kill -9`; what it had not written is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As SIGTERM: it writes what it has and leaves."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """As SIGSTOP: its connections stay, and nobody answers on them."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def client(self, **options: Any) -> redis.Redis:
        """A client that tries nothing twice; to be closed by who asks for it."""
        return redis.Redis.from_url(
            self.url, retry=Retry(NoBackoff(), 0), socket_timeout=5, decode_responses=True, **options
        )

    def execute(self, *command: str | int) -> Any:
        """What the server answers to one command."""
        with self.client() as client:
            return client.execute_command(*command)

    def answers(self) -> bool:
        try:
            return bool(self.execute("PING"))
        except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            assert self._process is None or self._process.poll() is None, f"Valkey did not start:\n{self.log}"
            return False

    @property
    def _socket(self) -> Path:
        return self._directory / "valkey.sock"

    def _command(self) -> list[str]:
        where = {"port": "0", "unixsocket": str(self._socket)}
        if self._port is not None:
            where = {"port": str(self._port), "bind": "127.0.0.1"}
        settings = {**valkey.SETTINGS, **self._settings, **where, "dir": str(self._directory)}
        program = valkey.find()
        return [str(program.path), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None


class Valkeys:
    """Makes servers of a test's own, which are killed at its end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __call__(self, *, port: int | None = None, **settings: str) -> Valkey:
        """A server that runs; settings are named as Valkey names them: `maxmemory="5mb"`."""
        server = Valkey(self._directory(), port=port, **settings)
        self._stack.callback(server.kill)
        return server.start()

    def cluster(self, **settings: str) -> "ValkeyCluster":
        """Three nodes that run, the slots shared out evenly among them."""
        members = [self.cluster_node(**settings) for _ in range(3)]
        cluster = ValkeyCluster(members)
        cluster.form()
        return cluster

    def cluster_node(self, **settings: str) -> Valkey:
        """A server that may become a node of a cluster."""
        port, bus = free_ports(2)
        settings = {"cluster_enabled": "yes", "cluster_port": str(bus), "cluster_node_timeout": "2000"} | settings
        return self(port=port, **settings)

    def close(self) -> None:
        self._stack.close()

    def _directory(self) -> Path:
        directory = tempfile.mkdtemp(dir=quick_directory(), prefix="taketurns-valkey-")
        self._stack.callback(shutil.rmtree, directory)
        return Path(directory)


class ValkeyCluster:
    """Nodes that share the slots out; a client that knows one of them finds the others."""

    def __init__(self, nodes: list[Valkey]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        """The address of the cluster, as settings have it."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def node_of(self, key: str, *, told_by: Valkey | None = None) -> Valkey:
        """The node that serves the slot of a key, as one of the nodes knows it."""
        slot = key_slot(key.encode())
        told = (told_by or self.nodes[0]).execute("CLUSTER SLOTS")
        port = next(primary[1] for first, last, primary, *_ in told if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def form(self) -> None:
        """Give each node its slots and make them known to each other; returns when every node knows all slots."""
        first, *_ = self.nodes
        count = len(self.nodes)
        for number, node in enumerate(self.nodes):
            node.execute("CLUSTER ADDSLOTSRANGE", SLOTS * number // count, SLOTS * (number + 1) // count - 1)
            node.execute("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if node is not first:
                self._meet(node)
        wait_until(lambda: all(map(self._is_known_to, self.nodes)), "every node knows all slots")

    def add_replica(self, replica: Valkey, *, of: Valkey) -> None:
        """Let a server follow a node; returns when every node knows of it, and it has all that the other has."""
        self._meet(replica)
        wait_until(lambda: self._is_known_to(replica), "the replica knows all slots")
        replica.execute("CLUSTER REPLICATE", of.execute("CLUSTER MYID"))
        self.nodes.append(replica)
        wait_until(lambda: all(str(replica.port) in str(node.execute("CLUSTER SLOTS")) for node in self.nodes), "known")
        wait_until(lambda: self.is_copied(of, replica), "the replica has everything")

    def is_copied(self, node: Valkey, replica: Valkey) -> bool:
        """Whether a replica that nobody writes to meanwhile has all that its node has."""
        told, copied = (server.execute("INFO", "replication") for server in (node, replica))
        is_linked: bool = copied["master_link_status"] == "up"
        return is_linked and copied["slave_repl_offset"] == told["master_repl_offset"]

    def _meet(self, node: Valkey) -> None:
        first = self.nodes[0]
        bus = first.execute("CONFIG GET", "cluster-port")["cluster-port"]
        node.execute("CLUSTER MEET", "127.0.0.1", first.port, bus)

    def _is_known_to(self, node: Valkey) -> bool:
        told = node.execute("CLUSTER INFO")
        return told["cluster_state"] == "ok" and int(told["cluster_slots_ok"]) == SLOTS


def free_ports(count: int) -> list[int]:
    """Ports of this machine that were free a moment ago, each another."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [taken.getsockname()[1] for taken in sockets]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(_PAUSE_SECONDS)

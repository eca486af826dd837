"""`/metrics`, `/health` and `/ready` of a worker process, on a port of their own and in threads of their own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from taketurns import telemetry

LOOK_SECONDS: Final = 0.5  # how soon it sees that it is closed


class Measured(Protocol):
    """What is read of a worker when somebody looks, so that nothing can drift (fault 161)."""

    @property
    def held(self) -> int: ...

    @property
    def lease_age(self) -> float: ...


_measured: weakref.WeakSet[Any] = weakref.WeakSet()


def measure(worker: Measured) -> None:
    """Have a worker's figures told for as long as it exists."""
    _measured.add(worker)


def forget(worker: Measured) -> None:
    _measured.discard(worker)


telemetry.TASKS_IN_FLIGHT.set_function(lambda: sum(worker.held for worker in list(_measured)))
telemetry.LEASE_AGE_SECONDS.set_function(lambda: max((worker.lease_age for worker in list(_measured)), default=0.0))


class MetricsServer:
    """Serves until closed. `port` 0 takes a free one; `address` tells which.

    `/health` is about the process, `/ready` about its work; both answer 503 for no.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        is_healthy: Callable[[], bool],
        is_ready: Callable[[], bool] | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        answers = {"/health": is_healthy, "/ready": is_ready or is_healthy}
        handler = type("Handler", (_Handler,), {"answers": answers, "registry": registry})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(LOOK_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()
        telemetry.logger("worker").info(telemetry.Event.METRICS_SERVED, host=self.address[0], port=self.address[1])

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    answers: Mapping[str, Callable[[], bool]]
    registry: CollectorRegistry
    timeout = 10

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            self._answer(200, encode(self.registry), content_type)
        elif path not in self.answers:
            self._answer(404, b"", "text/plain")
        elif self.answers[path]():
            self._answer(200, b'{"status":"ok"}', "application/json")
        else:
            self._answer(503, b'{"status":"unavailable"}', "application/json")

    def log_message(self, format: str, *args: object) -> None:
        """Every scrape is not worth a line."""

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

"""What every request gets, whatever its route: an id, a place in the metrics and the log, an answer even when its
handler breaks, and the headers of the rate that its caller is held to."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taketurns import telemetry
from taketurns.api import headers, problems
from taketurns.api.problems import Problem

UNMATCHED: Final = "unmatched"
OTHER_METHOD: Final = "other"
CLIENT_GONE: Final = 499
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NO_STORE: Final = (b"cache-control", b"no-store")


class Exchange:
    """ASGI middleware around the whole application. HEAD is GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = telemetry.logger("api").bind()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _OneExchange(scope, send)
        token = telemetry.about.set(exchange.about)
        telemetry.HTTP_REQUESTS_IN_PROGRESS.inc()
        try:
            await self._app(exchange.scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = exchange.status or CLIENT_GONE
        except Exception:
            self._log.exception(telemetry.Event.REQUEST_FAILED, route=exchange.route)
            if exchange.status:
                raise  # half an answer is out: the connection must not look as if it were whole
            problem = Problem(problems.INTERNAL_ERROR, "the request could not be served")
            await problems.response(exchange.scope, problem)(exchange.scope, receive, exchange.send)
        finally:
            telemetry.HTTP_REQUESTS_IN_PROGRESS.dec()
            self._log.debug(telemetry.Event.REQUEST_ANSWERED, **exchange.count())
            telemetry.about.reset(token)


class _OneExchange:
    """One request, on its way."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.method: str = scope["method"]
        self.scope = {**scope, "method": "GET"} if self.method == "HEAD" else scope
        self.request_id = self.scope["request_id"] = headers.request_id(scope)
        self.status = 0
        self._send = send
        self._began_at = time.perf_counter()

    def about(self) -> dict[str, object]:
        told: dict[str, object] = {"request_id": self.request_id}
        principal = self.scope.get("principal")
        if principal is None:
            return told
        if principal.key_id is None:
            return told | {"subject": principal.name, "issuer": principal.issuer}
        return told | {"key_id": str(principal.key_id)}

    @property
    def route(self) -> str:
        """The template of the path; everything that has none is one."""
        route = self.scope.get("route")
        return getattr(route, "path_format", UNMATCHED)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = message["headers"] = list(message.get("headers", ()))
            told.append((b"x-request-id", self.request_id.encode()))
            for name, value in self.scope.get("rate_limit", {}).items():
                told.append((name.lower().encode(), value.encode()))  # beside the quotas', if the route told those
            if not any(name == b"cache-control" for name, _ in told):
                told.append(_NO_STORE)
        elif self.method == "HEAD":
            message = {**message, "body": b""}
        await self._send(message)

    def count(self) -> dict[str, object]:
        """Count the request; answers what a log line tells of it."""
        seconds = time.perf_counter() - self._began_at
        method = self.method if self.method in _METHODS else OTHER_METHOD
        status = self.status or CLIENT_GONE
        count, time_taken = _series(method, self.route, status)
        count.inc()
        time_taken.observe(seconds)
        return {"method": method, "route": self.route, "status": status, "milliseconds": round(seconds * 1000, 1)}


@lru_cache(maxsize=4096)
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    """The series of one kind of answer, looked up once and not at every request."""
    return (
        telemetry.HTTP_REQUESTS.labels(method, route, str(status)),
        telemetry.HTTP_REQUEST_SECONDS.labels(method, route),
    )

"""What visitors change: each change is a request of the API, made within this process and under the visitor's own key,
so that it is checked, done and noted in the audit in the one place where that is done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson
from starlette.types import Message, Scope

from taketurns.dashboard.visits import Visit

_UNTOLD: Final = "the service could not do that"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API answered."""

    status: int
    body: Any

    @property
    def is_done(self) -> bool:
        return self.status < 400

    @property
    def complaint(self) -> str:
        """What is wrong, for whoever asked."""
        told = self.body if isinstance(self.body, dict) else {}
        text = str(told.get("detail") or told.get("title") or _UNTOLD)
        return f"{text[:1].upper()}{text[1:]}."


async def ask(visit: Visit, method: str, path: str, body: object = None, *, text: str | None = None) -> Answer:
    """Ask the API for something, with a body, or with one that is JSON text already; what makes something is made once,
    however often the same form comes with it."""
    content = text.encode() if text is not None else b"" if body is None else orjson.dumps(body)
    sent: list[Message] = []
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Message:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    assert visit.parts.api is not None  # noqa: S101  it is there once the dashboard is mounted
    await visit.parts.api(_scope(visit, method, path, content), receive, send)
    told = b"".join(message.get("body", b"") for message in sent)
    return Answer(sent[0]["status"], orjson.loads(told) if told else None)


def _scope(visit: Visit, method: str, path: str, content: bytes) -> Scope:
    """A request as a server hands it over; who makes it is known already."""
    path, _, query = path.partition("?")
    given = visit.request.scope
    scope: Scope = {
        "type": "http",
        "asgi": given["asgi"],
        "http_version": "1.1",
        "scheme": given["scheme"],
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"x-request-id", given["request_id"].encode()),
            *((b"idempotency-key", _key(once, content)) for once in visit.form.all("once")[:1]),
        ],
        "client": given.get("client"),
        "server": given.get("server"),
        "state": given.get("state", {}),
    }
    if visit.principal is not None:
        scope["principal"] = visit.principal
    return scope


def _key(once: str, content: bytes) -> bytes:
    """The same for the same form with the same in it."""
    return hashlib.sha256(once.encode() + b"\0" + content).hexdigest().encode()

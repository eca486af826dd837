"""Requests reach the servers they are meant for, and no private one, whatever the URL looks like."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import httpx2
import pytest
from pydantic import HttpUrl

from examples import outbound
from examples.handlers import http_request, tt
from examples.retry_after import LONGEST_SECONDS, retry_after
from taketurns import Fail, InvalidPayload, Retry, Status
from taketurns.testing.engine import Engine
from tests.examples.attempts import TASK_ID, attempt
from tests.waiting import PATIENCE


@dataclass
class Received:
    method: str
    path: str
    headers: httpx2.Headers
    body: bytes


@dataclass
class WebServer:
    """Answers with what a test says, in turn, and keeps what it was asked."""

    port: int = 0
    answers: list[tuple[int, list[tuple[str, str]], bytes]] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def will_answer(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        self.answers.append((status, list(headers), body))


@pytest.fixture
def web_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    state = WebServer()
    state.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = httpx2.Headers(self.headers.items())
            state.received.append(Received(self.command, self.path, headers, body))
            state.may_answer.wait(timeout=PATIENCE)
            status, extra, text = state.answers.pop(0) if state.answers else (200, [], b"thanks")
            self.send_response(status)
            for name, value in extra:
                self.send_header(name, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked may have gone
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  the library's names

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("0.0.0.0", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(tt.settings, "http_allow_private", True)
        yield state
        state.may_answer.set()
        server.shutdown()
        thread.join()


async def call(url: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await http_request(attempt(), HttpUrl(url), **arguments)
    return answer


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Have a host name stand for these addresses; what is returned grows with each look-up of it."""
    plain = socket.getaddrinfo
    looked_up: list[str] = []

    def define(name: str, *addresses: str) -> list[str]:
        def look_up(host: str, *arguments: Any, **options: Any) -> Any:
            if host != name:
                return plain(host, *arguments, **options)
            looked_up.append(name)
            return [found for address in addresses for found in plain(address, *arguments, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return looked_up

    return define


# What is sent, and what comes back.


async def test_a_url_is_called_with_a_json_body(web_server: WebServer) -> None:
    web_server.will_answer(201, "größer".encode(), ("content-type", "text/plain; charset=utf-8"))
    answer = await call(web_server.url("/hook?a=1"), body={"paid": True}, headers={"X-Shop": "acme"})
    assert answer == {"status": 201, "body": "größer"}
    (received,) = web_server.received
    assert (received.method, received.path) == ("POST", "/hook?a=1")
    assert (json.loads(received.body), received.headers["x-shop"]) == ({"paid": True}, "acme")
    assert received.headers["host"] == f"127.0.0.1:{web_server.port}"


async def test_every_attempt_sends_the_same_idempotency_key(web_server: WebServer) -> None:
    for _ in range(2):
        await call(web_server.url(), headers={"idempotency-key": "mine"})
    assert [received.headers.get_list("idempotency-key") for received in web_server.received] == [[str(TASK_ID)]] * 2


async def test_the_environments_proxy_does_not_come_between(
    web_server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert (await call(web_server.url()))["status"] == 200


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (b"a\0b", "utf-8", "a\N{REPLACEMENT CHARACTER}b"),  # fault 091
        (b"\xff\xfe", "utf-8", "\N{REPLACEMENT CHARACTER}" * 2),
        (b"caf\xe9", "latin-1", "café"),
        (b"plain", "no-such-charset", "plain"),
        (b"x" * 1_000_000, "utf-8", "x" * outbound.MOST_BYTES),
    ],
)
async def test_the_beginning_of_any_answer_is_text(web_server: WebServer, body: bytes, charset: str, text: str) -> None:
    web_server.will_answer(200, body, ("content-type", f"text/plain; charset={charset}"))
    assert (await call(web_server.url()))["body"] == text


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "connection"])
async def test_headers_that_frame_the_request_are_not_the_callers(web_server: WebServer, name: str) -> None:
    with pytest.raises(Fail, match=f"{name.lower()} is not for the caller"):
        await call(web_server.url(), headers={name: "1"})
    assert web_server.received == []


@pytest.mark.parametrize(
    "payload",
    [
        {"url": "ftp://example.com/"},
        {"url": "file:///etc/passwd"},
        {"url": "example.com"},
        {"url": "https://example.com", "headers": {"X-A": "1\r\nX-B: 2"}},
        {"url": "https://example.com", "headers": {"X A": "1"}},
        {"url": "https://example.com", "method": "TRACE"},
        {"url": "https://example.com", "timeout_seconds": 0},
    ],
)
def test_what_is_no_request_is_refused_when_the_task_is_created(payload: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        http_request.type.validate(payload)


# Which answers are tried again.


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422, 451])
async def test_a_refusal_is_not_tried_again(web_server: WebServer, status: int) -> None:
    web_server.will_answer(status, b"because")
    with pytest.raises(Fail, match=f"answered {status}: because"):
        await call(web_server.url())


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_what_may_pass_is_tried_again(web_server: WebServer, status: int) -> None:
    web_server.will_answer(status)
    with pytest.raises(Retry, match=str(status)) as retry:
        await call(web_server.url())
    assert retry.value.after_seconds is None


async def test_a_server_is_left_alone_for_as_long_as_it_asks(web_server: WebServer) -> None:
    web_server.will_answer(429, b"", ("Retry-After", "7"))
    with pytest.raises(Retry) as retry:
        await call(web_server.url())
    assert retry.value.after_seconds == 7


async def test_a_worker_calls_again_no_sooner_than_the_server_asked(taketurns: Engine, web_server: WebServer) -> None:
    task = await http_request.enqueue(company="acme", url=HttpUrl(web_server.url("/hook")), body={"paid": True})
    web_server.will_answer(503, b"", ("Retry-After", "600"))
    await taketurns.drain()
    await taketurns.advance(seconds=540)
    await taketurns.drain()
    assert len(web_server.received) == 1
    await taketurns.advance(seconds=60)
    await taketurns.drain()
    (state,) = taketurns.finished(http_request)
    assert (state.status, state.result) == (Status.COMPLETED, {"status": 200, "body": "thanks"})
    assert [received.headers["idempotency-key"] for received in web_server.received] == [str(task.id)] * 2


NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [  # fault 176
        ([], None),
        ([""], None),
        (["soon"], None),
        (["-5"], None),
        (["0"], None),
        (["1.5"], None),
        (["٣"], None),
        (["30"], 30.0),
        ([" 30 "], 30.0),
        (["1e9"], None),
        (["1000000000"], LONGEST_SECONDS),
        (["9" * 400], None),
        ([format_datetime(NOW + timedelta(minutes=2), usegmt=True)], 120.0),
        ([format_datetime(NOW - timedelta(minutes=2), usegmt=True)], None),
        ([format_datetime(NOW + timedelta(days=900), usegmt=True)], LONGEST_SECONDS),
        (["Tue, 01 Jan 2030 00:01:00 -0000"], 60.0),
        (["Tue, 99 Jan 99999999 00:01:00 GMT"], None),
        (["30", "60"], 60.0),
        (["soon", "60"], 60.0),
    ],
)
def test_whatever_a_server_asks_for_the_wait_is_bounded(said: list[str], seconds: float | None) -> None:
    headers = httpx2.Headers([(b"retry-after", value.encode()) for value in said])
    assert retry_after(headers, now=NOW) == seconds


async def test_nobody_there_is_tried_again(web_server: WebServer) -> None:
    with pytest.raises(httpx2.ConnectError):
        await call("http://127.0.0.1:1/")


async def test_a_name_that_nobody_has_is_tried_again(web_server: WebServer) -> None:
    with pytest.raises(socket.gaierror):
        await call("http://no-such-host.invalid/")


async def test_a_server_that_does_not_answer_in_time_is_tried_again(web_server: WebServer) -> None:
    web_server.may_answer.clear()
    with pytest.raises((TimeoutError, httpx2.TimeoutException)):
        await call(web_server.url(), timeout_seconds=0.2)


# Where requests may go.


PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2001:4860:4860::8888", "::ffff:1.1.1.1", "64:ff9b::101:101"]
PRIVATE = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "203.0.113.5",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert outbound.is_public(ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_no_address_that_leads_inwards_is_public(address: str) -> None:
    assert not outbound.is_public(ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "0",
        "0.0.0.0",
        "①②⑦.⓪.⓪.①",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:7f00:0001]",
        "user:secret@127.0.0.1",
        "example.com@127.0.0.1",
    ],
)
async def test_a_private_server_is_not_reached_however_it_is_written(
    web_server: WebServer, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(tt.settings, "http_allow_private", False)
    with pytest.raises(Fail, match="may not be reached"):
        await call(web_server.url(host=host))
    assert web_server.received == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.1", "127.1"])
async def test_what_a_redirect_calls_an_address_is_resolved_like_any_name(web_server: WebServer, host: str) -> None:
    url = httpx2.URL(web_server.url(host=host))
    with pytest.raises(outbound.Refused, match="may not be reached"):
        await outbound.resolve(url, may_reach=outbound.is_public)


async def test_a_name_with_a_private_address_among_others_is_not_called(
    web_server: WebServer, monkeypatch: pytest.MonkeyPatch, names: Callable[..., list[str]]
) -> None:
    monkeypatch.setattr(tt.settings, "http_allow_private", False)
    names("shop.example", "1.1.1.1", "127.0.0.1")
    with pytest.raises(Fail, match=r"shop\.example has an address"):
        await call(web_server.url(host="shop.example"))
    assert web_server.received == []


async def test_the_connection_goes_to_the_address_that_was_looked_at(
    web_server: WebServer, names: Callable[..., list[str]]
) -> None:
    looked_up = names("shop.example", "127.0.0.1")
    assert (await call(web_server.url("/hook", host="shop.example")))["status"] == 200
    assert looked_up == ["shop.example"]
    assert web_server.received[0].headers["host"] == f"shop.example:{web_server.port}"


def only(address: str) -> Callable[[outbound.Address], bool]:
    return lambda candidate: candidate == ip_address(address)


def request(url: str, method: str = "POST") -> outbound.Request:
    headers = {"Authorization": "secret", "Idempotency-Key": "key"}
    return outbound.Request(method=method, url=httpx2.URL(url), headers=headers, body={"paid": True})


@pytest.mark.parametrize("target", ["http://127.0.0.2:{port}/", "//127.0.0.2:{port}/", "http://0x7f.2:{port}/"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_where_requests_may_not_go_is_not_followed(
    web_server: WebServer, status: int, target: str
) -> None:
    web_server.will_answer(status, b"", ("location", target.format(port=web_server.port)))
    with pytest.raises(outbound.Refused, match="may not be reached"):
        await outbound.send(request(web_server.url()), timeout_seconds=5, may_reach=only("127.0.0.1"))
    assert len(web_server.received) == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://127.0.0.1/", "http://[::1"])
async def test_a_redirect_to_what_is_not_the_web_is_not_followed(web_server: WebServer, target: str) -> None:
    web_server.will_answer(302, b"", ("location", target))
    with pytest.raises(outbound.Refused):
        await outbound.send(request(web_server.url()), timeout_seconds=5, may_reach=outbound.anything)


@pytest.mark.parametrize(
    ("status", "method", "followed_by"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (302, "PUT", "PUT"),
        (303, "PUT", "GET"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
    ],
)
async def test_a_redirect_is_followed_as_browsers_do(
    web_server: WebServer, status: int, method: str, followed_by: str
) -> None:
    web_server.will_answer(status, b"", ("location", "/there"))
    answer = await outbound.send(
        request(web_server.url("/here"), method), timeout_seconds=5, may_reach=outbound.anything
    )
    assert (answer.status, answer.text) == (200, "thanks")
    second = web_server.received[1]
    assert (second.method, second.path) == (followed_by, "/there")
    assert bool(second.body) is (followed_by == method)
    assert second.headers["authorization"] == "secret"


async def test_the_callers_headers_stay_with_the_origin_they_were_meant_for(web_server: WebServer) -> None:
    web_server.will_answer(307, b"", ("location", web_server.url(host="127.0.0.2")))
    await outbound.send(request(web_server.url()), timeout_seconds=5, may_reach=outbound.anything)
    second = web_server.received[1]
    assert "authorization" not in second.headers
    assert second.headers["idempotency-key"] == "key"


async def test_redirects_have_an_end(web_server: WebServer) -> None:
    for _ in range(outbound.MOST_REDIRECTS + 1):
        web_server.will_answer(302, b"", ("location", "/again"))
    with pytest.raises(outbound.Refused, match="more than 5 times"):
        await outbound.send(request(web_server.url()), timeout_seconds=5, may_reach=outbound.anything)
    assert len(web_server.received) == outbound.MOST_REDIRECTS + 1

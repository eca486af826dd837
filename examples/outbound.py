"""Requests to URLs that a customer may choose: they reach the public internet and nothing else (SSRF).

A host name is resolved once and the connection made to that very address, so that the name cannot stand for another
one by then; redirects are followed by the same rule. No proxy of the environment comes between.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import SOCK_STREAM
from typing import Final

import httpx2
from pydantic import JsonValue

MOST_REDIRECTS: Final = 5
MOST_BYTES: Final = 64 * 1024
CONNECT_SECONDS: Final = 10.0
PORTS: Final = {"http": 80, "https": 443}
OURS: Final = frozenset({"connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"})

# Addresses of version 6 that lead to one of version 4, and where that stands in them (RFC 4291, 6052, 8215, 3056).
TRANSLATED: Final = {
    IPv6Network("::/96"): 0,
    IPv6Network("::ffff:0:0/96"): 0,
    IPv6Network("::ffff:0:0:0/96"): 0,
    IPv6Network("64:ff9b::/96"): 0,
    IPv6Network("64:ff9b:1::/48"): 0,
    IPv6Network("2002::/16"): 80,
}

Address = IPv4Address | IPv6Address


class Refused(Exception):
    """The request will not be sent, or its answer not be followed."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: httpx2.URL
    headers: Mapping[str, str]
    body: JsonValue = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is the beginning of the body."""

    url: httpx2.URL
    status: int
    headers: httpx2.Headers
    text: str


async def send(request: Request, *, timeout_seconds: float, may_reach: Callable[[Address], bool]) -> Answer:
    """Send it and follow redirects, all within the time and to addresses that it may reach: `is_public`, or another.

    Raises Refused, TimeoutError, OSError when there is no such host, and httpx2.HTTPError.
    """
    if wrong := OURS.intersection(name.lower() for name in request.headers):
        raise Refused(f"the header {', '.join(sorted(wrong))} is not for the caller to set")
    timeout = httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
    async with (
        asyncio.timeout(timeout_seconds),
        httpx2.AsyncClient(verify=_tls(), trust_env=False, timeout=timeout) as client,
    ):
        for _ in range(1 + MOST_REDIRECTS):
            answer = await _send_once(client, request, may_reach=may_reach)
            following = _redirected(request, answer)
            if following is None:
                return answer
            request = following
    raise Refused(f"{request.url.host} redirects for more than {MOST_REDIRECTS} times")


async def _send_once(client: httpx2.AsyncClient, request: Request, *, may_reach: Callable[[Address], bool]) -> Answer:
    url = request.url
    address = await resolve(url, may_reach=may_reach)
    try:
        sent = client.build_request(
            request.method,
            url.copy_with(host=str(address), fragment=None),
            headers={"Accept-Encoding": "identity", **request.headers, "Host": url.netloc.decode("ascii")},
            json=request.body,
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        )
        received = await client.send(sent, stream=True)
    except (httpx2.InvalidURL, httpx2.LocalProtocolError, httpx2.UnsupportedProtocol) as error:
        raise Refused(f"no such request can be sent: {error}") from error
    try:
        return Answer(url, received.status_code, received.headers, await _beginning(received))
    finally:
        await received.aclose()


async def resolve(url: httpx2.URL, *, may_reach: Callable[[Address], bool]) -> Address:
    """The address to connect to. Raises Refused when the host has one that may not be reached, and OSError."""
    if url.scheme not in PORTS or not url.host:
        raise Refused("only http and https URLs with a host are called")
    try:
        host = url.raw_host.decode("ascii")
        found = await asyncio.get_running_loop().getaddrinfo(host, url.port or PORTS[url.scheme], type=SOCK_STREAM)
    except (UnicodeError, ValueError) as error:
        raise Refused(f"{url.host!r} is no host name: {error}") from error
    addresses = [ip_address(place[0]) for *_, place in found]
    if not all(may_reach(address) for address in addresses):
        raise Refused(f"{url.host} has an address that may not be reached")
    return addresses[0]


def anything(_: Address) -> bool:
    """Also what only this machine and its neighbours can reach."""
    return True


def is_public(address: Address) -> bool:
    """Whether an address, and the one of version 4 that it may lead to, is one of the public internet."""
    return all(
        plain.is_global and not plain.is_multicast and not plain.is_reserved and not _is_site_local(plain)
        for plain in _meanings(address)
    )


def _meanings(address: Address) -> Iterator[Address]:
    led_to: list[Address] = [
        IPv4Address((int(address) >> shift) & 0xFFFFFFFF) for network, shift in TRANSLATED.items() if address in network
    ]
    yield from led_to or [address]


def _is_site_local(address: Address) -> bool:
    return isinstance(address, IPv6Address) and address.is_site_local


def _redirected(request: Request, answer: Answer) -> Request | None:
    """The request that the answer asks for instead. Headers of the caller's do not go to another origin."""
    location = answer.headers.get("location")
    if location is None or answer.status not in {301, 302, 303, 307, 308}:
        return None
    try:
        url = request.url.join(location)
    except httpx2.InvalidURL as error:
        raise Refused(f"{request.url.host} redirects to no URL: {error}") from error
    if (url.scheme, url.host, url.port) != (request.url.scheme, request.url.host, request.url.port):
        kept = {name: value for name, value in request.headers.items() if name.lower() == "idempotency-key"}
        request = replace(request, headers=kept)
    if answer.status == 303 or (answer.status in {301, 302} and request.method == "POST"):
        request = replace(request, method="HEAD" if request.method == "HEAD" else "GET", body=None)
    return replace(request, url=url)


async def _beginning(received: httpx2.Response) -> str:
    body = bytearray()
    async for chunk in received.aiter_raw():
        body += chunk
        if len(body) >= MOST_BYTES:
            break
    try:
        text = body[:MOST_BYTES].decode(received.charset_encoding or "utf-8", "replace")
    except (LookupError, UnicodeError):  # the server names a charset that is none
        text = body[:MOST_BYTES].decode("utf-8", "replace")
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)

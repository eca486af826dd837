"""What can be told of an address without asking anybody."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_network(text: str) -> bool:
    """Whether this names an address, or a network of them."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def is_trustworthy(url: str) -> bool:
    """Whether nobody on the way can change what is read there: by https, or on this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host or "")))


def comes_from_this_machine(*, reached: str | None, named: str) -> bool:
    """Whether a request came to an address of this machine's own, and by a name of its own: a page elsewhere can have
    its own name lead here. `reached` is the address, `named` the Host header. No page reaches a socket file, whose path
    or nothing is `reached` then."""
    if not reached or reached.startswith("/"):
        return True
    try:
        host = urlsplit(f"//{named}").hostname
    except ValueError:
        return False
    return is_loopback(reached) and (not host or is_loopback(host))

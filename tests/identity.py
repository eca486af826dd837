"""A real identity provider on loopback: a document, public keys, and tokens that it signs."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.waiting import PATIENCE

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
AUDIENCE = "https://tasks.example"
CURVES: dict[str, type[Any]] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


def private_key(algorithm: str, number: int = 1, *, bits: int = 2048) -> Any:
    """A key for an algorithm, the same for all of RSA; another one for another number."""
    return _made(algorithm if algorithm in CURVES or algorithm == "EdDSA" else "RSA", number, bits)


@cache
def _made(kind: str, _number: int, bits: int) -> Any:
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if kind in CURVES:
        return ec.generate_private_key(CURVES[kind]())
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def public_jwk(key_id: str, algorithm: str, number: int = 1, *, bits: int = 2048) -> dict[str, Any]:
    """The public half as a JSON web key."""
    public = private_key(algorithm, number, bits=bits).public_key()
    jwk = jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    return {**jwk, "kid": key_id, "use": "sig"}


class IdentityProvider:
    """One provider, which keeps its port while it is stopped. `asked` has the paths that were asked for.

    `answers` are what it says instead of its own at a path: a status and a body. While `is_open` is not set, whoever
    asks waits.
    """

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [public_jwk("first", "RS256")]
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.is_open = threading.Event()
        self.is_open.set()
        self._port = 0
        self.start()
        self.issuer = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), _handler(self))
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.is_open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        self.is_open.wait(PATIENCE)
        document = {"issuer": self.issuer, "jwks_uri": self.issuer + KEYS}
        told: dict[str, Any] = {DISCOVERY: document, KEYS: {"keys": self.keys}}
        return self.answers.get(path) or (200, json.dumps(told[path]).encode())

    def token(self, **others: Any) -> str:
        """A token that works, but for what is told of it: claims to change, or to leave out with None; and `header`,
        `algorithm`, `number` and `key`, which it is signed with."""
        signed = _Signed(**{name: others.pop(name) for name in list(others) if name in _Signed.__annotations__})
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300, "company": "acme"}
        told = {name: value for name, value in {**claims, **others}.items() if value is not None}
        header = {name: value for name, value in {"kid": "first", **signed.header}.items() if value is not None}
        key = signed.key or private_key(signed.algorithm, signed.number)
        return jwt.encode(told, key, algorithm=signed.algorithm, headers=header)


@dataclass(frozen=True, kw_only=True)
class _Signed:
    header: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "RS256"
    number: int = 1
    key: Any = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who did not wait for their answer."""


def _handler(provider: IdentityProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = provider.answer(self.path)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", body.decode())
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    return Handler

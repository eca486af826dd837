"""What the pages work with: handed in when the dashboard is made, found again through the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request
from starlette.types import ASGIApp

from taketurns.companies.keyring import KeyRing
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.dashboard.files import Files
from taketurns.dashboard.streams import Streams
from taketurns.storage.database import Database


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts of one dashboard. `api` is what its actions are asked of, once it is mounted there.

    `told` are settings that the page of settings shows, by what they are called.
    """

    database: Database
    keyring: KeyRing
    asks_for_keys: bool
    on_loopback_only: bool
    wrong_keys: WrongKeys | None = None
    prefix: str
    version: str
    told: Mapping[str, str] = field(default_factory=dict)
    files: Files = field(default_factory=Files)
    streams: Streams = field(default_factory=Streams)
    api: ASGIApp | None = None


def parts(request: Request) -> Parts:
    return cast(Parts, request.scope["dashboard"])

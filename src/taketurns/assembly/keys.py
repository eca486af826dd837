"""How a service makes keys, knows them and asks for them, as its settings say."""

from __future__ import annotations

from taketurns.api.guard import Guard
from taketurns.companies.keyring import KeyRing
from taketurns.companies.keys import Stamp
from taketurns.settings import Settings
from taketurns.storage.database import Database


def make_stamp(settings: Settings) -> Stamp:
    """What makes keys and knows them again: the same for all processes of a cell."""
    peppers = tuple(pepper.get_secret_value().encode() for pepper in settings.key_peppers)
    return Stamp(settings.key_environment, peppers or (b"",))


def make_guard(settings: Settings, database: Database) -> Guard:
    """What the API asks its callers for."""
    token = settings.metrics_token
    return Guard(
        keyring=KeyRing(database, stamp=make_stamp(settings)),
        asks_for_keys=settings.authentication == "on",
        on_loopback_only=settings.authentication == "off",
        metrics_token=None if token is None else token.get_secret_value().encode(),
    )

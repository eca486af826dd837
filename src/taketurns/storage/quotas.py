"""What the functions of quotas tell, as Python says it; see reserve.sql."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import psycopg

from taketurns.engine.errors import QuotaBusy, QuotaExceeded
from taketurns.engine.quota import Allowance, Period

REFUSED: Final = "TQ001"
BUSY: Final = "TQ002"


def read(told: str) -> tuple[int, tuple[Allowance, ...]]:
    """For how many tasks was asked, and how the company's quotas stand."""
    document = json.loads(told)
    return document["wanted"], tuple(allowance(one) for one in document["allowances"] or ())


def allowance(told: Mapping[str, Any]) -> Allowance:
    return Allowance(
        period=Period(told["period"]),
        starts_at=datetime.fromisoformat(told["starts_at"]),
        ends_at=datetime.fromisoformat(told["ends_at"]),
        seconds_left=told["seconds_left"],
        quota=told["quota"],
        reserved=told["reserved"],
        refunded=told["refunded"],
    )


@contextmanager
def refusals() -> Iterator[None]:
    """Raises QuotaExceeded and QuotaBusy where PostgreSQL tells of them by an error."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == REFUSED:
            wanted, allowances = read(error.diag.message_detail or "")
            raise QuotaExceeded(allowances, wanted) from None
        if error.sqlstate == BUSY:
            raise QuotaBusy from None
        raise

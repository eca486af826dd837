"""A heartbeat stays when its lease goes, and tells who is late and who has left."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta

import pytest

from taketurns.engine.lease import Holder, Kind
from taketurns.history import heartbeats
from taketurns.history.heartbeats import Heartbeat
from taketurns.storage.ids import new_id
from tests.history.conftest import Life
from tests.keeping import kept


async def heard_of(life: Life) -> dict[str, Heartbeat]:
    return {one.name: one for one in (await heartbeats.page(life.database, limit=100)).heartbeats}


def holder(name: str = "mailer", *, kind: Kind = Kind.WORKER, comes_again: bool = True) -> Holder:
    return Holder(queues=("mail", "default"), types=(), concurrency=4, name=name, kind=kind, comes_again=comes_again)


async def grow_old(life: Life, age: timedelta = timedelta(hours=1)) -> None:
    await life.execute("update heartbeats set beat_at = beat_at - %s", age)


def is_late(one: Heartbeat) -> bool:
    return one.is_late(max_age_seconds=600)


class Line:
    """A lease of a holder, used as its worker uses it."""

    def __init__(self, life: Life, holder: Holder) -> None:
        self.line = life.broker.lease_line(patience_seconds=5)
        self.worker_id = new_id()
        self.line.take(self.worker_id, holder, former=None)

    def beat(self, *, seconds_since_claim: float | None = None) -> None:
        assert self.line.beat(self.worker_id, seconds_since_claim=seconds_since_claim) is not None

    def leave(self, *, seconds_since_claim: float | None = None) -> None:
        self.line.remove(self.worker_id, seconds_since_claim=seconds_since_claim)
        self.line.close()


async def test_a_lease_is_heard_of_from_its_first_moment(life: Life) -> None:
    line = await asyncio.to_thread(Line, life, holder())
    (one,) = (await heard_of(life)).values()
    assert (one.name, one.kind, one.host, one.queues) == ("mailer", "worker", socket.gethostname(), ["mail", "default"])
    assert (one.id, one.concurrency, one.processes, one.left_at) == (line.worker_id, 4, 1, None)
    assert one.started_at <= one.beat_at
    assert one.last_claim_at is None
    assert one.age_seconds < 60
    line.beat(seconds_since_claim=30)
    beaten = (await heard_of(life))["mailer"]
    assert beaten.beat_at > one.beat_at
    assert beaten.last_claim_at is not None
    assert timedelta(seconds=29) < beaten.beat_at - beaten.last_claim_at < timedelta(seconds=31)
    line.leave()


async def test_a_worker_that_leaves_in_good_order_is_not_late(life: Life) -> None:
    Line(life, holder()).leave(seconds_since_claim=5)
    await grow_old(life)
    (one,) = (await heard_of(life)).values()
    assert one.left_at is not None
    assert one.last_claim_at is not None
    assert not is_late(one)
    assert one.is_late(max_age_seconds=600, is_asked_for=True)


async def test_a_worker_that_was_killed_is_late_until_its_name_is_heard_of_again(life: Life) -> None:
    Line(life, holder()).line.close()
    await grow_old(life)
    assert is_late((await heard_of(life))["mailer"])
    line = Line(life, holder())
    assert not is_late((await heard_of(life))["mailer"])
    line.leave()


async def test_a_name_that_others_have_too_has_not_left(life: Life) -> None:
    first, second = Line(life, holder()), Line(life, holder())
    assert (await heard_of(life))["mailer"].processes == 2
    first.leave()
    assert (await heard_of(life))["mailer"].left_at is None
    second.leave()
    assert (await heard_of(life))["mailer"].left_at is not None


async def test_a_pass_is_expected_again_unless_somebody_asked_for_it(life: Life) -> None:
    Line(life, holder("nightly", kind=Kind.PASS)).leave()
    Line(life, holder("by hand", kind=Kind.PASS, comes_again=False)).leave()
    await grow_old(life)
    assert {name: is_late(one) for name, one in (await heard_of(life)).items()} == {"nightly": True, "by hand": False}


def test_without_a_name_a_worker_is_its_process_and_a_pass_is_the_pass() -> None:
    assert holder("").full_name.startswith(f"{socket.gethostname()}:")
    assert holder("", kind=Kind.PASS).full_name == "pass"


@pytest.mark.parametrize(("kind", "days"), [(Kind.WORKER, 7), (Kind.PASS, 90)])
async def test_a_name_that_is_heard_of_no_more_is_forgotten(life: Life, kind: Kind, days: int) -> None:
    Line(life, holder(kind=kind)).line.close()
    keep = timedelta(days=1)
    await grow_old(life, timedelta(days=days) - keep)
    await life.broker.prune(kept(keep))
    assert len(await heard_of(life)) == 1
    await grow_old(life, keep)
    await life.broker.prune(kept(keep))
    assert await heard_of(life) == {}

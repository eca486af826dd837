"""Keys in the database, and how a process knows them: what is stored, what still works, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from pydantic import SecretStr

from taketurns.assembly.keys import make_stamp
from taketurns.companies import directory, keyring, keys
from taketurns.companies.access import CompanyPrincipal, OperatorPrincipal
from taketurns.companies.directory import Company
from taketurns.companies.errors import InvalidKey, KeyNotActive
from taketurns.companies.keyring import FRESH_SECONDS, KeyRing
from taketurns.companies.keys import Made, Stamp
from taketurns.engine import key
from taketurns.engine.errors import InvalidOption, Unavailable, UnknownCompany
from taketurns.engine.key import Role, Scope
from taketurns.settings import Settings
from taketurns.storage.audit import Action, Actor, ActorKind
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.companies.clock import Clock
from tests.waiting import eventually

STAMP = Stamp("test", (b"pepper pepper pepper",))
ADA = Actor(kind=ActorKind.COMMAND, name="ada", address="desk")


@pytest.fixture
async def ring(database: Database, clock: Clock) -> AsyncIterator[KeyRing]:
    ring = KeyRing(database, stamp=STAMP, clock=clock)
    yield ring
    await ring.close()


async def make(database: Database, company: str = "acme", **options: datetime | timedelta | None) -> Made:
    return await keys.create_for_company(
        database, company, stamp=STAMP, name="billing", scopes=["tasks:read"], by=ADA, **options
    )


async def is_known(ring: KeyRing, made: Made) -> bool:
    try:
        return (await ring.principal(made.text.encode())).key_id == made.key.id
    except InvalidKey:
        return False


async def test_a_key_of_a_company_is_known_with_its_scopes(database: Database, acme: Company, ring: KeyRing) -> None:
    made = await make(database)
    assert await ring.principal(made.text.encode()) == CompanyPrincipal(
        made.key.id, "billing", acme.id, "acme", frozenset({Scope.TASKS_READ})
    )


async def test_an_operators_key_is_known_with_its_role(database: Database, ring: KeyRing) -> None:
    made = await keys.create_for_operator(database, stamp=STAMP, name="ada", role=Role.VIEWER)
    assert await ring.principal(made.text.encode()) == OperatorPrincipal(made.key.id, "ada", Role.VIEWER)


async def test_nothing_in_the_database_is_the_key_or_its_secret(database: Database, acme: Company) -> None:
    made = await make(database)
    async with database.connection() as connection:
        (row,) = await (await connection.execute("select k::text from taketurns.api_keys k")).fetchall()
        (noted,) = await (await connection.execute("select a::text from taketurns.audit_entries a")).fetchall()
    secret = made.text.split("_")[3]
    assert secret not in row[0] + noted[0]
    assert secret.encode().hex() not in row[0]
    assert (made.key.prefix, made.key.last_four) == (made.text[:30], made.text[-4:])


async def test_a_key_with_another_secret_is_not_known(database: Database, acme: Company, ring: KeyRing) -> None:
    made = await make(database)
    other = key.make("test", made.key.id)
    with pytest.raises(InvalidKey):
        await ring.principal(other.text.encode())
    assert await is_known(ring, made)


async def test_a_company_that_is_not_there_gets_no_key(database: Database) -> None:
    with pytest.raises(UnknownCompany):
        await make(database, "nobody")


async def test_a_key_that_has_expired_already_is_not_made(database: Database, acme: Company) -> None:
    with pytest.raises(InvalidOption):
        await make(database, expires=datetime.now(UTC) - timedelta(hours=1))
    page = await keys.page(database, "acme", limit=10)
    assert page is not None
    assert page.keys == []


async def test_a_key_that_is_in_use_is_read_from_the_database_now_and_then_only(
    database: Database, acme: Company, ring: KeyRing, clock: Clock
) -> None:
    made = await make(database)
    assert await is_known(ring, made)
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        for _ in range(100):
            assert await is_known(ring, made)
        clock.now = FRESH_SECONDS / 2  # from here on it is read again, and nobody waits for that
        for _ in range(100):
            assert await is_known(ring, made)
        read = ring._reads[made.key.id]
    await read
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        clock.now = FRESH_SECONDS
        assert await is_known(ring, made)


async def test_a_key_that_is_revoked_elsewhere_works_for_a_few_seconds_at_most(
    database: Database, acme: Company, ring: KeyRing, clock: Clock
) -> None:
    made = await make(database)
    assert await is_known(ring, made)
    await keys.revoke(database, "acme", made.key.id)
    assert await is_known(ring, made)
    clock.now = FRESH_SECONDS
    assert not await is_known(ring, made)


async def test_a_key_that_is_revoked_here_works_no_more_at_once(
    database: Database, acme: Company, ring: KeyRing
) -> None:
    made = await make(database)
    assert await is_known(ring, made)
    await keys.revoke(database, "acme", made.key.id)
    ring.forget(made.key.id)
    assert not await is_known(ring, made)


async def test_what_was_read_before_a_revocation_is_not_remembered_after_it(
    database: Database, acme: Company, ring: KeyRing, clock: Clock
) -> None:
    made = await make(database)
    assert await is_known(ring, made)
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        clock.now = FRESH_SECONDS / 2
        assert await is_known(ring, made)  # which begins to read it again, and waits for the lock
        read = ring._reads[made.key.id]
        await connection.execute("update taketurns.api_keys set revoked_at = null")
        ring.forget(made.key.id)
    await read
    assert made.key.id not in ring._known


async def test_the_keys_of_a_deleted_company_are_gone_with_it(database: Database, acme: Company, ring: KeyRing) -> None:
    made = await make(database)
    assert await is_known(ring, made)
    assert await directory.delete(database, "acme")
    ring.forget_company(acme.id)
    assert not await is_known(ring, made)
    assert await keys.find_any(database, made.key.id) is None


async def test_a_key_made_while_its_company_is_deleted_does_not_stay(database: Database, acme: Company) -> None:
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in share mode")  # who makes a key waits here
        making = asyncio.create_task(make(database))
        await waits(database, "insert into taketurns.api_keys")
        deleting = asyncio.create_task(directory.delete(database, "acme"))
        await waits(database, "delete_company")
    made = await making
    assert await deleting
    assert await keys.find_any(database, made.key.id) is None


async def waits(database: Database, what: str) -> None:
    """Until a statement of this kind waits for a lock."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        query = (
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            " and replace(lower(query), '\"', '') like %s"
        )
        await eventually(lambda: connection.execute(query, (f"%{what}%",)).fetchone())


async def test_a_key_expires_by_the_database_s_clock(
    database: Database, acme: Company, ring: KeyRing, clock: Clock
) -> None:
    made = await make(database, expires=timedelta(seconds=3.5))
    assert await is_known(ring, made)
    clock.now = 4.0  # not long enough to be read again
    with pytest.raises(InvalidKey, match="expired"):
        await ring.principal(made.text.encode())


async def test_a_rotated_key_works_beside_the_new_one_until_the_overlap_is_over(
    database: Database, acme: Company, ring: KeyRing
) -> None:
    old = await make(database, expires=timedelta(days=90))
    new = await keys.rotate(database, "acme", old.key.id, stamp=STAMP, overlap=timedelta(hours=1))
    assert new is not None
    assert await is_known(ring, old)
    assert await is_known(ring, new)
    former = await keys.find(database, "acme", old.key.id)
    assert former is not None
    assert former.expires_at is not None
    assert new.key.expires_at is not None
    assert timedelta(minutes=59) < former.expires_at - new.key.created_at < timedelta(hours=1, seconds=1)
    assert new.key.expires_at - new.key.created_at == pytest.approx(timedelta(days=90), abs=timedelta(seconds=1))
    assert (new.key.replaces, new.key.scopes, new.key.name) == (old.key.id, ["tasks:read"], "billing")


async def test_a_rotation_without_overlap_ends_the_old_key_and_a_second_one_is_refused(
    database: Database, acme: Company, ring: KeyRing
) -> None:
    old = await make(database)
    new = await keys.rotate(database, "acme", old.key.id, stamp=STAMP, overlap=timedelta())
    assert new is not None
    assert not await is_known(ring, old)
    assert await is_known(ring, new)
    with pytest.raises(KeyNotActive):
        await keys.rotate(database, "acme", old.key.id, stamp=STAMP)


@pytest.mark.parametrize("life", [None, timedelta(days=90)])
async def test_a_key_that_is_rotated_again_gives_one_that_lives_as_long(
    database: Database, acme: Company, life: timedelta | None
) -> None:
    """As somebody does who did not get the answer to the first rotation."""
    old = await make(database, expires=life)
    for _ in range(2):
        new = await keys.rotate(database, "acme", old.key.id, stamp=STAMP, overlap=timedelta(hours=1))
        assert new is not None
        lives = new.key.expires_at and new.key.expires_at - new.key.created_at
        assert lives == (life and pytest.approx(life, abs=timedelta(seconds=1)))


async def test_an_overlap_does_not_lengthen_a_life(database: Database, acme: Company) -> None:
    old = await make(database, expires=timedelta(minutes=1))
    await keys.rotate(database, "acme", old.key.id, stamp=STAMP, overlap=timedelta(days=1))
    former = await keys.find(database, "acme", old.key.id)
    assert former is not None
    assert former.expires_at == old.key.expires_at


async def test_a_key_is_found_within_its_own_company_only(database: Database, acme: Company) -> None:
    await directory.create(database, name="Globex", slug="globex")
    made = await make(database)
    for company in ("globex", None, new_id()):
        assert await keys.find(database, company, made.key.id) is None
        assert await keys.revoke(database, company, made.key.id) is None
    assert await keys.rotate(database, None, made.key.id, stamp=STAMP) is None
    assert await keys.rotate(database, "globex", made.key.id, stamp=STAMP) is None
    found = await keys.find(database, "acme", made.key.id)
    assert found is not None
    assert found.is_active


async def test_the_use_of_a_key_is_noted_once_a_minute(
    database: Database, acme: Company, ring: KeyRing, clock: Clock
) -> None:
    made = await make(database)
    assert await is_known(ring, made)
    first = await eventually_used(database, ring, made)
    for seconds in (1.0, 30.0, 61.0, 62.0):
        clock.now = seconds
        assert await is_known(ring, made)
    await eventually(lambda: ring._noting is not None and ring._noting.done())
    # By the database's clock no minute has gone by, which counts when many processes note the same key.
    assert await eventually_used(database, ring, made) == first
    await age(database, timedelta(minutes=2))
    clock.now = 130.0
    assert await is_known(ring, made)
    second = await eventually_used(database, ring, made)
    assert second > first - timedelta(minutes=2)


async def eventually_used(database: Database, ring: KeyRing, made: Made) -> datetime:
    await eventually(lambda: ring._noting is not None and ring._noting.done())
    found = await keys.find(database, "acme", made.key.id)
    assert found is not None
    assert found.last_used_at is not None
    return found.last_used_at


async def age(database: Database, by: timedelta) -> None:
    async with database.connection() as connection:
        await connection.execute("update taketurns.api_keys set last_used_at = last_used_at - %s", (by,))


async def test_noting_the_use_of_a_key_is_in_nobody_s_way(database: Database, acme: Company, ring: KeyRing) -> None:
    made = await make(database)
    async with database.transaction() as connection:
        await connection.execute("select 1 from taketurns.api_keys for update")
        assert await is_known(ring, made)
        assert await is_known(ring, made)
        assert ring._noting is not None
        assert not ring._noting.done()
    await eventually_used(database, ring, made)


async def test_a_new_pepper_takes_over_from_the_old_one_as_keys_are_used(
    database: Database, acme: Company, ring: KeyRing
) -> None:
    made = await make(database)
    both = KeyRing(database, stamp=Stamp("test", (b"a new pepper of ours", *STAMP.peppers)))
    assert await is_known(both, made)
    await eventually_used(database, both, made)
    new_alone = KeyRing(database, stamp=Stamp("test", (b"a new pepper of ours",)))
    assert await is_known(new_alone, made)
    assert not await is_known(ring, made)
    for one in (both, new_alone):
        await one.close()


async def test_a_first_pepper_takes_over_from_none(database: Database, acme: Company) -> None:
    made = await keys.create_for_company(database, "acme", stamp=Stamp(), name="old", scopes=["tasks:read"])
    settings = Settings(key_peppers=[SecretStr("a pepper at last, a long one"), SecretStr("")])
    both = KeyRing(database, stamp=make_stamp(settings))
    assert await is_known(both, made)
    await eventually_used(database, both, made)
    new_alone = KeyRing(database, stamp=Stamp(peppers=(b"a pepper at last, a long one",)))
    assert await is_known(new_alone, made)
    for one in (both, new_alone):
        await one.close()


async def test_without_the_pepper_it_was_stored_with_a_key_is_not_known(database: Database, acme: Company) -> None:
    made = await make(database)
    plain = KeyRing(database, stamp=Stamp("test"))
    assert not await is_known(plain, made)
    await plain.close()


async def test_a_key_that_cannot_be_looked_up_is_not_called_invalid(acme: Company, database: Database) -> None:
    made = await make(database)
    away = Database("postgresql://nobody@127.0.0.1:1/none", pool_size=1, pool_timeout=0.2)
    await away.open()
    ring = KeyRing(away, stamp=STAMP)
    with pytest.raises(Unavailable):
        await ring.principal(made.text.encode())
    await ring.close()
    await away.close()


async def test_the_ring_holds_a_bounded_number_of_keys(
    database: Database, acme: Company, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "MOST_REMEMBERED", 3)
    for _ in range(6):
        assert await is_known(ring, await make(database))
    assert len(ring._known) == 3
    assert ring._reads == {}


async def test_many_requests_with_one_key_make_one_look(database: Database, acme: Company, ring: KeyRing) -> None:
    made = await make(database)
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        asking = [asyncio.create_task(is_known(ring, made)) for _ in range(50)]
        await asyncio.sleep(0)
        assert len(ring._reads) == 1
    assert all(await asyncio.gather(*asking))


async def test_who_made_and_ended_keys_is_in_the_audit(database: Database, acme: Company) -> None:
    made = await make(database)
    new = await keys.rotate(database, "acme", made.key.id, stamp=STAMP, by=ADA)
    assert new is not None
    for _ in range(2):  # the second changes nothing
        await keys.revoke(database, "acme", made.key.id, by=ADA)
    await keys.create_for_operator(database, stamp=STAMP, name="ada", role=Role.ADMIN, by=ADA)
    async with database.connection() as connection:
        cursor = await connection.execute(
            "select action, target, company_id, actor_kind, actor_name, address"
            " from taketurns.audit_entries order by id"
        )
        rows = await cursor.fetchall()
    by = ("command", "ada", "desk")
    assert [row[:1] + row[2:] for row in rows] == [
        (Action.CREATE_KEY, acme.id, *by),
        (Action.ROTATE_KEY, acme.id, *by),
        (Action.REVOKE_KEY, acme.id, *by),
        (Action.CREATE_OPERATOR_KEY, None, *by),
    ]
    assert [row[1] for row in rows[:3]] == [str(made.key.id), str(new.key.id), str(made.key.id)]


@pytest.mark.parametrize(
    "statement",
    [
        "update taketurns.audit_entries set actor_name = 'nobody'",
        "update taketurns.audit_entries set actor_name = 'nobody' where false",
        "delete from taketurns.audit_entries",
        "truncate taketurns.audit_entries",
    ],
)
async def test_what_the_audit_says_is_never_changed(database: Database, acme: Company, statement: str) -> None:
    await make(database)
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
        async with database.connection() as connection:
            await connection.execute(statement.encode())

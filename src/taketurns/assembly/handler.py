"""A handler as the application's own code sees it: still callable, and where its tasks are enqueued."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from taketurns.engine import limits, payload, registry
from taketurns.engine.errors import InvalidOption, InvalidPayload
from taketurns.engine.fingerprint import fingerprint
from taketurns.engine.registry import TaskType
from taketurns.engine.task import Enqueued, NewTask, OnConflict, Status, Unique

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    import sqlalchemy.ext.asyncio
    from sqlalchemy import orm

    from taketurns.assembly.application import Taketurns
    from taketurns.assembly.state import TaskState

    Session = (
        orm.Session
        | orm.scoped_session[orm.Session]
        | sqlalchemy.ext.asyncio.AsyncSession
        | sqlalchemy.ext.asyncio.async_scoped_session[sqlalchemy.ext.asyncio.AsyncSession]
    )
    Connection = (
        psycopg.Connection[Any]
        | psycopg.AsyncConnection[Any]
        | sqlalchemy.Connection
        | sqlalchemy.ext.asyncio.AsyncConnection
    )

Call = ParamSpec("Call")
Payload = ParamSpec("Payload")
Result = TypeVar("Result")

RESERVED_PARAMETERS = frozenset({"company", "session", "connection"})
EARLIEST_YEAR = 1970
LATEST_YEAR = 9998


@dataclass(frozen=True, slots=True)
class EnqueuedTask:
    """A task that was enqueued, or had been before under the same idempotency key (`replayed`).

    `held`: it was not enqueued, for this other task has its unique key. `status` is `pending` or `scheduled`, and None
    for a task that was replayed or held, which may have moved on since.
    """

    id: UUID
    company_id: UUID
    status: Status | None
    replayed: bool
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was said of one handler's tasks with `using`; None leaves it to the handler's definition."""

    queue: str | None = None
    priority: int | None = None
    run_after: datetime | None = None
    delay_seconds: float | None = None
    max_retries: int | None = None
    timeout_seconds: float | None = None
    tags: tuple[str, ...] = ()
    unique: Unique | None = None
    idempotency_key: str | None = None


class Handler(Generic[Call, Payload, Result]):
    """A registered function. Its arguments are given by name when a task is enqueued; the context is not given."""

    __name__: str

    def __init__(self, application: Taketurns, task_type: TaskType, options: Options | None = None) -> None:
        functools.update_wrapper(cast(Any, self), task_type.handler)
        self.type = task_type
        self._application = application
        self._options = options or Options()

    def __repr__(self) -> str:
        return f"<handler of {self.type.name!r}>"

    def __call__(self, *args: Call.args, **kwargs: Call.kwargs) -> Result:
        """Run the function here and now, as if it had not been registered."""
        return cast(Result, self.type.handler(*args, **kwargs))

    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_after: datetime | None = None,
        delay: float | timedelta | None = None,
        retries: int | None = None,
        timeout: float | timedelta | None = None,
        tags: Iterable[str] | None = None,
        unique_key: str | None = None,
        unique_for: float | timedelta | None = None,
        on_conflict: OnConflict | Literal["reject", "return", "replace"] | None = None,
        idempotency_key: str | None = None,
    ) -> Handler[Call, Payload, Result]:
        """This handler with other options for the tasks that are enqueued through what is returned.

        `delay`, `timeout` and `unique_for` are seconds or timedeltas. Of a company's tasks with one `unique_key` only
        one stands at a time: until it has ended, or for as long as `unique_for` from its creation, unless it fails or
        is cancelled sooner. Meanwhile `on_conflict` says what becomes of another: `reject` raises UniqueKeyTaken,
        `return` answers with the task that stands, and `replace` cancels that one if it still waits.
        Raises InvalidOption.
        """
        given: dict[str, Any] = {
            "queue": queue,
            "priority": priority,
            "run_after": run_after,
            "delay_seconds": seconds(delay),
            "max_retries": retries,
            "timeout_seconds": seconds(timeout),
            "tags": None if tags is None else _tags(tags),
            "unique": _unique(unique_key, seconds(unique_for), on_conflict),
            "idempotency_key": idempotency_key,
        }
        options = replace(self._options, **{name: value for name, value in given.items() if value is not None})
        _check(options)
        return Handler(self._application, self.type, options)

    async def enqueue(
        self,
        company: str | UUID,
        session: Session | None = None,
        connection: Connection | None = None,
        *args: Payload.args,
        **arguments: Payload.kwargs,
    ) -> EnqueuedTask:
        """Enqueue a task of `company` (its id or slug) with these arguments for the handler, given by name.

        With a `session` of SQLAlchemy, or a `connection` of psycopg or SQLAlchemy, the task is part of the transaction
        there: it can be claimed once that commits, and vanishes if it does not.
        Raises InvalidPayload and InvalidOption before anything is sent, UnknownCompany, IdempotencyConflict,
        UniqueKeyTaken, QuotaExceeded (all four leave a transaction of yours usable) and Unavailable.

        A company with quotas submits through one transaction at a time: enqueue late in yours. Others wait for it two
        seconds, then Unavailable is raised for them.
        """
        transaction = _one_of(session, connection, args)
        tasks = [self._new_task(arguments, self._options.idempotency_key)]
        (task,) = await self._application.client.submit(str(company), tasks, transaction=transaction)
        return _told(task)

    def enqueue_sync(
        self,
        company: str | UUID,
        session: Session | None = None,
        connection: Connection | None = None,
        *args: Payload.args,
        **arguments: Payload.kwargs,
    ) -> EnqueuedTask:
        """Like `enqueue`, for code that cannot await; `session` and `connection` are sync ones here."""
        transaction = _one_of(session, connection, args)
        tasks = [self._new_task(arguments, self._options.idempotency_key)]
        (task,) = self._application.client.submit_sync(str(company), tasks, transaction=transaction)
        return _told(task)

    async def run(self, company: str | UUID, *args: Payload.args, **arguments: Payload.kwargs) -> TaskState:
        """Run a task of `company` here and now, and answer how it ended; it is recorded as any other.

        The handler is run as a worker would run it, once: it is validated and timed, and what it raises is the
        record's `error`. So look at the `status`, or ask for `returned()`, which raises NotCompleted for all that did
        not complete. A task that would be tried again, or put off for a budget, has failed. With an idempotency key
        that was used before nothing is run, and the answer is the earlier task.
        Raises InvalidPayload and InvalidOption before anything is stored, UnknownCompany, IdempotencyConflict,
        UniqueKeyTaken, QuotaExceeded and Unavailable.
        """
        return await self._application.client.run(
            str(company), self._inline_task(args, arguments), self._application.registry
        )

    def run_sync(self, company: str | UUID, *args: Payload.args, **arguments: Payload.kwargs) -> TaskState:
        """Like `run`, for code that cannot await; the handler runs in another thread than the caller's."""
        return self._application.client.run_sync(
            str(company), self._inline_task(args, arguments), self._application.registry
        )

    async def enqueue_many(
        self,
        company: str | UUID,
        payloads: Iterable[Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
        session: Session | None = None,
        connection: Connection | None = None,
    ) -> list[EnqueuedTask]:
        """Enqueue up to 1,000 tasks of one company, all or none: one for each mapping of arguments, in order."""
        tasks = self._new_tasks(payloads, idempotency_keys)
        transaction = _one_of(session, connection)
        return [
            _told(task) for task in await self._application.client.submit(str(company), tasks, transaction=transaction)
        ]

    def enqueue_many_sync(
        self,
        company: str | UUID,
        payloads: Iterable[Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
        session: Session | None = None,
        connection: Connection | None = None,
    ) -> list[EnqueuedTask]:
        """Like `enqueue_many`, for code that cannot await."""
        tasks = self._new_tasks(payloads, idempotency_keys)
        transaction = _one_of(session, connection)
        return [
            _told(task) for task in self._application.client.submit_sync(str(company), tasks, transaction=transaction)
        ]

    def repeated(self, arguments: Mapping[str, Any]) -> NewTask:
        """A task as a schedule makes it again and again. Raises InvalidPayload, and InvalidOption for one of a kind."""
        for name in ("run_after", "delay_seconds", "idempotency_key", "unique", "tags"):
            if getattr(self._options, name):
                raise InvalidOption(name, "is one task's: the tasks of a schedule run at its ticks")
        return self._new_task(arguments, None)

    def _inline_task(self, positional: tuple[object, ...], arguments: Mapping[str, Any]) -> NewTask:
        if positional:
            raise TypeError("the arguments of a handler are given by name: run(company=…, invoice_id=7)")
        for name, field in (("run_after", "run_after"), ("delay", "delay_seconds")):
            if getattr(self._options, field) is not None:
                raise InvalidOption(name, "cannot be combined with run, which is now: enqueue it instead")
        return self._new_task(arguments, self._options.idempotency_key)

    def _new_tasks(
        self, payloads: Iterable[Mapping[str, Any]], idempotency_keys: Sequence[str | None] | None
    ) -> list[NewTask]:
        items = list(payloads)
        if self._options.idempotency_key is not None:
            raise InvalidOption("idempotency_key", "is one task's: give `idempotency_keys`, one for each")
        if self._options.unique is not None and len(items) > 1:
            raise InvalidOption("unique_key", "is one task's: enqueue each by itself")
        if idempotency_keys is not None and len(idempotency_keys) != len(items):
            raise InvalidOption("idempotency_keys", f"must be as many as the tasks, {len(items)}, or none")
        if len(items) > limits.BATCH_TASKS:
            raise InvalidOption("payloads", f"must be at most {limits.BATCH_TASKS:,}, not {len(items):,}")
        keys = idempotency_keys or [None] * len(items)
        tasks = [self._new_task(item, key) for item, key in zip(items, keys, strict=True)]
        size = sum(len(task.payload.encode()) for task in tasks)
        if size > limits.BATCH_BYTES:
            raise InvalidOption("payloads", f"are {size:,} bytes together; a batch has at most {limits.BATCH_BYTES:,}")
        return tasks

    def _new_task(self, arguments: Mapping[str, Any], key: str | None) -> NewTask:
        given = self._options
        values = _json_values(self.type, arguments)
        if key is not None:
            _check_key(key)
        return NewTask(
            type=self.type.name,
            payload=payload.encode(self.type.name, values),
            queue=self.type.queue if given.queue is None else given.queue,
            priority=self.type.priority if given.priority is None else given.priority,
            run_after=given.run_after,
            delay_seconds=given.delay_seconds,
            max_retries=self.type.max_retries if given.max_retries is None else given.max_retries,
            timeout_seconds=self.type.timeout_seconds if given.timeout_seconds is None else given.timeout_seconds,
            tags=given.tags,
            unique=given.unique,
            idempotency_key=key,
            fingerprint=None
            if key is None
            else fingerprint(
                type=self.type.name,
                payload=values,
                queue=given.queue,
                priority=given.priority,
                run_after=given.run_after,
                delay_seconds=given.delay_seconds,
                max_retries=given.max_retries,
                timeout_seconds=given.timeout_seconds,
                tags=given.tags,
                unique=given.unique,
            ),
        )


def seconds(length: float | timedelta | None) -> float | None:
    """A length of time in seconds."""
    return length.total_seconds() if isinstance(length, timedelta) else length


def _json_values(task_type: TaskType, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given as JSON values, once they are known to fit the handler when read back."""
    try:
        model: BaseModel = task_type.payload_model.model_validate(arguments, by_alias=True, by_name=True)
        values = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    except ValidationError as error:
        raise InvalidPayload(task_type.name, error.errors(include_url=False, include_input=False)) from error
    except PydanticSerializationError as error:
        raise InvalidPayload(task_type.name, [{"loc": (), "msg": str(error), "type": "serialization"}]) from error
    task_type.validate(values)
    return values


def _tags(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise InvalidOption("tags", "must be several: give a list, though it holds one tag")
    return tuple(tags)


def _unique(key: str | None, for_seconds: float | None, on_conflict: str | None) -> Unique | None:
    if key is None:
        for name, value in (("unique_for", for_seconds), ("on_conflict", on_conflict)):
            if value is not None:
                raise InvalidOption(name, "is of a unique key: give `unique_key` as well")
        return None
    if on_conflict is not None and on_conflict not in tuple(OnConflict):
        raise InvalidOption("on_conflict", f"must be one of {', '.join(OnConflict)}")
    return Unique(key, for_seconds, OnConflict(on_conflict or OnConflict.REJECT))


def _check(options: Options) -> None:
    complaints = registry.check_options(
        queue=options.queue,
        priority=options.priority,
        max_retries=options.max_retries,
        timeout_seconds=options.timeout_seconds,
        delay_seconds=options.delay_seconds,
    )
    for field, message in (*complaints, *registry.check_marks(tags=options.tags, unique=options.unique)):
        raise InvalidOption(field, message)
    if options.run_after is not None and options.run_after.utcoffset() is None:
        raise InvalidOption("run_after", "must have a time zone, such as datetime.now(UTC)")
    if options.run_after is not None and not EARLIEST_YEAR <= options.run_after.year <= LATEST_YEAR:
        raise InvalidOption("run_after", f"must be a time from the years {EARLIEST_YEAR} to {LATEST_YEAR}")
    if options.run_after is not None and options.delay_seconds is not None:
        raise InvalidOption("delay", "cannot be combined with run_after: give one of the two")
    if options.idempotency_key is not None:
        _check_key(options.idempotency_key)


def _check_key(key: str) -> None:
    if not registry.is_key(key, limits.IDEMPOTENCY_KEY_LENGTH):
        raise InvalidOption(
            "idempotency_key", f"must be 1 to {limits.IDEMPOTENCY_KEY_LENGTH} printable characters, and not blank"
        )


def _one_of(session: object, connection: object, positional: tuple[object, ...] = ()) -> object:
    if positional or not all(holder is None or hasattr(holder, "execute") for holder in (session, connection)):
        raise TypeError("the arguments of a handler are given by name: enqueue(company=…, invoice_id=7)")
    if session is not None and connection is not None:
        raise InvalidOption("connection", "cannot be combined with session: give one of the two")
    return connection if session is None else session


def _told(task: Enqueued) -> EnqueuedTask:
    return EnqueuedTask(
        id=task.task_id, company_id=task.company_id, status=task.status, replayed=task.replayed, held=task.held
    )

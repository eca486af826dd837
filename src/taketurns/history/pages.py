"""The statement that reads one page of a company's tasks, for every filter.

Ids are UUIDv7, so a page in the order of creation is read from the index that the filter lives on, one for each status
asked for, and merged. Where no index has the whole filter, at most `LOOK_AHEAD` entries are looked at, whatever the
backlog and the history: the page then ends early, with the last id looked at as the place to go on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Label,
    SQLColumnExpression,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    func,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy import Uuid as UuidType

from taketurns.engine.task import Status
from taketurns.history import places
from taketurns.history.places import PLACES, AnySelect, joined
from taketurns.storage.models import Company, Task, TaskTag

LOOK_AHEAD: Final = 20_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes the statement of one page differ from that of another. `types` and `queues` are how many are asked
    for; 0, every. `tags` is how many a task must have."""

    is_id: bool
    statuses: frozenset[Status]
    types: int
    tags: int
    has_error: bool
    has_times: bool
    oldest_first: bool
    queues: int = 0


def statement(shape: Shape, columns: Sequence[SQLColumnExpression[Any]]) -> AnySelect:
    """Rows of (end of what was looked at, *columns), at least one if the company exists.

    Parameters: company, type_0, queue_0 and tag_0 and so on, error_fingerprint, low, high (exclusive ids),
    created_after, created_before, most, skip, reach (the sum of those two).
    """
    company = owner(is_id=shape.is_id)
    company_id = select(company.c.id).scalar_subquery()
    ids: list[AnySelect] = []
    ends: list[AnySelect] = []
    for scan in _scans(shape, company_id):
        found, end = scan.statements(oldest_first=shape.oldest_first)
        ids.append(select(found.c.id))
        ends += end
    merged = union_all(*ids).subquery("merged")
    chosen = (
        select(merged.c.id)
        .order_by(_in_order(merged.c.id, oldest_first=shape.oldest_first))
        .limit(bindparam("most"))
        .offset(bindparam("skip"))
        .subquery("chosen")
    )
    tasks = joined(
        select(*columns).select_from(chosen).join(Task, and_(Task.company_id == company_id, Task.id == chosen.c.id))
    ).subquery("found")
    return (
        select(_nearest(ends, oldest_first=shape.oldest_first), tasks)
        .select_from(company)
        .outerjoin(tasks, true())
        .order_by(_in_order(tasks.c.id, oldest_first=shape.oldest_first))
    )


def count_statement(shape: Shape, *, is_bounded: bool) -> AnySelect:
    """One row: how many tasks there are, and where a look ahead ended, if one did.

    Bounded, no more than `reach` are counted for each status, and no more entries looked at than for a page. Takes the
    parameters of `statement`.
    """
    company_id = select(owner(is_id=shape.is_id).c.id).scalar_subquery()
    counts: list[AnySelect] = []
    ends: list[AnySelect] = []
    for scan in _scans(shape, company_id):
        if is_bounded:
            found, end = scan.statements(oldest_first=shape.oldest_first)
            counts.append(select(func.count().label("count")).select_from(found))
            ends += end
        else:
            every = scan.entries.where(*scan.rest).subquery()
            counts.append(select(func.count().label("count")).select_from(every))
    counted = union_all(*counts).subquery("counted")
    return select(func.sum(counted.c.count), _nearest(ends, oldest_first=shape.oldest_first))


def owner(*, is_id: bool) -> CTE:
    """The id of the company that the parameter `company` names by its id or its slug."""
    named = Company.id if is_id else Company.slug
    return select(Company.id).where(named == bindparam("company")).cte("owner")


def _in_order(column: ColumnElement[Any], *, oldest_first: bool) -> ColumnElement[Any]:
    return column.asc() if oldest_first else column.desc()


def _nearest(ends: Sequence[AnySelect], *, oldest_first: bool) -> Label[Any]:
    """Where the shortest look ahead ended: beyond it the page would have gaps."""
    if not ends:
        return cast(null(), UuidType).label("end")
    every = union_all(*(end.subquery().select() for end in ends)).subquery("ends")
    nearest = select(every.c.id).order_by(_in_order(every.c.id, oldest_first=oldest_first)).limit(1)
    return nearest.scalar_subquery().label("end")


@dataclass(frozen=True, slots=True)
class _Scan:
    """The entries of one index in the order of ids, with what tells the rest of them, and what they must be beyond what
    the index knows. `walked` is the index alone, where `entries` are joined to more."""

    name: str
    entries: AnySelect
    id: ColumnElement[UUID]
    rest: Sequence[ColumnElement[bool]]
    walked: AnySelect | None = None

    def statements(self, *, oldest_first: bool) -> tuple[CTE, list[AnySelect]]:
        """The ids that fit, and the last id looked at when that ended the search."""
        entries = self.entries.order_by(_in_order(self.id, oldest_first=oldest_first))
        if not self.rest:
            return entries.limit(bindparam("reach")).cte(f"{self.name}_ids"), []
        entry = entries.add_columns(and_(*self.rest).label("fits")).limit(LOOK_AHEAD).subquery(f"{self.name}_entries")
        ids = (
            select(entry.c.id)
            .where(entry.c.fits)
            .order_by(_in_order(entry.c.id, oldest_first=oldest_first))
            .limit(bindparam("reach"))
            .cte(f"{self.name}_ids")
        )
        is_short = select(func.count()).select_from(ids).scalar_subquery() < bindparam("reach")
        walked = entries if self.walked is None else self.walked.order_by(_in_order(self.id, oldest_first=oldest_first))
        return ids, [walked.where(is_short).offset(LOOK_AHEAD - 1).limit(1)]


def _scans(shape: Shape, company_id: ColumnElement[UUID]) -> Iterator[_Scan]:
    if shape.tags:
        yield _scan_of_tag(shape, company_id)
        return
    if shape.statuses in (frozenset(), frozenset(Status)):
        yield from _scans_of_records(shape, company_id, "every")
        return
    for status in sorted(shape.statuses):
        match status:
            case Status.SCHEDULED | Status.PENDING | Status.PROCESSING:
                yield _scan_of_places(shape, company_id, status)
            case Status.FAILED if shape.has_error and shape.types:
                yield from _scans_of_failures(shape, company_id)
            case Status.FAILED | Status.CANCELLED:
                yield _scan_of_stopped(shape, company_id, status)
            case Status.COMPLETED:
                is_completed = [Task.finished_at.is_not(None), Task.stopped_as.is_(None)]
                yield from _scans_of_records(shape, company_id, status, rest=is_completed)


def _scans_of_records(
    shape: Shape, company_id: ColumnElement[UUID], name: str, *, rest: Sequence[ColumnElement[bool]] = ()
) -> Iterator[_Scan]:
    """Live on tasks_pkey, or on tasks_company_id_type_id_idx, once for each type."""
    entries = select(Task.id.label("id")).where(Task.company_id == company_id, *_between(Task.id))
    rest = [*rest, *_is_of_queues(shape), *_created_between(shape)]
    if not shape.types:
        yield _Scan(name, entries, Task.id.expression, rest)
    for number, type in enumerate(_types(shape)):
        yield _Scan(f"{name}_{number}", entries.where(Task.type == type), Task.id.expression, rest)


def _scan_of_tag(shape: Shape, company_id: ColumnElement[UUID]) -> _Scan:
    """Lives on task_tags_pkey, for one of the tags; all else is looked up in the record and the place of each task."""
    first, *others = [bindparam(f"tag_{number}", type_=Text()) for number in range(shape.tags)]
    entries = select(TaskTag.task_id.label("id")).where(
        TaskTag.company_id == company_id, TaskTag.tag == first, *_between(TaskTag.task_id)
    )
    rest = [*_is_of_types(shape, Task.type), *_is_of_queues(shape), *_has_error(shape), *_created_between(shape)]
    rest += [other == any_(Task.tags) for other in others]
    if has_statuses := shape.statuses not in (frozenset(), frozenset(Status)):
        rest.append(or_(*(places.status() == status.value for status in sorted(shape.statuses))))
    walked = entries
    if rest:
        entries = entries.join(Task, and_(Task.company_id == TaskTag.company_id, Task.id == TaskTag.task_id))
        entries = joined(entries) if has_statuses else entries
    return _Scan("tagged", entries, TaskTag.task_id.expression, rest, walked)


def _scan_of_stopped(shape: Shape, company_id: ColumnElement[UUID], status: Status) -> _Scan:
    """Lives on tasks_company_id_stopped_as_id_idx."""
    entries = select(Task.id.label("id")).where(
        Task.company_id == company_id, *_between(Task.id), Task.stopped_as == status.value
    )
    rest = [*_is_of_types(shape, Task.type), *_is_of_queues(shape), *_has_error(shape), *_created_between(shape)]
    return _Scan(status, entries, Task.id.expression, rest)


def _scans_of_failures(shape: Shape, company_id: ColumnElement[UUID]) -> Iterator[_Scan]:
    """Live on tasks_failures_idx, once for each type."""
    for number, type in enumerate(_types(shape)):
        entries = select(Task.id.label("id")).where(
            Task.company_id == company_id,
            *_between(Task.id),
            Task.stopped_as == Status.FAILED.value,
            Task.type == type,
            *_has_error(shape),
        )
        yield _Scan(f"failed_{number}", entries, Task.id.expression, [*_is_of_queues(shape), *_created_between(shape)])


def _scan_of_places(shape: Shape, company_id: ColumnElement[UUID], status: Status) -> _Scan:
    """Lives on the (company_id, task_id) index of the narrow table."""
    place = PLACES[status]
    entries = select(place.task_id.label("id")).where(place.company_id == company_id, *_between(place.task_id))
    walked = entries
    if shape.has_times or shape.queues:
        entries = entries.join(Task, and_(Task.company_id == place.company_id, Task.id == place.task_id))
    rest = [*_is_of_types(shape, place.type), *_is_of_queues(shape), *_created_between(shape)]
    return _Scan(status, entries, place.task_id.expression, rest, walked)


def _types(shape: Shape) -> list[BindParameter[str]]:
    return [bindparam(f"type_{number}", type_=Text()) for number in range(shape.types)]


def _is_of_types(shape: Shape, column: Any) -> Iterator[ColumnElement[bool]]:
    if shape.types:
        yield column.in_(_types(shape))


def _is_of_queues(shape: Shape) -> Iterator[ColumnElement[bool]]:
    """By the record: what is set aside stands in another queue than its own."""
    if shape.queues:
        yield Task.queue.in_([bindparam(f"queue_{number}", type_=Text()) for number in range(shape.queues)])


def _has_error(shape: Shape) -> Iterator[ColumnElement[bool]]:
    if shape.has_error:
        yield Task.error_fingerprint == bindparam("error_fingerprint", type_=Text())


def _between(id: Any) -> Iterator[ColumnElement[bool]]:
    yield id > bindparam("low")
    yield id < bindparam("high")


def _created_between(shape: Shape) -> Iterator[ColumnElement[bool]]:
    if shape.has_times:
        yield Task.created_at > bindparam("created_after")
        yield Task.created_at < bindparam("created_before")

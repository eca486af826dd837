"""The pages of tasks: those of a company or of all, one with all that is known of it, and what may be done with it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import select
from starlette.responses import Response

from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.dashboard import actions, forms, rendering, snippets
from taketurns.dashboard.forms import Form
from taketurns.dashboard.refusals import Refusal, not_found
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine import limits
from taketurns.engine.key import Role
from taketurns.engine.task import Status
from taketurns.history import events, everywhere, figures, tasks, why
from taketurns.history.tasks import Filter, TaskRecord, Total
from taketurns.operations import ledger
from taketurns.operations.ledger import Kind
from taketurns.storage.models import TaskType, Worker

LIMIT: Final = 50
MOST_EVENTS: Final = 200
TYPES_MOST: Final = 500
ASKED_TWICE_BEYOND: Final = 1_000
SINCE: Final = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CHANGEABLE: Final = ("cancel", "retry", "reschedule", "delete")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list was asked for, as its address has it."""

    company: str
    statuses: tuple[Status, ...]
    type: str
    queue: str
    tag: str
    error: str
    since: str

    @property
    def query(self) -> dict[str, object]:
        """For links to the same list."""
        return {
            "company": self.company,
            "status": list(self.statuses),
            "type": self.type,
            "queue": self.queue,
            "tag": self.tag,
            "error": self.error,
            "since": self.since,
        }

    @property
    def is_narrowed(self) -> bool:
        return any(value for name, value in self.query.items() if name != "company")

    def filter(self, now: datetime) -> Filter:
        return Filter(
            statuses=frozenset(self.statuses),
            types=frozenset({self.type} - {""}),
            queues=frozenset({self.queue} - {""}),
            tags=frozenset({self.tag} - {""}),
            error_fingerprint=self.error or None,
            created_after=now - SINCE[self.since] if self.since else None,
        )


@needs(Role.VIEWER)
async def list_tasks(visit: Visit) -> Response:
    """A company's tasks, or those of all, the newest first."""
    wanted, after = _wanted(visit), _after(visit)
    database = visit.parts.database
    if wanted.company:
        company = await company_of(visit, wanted.company)
        page = await tasks.page(database, company.id, wanted.filter(visit.now), limit=LIMIT, after=after)
        found, next_after, slugs, is_whole = (page.tasks, page.next_after, {}, True) if page else ([], None, {}, True)
        slugs = {company.id: company.slug}
        told = (
            () if wanted.tag else Status
        )  # tags know no status: every task that has one would be looked at, each time
        counts = {status: await _total(visit, company, wanted, status) for status in told}
    else:
        everything = await everywhere.page(database, wanted.filter(visit.now), limit=LIMIT, after=after)
        found, next_after, slugs = everything.tasks, everything.next_after, everything.slugs
        is_whole = everything.is_whole
        by_status = {} if wanted.is_narrowed else (await figures.read(database)).tasks_by_status
        counts = {status: Total(number, number < figures.CAP) for status, number in by_status.items()}
    return visit.page(
        "tasks.html",
        wanted=wanted,
        tasks=found,
        slugs=slugs,
        is_whole=is_whole,
        counts=counts,
        types=await types_to_choose(visit),
        companies=await companies_to_choose(visit),
        since=SINCE,
        after=after,
        next_after=next_after,
        changeable=_CHANGEABLE,
    )


@needs(Role.OPERATOR)
async def show_new(visit: Visit) -> Response:
    """The form for a new task."""
    given = {name: visit.request.query_params.get(name, "").strip() for name in ("company", "type")}
    return await _new(visit, Form([*given.items(), ("payload", "{}")]))


@needs(Role.OPERATOR)
async def create_task(visit: Visit) -> Response:
    """Make a task of the form's fields; where it cannot be, say so beside them."""
    form = visit.form
    named = {name: form[name].strip() for name in ("company", "type", "queue", "run_after")}
    company = await company_of(visit, named["company"])
    try:
        payload = forms.payload(form["payload"])
        times = {"runAfter": _sent(forms.moment(named["run_after"], now=visit.now))} if named["run_after"] else {}
    except ValueError as error:
        return await _new(visit, form, f"{error}.")
    rest = {"type": named["type"]} | ({"queue": named["queue"]} if named["queue"] else {}) | times
    text = f'{json.dumps(rest)[:-1]}, "payload": {payload}}}'
    answer = await actions.ask(visit, "POST", f"/companies/{company.id}/tasks", text=text)
    if not answer.is_done:
        return await _new(visit, form, answer.complaint)
    return visit.go(visit.link(f"/companies/{company.slug}/tasks/{answer.body['id']}"), "The task is created.")


async def _new(visit: Visit, form: Form, complaint: str | None = None) -> Response:
    return visit.page(
        "new_task.html",
        status=200 if complaint is None else 422,
        form=form,
        complaint=complaint,
        companies=await companies_to_choose(visit),
        types=await types_to_choose(visit),
    )


@needs(Role.VIEWER)
async def show_task(visit: Visit) -> Response:
    """A task, what happened to it, and why it waits."""
    return await _shown(visit)


@needs(Role.OPERATOR)
async def cancel_task(visit: Visit) -> Response:
    return await _changed(visit, "POST", "/cancel", "The task is cancelled.")


@needs(Role.OPERATOR)
async def retry_task(visit: Visit) -> Response:
    return await _changed(visit, "POST", "/retry", "The task runs again, as soon as its turn comes.")


@needs(Role.OPERATOR)
async def reschedule_task(visit: Visit) -> Response:
    """Put a task that waits off to a time, or bring it forward."""
    try:
        run_after = _sent(forms.moment(visit.form["run_after"], now=visit.now))
    except ValueError as error:
        return await _shown(visit, wrong_time=f"{error}.")
    body = {"runAfter": run_after}
    return await _changed(visit, "POST", "/reschedule", "The task waits for that time.", body=body)


@needs(Role.OPERATOR)
async def delete_task(visit: Visit) -> Response:
    company, task_id = _named(visit)
    answer = await actions.ask(visit, "DELETE", f"/companies/{company}/tasks/{task_id}")
    if not answer.is_done:
        return visit.go(_address(visit), answer.complaint, failed=True)
    return visit.go(visit.link("/tasks", company=company), "The task is forgotten.")


@needs(Role.OPERATOR)
async def run_edited(visit: Visit) -> Response:
    """Another task like this one, with a payload that was edited."""
    company, record = await _record(visit)
    payload = visit.form["payload"]
    try:
        forms.payload(payload)
    except ValueError as error:
        return await _shown(visit, payload=payload, complaint=f"{error}.")
    rest = {
        "type": record.type,
        "queue": record.queue,
        "priority": record.priority,
        "maxRetries": record.max_retries,
        "tags": list(record.tags or ()),
    } | ({} if record.timeout_seconds is None else {"timeoutSeconds": record.timeout_seconds})
    text = f'{json.dumps(rest)[:-1]}, "payload": {payload}}}'
    answer = await actions.ask(visit, "POST", f"/companies/{company.id}/tasks", text=text)
    if not answer.is_done:
        return await _shown(visit, payload=payload, complaint=answer.complaint)
    return visit.go(
        visit.link(f"/companies/{company.slug}/tasks/{answer.body['id']}"),
        f"This is a new task, made from {rendering.short(record.id)} with the payload that you edited.",
    )


@needs(Role.OPERATOR)
async def change_many(visit: Visit) -> Response:
    """Look how many tasks an operation would change, or begin it."""
    kind, slug = visit.form["kind"], visit.form["company"]
    if kind not in _CHANGEABLE or directory.reference(slug) is None:
        raise Refusal(400, "That cannot be done with tasks", "Choose a company and what is to be done with its tasks.")
    body: dict[str, object] = {"kind": kind}
    chosen = visit.form.all("task")
    if chosen:
        body["taskIds"] = chosen
    elif visit.form["queue"]:
        raise Refusal(400, "All of a queue cannot be changed at once", "Select the tasks that are to be changed.")
    else:
        named = {name: visit.form.all(name) for name in ("status", "type", "tag")}
        told = {"errorFingerprint": visit.form["error"], "createdAfter": visit.form["created_after"]}
        filters = {name: value for name, value in (named | told).items() if value}
        body["filter"] = filters or {"status": sorted(ledger.STATUSES[Kind(kind)])}
    complaint = None
    if kind == Kind.RESCHEDULE:
        try:
            body["runAfter"] = _sent(forms.moment(visit.form["run_after"] or "now", now=visit.now))
        except ValueError as error:
            body["runAfter"], complaint = _sent(visit.now), f"{error}."
    path = f"/companies/{slug}/operations"
    answer = await actions.ask(visit, "POST", path, body | {"dryRun": True})
    if not answer.is_done:
        return visit.back(visit.link("/tasks", company=slug), answer.complaint, failed=True)
    number = rendering.count(answer.body["matched"], answer.body["matchedIsExact"])
    is_large = answer.body["matched"] > ASKED_TWICE_BEYOND
    if complaint or visit.form["confirmed"] != "yes" or (is_large and visit.form["typed"].strip() != number):
        return visit.page(
            "change_many.html",
            status=200 if complaint is None else 422,
            complaint=complaint,
            kind=kind,
            slug=slug,
            matched=answer.body["matched"],
            number=number,
            is_large=is_large,
            form=visit.form,
            chosen=chosen,
        )
    answer = await actions.ask(visit, "POST", path, body)
    if not answer.is_done:
        return visit.back(visit.link("/tasks", company=slug), answer.complaint, failed=True)
    return visit.go(visit.link(f"/companies/{slug}/operations/{answer.body['id']}"), "The operation is under way.")


async def company_of(visit: Visit, name: str) -> Company:
    """The company of this id or slug. Raises Refusal."""
    reference = directory.reference(name)
    company = None if reference is None else await directory.find(visit.parts.database, reference)
    if company is None:
        raise not_found("company")
    return company


async def companies_to_choose(visit: Visit) -> list[str]:
    """Slugs for the field that names a company: the newest hundred; any other can be written."""
    page = await directory.page(visit.parts.database, limit=limits.PAGE_MAX)
    return sorted(company.slug for company in page.companies)


async def types_to_choose(visit: Visit) -> list[str]:
    """The types that workers have told of."""
    statement = select(TaskType.name).order_by(TaskType.name).limit(TYPES_MOST)
    return [name for (name,) in await visit.parts.database.fetch(statement)]


def _sent(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _wanted(visit: Visit) -> Wanted:
    query = visit.request.query_params
    try:
        statuses = tuple(sorted({Status(text) for text in query.getlist("status") if text}))
    except ValueError:
        raise Refusal(400, "There is no such status", f"A task is {', '.join(Status)}.") from None
    since = query.get("since", "")
    if since and since not in SINCE:
        raise Refusal(400, "That is no time to look back", f"Choose one of {', '.join(SINCE)}.")
    text = {name: query.get(name, "").strip() for name in ("company", "type", "queue", "tag", "error")}
    return Wanted(statuses=statuses, since=since, **text)


def _after(visit: Visit) -> UUID | None:
    text = visit.request.query_params.get("after", "")
    if not text:
        return None
    if not _ID.fullmatch(text):
        raise Refusal(400, "That is no place in a list", "Begin again at the newest.")
    return UUID(text)


async def _total(visit: Visit, company: Company, wanted: Wanted, status: Status) -> Total:
    narrowed = wanted.filter(visit.now)
    of_status = Filter(
        statuses=frozenset({status}),
        types=narrowed.types,
        queues=narrowed.queues,
        tags=narrowed.tags,
        created_after=narrowed.created_after,
    )
    return await tasks.total(visit.parts.database, company.id, of_status, exactly=False)


def _named(visit: Visit) -> tuple[str, str]:
    """The company and the task that the path names. Raises Refusal."""
    company, task_id = visit.request.path_params["company"], visit.request.path_params["task"]
    if directory.reference(company) is None or not _ID.fullmatch(task_id):
        raise not_found("task")
    return company, task_id


def _address(visit: Visit) -> str:
    company, task_id = _named(visit)
    return visit.link(f"/companies/{company}/tasks/{task_id}")


async def _record(visit: Visit) -> tuple[Company, TaskRecord]:
    name, task_id = _named(visit)
    company = await company_of(visit, name)
    record = await tasks.find(visit.parts.database, company.id, UUID(task_id))
    if record is None:
        raise not_found("task")
    return company, record


async def _shown(
    visit: Visit, *, payload: str | None = None, complaint: str | None = None, wrong_time: str | None = None
) -> Response:
    company, record = await _record(visit)
    database = visit.parts.database
    moves = await events.of_task(database, company.id, record.id, most=MOST_EVENTS + 1) or []
    waits = record.status in {Status.SCHEDULED, Status.PENDING}
    reason = await why.read(database, company.id, record.id) if waits else None
    return visit.page(
        "task.html",
        status=200 if complaint is None and wrong_time is None else 422,
        company=company,
        task=record,
        events=moves[:MOST_EVENTS],
        spent=None if len(moves) > MOST_EVENTS else events.spent(moves, until=visit.now),
        has_more_events=len(moves) > MOST_EVENTS,
        workers=await _worker_names(visit, {move.worker_id for move in moves if move.worker_id is not None}),
        reason=reason,
        because=None if reason is None else why.told(company.slug, reason),
        snippets=snippets.of_task(visit, company, record),
        payload=rendering.plain(record.payload) if payload is None else payload,
        complaint=complaint,
        wrong_time=wrong_time,
    )


async def _worker_names(visit: Visit, ids: set[UUID]) -> dict[UUID, str]:
    if not ids:
        return {}
    return dict(await visit.parts.database.fetch(select(Worker.id, Worker.name).where(Worker.id.in_(ids))))


async def _changed(visit: Visit, method: str, verb: str, done: str, *, body: object = None) -> Response:
    company, task_id = _named(visit)
    answer = await actions.ask(visit, method, f"/companies/{company}/tasks/{task_id}{verb}", body)
    notice = done if answer.is_done else answer.complaint
    return visit.back(_address(visit), notice, failed=not answer.is_done)


PAGES = (
    ("GET", "/tasks", list_tasks),
    ("POST", "/tasks", create_task),
    ("GET", "/tasks/new", show_new),
    ("POST", "/tasks/change", change_many),
    ("GET", "/companies/{company}/tasks/{task}", show_task),
    ("POST", "/companies/{company}/tasks/{task}/cancel", cancel_task),
    ("POST", "/companies/{company}/tasks/{task}/retry", retry_task),
    ("POST", "/companies/{company}/tasks/{task}/reschedule", reschedule_task),
    ("POST", "/companies/{company}/tasks/{task}/delete", delete_task),
    ("POST", "/companies/{company}/tasks/{task}/edited", run_edited),
)

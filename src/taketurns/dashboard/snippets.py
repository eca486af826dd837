"""What an operator may paste elsewhere to do what a page shows: for curl, for the command line, for Python."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from taketurns.companies.directory import Company
from taketurns.dashboard.visits import Visit
from taketurns.engine.task import TERMINAL
from taketurns.history.tasks import TaskRecord


@dataclass(frozen=True, slots=True)
class Snippet:
    """A text, and what it does."""

    name: str
    does: str
    text: str


def of_task(visit: Visit, company: Company, record: TaskRecord) -> list[Snippet]:
    url = visit.request.url
    base = f"{url.scheme}://{url.netloc}{visit.above}"
    header = " \\\n  -H 'Authorization: Bearer '\"$TAKETURNS_KEY\"" if visit.parts.asks_for_keys else ""
    body = f'{{"type": {json.dumps(record.type)}, "queue": {json.dumps(record.queue)}, "payload": {record.payload}}}'
    command = (
        f"taketurns operations create {company.slug} retry --task {record.id}"
        if record.status in TERMINAL
        else f"taketurns why {record.id} --company {company.slug}"
    )
    return [
        Snippet(
            "curl",
            "creates a task like this one",
            f"curl -s '{base}/companies/{company.slug}/tasks'{header} \\\n"
            f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}",
        ),
        Snippet("CLI", "runs it again" if record.status in TERMINAL else "says why it waits", command),
        Snippet(
            "Python",
            "enqueues a task like this one, where its handler is known",
            f"await {_identifier(record.type)}.enqueue(company={company.slug!r}, **json.loads({record.payload!r}))",
        ),
    ]


def _identifier(type: str) -> str:
    """What the handler of a type is likely called."""
    name = type.rpartition(".")[2]
    return name if name.isidentifier() else "handler"

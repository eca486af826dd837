"""The audit: one row for every change that somebody made, written in the change's own transaction, and never again.

It is kept here for all rooms that make changes; `companies/audit.py` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson
from psycopg import AsyncConnection
from pydantic.alias_generators import to_camel
from sqlalchemy import insert

from taketurns.storage.database import Row, fetch
from taketurns.storage.ids import new_id
from taketurns.storage.models import AuditEntry


class Action(StrEnum):
    """What was done, by the name of its operation in the API."""

    CREATE_COMPANY = "createCompany"
    CHANGE_COMPANY = "changeCompany"
    DELETE_COMPANY = "deleteCompany"
    CREATE_KEY = "createKey"
    ROTATE_KEY = "rotateKey"
    REVOKE_KEY = "revokeKey"
    CREATE_OPERATOR_KEY = "createOperatorKey"
    ROTATE_OPERATOR_KEY = "rotateOperatorKey"
    REVOKE_OPERATOR_KEY = "revokeOperatorKey"
    PUT_PAUSE = "putPause"
    LIFT_PAUSE = "liftPause"
    CREATE_SCHEDULE = "createSchedule"
    CHANGE_SCHEDULE = "changeSchedule"
    DELETE_SCHEDULE = "deleteSchedule"
    CANCEL_TASK = "cancelTask"
    RETRY_TASK = "retryTask"
    RESCHEDULE_TASK = "rescheduleTask"
    DELETE_TASK = "deleteTask"
    CREATE_OPERATION = "createOperation"
    ABORT_OPERATION = "abortOperation"
    CANCEL_JOB = "cancelJob"
    RETRY_JOB = "retryJob"
    PROCESS_TASKS = "processTasks"
    DRAIN_WORKER = "drainWorker"
    RESUME_WORKER = "resumeWorker"
    STOP_WORKER = "stopWorker"


class ActorKind(StrEnum):
    """Who can make a change: somebody of a company, an operator, or a person at the command line."""

    COMPANY = "company"
    OPERATOR = "operator"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who makes a change, and from where. Who comes by a key is known by its id, who comes by a token by its issuer."""

    kind: ActorKind
    name: str
    key_id: UUID | None = None
    issuer: str | None = None
    address: str | None = None
    request_id: str | None = None


async def write(
    connection: AsyncConnection[Row],
    schema: str,
    actor: Actor | None,
    action: Action,
    *,
    target: object,
    company_id: UUID | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Note a change; nothing without an actor, as where there is no authentication and nobody is known.

    `details` are by the names that the API has for them.
    """
    if actor is None:
        return
    statement = insert(AuditEntry).values(
        id=new_id(),
        company_id=company_id,
        actor_kind=actor.kind.value,
        actor_name=actor.name,
        key_id=actor.key_id,
        issuer=actor.issuer,
        action=action.value,
        target=str(target),
        details=_json({to_camel(name): value for name, value in (details or {}).items()}),
        address=actor.address,
        request_id=actor.request_id,
    )
    await fetch(connection, schema, statement)


def _json(details: Mapping[str, Any]) -> str:
    return orjson.dumps(details, default=str, option=orjson.OPT_UTC_Z).decode()

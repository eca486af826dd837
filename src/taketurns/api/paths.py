"""The companies, tasks and schedules that paths name. What cannot be one is not found, without a look."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from starlette.requests import Request

from taketurns.api import problems
from taketurns.api.parts import parts
from taketurns.api.problems import Problem
from taketurns.companies import directory
from taketurns.companies.access import CompanyPrincipal
from taketurns.engine import limits

COMPANIES: Final = "/companies"
COMPANY: Final = COMPANIES + "/{companyId}"
TASKS: Final = COMPANY + "/tasks"
TASK: Final = TASKS + "/{taskId}"
PAUSES: Final = "/pauses"
PAUSES_OF_COMPANY: Final = COMPANY + PAUSES
SCHEDULES: Final = COMPANY + "/schedules"
SCHEDULE: Final = SCHEDULES + "/{scheduleId}"
OPERATIONS: Final = COMPANY + "/operations"
OPERATION: Final = OPERATIONS + "/{operationId}"
FAILURES: Final = COMPANY + "/failures"
JOBS: Final = COMPANY + "/jobs"
JOB: Final = JOBS + "/{jobId}"
KEYS: Final = COMPANY + "/keys"
KEY: Final = KEYS + "/{keyId}"
WORKERS: Final = "/workers"
WORKER: Final = WORKERS + "/{workerId}"
OPERATOR_KEYS: Final = "/operators/keys"
OPERATOR_KEY: Final = OPERATOR_KEYS + "/{keyId}"

PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "companyId": {
        "description": "The id or the slug of a company.",
        "schema": {"type": "string", "minLength": 1, "maxLength": limits.SLUG_LENGTH, "pattern": "^[A-Za-z0-9-]+$"},
        "example": "acme",
    },
    "taskId": {"description": "The id of a task.", "schema": {"type": "string", "format": "uuid", "minLength": 36}},
    "scheduleId": {
        "description": "The id of a schedule.",
        "schema": {"type": "string", "format": "uuid", "minLength": 36},
    },
    "keyId": {"description": "The id of a key.", "schema": {"type": "string", "format": "uuid", "minLength": 36}},
    "operationId": {
        "description": "The id of an operation.",
        "schema": {"type": "string", "format": "uuid", "minLength": 36},
    },
    "workerId": {
        "description": "The id of a worker's process, or the name that its processes have; a name with a slash in it is"
        " not taken here.",
        "schema": {"type": "string", "minLength": 1, "maxLength": limits.NAME_LENGTH, "pattern": "^[ -.0-~]+$"},
        "example": "mail-1",
    },
    "jobId": {"description": "The id of a job.", "schema": {"type": "string", "format": "uuid", "minLength": 36}},
}

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def company(request: Request) -> UUID | str:
    """The id or slug of the company that a request is about. Raises Problem when it names none that could be.

    With a company's key it is that company, which the guard has held the path to.
    """
    principal = request.scope.get("principal")
    if isinstance(principal, CompanyPrincipal):
        return principal.company_id
    named = request.path_params.get("companyId")
    if named is None:
        raise Problem(problems.COMPANY_NEEDED, "without a company's key the path must name a company")
    reference = directory.reference(named)
    if reference is None:
        raise company_not_found()
    return reference


async def company_id(request: Request, *, missing: Callable[[], Problem] | None = None) -> UUID:
    """The id of the company in the path; the database is asked only for that of a slug.

    Raises Problem when no company has the slug: that of `missing`, if that is given.
    """
    reference = company(request)
    if isinstance(reference, UUID):
        return reference
    found = await directory.find(parts(request).database, reference)
    if found is None:
        raise company_not_found() if missing is None else missing()
    return found.id


def of_company(request: Request, company_id: UUID, path: str) -> str:
    """A path within a company, in the form that the request's own path has: with or without the company."""
    return path if "companyId" not in request.path_params else f"{COMPANIES}/{company_id}{path}"


def task_id(request: Request) -> UUID:
    """The id of the task in the path. Raises Problem when it cannot be one."""
    text = request.path_params["taskId"]
    if not _ID.fullmatch(text):
        raise task_not_found()
    return UUID(text)


def schedule_id(request: Request) -> UUID:
    """The id of the schedule in the path. Raises Problem when it cannot be one."""
    text = request.path_params["scheduleId"]
    if not _ID.fullmatch(text):
        raise schedule_not_found()
    return UUID(text)


def operation_id(request: Request) -> UUID:
    """The id of the operation in the path. Raises Problem when it cannot be one."""
    text = request.path_params["operationId"]
    if not _ID.fullmatch(text):
        raise operation_not_found()
    return UUID(text)


def job_id(request: Request) -> UUID:
    """The id of the job in the path. Raises Problem when it cannot be one."""
    text = request.path_params["jobId"]
    if not _ID.fullmatch(text):
        raise job_not_found()
    return UUID(text)


def worker(request: Request) -> UUID | str:
    """The id or the name of the worker in the path. Raises Problem when it cannot be one."""
    text = request.path_params["workerId"]
    if _ID.fullmatch(text):
        return UUID(text)
    if len(text) > limits.NAME_LENGTH or not text.isprintable():
        raise worker_not_found()
    return str(text)


def key_id(request: Request) -> UUID:
    """The id of the key in the path. Raises Problem when it cannot be one."""
    text = request.path_params["keyId"]
    if not _ID.fullmatch(text):
        raise key_not_found()
    return UUID(text)


def company_not_found() -> Problem:
    return Problem(problems.COMPANY_NOT_FOUND, "no company has this id or slug")


def task_not_found() -> Problem:
    return Problem(problems.TASK_NOT_FOUND, "the company has no task of this id")


def schedule_not_found() -> Problem:
    return Problem(problems.SCHEDULE_NOT_FOUND, "the company has no schedule of this id")


def key_not_found() -> Problem:
    return Problem(problems.KEY_NOT_FOUND, "there is no key of this id here")


def operation_not_found() -> Problem:
    return Problem(problems.OPERATION_NOT_FOUND, "the company has no operation of this id")


def worker_not_found() -> Problem:
    return Problem(problems.WORKER_NOT_FOUND, "no worker of this id or name was heard of lately")


def job_not_found() -> Problem:
    return Problem(problems.JOB_NOT_FOUND, "the company has no job of this id")


def parameters(path: str) -> list[dict[str, Any]]:
    """The parameters of a path's template in the OpenAPI document."""
    return [{"name": name, "in": "path", "required": True} | PARAMETERS[name] for name in re.findall(r"{(\w+)}", path)]

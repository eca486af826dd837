"""The companies and tasks that paths name. What cannot be one is not found, without a look."""

from __future__ import annotations

import re
from typing import Annotated, Final
from uuid import UUID

from fastapi import Path

from taketurns.api import problems
from taketurns.api.problems import Problem
from taketurns.companies import directory
from taketurns.engine import limits

COMPANIES: Final = "/companies"
COMPANY: Final = COMPANIES + "/{companyId}"
TASKS: Final = COMPANY + "/tasks"
TASK: Final = TASKS + "/{taskId}"

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

CompanyPath = Annotated[
    str,
    Path(
        alias="companyId",
        description="The id or the slug of a company.",
        openapi_examples={"slug": {"value": "acme"}},
        json_schema_extra={"minLength": 1, "maxLength": limits.SLUG_LENGTH, "pattern": "^[A-Za-z0-9-]+$"},
    ),
]
TaskPath = Annotated[
    str, Path(alias="taskId", description="The id of a task.", json_schema_extra={"format": "uuid", "minLength": 36})
]


def company(text: str) -> UUID | str:
    """The id or slug of a company. Raises Problem when it cannot be one."""
    reference = directory.reference(text)
    if reference is None:
        raise company_not_found()
    return reference


def task_id(text: str) -> UUID:
    """The id of a task. Raises Problem when it cannot be one."""
    if not _ID.fullmatch(text):
        raise task_not_found()
    return UUID(text)


def company_not_found() -> Problem:
    return Problem(problems.COMPANY_NOT_FOUND, "no company has this id or slug")


def task_not_found() -> Problem:
    return Problem(problems.TASK_NOT_FOUND, "the company has no task of this id")

"""The OpenAPI document: FastAPI's, with the bodies that routes read themselves and the problems that all may answer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from taketurns.api import headers, paths, problems, requests
from taketurns.api.guard import GuardedRoute, Need
from taketurns.engine import limits

_REF: Final = "#/components/schemas/{model}"
_DESCRIPTION: Final = """\
Background tasks for software that serves many companies: no company can starve another.

Tasks are done **at least once**: a handler may see a task again, with the same task id. A company is named by its id or
its slug. Times are RFC 3339, in UTC. Errors are problem details (RFC 9457), explained [here](/docs/problems).
"""
_COMPANY_KEY: Final = "companyKey"
_OPERATOR_KEY: Final = "operatorKey"
_METRICS_TOKEN: Final = "metricsToken"  # noqa: S105  the name of a scheme
_SECURITY: Final = {
    _COMPANY_KEY: {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "tt_<environment>_<id>_<secret>",
        "description": "A company's API key. It may do within its company what its scopes say. Where an identity"
        " provider is set up, a token of it that names the company is taken as well.",
    },
    _OPERATOR_KEY: {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "tt_<environment>_<id>_<secret>",
        "description": "An operator's API key. In every company a viewer sees, an operator acts as well, and an admin"
        " decides on keys and on the deletion of companies as well. Where an identity provider is set up, a token of it"
        " with a role and without a company is taken as well.",
    },
    _METRICS_TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "The token in TAKETURNS_METRICS_TOKEN, for those who collect metrics.",
    },
}
_REQUEST_ID: Final = headers.parameter(
    headers.REQUEST_ID,
    "An id of your own for this request, in every answer, log line and task that it makes. One is made when it is"
    f" missing, longer than {limits.REQUEST_ID_LENGTH}, or has others than letters, digits and . _ ~ : / + = @ -.",
    {"type": "string"},
)


def body_of(model: type[BaseModel], *parameters: dict[str, Any], required: bool = True) -> dict[str, Any]:
    """The part of a route's documentation that tells of the JSON body it reads."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    body = {"required": required, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, "parameters": list(parameters)}


def operation_id(route: APIRoute) -> str:
    """The name of a route's function in camelCase: stable, whatever becomes of paths."""
    return to_camel(route.name)


def document(routes: Sequence[BaseRoute], version: str) -> dict[str, Any]:
    """The document of these routes."""
    shared = get_openapi(
        title="Taketurns", version=version, description=_DESCRIPTION, openapi_version="3.1.0", routes=routes
    )
    made = copy.deepcopy(shared)  # parts of it are those of several routes
    schemas: dict[str, Any] = made["components"]["schemas"]
    schemas |= _schemas()
    made["components"]["schemas"] = dict(sorted(schemas.items()))
    made["components"]["securitySchemes"] = _SECURITY
    needed = {route.operation_id or route.unique_id: route.need for route in routes if isinstance(route, GuardedRoute)}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, operations in made["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            if "application/json" in answers.get("422", {}).get("content", {}):
                del answers["422"]  # FastAPI's own, which this API never answers with
            _tell_needs(operation, needed[operation["operationId"]], path)
            operation["parameters"] = [*paths.parameters(path), *operation.get("parameters", []), _REQUEST_ID]
            for answer in answers.values():
                answer.setdefault("headers", {})[headers.REQUEST_ID] = {"schema": {"type": "string"}}
    _tidy(made)
    return made


def _tell_needs(operation: dict[str, Any], need: Need, path: str) -> None:
    """Who may call an operation, and what those are told who may not."""
    if need.operator is None:
        operation["security"] = []
        return
    is_within_a_company = "{companyId}" in path
    security: list[dict[str, list[str]]] = []
    refusals = [
        problems.KEY_NEEDED,
        problems.INVALID_KEY,
        problems.INVALID_TOKEN,
        problems.ROLE_NEEDED,
        problems.NOT_ON_LOOPBACK,
        problems.TOO_MANY_REQUESTS,
        problems.TOO_MANY_WRONG_KEYS,
        problems.IDENTITY_PROVIDER_UNAVAILABLE,
    ]
    if need.key is None:
        refusals.append(problems.OPERATOR_NEEDED)
    else:
        security.append({_COMPANY_KEY: [] if need.key == "any" else [need.key.value]})
        if need.key != "any":
            refusals.append(problems.SCOPE_NEEDED)
        if is_within_a_company:
            refusals.append(problems.COMPANY_NOT_FOUND)
        elif need.key != "any":
            refusals.append(problems.COMPANY_NEEDED)
    security.append({_OPERATOR_KEY: [need.operator.value]})
    if need.by_token:
        security.append({_METRICS_TOKEN: []})
    operation["security"] = security
    problems.also_documented(operation["responses"], *refusals)


def _schemas() -> dict[str, Any]:
    _, bodies = models_json_schema([(model, "validation") for model in requests.BODIES], ref_template=_REF)
    problem = TypeAdapter(problems.ProblemBody).json_schema(ref_template=_REF)
    return {**bodies["$defs"], **problem.pop("$defs"), "Problem": problem}


def _tidy(part: Any) -> None:
    """Leave out what says nothing: titles made from names, and null as the default of what may be left out."""
    if isinstance(part, dict):
        if isinstance(part.get("title"), str) and ("type" in part or "anyOf" in part or "$ref" in part):
            del part["title"]
        if "default" in part and part["default"] is None:
            del part["default"]
        for inner in part.values():
            _tidy(inner)
    elif isinstance(part, list):
        for inner in part:
            _tidy(inner)

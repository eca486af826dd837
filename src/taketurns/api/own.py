"""The same routes once more, without a company in their paths: they are about the company of the caller's key."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter

from taketurns.api import paths
from taketurns.api.guard import GuardedRoute
from taketurns.api.openapi import operation_id


def routes(router: APIRouter) -> Iterator[GuardedRoute]:
    """Each route of a router within a company, as a route of one's own."""
    for route in router.routes:
        if isinstance(route, GuardedRoute):
            verb, _, what = route.name.partition("_")
            yield GuardedRoute(
                route.path.removeprefix(paths.COMPANY),
                route.endpoint,
                name=f"{verb}_own_{what}",
                methods=route.methods,
                dependencies=route.dependencies,
                status_code=route.status_code,
                response_model=route.response_model,
                response_class=route.response_class,
                response_description=route.response_description,
                responses=route.responses,
                openapi_extra=route.openapi_extra,
                tags=route.tags,
                generate_unique_id_function=operation_id,
            )

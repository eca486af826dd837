"""An API that asks for keys, with two companies and keys of all sorts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from taketurns.companies import directory, keys
from taketurns.companies.directory import Company
from taketurns.companies.keys import Stamp
from taketurns.engine.key import GRANTS, Role
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id

STAMP = Stamp("test", (b"pepper pepper pepper",))


@dataclass
class House:
    """Two companies, acme with one of everything, and what opens them."""

    database: Database
    client: AsyncClient
    acme: Company
    globex: Company
    names: dict[str, str] = field(default_factory=dict)

    async def company_key(self, company: Company, scopes: Sequence[str] = GRANTS, **options: Any) -> str:
        made = await keys.create_for_company(
            self.database, company.id, stamp=STAMP, name="program", scopes=scopes, **options
        )
        return made.text

    async def operator_key(self, role: Role, **options: Any) -> str:
        return (await keys.create_for_operator(self.database, stamp=STAMP, name=role.value, role=role, **options)).text

    async def furnish(self) -> None:
        """One task, schedule and key of acme, and what stands for a job of it, by the names of paths' parameters."""
        admin = bearer(await self.operator_key(Role.ADMIN))
        task = await self.client.post("/companies/acme/tasks", headers=admin, json={"type": "anything"})
        weekly = {"name": "weekly", "type": "anything", "expression": "0 9 * * 1"}
        schedule = await self.client.post("/companies/acme/schedules", headers=admin, json=weekly)
        key = await self.client.post(
            "/companies/acme/keys", headers=admin, json={"name": "program", "scopes": ["tasks:read"]}
        )
        operation = await self.client.post(
            "/companies/acme/operations", headers=admin, json={"kind": "retry", "filter": {"status": ["failed"]}}
        )
        self.names = {
            "operationId": operation.json()["id"],
            "companyId": "acme",
            "taskId": task.json()["id"],
            "scheduleId": schedule.json()["id"],
            "keyId": key.json()["id"],
            "jobId": str(new_id()),
            "workerId": "nobody",
        }


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def house(app: FastAPI, database: Database) -> House:
    transport = ASGITransport(app, raise_app_exceptions=False)
    return await house_of(AsyncClient(transport=transport, base_url="http://api"), database)


async def house_of(client: AsyncClient, database: Database) -> House:
    return House(
        database,
        client,
        await directory.create(database, name="Acme", slug="acme"),
        await directory.create(database, name="Globex", slug="globex"),
    )

"""A company's figures, as clients are sent them."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

import pytest
from httpx2 import AsyncClient

from taketurns.companies.directory import Company
from taketurns.storage.database import Database

STATS = "/companies/acme/stats"
NOTHING = {
    "completed": 0,
    "retried": 0,
    "failed": 0,
    "completedPerSecond": 0.0,
    "waitP50Seconds": None,
    "waitP95Seconds": None,
}


async def test_a_companys_figures_are_told(client: AsyncClient, acme: Company, database: Database) -> None:
    for _ in range(3):
        await client.post("/companies/acme/tasks", json={"type": "anything"})
    await client.post("/companies/acme/tasks", json={"type": "anything", "delaySeconds": 60})
    await database.call("tell_attempts", "tasks", [acme.id], [30], [2], [1], ["{0,0,33}"], 100)
    answer = await client.get(STATS, params={"window": "60s"})
    told = answer.json()
    assert answer.status_code == 200
    assert 0 < told.pop("oldestAgeSeconds") < 60
    assert 60 <= told["window"].pop("seconds") < 70
    assert datetime.fromisoformat(told["window"].pop("since")) < datetime.fromisoformat(told.pop("at"))
    tasks = told.pop("tasks")
    assert 30 / 70 < tasks.pop("completedPerSecond") <= 30 / 60
    assert tasks.pop("waitP50Seconds") == tasks.pop("waitP95Seconds") == pytest.approx(0.0017, rel=0.2)
    assert tasks == {"completed": 30, "retried": 2, "failed": 1}
    assert told == {
        "companyId": str(acme.id),
        "backlog": 3,
        "backlogIsExact": True,
        "scheduled": 1,
        "scheduledIsExact": True,
        "inFlight": 0,
        "fairShare": 0,
        "window": {},
        "jobs": NOTHING,
    }


async def test_figures_of_a_company_that_is_not_there_are_not_found(client: AsyncClient, acme: Company) -> None:
    for company in ("nobody", uuid4()):
        answer = await client.get(f"/companies/{company}/stats")
        assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")
    assert (await client.get(f"/companies/{acme.id}/stats")).status_code == 200


@pytest.mark.parametrize("window", ["", "10", "9s", "8d", "soon", "-1h", "1e9d", "1" * 40 + "s"])
async def test_a_window_that_is_none_is_refused_by_name(client: AsyncClient, acme: Company, window: str) -> None:
    answer = await client.get(STATS, params={"window": window})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "window")


async def test_unknown_and_repeated_parameters_are_refused(client: AsyncClient, acme: Company) -> None:
    assert (await client.get(f"{STATS}?since=1h")).status_code == 400
    assert (await client.get(f"{STATS}?window=1h&window=2h")).status_code in {400, 422}

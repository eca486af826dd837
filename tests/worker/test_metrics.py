"""What a worker tells of itself on its port."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from taketurns.engine.errors import Fail, Retry
from taketurns.engine.registry import Registry
from taketurns.worker.metrics import MetricsServer
from tests.waiting import eventually
from tests.worker.house import House

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Client:
    def __init__(self, server: MetricsServer) -> None:
        self._address = "http://{}:{}".format(*server.address)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._address + path, timeout=10) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def samples(self) -> Samples:
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples().get((name, frozenset(labels.items())), 0.0)


@pytest.fixture
def state() -> dict[str, bool]:
    return {"healthy": True, "ready": True}


@pytest.fixture
def client(state: dict[str, bool]) -> Iterator[Client]:
    server = MetricsServer(
        host="127.0.0.1", port=0, is_healthy=lambda: state["healthy"], is_ready=lambda: state["ready"]
    )
    yield Client(server)
    server.close()


@pytest.mark.parametrize(("path", "name"), [("/health", "healthy"), ("/ready", "ready")])
def test_health_and_readiness_follow_the_worker(client: Client, state: dict[str, bool], path: str, name: str) -> None:
    assert client.get(path) == (200, '{"status":"ok"}')
    state[name] = False
    assert client.get(path) == (503, '{"status":"unavailable"}')


def test_other_paths_are_not_there(client: Client) -> None:
    assert client.get("/")[0] == 404


async def test_attempts_are_counted_by_type_and_outcome(house: House, client: Client) -> None:
    async def counted(how: str) -> None:
        match how:
            case "fail":
                raise Fail("for good")
            case "retry":
                raise Retry("later", after=60)

    registry = Registry()
    registry.add(counted)
    for how in ("well", "well", "fail", "retry"):
        await house.add("counted", how=how)
    async with house.working(registry) as worker:
        await eventually(lambda: worker.settler.tally.completed + worker.settler.tally.failed == 3)
        await worker.settler.flush()
        assert client.value("lease_age_seconds") < 10
    assert client.value("tasks_processed_total", type="counted", outcome="completed") == 2
    assert client.value("tasks_processed_total", type="counted", outcome="failed") == 1
    assert client.value("tasks_retried_total", type="counted") == 1
    assert client.value("task_processing_seconds_count", type="counted") == 4
    assert client.value("claim_batch_size_count") > 0


# Fault 161
async def test_in_flight_is_what_is_in_hand_and_nothing_in_the_end(house: House, client: Client) -> None:
    gate = asyncio.Event()

    async def wait(how: str) -> None:
        await gate.wait()
        if how == "raise":
            raise RuntimeError("as asked")

    registry = Registry()
    registry.add(wait)
    tasks = [*await house.add("wait", how="return"), *await house.add("wait", how="raise")]
    (cancelled,) = await house.add("wait", how="return")
    async with house.working(registry) as worker:
        await eventually(lambda: worker.held == 3)
        assert client.value("tasks_in_flight") == 3
        await house.broker.cancel("acme", cancelled)
        await eventually(lambda: worker.held == 2)
        assert client.value("tasks_in_flight") == 2
        gate.set()
        await eventually(lambda: worker.held == 0)
        assert client.value("tasks_in_flight") == 0
    assert client.value("tasks_in_flight") == 0
    assert house.status(tasks[0]) == "completed"


async def test_releases_are_counted(house: House, client: Client) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    registry = Registry()
    registry.add(wait)
    before = client.value("tasks_released_total")
    await house.add("wait", count=3)
    async with house.working(registry, concurrency=1, batch=3, shutdown_grace_seconds=0.01) as worker:
        await eventually(lambda: worker.held == 3)
    assert client.value("tasks_released_total") - before == 3


async def test_types_that_clients_invent_make_no_series(house: House, client: Client) -> None:
    tasks = [task for number in range(50) for task in await house.add(f"5{number}")]
    before = len(client.samples())
    async with house.working(Registry()):
        await eventually(lambda: house.are("failed", tasks))
    added = {name for name, labels in client.samples() if "type" in dict(labels) and dict(labels)["type"] != "unknown"}
    assert not any(dict(labels).get("type", "").startswith("5") for _, labels in client.samples()), added
    assert len(client.samples()) < before + 50

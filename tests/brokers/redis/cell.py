"""A cell in Redis as tests see it: its broker, and its keys by plain commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID

import redis

from taketurns.brokers.redis import RedisBroker, scripts
from taketurns.brokers.redis.replies import Submitted, microseconds
from taketurns.brokers.redis.server import Server, cell_key
from taketurns.engine import turns
from taketurns.engine.rate import Bucket, Rate, owed, starts_left
from taketurns.engine.task import TERMINAL, Status
from taketurns.storage.ids import new_id
from tests.brokers.cell import Move
from tests.brokers.pausing import Pauses, put_line
from tests.brokers.places import exact


def submitted(told: str) -> Submitted:
    return Submitted(*json.loads(told.partition("\n")[0]))


@dataclass(frozen=True, slots=True)
class Ended:
    """The first line of how a job ended."""

    status: str
    started_at: int | None
    finished_at: int
    expires_at: int
    error: str | None


class RedisCell:
    """See tests.brokers.cell.Cell."""

    broker: RedisBroker

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.prefix = cell_key(name)
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._slugs: dict[UUID, str] = {}
        self.pauses = Pauses()

    @classmethod
    def open(cls, url: str, name: str, *, patience_seconds: float = 5.0, **options: Any) -> Self:
        cell = cls(url, name)
        cell.broker = RedisBroker(
            Server(url, cell=name, pool_size=32, pool_timeout=patience_seconds, timeout=patience_seconds), **options
        )
        return cell

    async def close(self) -> None:
        await self.broker.server.close()
        self.clear()
        self.client.close()

    def key(self, *parts: object) -> str:
        return ":".join([self.prefix, *map(str, parts)])

    def run(self, verb: str, *arguments: Any) -> Any:
        return self.client.eval(scripts.load(verb).text, 1, self.prefix, *arguments)

    def add_company(
        self, slug: str, *, weight: int = 1, max_in_flight: int | None = None, paused: bool = False
    ) -> UUID:
        company_id = new_id()
        self._slugs[company_id] = slug
        told = {"weight": weight, "max_in_flight": max_in_flight or "", "paused": int(paused), "max_queued": ""}
        self._put(slug, **told, **_told(None))
        return company_id

    def set_weight(self, slug: str, weight: int) -> None:
        self._put(slug, weight=weight)

    def set_max_in_flight(self, slug: str, most: int | None) -> None:
        self._put(slug, max_in_flight=most or "")

    def set_rate(self, slug: str, rate: Rate | None) -> None:
        self._put(slug, **_told(rate))

    def pause(self, company: str | None, *, queue: str = "", type: str = "", until: datetime | None = None) -> None:
        owner = None if company is None else self._id_of(company)
        self.pauses.put((owner, queue, type), until)
        self._tell_pauses(owner)

    def resume(self, company: str | None, *, queue: str = "", type: str = "") -> None:
        owner = None if company is None else self._id_of(company)
        self.pauses.lift((owner, queue, type))
        self._tell_pauses(owner)

    def _tell_pauses(self, owner: UUID | None) -> None:
        revision = self.client.get(self.key("pause_revision")) or 0
        told = [
            part
            for (_, queue, type), until in self.pauses.of(owner).items()
            for part in (f"{queue}!{type}", microseconds(until))
        ]
        assert self.run("put_pauses", str(owner or "all"), revision, *told) == int(revision) + 1

    def set_max_queued(self, slug: str, most: int | None) -> None:
        self._put(slug, max_queued="" if most is None else most)

    def set_paused(self, slug: str, paused: bool) -> None:
        self._put(slug, paused=int(paused))

    def _put(self, slug: str, **changes: int | str) -> None:
        company_id = self._id_of(slug)
        known = self.client.hgetall(self.key("company", company_id)) | changes
        told = [known[name] for name in ("weight", "max_in_flight", "paused")]
        rate = [known[name] for name in ("rate_tasks", "rate_seconds", "rate_burst")]
        self.run(
            "put_company",
            "",
            str(company_id),
            slug,
            *told,
            int(known.get("updated_at", 0)) + 1,
            *rate,
            known["max_queued"],
        )

    def delete_company(self, slug: str) -> None:
        while self.run("forget_company", str(self._id_of(slug)), 1_000):
            pass

    def add_lease(self, worker_id: UUID, *, beat: int = 0, types: Sequence[str] = ("work",)) -> None:
        self.run("take_lease", str(worker_id), "", 86_400_000, "types", json.dumps(list(types)), "wanted", "run")
        self.client.hset(self.key("lease", worker_id), "beat", beat)

    def beat(self, worker_id: UUID) -> int:
        assert self.run("beat", str(worker_id), 86_400_000, "", "running")
        return int(self.client.hget(self.key("lease", worker_id), "beat"))

    def remove_lease(self, worker_id: UUID) -> None:
        self.run("remove_lease", str(worker_id))

    def now(self) -> datetime:
        seconds, rest = self.client.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest)

    def let_pass(self, time: timedelta) -> None:
        """Make what counts with the server's clock this much older: what was started, and when rests and pauses end."""
        passed = time // timedelta(microseconds=1)
        for company in self._slugs:
            if self.client.exists(self.key("bucket", company)):
                self.client.hincrby(self.key("bucket", company), "at", -passed)
        for company, until in self.client.zrange(self.key("rests"), 0, -1, withscores=True):
            if until < float("inf"):
                self.client.zincrby(self.key("rests"), -passed, company)
        for over in self.client.zrange(self.key("pause_ends"), 0, -1):
            owner, _, pause = over.partition("!")
            self.client.hincrby(self.key("pauses", owner), pause, -passed)
            self.client.zincrby(self.key("pause_ends"), -passed, over)
        self.pauses.bring_forward(time)

    def pass_time(self, microseconds: int) -> datetime:
        self.let_pass(timedelta(microseconds=microseconds))
        return self.now()

    def lines(self) -> dict[tuple[str, UUID], dict[UUID, str]]:
        return {
            (queue, company): {
                UUID(task_id): type
                for _, task_id, type in (
                    member.split(":", 2) for member in self.client.zrange(self.key("line", company, queue), 0, -1)
                )
            }
            for company in self._slugs
            for queue in self.client.sunion(self.key("lines", company), self.key("asides", company))
        }

    def noted_lines(self, queues: Sequence[str]) -> set[tuple[str, UUID]]:
        """Those that a claim found blocked."""
        noted = (line.split(":", 1) for line in self.client.smembers(self.key("blocked")))
        return {(queue, UUID(company)) for company, queue in noted if queue in queues}

    def slug_of(self, company_id: UUID) -> str:
        return self._slugs[company_id]

    def _id_of(self, slug: str) -> UUID:
        return next(company_id for company_id, name in self._slugs.items() if name == slug)

    def company_of(self, task_id: UUID) -> UUID:
        return next(company for company in self._slugs if self.client.hexists(self.key("jobs", company), str(task_id)))

    def status(self, task_id: UUID) -> Status | None:
        told = self._look(task_id)
        return Status(told[0]) if told else None

    def result(self, task_id: UUID) -> object:
        _, _, ended = self._look(task_id) or ("", "", None)
        _, is_told, result = (ended or "").partition("\n")
        return json.loads(result) if is_told else None

    def error(self, task_id: UUID) -> str | None:
        status, _, ended = self._look(task_id) or ("", "", None)
        return Ended(*json.loads(ended.partition("\n")[0])).error if ended and status in TERMINAL else None

    def retries(self, task_id: UUID) -> int:
        told = self._look(task_id)
        assert told is not None
        return submitted(told[1]).retries

    def _look(self, task_id: UUID) -> tuple[str, str, str | None] | None:
        """What the script `job` tells."""
        jobs = (self.run("job", f"{company}:{task_id}", "") for company in self._slugs)
        return next((tuple(told) for told in jobs if told), None)

    def history(self, task_id: UUID) -> list[Move]:
        histories = [self.run("job_events", f"{company}:{task_id}") or [] for company in self._slugs]
        moves = [json.loads(row) for history in histories for row in history]
        return [Move(number, kind) for number, kind, *_ in moves]

    def standing(self) -> Counter[Status]:
        places = self._places()
        return Counter(Status(places[name][0]) for name in self._jobs())

    def clear(self) -> None:
        with self.client.pipeline(transaction=False) as pipeline:
            for key in self.client.scan_iter(match=f"{self.prefix}:*", count=10_000):
                pipeline.unlink(key)
            pipeline.execute()
        self._slugs.clear()
        self.pauses = Pauses()

    def contradictions(self) -> list[str]:
        jobs = self._jobs()
        return [
            *self._told_twice(jobs),
            *self._gaps(jobs),
            *self._out_of_turn(),
        ]

    def contradictions_of(self, company_id: UUID) -> list[str]:
        """The same, of a company that was made elsewhere."""
        self._slugs[company_id] = str(company_id)
        return self.contradictions()

    def _jobs(self) -> dict[str, Submitted]:
        return {
            f"{company}:{task_id}": submitted(told)
            for company in self._slugs
            for task_id, told in self.client.hgetall(self.key("jobs", company)).items()
        }

    def _ends(self) -> dict[str, Ended]:
        return {
            f"{company}:{task_id}": Ended(*json.loads(told.partition("\n")[0]))
            for company in self._slugs
            for task_id, told in self.client.hgetall(self.key("ends", company)).items()
        }

    def _places(self) -> dict[str, list[str]]:
        """Where each job stands."""
        places: dict[str, list[str]] = {}
        standing: dict[str, Iterable[str]] = {
            "scheduled": self.client.zrange(self.key("scheduled"), 0, -1),
            "processing": self.client.hkeys(self.key("processing")),
            "pending": [
                f"{company}:{member.split(':', 2)[1]}"
                for (company, _), line in self._lines().items()
                for member in line
            ],
        } | {end: self.client.zrange(self.key("ended", end), 0, -1) for end in TERMINAL}
        for status, names in standing.items():
            for name in names:
                places.setdefault(name, []).append(status)
        return places

    def _lines(self) -> dict[tuple[str, str], dict[str, float]]:
        """What waits, by company and queue."""
        prefix = self.key("line", "")
        lines = {}
        for key in self.client.scan_iter(match=f"{prefix}*", count=1_000):
            company, _, queue = key.removeprefix(prefix).partition(":")
            lines[company, queue] = dict(self.client.zrange(key, 0, -1, withscores=True))
        return lines

    def _told_twice(self, jobs: dict[str, Submitted]) -> Iterator[str]:
        """A job stands in one place, and nothing else stands anywhere."""
        places, ends = self._places(), self._ends()
        for name in jobs.keys() | places.keys() | ends.keys():
            found = places.get(name, [])
            if name not in jobs or len(found) != 1 or (found[0] in TERMINAL) is not (name in ends):
                yield f"{name} stands in {found} as {jobs.get(name)}, and ended as {ends.get(name)}"
            elif name in ends and ends[name].status != found[0]:
                yield f"{name} ended as {ends[name]} and stands in {found}"
        for (company, queue), line in self._lines().items():
            for member, priority in line.items():
                run_after, task_id, type = member.split(":", 2)
                job = jobs[f"{company}:{task_id}"]
                lines = {job.queue, f"!{job.type}!{job.queue}"}
                if (job.type, job.priority, job.run_after) != (type, priority, int(run_after)) or queue not in lines:
                    yield f"a place in line and its job differ: {queue} {member} {job}"
        claims = self.client.hgetall(self.key("processing"))
        held = {
            f"{company}:{task_id}"
            for company in self._slugs
            for task_id in self.client.smembers(self.key("held", company))
        }
        hands = {f"{claim.split(' ')[1]} {name}" for name, claim in claims.items()}
        prefix = self.key("hands", "")
        told_hands = {
            f"{key.removeprefix(prefix)} {name}"
            for key in self.client.scan_iter(match=f"{prefix}*", count=1_000)
            for name in self.client.smembers(key)
        }
        if not (claims.keys() == held and hands == told_hands):
            yield f"what runs is told in different ways: {claims} {held} {hands} {told_hands}"

    def _gaps(self, jobs: dict[str, Submitted]) -> Iterator[str]:
        """Nothing is appended to the history of a smooth life."""
        for name, job in jobs.items():
            numbers = [json.loads(row)[0] for row in self.client.lrange(self.key("events", name), 0, -1)]
            if numbers != ([] if job.moves == 1 else list(range(1, job.moves + 1))):
                yield f"the history of {name} has gaps, or another end than the job: {numbers} {job}"

    def _is_paused(self, company: str, queue: str) -> bool:
        return bool(self.client.hexists(self.key("pauses", company), f"{queue}!"))

    def _out_of_turn(self) -> Iterator[str]:
        """Exactly those companies stand in a rotation that have work there and may have it done."""
        served = {company for company in map(str, self._slugs) if self._company(company).get("paused") == "0"}
        lines = {line for line in self._lines() if not line[1].startswith("!")}
        queues = {queue for _, queue in lines} | set(self.client.hkeys(self.key("rotations")))
        wanted = {line for line in lines if line[0] in served}
        resting = set(self.client.zrange(self.key("rests"), 0, -1))
        found = {
            (company, queue)
            for queue in queues
            for kind in ("turns", "resting")
            for company in self.client.zrange(self.key(kind, queue), 0, -1)
            if (company in resting or self._is_paused(company, queue)) is (kind == "resting")
        }
        if wanted != found:
            yield f"companies have work but no turn, or a turn but no work: {wanted ^ found}"
        for queue in queues:
            idle = set(self.client.zrange(self.key("idle", queue), 0, -1))
            if both := idle & {company for company, of in found if of == queue}:
                yield f"companies wait and do not in {queue}: {both}"
        told = {
            (company, queue)
            for company in map(str, self._slugs)
            for queue in self.client.smembers(self.key("lines", company))
        }
        if told != lines:
            yield f"lines differ from their index: {told ^ lines}"
        asides = {
            (company, line)
            for company in map(str, self._slugs)
            for line in self.client.smembers(self.key("asides", company))
        }
        if missing := {line for line in self._lines() if line[1].startswith("!")} - asides:
            yield f"lines that were set aside are not in their index: {missing}"
        later = {
            f"{company}:{task_id}"
            for company in self._slugs
            for task_id in self.client.smembers(self.key("later", company))
        }
        if wrong := later ^ set(self.client.zrange(self.key("scheduled"), 0, -1)):
            yield f"what is scheduled is told in different ways: {wrong}"
        waiting = {company for company, queue in wanted if not self._is_paused(company, queue)} - resting
        if waiting != self.client.smembers(self.key("waiting")):
            yield f"those who wait differ from their index: {waiting}"
        weights = {company: int(self._company(company).get("weight", 0)) for company in waiting}
        held = {company: self.client.scard(self.key("held", company)) for company in map(str, self._slugs)}
        keeps = {company: hands for company, hands in held.items() if hands and company not in waiting}
        yield from self._miscounted("weights", "weight", weights)
        yield from self._miscounted("keeps", "kept", keeps)

    def _miscounted(self, numbers: str, total: str, wanted: dict[str, int]) -> Iterator[str]:
        if {company: str(number) for company, number in wanted.items()} != self.client.hgetall(self.key(numbers)):
            yield f"{numbers} differ from those counted: {wanted}"
        if sum(wanted.values()) != int(self.client.get(self.key(total)) or 0):
            yield f"{numbers} do not add up to {self.client.get(self.key(total))}: {wanted}"

    def _company(self, company: str) -> dict[str, str]:
        told: dict[str, str] = self.client.hgetall(self.key("company", company))
        return told

    def seen_by_the_rule(
        self, queues: Sequence[str], at: datetime | None = None
    ) -> tuple[dict[str, turns.Company], dict[str, turns.Rotation]]:
        """What the model in taketurns.engine.turns needs to tell the next claim; companies go by their id.

        Rates need the moment of the claim.
        """
        seen = self.client.eval(look(SEEN), 1, self.prefix, json.dumps(list(queues)))
        return known_to_the_rule(seen, at, self.pauses)


def _told(rate: Rate | None) -> dict[str, int | str]:
    numbers = ("", "", "") if rate is None else (rate.tasks, rate.seconds, rate.burst)
    return dict(zip(("rate_tasks", "rate_seconds", "rate_burst"), numbers, strict=True))


SEEN = """
local function seen(named)
  local told = { companies = {}, rotations = {} }
  local queues = redis.call('HGETALL', key('rotations'))
  for _, queue in ipairs(named) do
    table.insert(queues, queue)
    table.insert(queues, redis.call('HGET', key('rotations'), queue) or '0')
  end
  for position = 1, #queues, 2 do
    local queue = queues[position]
    local rotation = { place = queues[position + 1], lines = {}, places = {} }
    for _, company in ipairs(redis.call('SMEMBERS', key('companies'))) do
      told.companies[company] = redis.call('HMGET', key('company', company), 'weight', 'max_in_flight', 'paused')
      table.insert(told.companies[company], redis.call('SCARD', key('held', company)))
      table.insert(told.companies[company],
        redis.call('HMGET', key('company', company), 'rate_tasks', 'rate_seconds', 'rate_burst'))
      table.insert(told.companies[company], redis.call('HMGET', key('bucket', company), 'owed', 'seconds', 'at'))
      local types = {}
      for _, member in ipairs(redis.call('ZRANGE', key('line', company, queue), 0, -1)) do
        local type = type_in_line(member)
        types[type] = (types[type] or 0) + 1
      end
      if next(types) then
        rotation.lines[company] = types
      end
    end
    for _, kind in ipairs({ 'turns', 'resting', 'idle' }) do
      local places = redis.call('ZRANGE', key(kind, queue), 0, -1, 'WITHSCORES')
      for place = 1, #places, 2 do
        rotation.places[places[place]] = places[place + 1]
      end
    end
    told.rotations[queue] = rotation
  end
  return cjson.encode(told)
end
"""


def look(functions: str, body: str = "return seen(cjson.decode(ARGV[1]))") -> str:
    """A script that can use what the verbs have in common."""
    return f"#!lua\n{scripts.read(scripts.PROLOGUE)}\n{functions}\n{body}"


def known_to_the_rule(
    seen: str | bytes, at: datetime | None = None, pauses: Pauses | None = None
) -> tuple[dict[str, turns.Company], dict[str, turns.Rotation]]:
    """What `seen` told, as the model has it. A queue that is paused for all is not looked at by a claim."""
    told, known = json.loads(seen), pauses or Pauses()
    companies = {
        company: turns.Company(
            int(weight), held, int(most) if most else None, paused == "1", _starts_left(rate, bucket, at)
        )
        for company, (weight, most, paused, held, rate, bucket) in dict(told["companies"]).items()
    }
    rotations = {
        queue: turns.Rotation(
            exact(int(rotation["place"])),
            places={company: exact(int(place)) for company, place in dict(rotation["places"]).items()},
            paused=frozenset(company for company in companies if known.have_queue(UUID(company), queue, at)),
        )
        for queue, rotation in dict(told["rotations"]).items()
    }
    for queue, rotation in rotations.items():
        for company, types in dict(told["rotations"][queue]["lines"]).items():
            put_line(rotation, company, queue, types, known, at)
    return companies, rotations


def _starts_left(rate: Sequence[str], bucket: Sequence[str], at: datetime | None) -> int | None:
    if not all(rate):
        return None
    known = Rate(*map(int, rate))
    now = 0 if at is None else round(at.timestamp() * 1_000_000)
    return starts_left(known, owed(known, Bucket(*map(int, bucket)) if all(bucket) else None, now))

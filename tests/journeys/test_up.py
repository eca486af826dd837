"""`taketurns up` as newcomers meet it: they paste its lines, start another beside it, stop it, and pull the plug."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import httpx2
import psycopg
import pytest
import redis

from taketurns.cli.demo import HABITS
from taketurns.cli.up import COMPANY_ROLE, DATABASE
from taketurns.storage.embedded import PostgresServer, ValkeyServer

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
INTERRUPTED = 130
END = "-- end of block --"

pytestmark = pytest.mark.timeout(6 * PATIENCE_SECONDS)


class Up:
    """A `taketurns up`, or demo, on free ports, in a session of its own as from a terminal, and what it has said."""

    def __init__(self, *options: str, command: str = "up", **environment: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TAKETURNS_")}
        ports = dict.fromkeys(["TAKETURNS_PORT", "TAKETURNS_METRICS_PORT", "TAKETURNS_SMTP_PORT"], "0")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taketurns.cli", command, *options],
            env={**clean, **ports, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

    def has_said(self, pattern: str, *, times: int = 1) -> re.Match[str]:
        """Waits until the output matches for that many times; answers the first match."""
        eventually(lambda: self._is_alive() and len(re.findall(pattern, self.output)) >= times, pattern)
        match = re.search(pattern, self.output)
        assert match
        return match

    @property
    def address(self) -> str:
        return self.has_said(r"Taketurns answers at (http://\S+),")[1]

    @property
    def lines(self) -> list[str]:
        """The lines that are there to be pasted."""
        self.has_said("Ctrl-C finishes")
        return re.findall(r"^(?:curl|for) .*", self.output, re.MULTILINE)

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._output.close()

    def _is_alive(self) -> bool:
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.output}"
        return True


class Start(Protocol):
    def __call__(self, *options: str, command: str = "up", **environment: str) -> Up: ...


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts one; those that still run at the end are killed."""
    with ExitStack() as stack:

        def start(*options: str, command: str = "up", **environment: str) -> Up:
            up = Up(*options, command=command, **environment)
            stack.callback(up.close)
            return up

        yield start


@pytest.fixture
def home(open_directory: Path) -> Iterator[Path]:
    """Where an embedded server may live that no process may be left of."""
    yield open_directory / "home"
    eventually(lambda: not processes_about(open_directory), "nobody is left")


def companies_url(home: Path) -> str:
    return PostgresServer(home).url(DATABASE, role=COMPANY_ROLE)


def test_its_lines_can_be_pasted_and_another_beside_it_goes_on(home: Path, start: Start) -> None:
    up = start("--home", str(home))
    create, again, ten_of_another, look = up.lines
    beside = start("--home", str(home))
    assert f"export TAKETURNS_DATABASE_URL='{PostgresServer(home).url(DATABASE)}'" in up.output
    assert f"export TAKETURNS_COMPANY_DATABASE_URL='{companies_url(home)}'" in up.output
    assert f"export TAKETURNS_REDIS_URL={ValkeyServer(home / 'valkey').url}\n" in up.output
    with redis.Redis.from_url(ValkeyServer(home / "valkey").url) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    task = json.loads(paste(create))
    replayed = paste(again)
    assert re.search(r"^idempotent-replayed: true\s*$", replayed, re.MULTILINE | re.IGNORECASE)
    assert json.loads(replayed.splitlines()[-1])["id"] == task["id"]
    paste(ten_of_another)
    up.has_said(rf"mail from \S+ to ada@acme\.example: Hello <{task['id']}@\S+>")
    up.has_said(r"mail from \S+ to ada@globex\.example: Hello", times=10)
    eventually(lambda: json.loads(paste(look))["tasks"][0]["status"] == "completed", "the task is done")

    beside.has_said("joined the PostgreSQL that runs")
    beside.has_said("joined the Valkey that runs")
    create, _, _, look = beside.lines
    up.press_ctrl_c()
    assert up.wait() == 0
    assert up.output.endswith("stopped\n")

    with psycopg.connect(PostgresServer(home).url(DATABASE)) as owner, psycopg.connect(companies_url(home)) as role:
        sessions = "select usename from pg_stat_activity where application_name = 'taketurns-api-companies'"
        assert set(owner.execute(sessions).fetchall()) == {(COMPANY_ROLE,)}
        everything = "select count(*) > 0 from taketurns.tasks"
        assert (owner.execute(everything).fetchone(), role.execute(everything).fetchone()) == ((True,), (False,))

    for keeper in (home / "keeper.lock", home / "valkey" / "keeper.lock"):
        os.kill(int(keeper.read_text()), signal.SIGKILL)
    beside.has_said("PostgreSQL in .* was gone and is started again")
    beside.has_said("Valkey in .* was gone and is started again")
    another = json.loads(paste(create.replace("curl -s ", "curl -s --retry 60 --retry-delay 1 --retry-all-errors ")))
    beside.has_said(another["id"])
    eventually(
        lambda: statuses(json.loads(paste(look))) == {task["id"]: "completed", another["id"]: "completed"},
        "both are done",
    )
    beside.press_ctrl_c()
    assert beside.wait() == 0
    eventually(lambda: not processes_about(home), "nobody is left")
    with PostgresServer(home) as server, psycopg.connect(server.url(DATABASE)) as connection:
        assert connection.execute("select count(*), count(finished_at) from taketurns.tasks").fetchone() == (12, 12)


def test_the_readme_is_true_and_a_hard_death_in_the_flood_leaves_no_process(
    home: Path, start: Start, tmp_path: Path
) -> None:
    up = start("--home", str(home))
    create, again, look, flood, look_behind = readme_commands("Try it", up)
    task = json.loads(paste(create))
    assert "idempotent-replayed: true" in paste(again).lower()
    newest, done = documents(paste(look))
    assert list(statuses(newest)) == [task["id"]]
    assert set(statuses(done)) <= {task["id"]}

    wait, watch = readme_commands("Three ways .*?", up)
    waited = paste(wait)
    assert "preference-applied: wait=10" in waited.lower()
    assert json.loads(waited.splitlines()[-1])["status"] == "completed"
    events, _, job = paste(watch).partition("{\n")
    assert re.findall(r"^event: (\w+)", events, re.MULTILINE) == ["created", "claimed", "completed"]
    assert json.loads("{" + job)["status"] == "completed"
    for name in ("app.py", "inline.py", "enqueue.py"):
        (tmp_path / name).write_text(readme_program(name))
    export = up.has_said("export TAKETURNS_DATABASE_URL=.*")[0]
    assert "completed sent 6\n" in paste(f"{export}\n{shlex.quote(sys.executable)} inline.py", cwd=tmp_path)
    assert "EnqueuedTask(" in paste(f"{export}\n{shlex.quote(sys.executable)} enqueue.py", cwd=tmp_path)

    quiet = json.loads(paste(flood, cwd=tmp_path))
    eventually(lambda: get(up, "initech", quiet["id"])["status"] == "completed", "the quiet company's task is done")
    assert json.loads(paste(look_behind))["tasks"][0]["status"] == "pending"
    served = get(up, "initech", quiet["id"])
    assert seconds_between(served["createdAt"], served["finishedAt"]) < 10

    up.process.kill()
    up.process.wait()
    eventually(lambda: not processes_about(home), "nobody is left")


def test_what_the_readme_says_of_running_it_for_customers_can_be_pasted(
    home: Path, start: Start, tmp_path: Path
) -> None:
    """In one shell, from the first key to the figures of a company."""
    up = start("--home", str(home), TAKETURNS_AUTHENTICATION="on")
    up.has_said("Ctrl-C finishes")
    exports = re.findall(r"^export .*\n", up.output, re.MULTILINE)
    pasted = [
        block.replace("http://127.0.0.1:8000", up.address)
        for block in readme_blocks("Run it for customers")
        if not re.search(r"make up|@db/", block)  # what starts it, and what is for a server of one's own
    ]
    script = f"echo {END}\n".join(["".join(exports), *pasted])
    told = iter(paste(script, cwd=tmp_path, within=5 * PATIENCE_SECONDS).split(f"{END}\n")[1:])
    assert "acme" in {company["slug"] for company in json.loads(next(told))["companies"]}
    assert json.loads(next(told))["slug"] == "hooli"
    assert next(told) == ""  # the key of acme
    created, listed, other = documents(next(told))
    assert listed["tasks"][0]["id"] == created["id"]
    assert other["code"] == "company_not_found"
    (limited,) = documents(next(told))
    assert (limited["weight"], limited["maxQueued"], limited["rate"]["burst"]) == (3, 10_000, 20)
    pause, paused, *_ = documents(next(told).partition("paused;")[0])
    assert (pause["type"], paused["pauses"]) == ("send_email", [pause])
    kept = next(told)
    assert json.loads(kept.splitlines()[0])["retention"]["failedSeconds"] == 7_776_000
    assert "cancelled  1d" in kept
    assert json.loads(next(told))["kind"] == "end"
    unique, found = documents(next(told))
    assert (unique["tags"], [task["id"] for task in found["tasks"]]) == (["eu", "customer:7"], [unique["id"]])
    dry, failures, retry, operations = documents(next(told))
    assert (dry["matchedIsExact"], failures["failures"], retry["kind"]) == (True, [], "retry")
    assert [operation["id"] for operation in operations["operations"]] == [retry["id"]]
    by_command = next(told)
    assert re.search(r"^\d tasks$", by_command, re.MULTILINE)
    assert retry["id"] in by_command
    assert json.loads(next(told))["companyId"] == created["companyId"]
    assert next(told, None) is None


def test_another_server_is_used_and_the_second_ctrl_c_ends_at_once(
    empty_database_url: str, valkey_url: str, start: Start, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    up = start(
        *("--app", "tests.journeys.app:tt", "--home", str(tmp_path / "home")),
        TAKETURNS_DATABASE_URL=empty_database_url,
        TAKETURNS_REDIS_URL=valkey_url,
        JOURNEY_RUNS=str(runs),
    )
    up.has_said("database: the one in TAKETURNS_DATABASE_URL")
    up.has_said("jobs: the Redis in TAKETURNS_REDIS_URL")
    (look,) = up.lines
    assert "count" in {task_type["name"] for task_type in json.loads(paste(look))["taskTypes"]}
    assert "export" not in up.output
    task = {"type": "count", "payload": {"number": 7, "seconds": 3600}}
    httpx2.post(f"{up.address}/companies/acme/tasks", json=task).raise_for_status()
    eventually(runs.exists, "the task runs")

    up.press_ctrl_c()
    up.has_said("once more ends at once")
    up.has_said("worker stopping .* held=1")
    up.press_ctrl_c()
    assert up.wait() == INTERRUPTED
    assert processes_about(runs) == []
    assert not (tmp_path / "home").exists()


def test_the_demo_shows_a_flood_that_nobody_waits_behind_and_leaves_nothing_half_done(home: Path, start: Start) -> None:
    up = start("--home", str(home), command="demo")
    up.has_said("Ctrl-C finishes")
    eventually(lambda: all(listed(up, company, "completed") for company in HABITS), "every company was served")
    assert len(listed(up, "acme", "pending")) == 100 > HABITS["globex"].most >= len(listed(up, "globex", "pending"))
    up.press_ctrl_c()
    assert up.wait() == 0
    assert up.output.endswith("stopped\n")
    eventually(lambda: not processes_about(home), "nobody is left")
    with PostgresServer(home) as server, psycopg.connect(server.url(DATABASE)) as connection:
        assert connection.execute("select count(*) from taketurns.processing_tasks").fetchone() == (0,)


def test_the_demo_fills_no_database_of_somebodys(start: Start, tmp_path: Path) -> None:
    url = "postgresql://127.0.0.1:1/shop"
    up = start("--home", str(tmp_path), command="demo", TAKETURNS_DATABASE_URL=url)
    assert up.wait() == 2
    assert "TAKETURNS_DATABASE_URL: must not be set" in up.output


def listed(up: Up, company: str, status: str) -> list[dict[str, Any]]:
    """The newest tasks of the company that are so, a hundred at most."""
    answer = httpx2.get(f"{up.address}/companies/{company}/tasks?status={status}&limit=100").raise_for_status()
    tasks: list[dict[str, Any]] = answer.json()["tasks"]
    return tasks


def paste(line: str, *, cwd: Path = ROOT, within: float = PATIENCE_SECONDS) -> str:
    """What a shell prints for it."""
    command = ["bash", "-euo", "pipefail", "-c", line]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=within,
    ).stdout


def readme_commands(section: str, up: Up) -> list[str]:
    """The blocks of a section that ask the API, with the address that it has here."""
    return [block.replace("http://127.0.0.1:8000", up.address) for block in readme_blocks(section) if "curl" in block]


def readme_blocks(section: str) -> list[str]:
    """The shell lines of a section, block by block."""
    text = (ROOT / "README.md").read_text()
    (found,) = re.findall(rf"^## {section}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```bash\n(.*?)^```", found, re.MULTILINE | re.DOTALL)


def readme_program(name: str) -> str:
    """The Python file of this name."""
    text = (ROOT / "README.md").read_text()
    found: list[str] = re.findall(rf"^```python\n# {name}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (program,) = found
    return program


def get(up: Up, company: str, task_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = httpx2.get(f"{up.address}/companies/{company}/tasks/{task_id}").json()
    return answer


def statuses(page: dict[str, Any]) -> dict[str, str]:
    return {task["id"]: task["status"] for task in page["tasks"]}


def documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON documents that stand one behind the other."""
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def processes_about(path: Path) -> list[str]:
    """The command lines of all processes whose arguments or environment name the path; Linux only."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (directory / "cmdline").read_bytes()
            if os.fsencode(path) in command + (directory / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.02)

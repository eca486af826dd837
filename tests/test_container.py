"""The image and the composed services agree with the commands, settings and ports that they name.

What only a container engine can show, such as the build itself, is not shown here.
"""

import json
import re
import shlex
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from taketurns.assembly import load_application
from taketurns.cli import app
from taketurns.settings import Settings
from taketurns.storage.embedded.valkey import SETTINGS

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "api", "worker", "job-worker", "mail")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continued lines joined, comments left out."""
    text = (ROOT / "Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    pairs = (line.split(maxsplit=1) for line in joined.splitlines() if line)
    return [(word, rest) for word, rest in pairs]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def image_command() -> list[str]:
    (command,) = [rest for word, rest in final_stage() if word == "CMD"]
    parsed: list[str] = json.loads(command)
    return parsed


COMMANDS = {"image": image_command()} | {name: SERVICES[name]["command"] for name in OURS}


def read(command: list[str]) -> None:
    """Has the program read its arguments without acting on them; it raises on any that it does not know."""
    program, *arguments = command
    assert program == "taketurns"
    known: Any = typer.main.get_command(app)
    while isinstance(known, TyperGroup):
        program, *arguments = arguments
        known = known.commands[program]
    known.make_context(program, arguments)


@pytest.mark.parametrize("place", COMMANDS)
def test_each_command_is_one_that_the_program_knows(place: str) -> None:
    read(COMMANDS[place])


def test_the_image_runs_the_api_unless_told_otherwise() -> None:
    assert image_command() == SERVICES["api"]["command"]


def test_the_image_does_not_run_as_root() -> None:
    users = [rest for word, rest in final_stage() if word == "USER"]
    assert users
    assert users[-1].isdecimal()
    assert int(users[-1]) > 0


def test_the_image_installs_nothing_without_a_hash() -> None:
    installs = [
        part for word, rest in instructions() if word == "RUN" for part in rest.split("&&") if "pip install" in part
    ]
    assert installs
    for install in installs:
        assert "--require-hashes" in install or "--no-deps dist/" in install


def test_the_image_is_built_from_files_that_are_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [shlex.split(rest)[:-1] for word, rest in instructions() if word == "COPY" and "--from=" not in rest]
    for source in (name for names in copied for name in names):
        assert (ROOT / source).exists()
        assert source.split("/")[0] in allowed


def image_environment() -> dict[str, str]:
    pairs = (pair.split("=", 1) for word, rest in final_stage() if word == "ENV" for pair in shlex.split(rest))
    return dict(pairs)


def test_each_setting_is_one_that_the_service_reads() -> None:
    fields = Settings.model_fields.items()
    known = {str(field.validation_alias or f"TAKETURNS_{name}".upper()) for name, field in fields}
    for name in OURS:
        given = {*image_environment(), *SERVICES[name]["environment"]}
        settings = {key for key in given if key.startswith("TAKETURNS_")}
        assert "TAKETURNS_DATABASE_URL" in settings
        assert settings <= known


def composed_environment(name: str) -> dict[str, str]:
    """What compose gives a service when nothing is set around it."""
    given: dict[str, str] = SERVICES[name]["environment"]
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for key, value in given.items()}


@pytest.mark.parametrize("name", ["api", "worker", "job-worker"])
def test_the_composed_service_knows_the_examples_which_are_in_the_image(name: str) -> None:
    copied = [shlex.split(rest) for word, rest in final_stage() if word == "COPY"]
    assert ["examples", "examples"] in copied
    application = load_application(composed_environment(name)["TAKETURNS_APP"])
    assert "send_email" in application.registry.names


def test_what_the_examples_mail_goes_to_the_sink() -> None:
    given = composed_environment("worker")
    host, port = given["TAKETURNS_SMTP_HOST"], given["TAKETURNS_SMTP_PORT"]
    command = SERVICES[host]["command"]
    assert command == ["taketurns", "mail", "--host", "0.0.0.0", "--port", port]
    assert "aiosmtpd==" in (ROOT / "requirements/runtime.txt").read_text()


def test_the_image_listens_where_its_published_ports_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in image_environment().items():
        if name.startswith("TAKETURNS_"):
            monkeypatch.setenv(name, value)
    settings = Settings()
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    assert (settings.metrics_host, settings.metrics_port) == ("0.0.0.0", 9100)
    exposed = [rest.split() for word, rest in final_stage() if word == "EXPOSE"]
    assert exposed == [[str(settings.port), str(settings.metrics_port)]]


def test_the_image_asks_for_keys_and_the_composed_service_says_that_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "TAKETURNS_AUTHENTICATION" not in image_environment()
    assert Settings().authentication == "on"
    monkeypatch.setenv("TAKETURNS_AUTHENTICATION", composed_environment("api")["TAKETURNS_AUTHENTICATION"])
    assert Settings().authentication == "off-on-any-address"


def test_ports_are_open_to_this_machine_only() -> None:
    ports = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert ports == {
        "db": ["127.0.0.1:5432:5432"],
        "migrate": [],
        "api": ["127.0.0.1:8000:8000"],
        "worker": ["127.0.0.1:9100:9100"],
        "job-worker": ["127.0.0.1:9101:9100"],
        "mail": [],
        "valkey": ["127.0.0.1:6379:6379"],
    }


def test_the_api_and_the_worker_wait_for_the_migrations_and_these_for_a_healthy_database() -> None:
    healthy = {"db": {"condition": "service_healthy"}}
    migrated = healthy | {"migrate": {"condition": "service_completed_successfully"}}
    assert SERVICES["migrate"]["depends_on"] == healthy
    assert SERVICES["api"]["depends_on"] == migrated
    assert SERVICES["worker"]["depends_on"] == migrated


def test_who_takes_turns_in_valkey_waits_for_it_and_for_nothing_else() -> None:  # fault 149
    assert SERVICES["job-worker"]["depends_on"] == {"valkey": {"condition": "service_healthy"}}
    assert not any("valkey" in SERVICES[name].get("depends_on", {}) for name in ("migrate", "api", "worker"))


@pytest.mark.parametrize("name", ["api", "job-worker"])
def test_jobs_go_to_valkey_which_writes_them_down_and_drops_none(name: str) -> None:  # fault 147
    address = urllib.parse.urlsplit(composed_environment(name)["TAKETURNS_REDIS_URL"])
    assert (address.scheme, address.hostname, address.port) == ("redis", "valkey", 6379)
    program, *options = SERVICES["valkey"]["command"]
    assert program == "valkey-server"
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        f"--{name}": value for name, value in SETTINGS.items()
    }


def test_the_database_alone_starts_nothing_else() -> None:
    assert "depends_on" not in SERVICES["db"]
    assert SERVICES["db"]["image"] == "postgres:16"


def test_every_service_that_stays_has_a_health_check_and_a_time_to_stop() -> None:
    checked_by_the_image = [rest for word, rest in final_stage() if word == "HEALTHCHECK"]
    assert "/health" in checked_by_the_image[0]
    for name in ("db", "worker", "job-worker", "mail", "valkey"):
        assert SERVICES[name]["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    for name in ("db", "api", "worker", "job-worker", "mail", "valkey"):
        assert SERVICES[name]["stop_grace_period"]


def test_volumes_are_declared_and_used() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])

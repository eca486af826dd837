"""`taketurns up` where it cannot or need not start everything."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taketurns.cli import up
from taketurns.settings import Settings
from taketurns.storage import schema
from taketurns.storage.embedded import valkey

AWAY = "redis://127.0.0.1:1"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_taken_is_refused(
    empty_database_url: str, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(database_url=empty_database_url, redis_url=AWAY, port=taken_port)

    assert up.run(settings) == 1
    assert capsys.readouterr().err == (
        f"127.0.0.1:{taken_port} cannot be listened on (Address already in use): choose another TAKETURNS_PORT\n"
    )


def test_an_address_that_is_not_this_machines_is_refused(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(database_url=empty_database_url, redis_url=AWAY, host="192.0.2.1")

    assert up.run(settings) == 1
    assert "192.0.2.1:8000 cannot be listened on" in capsys.readouterr().err


def test_a_server_that_is_too_old_is_refused(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 99)

    assert up.run(Settings(database_url=empty_database_url)) == 1
    assert re.match(r"PostgreSQL \d+ is too old: Taketurns needs 99 or newer", capsys.readouterr().err)


def test_a_database_that_is_away_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert up.run(Settings(database_url="postgresql://nobody@127.0.0.1:1/none")) == 1
    assert "cannot use the database" in capsys.readouterr().err


def test_programs_that_are_not_there_are_said_not_to_be(
    open_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up.run(Settings(), home=open_directory / "home", programs=open_directory) == 1
    assert "no postgres and initdb run there" in capsys.readouterr().err


def test_a_valkey_that_was_named_and_is_none_is_said_not_to_be(
    empty_database_url: str, open_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(database_url=empty_database_url)
    assert up.run(settings, home=open_directory / "home", valkey=open_directory) == 1
    assert "is no valkey-server or redis-server" in capsys.readouterr().err


def test_where_there_is_no_valkey_a_line_says_that_there_are_no_jobs(
    empty_database_url: str,
    open_directory: Path,
    taken_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(valkey, "OLDEST_MAJOR", 99)
    settings = Settings(database_url=empty_database_url, port=taken_port)
    assert up.run(settings, home=open_directory / "home") == 1
    said = capsys.readouterr()
    assert re.search(
        r"^no jobs: no Valkey or Redis 99 or newer was found .* TAKETURNS_REDIS_URL\.$", said.out, re.MULTILINE
    )
    assert "choose another TAKETURNS_PORT" in said.err


@pytest.mark.parametrize(
    ("authentication", "said", "needs_key"),
    [
        ("on", "It asks for keys", True),
        ("off", "It asks for no keys, for it listens on loopback only", False),
        ("off-on-any-address", "It asks for no keys, and whoever reaches it may do everything", False),
    ],
)
def test_the_lines_to_paste_bring_a_key_where_one_is_asked_for(authentication: str, said: str, needs_key: bool) -> None:
    settings = Settings().model_copy(update={"authentication": authentication})
    companies = dict.fromkeys(up.DEMO_COMPANIES, "its-id")
    for types in (["send_email"], ["another"]):
        lines = "\n".join(up._greeting(settings, "http://here", companies, [], types)).splitlines()
        assert any(line.startswith(said) for line in lines)
        pasted = [line for line in lines if "curl" in line]
        assert pasted
        assert all(('-H "Authorization: Bearer $TAKETURNS_KEY"' in line) == needs_key for line in pasted)
        assert any("taketurns keys create --role operator" in line for line in lines) == needs_key


def test_data_belongs_to_the_machine_for_root_and_to_the_user_for_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert up.default_home() == Path("/var/lib/taketurns")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert up.default_home() == tmp_path / "taketurns"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert up.default_home() == Path.home() / ".local" / "share" / "taketurns"


def test_what_nobody_reads_any_more_is_not_said_and_fails_nothing() -> None:
    script = "import sys; from taketurns.cli.up import say; input(); say('one'); say('two'); sys.exit(7)"
    speaker = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert speaker.stdout
    speaker.stdout.close()
    speaker.stdout = None
    _, complaints = speaker.communicate(b"\n")

    assert complaints == b""
    assert speaker.returncode == 7

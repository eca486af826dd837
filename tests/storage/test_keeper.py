"""How long the keeper of an embedded server goes on starting it again."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM

import pytest

from taketurns.storage.embedded import keeper
from taketurns.storage.embedded.keeper import Keeper, Orders
from tests.waiting import PATIENCE, soon


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(keeper, "_PAUSE_SECONDS", 0.01)


@contextmanager
def keeping(home: Path, *, server: str) -> Iterator[threading.Thread]:
    """A keeper at work, and a user of its server: a line of shell, before which a line is written into `starts`."""
    with (home / "users.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        kept = Keeper(
            Orders(
                command=["sh", "-c", f"echo >> {home / 'starts'}; {server}"],
                environment=dict(os.environ),
                uid=None,
                gid=None,
                stop_signal=SIGTERM,
                orphan_signal=SIGTERM,
                in_the_way=[],
                users_lock=str(home / "users.lock"),
                keeper_lock=-1,
                server_lock=str(home / "server.lock"),
                discard=[],
            )
        )
        running = threading.Thread(target=kept.run)
        running.start()
        try:
            yield running
        finally:
            kept.stop()
            running.join()


def starts(home: Path) -> int:
    path = home / "starts"
    return path.stat().st_size if path.exists() else 0


def test_a_server_that_had_started_is_started_again_however_often_it_is_killed(tmp_path: Path) -> None:
    with keeping(tmp_path, server="sleep 1.1; kill -9 $$") as running:
        soon(lambda: starts(tmp_path) > 3)
        assert running.is_alive()


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 1", "exit 3"])
def test_a_server_that_never_starts_is_given_up(tmp_path: Path, end: str) -> None:
    with keeping(tmp_path, server=end) as running:
        running.join(PATIENCE)
        assert not running.is_alive()
        assert starts(tmp_path) >= 1

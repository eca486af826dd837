"""Processes that use an embedded server, and what is to be seen of processes from outside; Linux only."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class AnotherUser:
    """A process that uses a home, and the process id of the server that it found there."""

    def __init__(self, process: subprocess.Popen[str], server: int) -> None:
        self.process = process
        self.server = server

    def leave(self) -> None:
        self.process.communicate("")
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def another_user(script: str, home: Path, *options: str) -> Iterator[AnotherUser]:
    with user_process(script, home, *options) as process:
        yield AnotherUser(process, first_line(process))


@contextlib.contextmanager
def user_process(script: str, home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the script, which uses a home until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(home), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ends before, or while its file is read
        return False


def processes_naming(directory: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(directory) in command:
                found.append(command)
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)

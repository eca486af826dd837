"""The programs that people run, `taketurns api` and `taketurns worker`, as processes of a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
STOP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.1


class Late(RuntimeError):
    """What was waited for did not come about in time."""


@contextmanager
def running(url: str, *arguments: str, count: int = 1, **settings: object) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes of this command, with these settings; ended on leaving."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TAKETURNS_")},
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TAKETURNS_DATABASE_URL": url,
        "TAKETURNS_APP": "bench.nothing:app",
        "TAKETURNS_METRICS_PORT": "0",
        "TAKETURNS_LOG_LEVEL": "warning",
        **{f"TAKETURNS_{name.upper()}": str(value) for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "taketurns.cli", *arguments]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.extend(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for _ in range(count))
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(holds: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Raises Late when it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Late(f"{what} took longer than {seconds:g} s")
        time.sleep(LOOK_SECONDS)

"""Processes that have imported everything when they begin, which otherwise is most of what they are waited for.

Each is forked from one process that imported it for the whole run of tests, and has run nothing.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.worker.process", "tests.schedules.process"])


def start(main: Callable[..., None], *arguments: object, log: Path | None = None) -> BaseProcess:
    """Start a process of `main`; what it writes goes to the log, or where the run's own output goes."""
    process = _FORKS.Process(target=_run, args=(main, arguments, log))
    process.start()
    return process


def end(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _run(main: Callable[..., None], arguments: tuple[object, ...], log: Path | None) -> None:
    if log is not None:
        with log.open("ab") as file:
            for output in (sys.stdout, sys.stderr):
                os.dup2(file.fileno(), output.fileno())
    main(*arguments)

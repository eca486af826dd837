"""Children: real ones, which die, finish and refuse to."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from taketurns.cli.children import MOST_FALSE_STARTS, Children, Program, ProgramFailed

FINISHES = """
import pathlib, signal, sys
def finish(*_):
    pathlib.Path(sys.argv[1]).write_text("finished")
    sys.exit()
signal.signal(signal.SIGTERM, finish)
pathlib.Path(sys.argv[1]).write_text("started")
while True:
    signal.pause()
"""
REFUSES = FINISHES.replace("signal.signal(signal.SIGTERM, finish)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
TELLS = """
import os, pathlib, signal, sys
session = "session leader" if os.getsid(0) == os.getpid() else "somebody's session"
inode = os.fstat(int(os.environ["INHERITED"])).st_ino
pathlib.Path(sys.argv[1]).write_text(f"{session}, {inode}, {[name for name in os.environ if name != 'LC_CTYPE']}")
signal.pause()
"""
KEEPS_ONE = """
import asyncio, sys
from taketurns.cli.children import Children, Program
program = Program("kept", [sys.executable, "-c", sys.argv[1], sys.argv[2]], {})
asyncio.run(Children([program], say=print).run())
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file in which a process says how far it has come."""
    return tmp_path / "mark"


async def test_a_process_that_dies_is_started_again(mark: Path) -> None:
    said: list[str] = []
    async with running(FINISHES, mark, say=said.append) as children:
        await eventually(lambda: marked(mark, "started"))
        killed = children.pids["kept"]
        os.truncate(mark, 0)
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: marked(mark, "started"))

        assert children.pids["kept"] != killed
        assert said == ["kept ended by SIGKILL and is started again"]


async def test_at_the_first_stop_a_process_finishes_what_it_has_begun(mark: Path) -> None:
    async with running(FINISHES, mark) as children:
        await eventually(lambda: marked(mark, "started"))

    assert marked(mark, "finished")
    assert children.pids == {}
    assert not children.hurried


async def test_at_the_second_stop_a_process_is_ended(mark: Path) -> None:
    async with running(REFUSES, mark) as children:
        await eventually(lambda: marked(mark, "started"))
        children.stop()
        assert children.pids
        children.stop()
        await eventually(lambda: not children.pids)
    assert children.hurried


async def test_who_keeps_ending_is_given_up_and_so_are_the_others(mark: Path) -> None:
    said: list[str] = []
    children = Children(
        [program("kept", FINISHES, mark), program("broken", "raise SystemExit(3)", mark)],
        say=said.append,
        pause_seconds=0.01,
    )

    with pytest.raises(ProgramFailed, match=f"broken ended {MOST_FALSE_STARTS} times"):
        await children.run()

    assert children.pids == {}
    assert set(said) == {"broken ended with status 3 and is started again"}


async def test_cancelling_asks_the_processes_to_finish(mark: Path) -> None:
    children = Children([program("kept", FINISHES, mark)], say=print)
    keeping = asyncio.create_task(children.run())
    await eventually(lambda: marked(mark, "started"))
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping

    assert marked(mark, "finished")


async def test_a_process_has_its_own_session_its_own_environment_and_what_it_inherits(mark: Path) -> None:
    read_end, write_end = os.pipe()
    environment = {"INHERITED": str(read_end)}
    children = Children(
        [Program("kept", [sys.executable, "-c", TELLS, str(mark)], environment)], say=print, inherited=[read_end]
    )
    keeping = asyncio.create_task(children.run())
    await eventually(lambda: marked(mark, f"session leader, {os.fstat(read_end).st_ino}, ['INHERITED']"))
    children.stop()
    await keeping
    os.close(read_end)
    os.close(write_end)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
async def test_who_loses_the_command_that_keeps_it_finishes(mark: Path) -> None:
    command = await asyncio.create_subprocess_exec(sys.executable, "-c", KEEPS_ONE, FINISHES, str(mark))
    await eventually(lambda: marked(mark, "started"))
    command.kill()
    await command.wait()
    await eventually(lambda: marked(mark, "finished"))


@contextlib.asynccontextmanager
async def running(script: str, mark: Path, say: Callable[[str], None] = print) -> AsyncIterator[Children]:
    children = Children([program("kept", script, mark)], say=say, pause_seconds=0.01)
    keeping = asyncio.create_task(children.run())
    try:
        yield children
    finally:
        children.stop()
        await keeping


def program(name: str, script: str, mark: Path) -> Program:
    return Program(name, [sys.executable, "-c", script, str(mark)], {})


def marked(mark: Path, word: str) -> bool:
    return mark.exists() and mark.read_text() == word


async def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)

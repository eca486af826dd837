"""Child processes that a command keeps running: started again when they die, asked to finish, or ended at once.

They are in sessions of their own, so that Ctrl-C reaches only the command, which decides; should the command itself
be killed, the kernel asks them to finish (Linux only).
"""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taketurns.storage.embedded.keeper import signalled_when_parent_ends

STARTED_WELL_SECONDS = 10.0
MOST_FALSE_STARTS = 5


@dataclass(frozen=True)
class Program:
    """What a process is called, and how it is started."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


class ProgramFailed(RuntimeError):
    """A program ended again and again soon after its start."""


class Children:
    """One process for each program; `inherited` file descriptors stay open in them."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        say: Callable[[str], None],
        inherited: Sequence[int] = (),
        pause_seconds: float = 1.0,
    ) -> None:
        self._programs = programs
        self._say = say
        self._inherited = inherited
        self._pause_seconds = pause_seconds
        self._stopping = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.hurried = False

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of those that run, by the names of their programs."""
        return {name: process.pid for name, process in self._running.items()}

    async def run(self) -> None:
        """Keep every program running; returns when they have ended after `stop`. Raises ProgramFailed."""
        keeping = [asyncio.create_task(self._keep(program)) for program in self._programs]
        try:
            await asyncio.wait(keeping, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if not self._stopping.is_set():
                self.stop()
            await asyncio.wait(keeping)
        await asyncio.gather(*keeping)

    def stop(self) -> None:
        """Ask every process to finish what it has begun; called again, end them at once."""
        self.hurried = self._stopping.is_set()
        self._stopping.set()
        number = signal.SIGKILL if self.hurried else signal.SIGTERM
        for process in self._running.values():
            process.send_signal(number)

    async def _keep(self, program: Program) -> None:
        false_starts = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once(program)
            if self._stopping.is_set():
                break
            false_starts = 0 if time.monotonic() - started > STARTED_WELL_SECONDS else false_starts + 1
            if false_starts == MOST_FALSE_STARTS:
                raise ProgramFailed(f"{program.name} ended {false_starts} times soon after its start")
            self._say(f"{program.name} ended {_how(code)} and is started again")
            await self._pause()

    async def _run_once(self, program: Program) -> int:
        process = await asyncio.create_subprocess_exec(
            *program.arguments,
            env=dict(program.environment),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=self._inherited,
            start_new_session=True,
            preexec_fn=signalled_when_parent_ends(signal.SIGTERM),
        )
        self._running[program.name] = process
        if self._stopping.is_set():
            process.send_signal(signal.SIGKILL if self.hurried else signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            del self._running[program.name]

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._pause_seconds)
        except TimeoutError:
            return


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

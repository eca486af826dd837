"""Handlers for passes that a command makes."""

import sys
import time
from pathlib import Path

from taketurns import Fail, Taketurns

tt = Taketurns()


@tt.task
async def work(how: str) -> None:
    if how == "fail":
        raise Fail("for good")


@tt.task
def wait(gate: str) -> None:
    sys.stdout.write("a handler waits\n")
    sys.stdout.flush()
    while not Path(gate).exists():
        time.sleep(0.01)

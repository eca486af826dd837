"""An application whose one handler does nothing: `TAKETURNS_APP=bench.nothing:app`."""

from __future__ import annotations

from taketurns import Taketurns

app = Taketurns()


@app.task(name="work")
async def work(to: str) -> None: ...

"""What the process of a peer is told by the harness."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

VARIABLE: Final = "PEER_ORDERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Where the stores are, which variant of the peer is meant, and how its worker runs: so many handlers at once, each
    of which takes `sleep_seconds` and leaves a record in the file `records`."""

    postgres: str = ""
    redis: str = ""
    variant: str = ""
    concurrency: int = 1
    records: str = ""
    sleep_seconds: float = 0.0

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


def given() -> Orders:
    """Those of this process."""
    return Orders(**json.loads(os.environ.get(VARIABLE, "{}")))

"""Background tasks for software that serves many companies: no company can starve another.

    from taketurns import Taketurns

    tt = Taketurns()

    @tt.task(retries=5)
    async def send_invoice(invoice_id: int) -> str:
        return f"sent {invoice_id}"

    await send_invoice.enqueue(company="acme", invoice_id=7)

What the names stand for is loaded when one of them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taketurns.assembly.application import Taketurns
    from taketurns.assembly.handler import EnqueuedTask, Handler
    from taketurns.assembly.state import TaskState
    from taketurns.engine.errors import (
        ConfigurationError,
        Fail,
        IdempotencyConflict,
        InvalidData,
        InvalidOption,
        InvalidPayload,
        NotCompleted,
        OverBudget,
        QueueFull,
        QuotaExceeded,
        Retry,
        TaketurnsError,
        Unavailable,
        UniqueKeyTaken,
        UnknownCompany,
        UnknownType,
    )
    from taketurns.engine.retry import Backoff
    from taketurns.engine.task import Status
    from taketurns.execution.context import Context, current

__all__ = [
    "Backoff",
    "ConfigurationError",
    "Context",
    "EnqueuedTask",
    "Fail",
    "Handler",
    "IdempotencyConflict",
    "InvalidData",
    "InvalidOption",
    "InvalidPayload",
    "NotCompleted",
    "OverBudget",
    "QueueFull",
    "QuotaExceeded",
    "Retry",
    "Status",
    "Taketurns",
    "TaketurnsError",
    "TaskState",
    "Unavailable",
    "UniqueKeyTaken",
    "UnknownCompany",
    "UnknownType",
    "current",
]

_ROOMS = {
    "Backoff": "taketurns.engine.retry",
    "Context": "taketurns.execution.context",
    "EnqueuedTask": "taketurns.assembly.handler",
    "Handler": "taketurns.assembly.handler",
    "Status": "taketurns.engine.task",
    "Taketurns": "taketurns.assembly.application",
    "TaskState": "taketurns.assembly.state",
    "current": "taketurns.execution.context",
}
_ERRORS = "taketurns.engine.errors"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ROOMS.get(name, _ERRORS)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The one place where parts are put together: an application and its client, workers, the API.

What a process needs is loaded when it is asked for: an application alone brings neither a driver nor a web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taketurns.assembly.application import Taketurns, load_application, load_registry
from taketurns.assembly.handler import EnqueuedTask, Handler
from taketurns.assembly.state import TaskState

if TYPE_CHECKING:
    from taketurns.assembly.processes import build_api, build_worker, load_api, serve_worker

__all__ = [
    "EnqueuedTask",
    "Handler",
    "Taketurns",
    "TaskState",
    "build_api",
    "build_worker",
    "load_api",
    "load_application",
    "load_registry",
    "serve_worker",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("taketurns.assembly.processes"), name)

"""The one place where parts are put together: an application and its client, workers, the API.

What a process needs is loaded when it is asked for: an application alone brings neither a driver nor a web framework,
and a worker brings no web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taketurns.assembly.application import Taketurns, load_application, load_registry
from taketurns.assembly.handler import EnqueuedTask, Handler
from taketurns.assembly.state import TaskState

if TYPE_CHECKING:
    from taketurns.assembly.api import build_api, load_api
    from taketurns.assembly.worker import build_worker, serve_pass, serve_worker

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
    "serve_pass",
    "serve_worker",
]


_PROCESSES = {
    "build_api": "taketurns.assembly.api",
    "load_api": "taketurns.assembly.api",
    "build_worker": "taketurns.assembly.worker",
    "serve_pass": "taketurns.assembly.worker",
    "serve_worker": "taketurns.assembly.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _PROCESSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PROCESSES[name]), name)

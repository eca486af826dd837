"""The one place where parts are put together: applications, workers and the API."""

from taketurns.assembly.application import Taketurns, load_application
from taketurns.assembly.handler import EnqueuedTask, Handler

__all__ = ["EnqueuedTask", "Handler", "Taketurns", "load_application"]

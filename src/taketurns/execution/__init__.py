"""Running one handler: its arguments, its timeout, its thread, its context, and what its end means for the task."""

from taketurns.execution.context import Context, current
from taketurns.execution.executor import Attempt, Executor

__all__ = ["Attempt", "Context", "Executor", "current"]

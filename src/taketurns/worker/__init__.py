"""The process that takes turns: it claims tasks, runs their handlers, reports how they ended, and keeps the house."""

from taketurns.worker.worker import Worker, run_pass

__all__ = ["Worker", "run_pass"]

"""HTML for people: what waits, what runs and what happened, and everything that an operator may do about it."""

from taketurns.dashboard.application import Dashboard

__all__ = ["Dashboard"]

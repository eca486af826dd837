"""Handlers to try Taketurns with, and to begin your own from."""

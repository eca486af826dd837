"""Measurements of Taketurns beside the usual ways, each written to RESULTS.md with its command."""

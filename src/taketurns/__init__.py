"""Taketurns: background tasks for software that serves many companies, where no company can starve another."""

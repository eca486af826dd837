"""The `taketurns` command. Each command imports what it needs when it runs, so that `--help` is quick."""

from taketurns.cli.application import app

__all__ = ["app"]

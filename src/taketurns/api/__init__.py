"""HTTP for programs."""

from taketurns.api.application import create_api

__all__ = ["create_api"]

"""The migrations of a cell. What a data migration did is tested over rows of the revision before it."""

from __future__ import annotations

from pathlib import Path


def template_path() -> Path:
    """The template of a new migration."""
    return Path(__file__).parent / "script.py.mako"

"""The verbs as scripts: each `.lua` file behind what all of them have in common."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Final

PROLOGUE: Final = "cell"


class Script:
    """A script as a server knows it: its text, and the digest that stands for the text once it was sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def load(verb: str) -> Script:
    """The script of a verb. Its first line, which says what it may do on a full server, stays the first."""
    flags, _, body = read(verb).partition("\n")
    return Script(f"{flags}\n{read(PROLOGUE)}\n{body}")


def read(name: str) -> str:
    """What stands in a `.lua` file."""
    return resources.files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")

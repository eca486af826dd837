"""The verbs as scripts: each `.lua` file behind what it needs of what all of them have in common."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final

PROLOGUE: Final = "cell"
_BLOCKS: Final = re.compile(r"\n\n(?=(?:--[^\n]*\n)*local )")
_COMMENTS: Final = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)
_DEFINED: Final = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
_WORDS: Final = re.compile(r"\w+")


class Script:
    """A script as a server knows it: its text, and the digest that stands for the text once it was sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def load(verb: str) -> Script:
    """The script of a verb. Its first line, which says what it may do on a full server, stays the first."""
    flags, _, body = read(verb).partition("\n")
    return Script(f"{flags}\n{needed_by(body)}\n{body}")


def needed_by(body: str) -> str:
    """What a script uses of the prologue, in its order: a server makes every function anew for each call."""
    needed, words = [], set(_WORDS.findall(body))
    for names, block in reversed(list(blocks(read(PROLOGUE)))):
        if not words.isdisjoint(names):
            needed.append(block)
            words.update(_WORDS.findall(block))
    return "\n\n".join(reversed(needed))


def blocks(text: str) -> Iterator[tuple[set[str], str]]:
    """A text in parts that stand by themselves, each with the names that it defines."""
    for part in _BLOCKS.split(text):
        block = _COMMENTS.sub("", part).strip()
        if block:
            names = {name for found in _DEFINED.findall(block) for name in found.split(", ")}
            yield names, block


def read(name: str) -> str:
    """What stands in a `.lua` file."""
    return resources.files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")

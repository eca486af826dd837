"""What each script carries of what all of them have in common."""

from __future__ import annotations

from importlib import resources

import pytest

from taketurns.brokers import redis
from taketurns.brokers.redis import scripts
from tests.brokers.redis.cell import RedisCell

VERBS = sorted(
    file.name.removesuffix(".lua")
    for file in resources.files(redis).iterdir()
    if file.name.endswith(".lua") and file.name != f"{scripts.PROLOGUE}.lua"
)


def names_of(text: str) -> set[str]:
    return {name for names, _ in scripts.blocks(text) for name in names}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_script_compiles_and_defines_what_it_uses_once(cell: RedisCell, verb: str) -> None:
    script = scripts.load(verb)
    assert cell.client.script_load(script.text) == script.sha
    carried = scripts.needed_by(scripts.read(verb))
    defined = [name for names, _ in scripts.blocks(carried) for name in names]
    assert len(defined) == len(set(defined))


def test_a_script_carries_nothing_that_it_does_not_use() -> None:
    carried = names_of(scripts.needed_by("return key('types')"))
    assert carried == {"cell", "key"}


def test_nothing_is_common_that_no_script_uses() -> None:
    common = names_of(scripts.read(scripts.PROLOGUE))
    assert common
    assert common == set().union(*(names_of(scripts.needed_by(scripts.read(verb))) for verb in VERBS))

"""Whom a lost worker's tasks come back as: what kills workers is given up, and nobody in its stead."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine import rescue


@pytest.mark.parametrize(
    ("rescue_counts", "left"),
    [
        ([0], [1]),
        ([2], [3]),
        ([3], [None]),
        ([3, 0, 1], [None, 1, 2]),
        ([3, 2], [3, 3]),
        ([3, 3, 3], [3, 3, 3]),
    ],
)
def test_a_task_is_given_up_when_no_other_suspect_was_lost_with_it(
    rescue_counts: list[int], left: list[int | None]
) -> None:
    assert rescue.after_loss(rescue_counts, 3) == left


@pytest.mark.parametrize(("max_rescues", "rescue_counts"), [(0, [0, 0]), (1, [1, 1])])
def test_below_two_rescues_tasks_are_given_up_before_they_are_suspects(
    max_rescues: int, rescue_counts: list[int]
) -> None:
    assert rescue.after_loss(rescue_counts, max_rescues) == [None, None]


@given(innocents=st.integers(0, 20), max_rescues=st.integers(2, 5), seed=st.integers(0, 1_000))
def test_a_killer_fails_within_a_few_losses_and_nobody_beside_it(innocents: int, max_rescues: int, seed: int) -> None:
    """By a worker that takes all ordinary tasks and one suspect, and ends none before the killer ends it."""
    chance = Random(seed)
    killer, rescues = 0, dict.fromkeys(range(innocents + 1), 0)
    losses = 0
    while killer in rescues:
        suspects = [task for task, count in rescues.items() if rescue.is_suspect(count)]
        held = [task for task in rescues if task not in suspects] + chance.sample(suspects, min(len(suspects), 1))
        if killer not in held:
            rescues.pop(held[0])
            continue
        losses += 1
        for task, left in zip(held, rescue.after_loss([rescues[task] for task in held], max_rescues), strict=True):
            if left is None:
                assert task == killer
                rescues.pop(task)
            else:
                rescues[task] = left
    assert losses == max_rescues + 1

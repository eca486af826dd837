"""What the end of an attempt means for its task."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine import limits
from taketurns.engine.errors import Fail, Retry
from taketurns.engine.retry import Backoff
from taketurns.engine.task import Outcome, Report
from taketurns.execution import outcome
from taketurns.execution.outcome import Cancelled, Ending, Raised, Returned, TimedOut, Unfit
from tests.execution.tasks import claimed

EVEN = Backoff(first_seconds=2, ceiling_seconds=3600, jitter=0)


def report(ending: Ending, *, backoff: Backoff = EVEN, **task: Any) -> Report:
    return outcome.report(claimed(**task), ending, backoff=backoff)


def told(ending: Ending, **task: Any) -> tuple[Outcome, str | None, float | None]:
    answer = report(ending, **task)
    return answer.outcome, answer.error, answer.delay_seconds


def test_a_handler_that_returns_completes_its_task() -> None:
    answer = report(Returned({"sent": 1}))
    assert (answer.outcome, answer.result, answer.error) == (Outcome.COMPLETED, '{"sent":1}', None)


def test_an_error_is_tried_again_after_the_backoff() -> None:
    kind, error, delay = told(Raised(ValueError("no")), retry_count=2)
    assert (kind, error, delay) == (Outcome.RETRY, "ValueError: no", 8)


def test_an_error_fails_the_task_when_its_retries_are_used_up() -> None:
    assert told(Raised(ValueError("no")), retry_count=5) == (Outcome.FAILED, "ValueError: no", None)


# Fault 063: a row with more retries than it may have gets its one run, and no more.
def test_a_retry_count_past_the_maximum_ends_the_task() -> None:
    assert told(Raised(ValueError("no")), retry_count=900)[0] is Outcome.FAILED


def test_fail_ends_the_task_whatever_retries_are_left() -> None:
    assert told(Raised(Fail("the invoice was cancelled"))) == (Outcome.FAILED, "the invoice was cancelled", None)


def test_retry_chooses_its_own_delay() -> None:
    assert told(Raised(Retry("busy", after=timedelta(minutes=1)))) == (Outcome.RETRY, "busy", 60)
    assert told(Raised(Retry("busy", after=0))) == (Outcome.RETRY, "busy", 0)


def test_retry_without_a_delay_follows_the_backoff() -> None:
    assert told(Raised(Retry("busy")), retry_count=1) == (Outcome.RETRY, "busy", 4)


def test_retry_counts_as_a_retry() -> None:
    assert told(Raised(Retry("busy", after=1)), retry_count=5) == (Outcome.FAILED, "busy", None)


@pytest.mark.parametrize(
    ("after", "delay"),
    [(-5, 0), (math.inf, limits.DELAY_SECONDS_MAX), (1e300, limits.DELAY_SECONDS_MAX), (math.nan, 2), ("soon", 2)],
)
def test_a_delay_out_of_bounds_is_brought_within_them(after: Any, delay: float) -> None:
    assert told(Raised(Retry("busy", after=after)))[2] == delay


def test_a_timeout_is_told_as_one() -> None:
    kind, error, delay = told(TimedOut(1.5))
    assert (kind, error, delay) == (Outcome.RETRY, "timed out: the handler was still running after 1.5 s", 2)


def test_a_handler_that_goes_on_after_its_timeout_is_told() -> None:
    assert str(told(TimedOut(1.5, has_stopped=False), retry_count=5)[1]).endswith(", and does not stop")


def test_a_cancelled_attempt_is_neither_failed_nor_retried() -> None:
    assert told(Cancelled())[0] is Outcome.CANCELLED


# Fault 078
def test_a_task_that_makes_no_call_of_its_handler_fails_at_once() -> None:
    assert told(Unfit("no such type")) == (Outcome.FAILED, "no such type", None)


# Fault 091
def test_a_result_that_cannot_be_stored_is_tried_again_and_fails_in_the_end() -> None:
    kind, error, delay = told(Returned({"out": "a\x00b"}))
    assert (kind, delay) == (Outcome.RETRY, 2)
    assert "NUL" in str(error)
    assert told(Returned({"out": "a\x00b"}), retry_count=5)[0] is Outcome.FAILED


# Faults 120 and 122
@given(st.integers(0, limits.MAX_RETRIES_MAX - 1))
def test_the_delay_of_every_retry_is_above_nothing_and_below_the_ceiling(retry_count: int) -> None:
    answer = report(
        Raised(ValueError()), backoff=Backoff(), retry_count=retry_count, max_retries=limits.MAX_RETRIES_MAX
    )
    assert answer.delay_seconds is not None
    assert 0 < answer.delay_seconds <= 3600

"""Logs are lines of one form, whoever writes them; names are bounded."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from taketurns import telemetry
from taketurns.telemetry import Event


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What is logged; the logging of the tests is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_its_event_level_time_and_fields(stream: io.StringIO) -> None:
    telemetry.configure(form="json", stream=stream)
    telemetry.logger("worker").info(Event.WORKER_STARTED, queues=["default"])
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "worker started",
        "level": "info",
        "logger": "taketurns.worker",
        "queues": ["default"],
    }


def test_libraries_and_handlers_log_in_the_same_form(stream: io.StringIO) -> None:
    telemetry.configure(form="json", stream=stream)
    structlog.contextvars.bind_contextvars(request_id="r-1")
    logging.getLogger("library").warning("hello %s", "you")
    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["request_id"]) == ("hello you", "library", "r-1")


def test_lines_tell_what_they_are_about_and_their_own_fields_win(stream: io.StringIO) -> None:
    telemetry.configure(form="json", stream=stream)
    token = telemetry.about.set(lambda: {"task_id": "t-1", "attempt": 2})
    try:
        logging.getLogger("library").warning("from a library")
        telemetry.logger("task").warning("from a handler", attempt=3)
    finally:
        telemetry.about.reset(token)
    first, second = lines(stream)
    assert (first["task_id"], first["attempt"]) == ("t-1", 2)
    assert (second["task_id"], second["attempt"]) == ("t-1", 3)


def test_what_a_line_is_about_goes_before_what_surrounds_it(stream: io.StringIO) -> None:
    """A task's own request, and not the one that had it processed."""
    telemetry.configure(form="json", stream=stream)
    structlog.contextvars.bind_contextvars(request_id="of the pass")
    token = telemetry.about.set(lambda: {"request_id": "of the task"})
    try:
        telemetry.logger("task").warning("odd")
    finally:
        telemetry.about.reset(token)
    assert lines(stream)[0]["request_id"] == "of the task"


def test_a_program_that_configures_nothing_gets_standard_logging(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.reset_defaults()
    telemetry.logger("worker").info("below the level of the root")
    telemetry.logger("worker").warning(Event.LEASE_LOST, reason="none")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("taketurns.worker", 'event="lease lost" reason=none')
    ]
    assert capsys.readouterr().out == ""


ODD = {
    "half a surrogate pair": "\ud800",
    "NUL": "a\x00b",
    "a big number": 2**80,
    "not a number": float("nan"),
    "an object": object(),
    "an odd key": {1: 2},
    "bytes": b"\xff",
}


@pytest.mark.parametrize("name", ODD)
def test_no_value_costs_a_line(stream: io.StringIO, name: str) -> None:
    telemetry.configure(form="json", stream=stream)
    telemetry.logger("worker").warning("odd", value=ODD[name])
    assert lines(stream)[0]["event"] == "odd"


@pytest.mark.parametrize("form", ["console", "json"])
def test_errors_are_told_without_the_values_of_variables(stream: io.StringIO, form: Any) -> None:
    telemetry.configure(form=form, stream=stream)
    secret = "hunter" + "2"
    try:
        raise RuntimeError("no luck" + secret[:0])
    except RuntimeError as error:
        telemetry.logger("worker").error("failed", exc_info=error)
    assert "no luck" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_lines_below_the_level_are_left_out(stream: io.StringIO) -> None:
    telemetry.configure(form="console", level="warning", stream=stream)
    telemetry.logger("worker").info("not told")
    telemetry.logger("worker").warning("told")
    assert "not told" not in stream.getvalue()
    assert "told" in stream.getvalue()


def test_events_have_one_name_each() -> None:
    assert len({event.value for event in Event}) == len(list(Event))


def test_types_that_are_not_known_share_a_series() -> None:
    series = telemetry.SeriesByType(["known"], outcomes=["completed"])
    assert series["invented"] is series["by a client"]
    assert series["known"] is not series["invented"]


def test_lengths_that_are_counted_together_stand_in_the_buckets_of_each() -> None:
    lengths = telemetry.Lengths("lengths", "Lengths.", buckets=(0.1, 1))
    lengths.of("work").observe([0.05, 0.1, 0.5, 7.0])
    lengths.of("work").observe([0.2])
    (family,) = lengths.collect()
    told = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert told == {
        ("lengths_bucket", "0.1"): 2,
        ("lengths_bucket", "1.0"): 4,
        ("lengths_bucket", "+Inf"): 5,
        ("lengths_count", None): 5,
        ("lengths_sum", None): pytest.approx(7.85),
    }

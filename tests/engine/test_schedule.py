"""When ticks come, held to what clocks show minute by minute, across real changes of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taketurns.engine import limits, schedule
from taketurns.engine.errors import InvalidOption
from taketurns.engine.schedule import Missed

MINUTE = timedelta(minutes=1)
CHANGES = {
    "Europe/Berlin": [date(2027, 3, 28), date(2026, 10, 25)],
    "America/New_York": [date(2027, 3, 14), date(2026, 11, 1)],
    "America/Santiago": [date(2026, 9, 6), date(2027, 4, 3)],
    "Asia/Beirut": [date(2027, 3, 28), date(2026, 10, 24)],
    "Australia/Lord_Howe": [date(2026, 10, 4), date(2027, 4, 4)],
    "Antarctica/Troll": [date(2027, 3, 28), date(2026, 10, 25)],
    "Africa/Casablanca": [date(2027, 2, 7), date(2027, 3, 14)],
    "Asia/Kolkata": [date(2027, 1, 1), date(2027, 6, 1)],
}


def local(time_zone: str, *moment: int, fold: int = 0) -> datetime:
    return datetime(*moment, tzinfo=ZoneInfo(time_zone), fold=fold)  # type: ignore[misc,arg-type]


def ticks(expression: str, time_zone: str, after: datetime, count: int) -> list[str]:
    """As the clock on the wall shows them, with its offset."""
    found = schedule.read(expression, time_zone).next_ticks(count, after=after)
    return [f"{tick.astimezone(ZoneInfo(time_zone)):%m-%d %H:%M %z}" for tick in found]


def test_a_time_that_does_not_exist_comes_at_the_next_that_does() -> None:
    """Faults 129: the missing hour of spring, and midnights that are missing."""
    berlin = local("Europe/Berlin", 2027, 3, 27, 12)
    assert ticks("30 2 * * *", "Europe/Berlin", berlin, 3) == [
        "03-28 03:00 +0200",
        "03-29 02:30 +0200",
        "03-30 02:30 +0200",
    ]
    york = local("America/New_York", 2027, 3, 13, 12)
    assert ticks("30 2 * * *", "America/New_York", york, 2) == ["03-14 03:00 -0400", "03-15 02:30 -0400"]
    santiago = local("America/Santiago", 2026, 9, 5, 12)
    assert ticks("0 0 * * *", "America/Santiago", santiago, 2) == ["09-06 01:00 -0300", "09-07 00:00 -0300"]
    beirut = local("Asia/Beirut", 2027, 3, 27, 12)
    assert ticks("0 0 * * *", "Asia/Beirut", beirut, 2) == ["03-28 01:00 +0300", "03-29 00:00 +0300"]
    lord_howe = local("Australia/Lord_Howe", 2026, 10, 3, 12)
    assert ticks("15 2 * * *", "Australia/Lord_Howe", lord_howe, 2) == ["10-04 02:30 +1100", "10-05 02:15 +1100"]


def test_times_that_do_not_exist_come_together_once() -> None:
    berlin = local("Europe/Berlin", 2027, 3, 28, 1, 59)
    assert ticks("0,30 2,3 * * *", "Europe/Berlin", berlin, 3) == [
        "03-28 03:00 +0200",
        "03-28 03:30 +0200",
        "03-29 02:00 +0200",
    ]
    assert ticks("*/20 2 * * *", "Europe/Berlin", berlin, 2) == ["03-28 03:00 +0200", "03-29 02:00 +0200"]
    beirut = local("Asia/Beirut", 2027, 3, 27, 12)
    assert ticks("*/30 0 28 3 *", "Asia/Beirut", beirut, 1) == ["03-28 01:00 +0300"]


def test_a_time_that_comes_twice_comes_once() -> None:
    york = local("America/New_York", 2026, 10, 31, 12)
    assert ticks("30 1 * * *", "America/New_York", york, 2) == ["11-01 01:30 -0400", "11-02 01:30 -0500"]
    assert ticks("0 */2 * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 10, 24, 23), 3) == [
        "10-25 00:00 +0200",
        "10-25 02:00 +0200",
        "10-25 04:00 +0100",
    ]
    lord_howe = local("Australia/Lord_Howe", 2027, 4, 3, 12)
    assert ticks("45 1 * * *", "Australia/Lord_Howe", lord_howe, 2) == ["04-04 01:45 +1100", "04-05 01:45 +1030"]


@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_that_came_is_over_though_the_clock_shows_it_again(fold: int) -> None:
    york = local("America/New_York", 2026, 11, 1, 1, 40, fold=fold)
    assert ticks("30 1 * * *", "America/New_York", york, 1) == ["11-02 01:30 -0500"]
    before = local("America/New_York", 2026, 11, 1, 1, 10, fold=fold)
    expected = "11-02 01:30 -0500" if fold else "11-01 01:30 -0400"
    assert ticks("30 1 * * *", "America/New_York", before, 1) == [expected]


@pytest.mark.parametrize("hours", ["*", "*/1", "0-23"])
def test_a_schedule_for_every_hour_goes_on_hour_by_hour(hours: str) -> None:
    cron = schedule.read(f"0 {hours} * * *", "Europe/Berlin")
    for change in CHANGES["Europe/Berlin"]:
        found = cron.next_ticks(30, after=local("Europe/Berlin", change.year, change.month, change.day))
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=1)}


def expressions() -> st.SearchStrategy[str]:
    minutes = st.sampled_from(["0", "30", "*", "*/15", "*/7", "59", "0,20-40/10", "*/30,5"])
    hours = st.sampled_from(["*", "0", "1", "2", "0-3", "*/2", "*/1", "23", "1,2,3", "*/5,2"])
    days = st.sampled_from(["*", "*", "*", "28", "1-7", "*/2", "L"])
    weekdays = st.sampled_from(["*", "*", "*", "0", "sat,sun", "7", "1#5"])
    return st.builds(" ".join, st.tuples(minutes, hours, days, st.just("*"), weekdays))


@settings(deadline=None)
@given(
    expressions(), st.sampled_from(sorted(CHANGES)), st.integers(0, 1), st.integers(-2_000, 2_000), st.integers(0, 59)
)
def test_ticks_are_those_that_a_look_at_the_clock_each_minute_finds(
    expression: str, time_zone: str, change: int, minutes: int, seconds: int
) -> None:
    day = CHANGES[time_zone][change]
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    start, end = noon + timedelta(minutes=minutes, seconds=seconds), noon + timedelta(days=2)
    cron = schedule.read(expression, time_zone)
    expected = [
        tick for tick in looked_up(expression, time_zone, since=noon - timedelta(days=2)) if start <= tick <= end
    ]
    found = list(takewhile(lambda tick: tick <= end, cron.ticks(after=start)))
    assert found == [tick for tick in expected if tick > start]
    assert all(earlier < later for earlier, later in pairwise(found))
    assert cron.last_ticks(7, since=start, until=end) == expected[-7:]


def looked_up(expression: str, time_zone: str, *, since: datetime) -> Iterator[datetime]:
    """The ticks of five days by another way: from minute to minute, of the clock or of the calendar."""
    zone = ZoneInfo(time_zone)
    minute, hour, day, month, weekday = expression.split()
    minutes, hours = values(minute, 60), values(hour, 24)
    days = schedule.read(f"0 0 {day} {month} {weekday}", "UTC").ticks(after=since - timedelta(days=2))
    named = {tick.date() for tick in takewhile(lambda tick: tick < since + timedelta(days=6), days)}
    last = since
    for number in range(5 * 1440):
        if len(hours) == 24:
            moment = since + number * MINUTE
            shown = moment.astimezone(zone)
            if shown.minute in minutes and shown.date() in named:
                yield moment
            continue
        shown = since.astimezone(zone).replace(tzinfo=None) + number * MINUTE
        if shown.hour not in hours or shown.minute not in minutes or shown.date() not in named:
            continue
        while (moment := shown.replace(tzinfo=zone).astimezone(UTC)).astimezone(zone).replace(tzinfo=None) != shown:
            shown += MINUTE
        if moment > last:
            yield moment
            last = moment


def values(field: str, size: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = (f"0-{size - 1}" if span == "*" else span).partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def test_the_29th_of_february_is_waited_for() -> None:
    """Fault 131."""
    found = schedule.read("0 0 29 2 *", "UTC").next_ticks(2, after=datetime(2026, 11, 30, tzinfo=UTC))
    assert found == [datetime(2028, 2, 29, tzinfo=UTC), datetime(2032, 2, 29, tzinfo=UTC)]
    sunday = schedule.read("0 0 29 2 */7", "UTC").next_tick(after=datetime(2033, 1, 1, tzinfo=UTC))
    assert sunday == datetime(2060, 2, 29, tzinfo=UTC)
    either = schedule.read("0 0 29 2 1", "UTC").next_tick(after=datetime(2026, 11, 30, tzinfo=UTC))
    assert either == datetime(2027, 2, 1, tzinfo=UTC)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "expression",
    [
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "0 0 */40 * 1#5",
        "0 0 */99 2 0#5",
        "0-59," * 1000 + "0 * * * *",
        "0 " * 5_000,
        "*" * 10_000,
        "0 0 1--100000000 * *",
        "0 0 1-100000000 * *",
        "*/0 * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "5-1 * * * *",
        "* * * *",
        "* * * * * *",
        "@daily",
        "@every 5m",
        "PT0S",
        "0",
        "",
        "\0 * * * *",
        "٣ * * * *",
        "0 0 * * ſun",
        "x y z",
    ],
)
def test_what_never_comes_or_cannot_be_read_is_refused_at_once(expression: str) -> None:
    """Faults 131, 132 and 134."""
    with pytest.raises(InvalidOption, match=r"30 February|such as 0 9") as refusal:
        schedule.read(expression, "UTC")
    assert refusal.value.field == "expression"
    assert len(str(refusal.value)) < 400


@given(st.text(alphabet="0123456789*/,-#L SUNJAW\t", max_size=40))
def test_whatever_is_written_is_read_or_refused(expression: str) -> None:
    try:
        cron = schedule.read(expression, "Europe/Berlin")
    except InvalidOption:
        return
    assert len(cron.next_ticks(2, after=datetime(2026, 11, 30, tzinfo=UTC))) == 2
    assert schedule.read(cron.expression, "Europe/Berlin") == cron


@pytest.mark.parametrize(
    "name",
    ["", "utc", "UTC+5", "../etc/passwd", "/etc/localtime", "europe/berlin", "Mars/Base", "Factory", "localtime", "\0"],
)
def test_a_time_zone_is_named_letter_by_letter(name: str) -> None:
    """Fault 136."""
    with pytest.raises(InvalidOption, match="such as Europe/Berlin or UTC") as refusal:
        schedule.read("0 9 * * *", name)
    assert refusal.value.field == "time_zone"


def test_a_name_that_is_nearly_right_is_told() -> None:
    with pytest.raises(InvalidOption, match="Europe/Berlin is meant, perhaps"):
        schedule.read("0 9 * * *", "europe/BERLIN")


def test_every_name_of_the_database_is_a_time_zone() -> None:
    assert ticks("0 9 * * *", "Asia/Kolkata", datetime(2026, 11, 30, tzinfo=UTC), 1) == ["11-30 09:00 +0530"]
    for name in ("EST5EDT", "Etc/GMT+5", "UTC", "US/Eastern"):
        assert schedule.read("0 9 * * *", name).next_tick(after=datetime(2026, 11, 30, tzinfo=UTC))


NOW = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_a_tick_is_made_in_its_minute_whatever_is_done_with_missed_ones() -> None:
    for missed in Missed:
        assert schedule.read("* * * * *", "UTC").due(since=NOON, now=NOW, missed=missed) == [NOON]


def test_missed_ticks_are_skipped_or_the_last_or_all_are_made() -> None:
    hourly, since = schedule.read("15 * * * *", "UTC"), NOON - timedelta(hours=2, minutes=45)
    assert hourly.due(since=since, now=NOW, missed=Missed.SKIP) == []
    assert hourly.due(since=since, now=NOW, missed=Missed.LAST) == [NOON - timedelta(minutes=45)]
    assert hourly.due(since=since, now=NOW, missed=Missed.ALL) == [
        since,
        since + timedelta(hours=1),
        since + 2 * timedelta(hours=1),
    ]
    assert hourly.due(since=since, now=since - MINUTE, missed=Missed.ALL) == []


@pytest.mark.timeout(10)
def test_after_a_year_of_missed_minutes_the_last_hundred_are_made_soon() -> None:
    minutely = schedule.read("* * * * *", "Europe/Berlin")
    made = minutely.due(since=NOON - timedelta(days=365), now=NOW, missed=Missed.ALL)
    assert made == [NOON - number * MINUTE for number in reversed(range(limits.MISSED_TICKS_MAX))]
    rare = schedule.read("0 0 29 2 *", "UTC").due(since=NOON - timedelta(days=9_000), now=NOW, missed=Missed.ALL)
    assert [tick.year for tick in rare] == [2004, 2008, 2012, 2016, 2020, 2024]

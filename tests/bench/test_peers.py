"""The figures of peers are what they say: runs are counted exactly, tables compare like with like, and a peer that
fails does not keep the others from being told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers import catalogue, records, scenarios, tables
from bench.peers.catalogue import PEERS, Environment, Peer
from bench.peers.environments import NotInstalled, install, last_words
from bench.peers.orders import Orders
from bench.peers.records import RECORD, Run
from bench.peers.tables import Measured

OURS = Peer(
    family="ours",
    name="ours",
    adapter="ours",
    environment=Environment("ours"),
    package="ours",
    store="PostgreSQL",
    concurrency=1,
    settings="",
    is_ours=True,
)
OTHER = replace(OURS, name="other", is_ours=False)
ON_REDIS = replace(OTHER, name="on redis", store="Redis")


def measured(peer: Peer, **figures: float) -> Measured:
    made = Measured(peer)
    made.add(figures)
    return made


def row(table: str, name: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@given(st.lists(st.integers(-3, 12), max_size=40))
def test_every_task_is_counted_as_run_or_lost_and_every_run_too_many_as_one(numbers: list[int]) -> None:
    runs = [Run(number, 0.0, 1.0) for number in numbers]
    counted = records.count(runs, tasks=10)
    times = Counter(number for number in numbers if 0 <= number < 10)
    assert (counted.ran, counted.lost) == (len(times), 10 - len(times))
    assert counted.again == sum(times.values()) - len(times)


def test_a_record_that_is_not_whole_yet_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(RECORD.pack(7, 1.0, 2.5) + RECORD.pack(8, 2.0, 3.0)[:-1])
    assert records.written(path) == 1
    assert records.read(path) == [Run(7, 1.0, 2.5)]


def test_rates_are_of_what_follows_the_first_moment() -> None:
    assert records.per_second([10.0, 10.5, 11.0]) == 2.0
    figures = scenarios.first_and_last(
        [0.1 * place for place in range(101)] + [10 + place for place in range(1, 100)], 50
    )
    assert figures["held_first"] == pytest.approx(10.0)
    assert figures["held_last"] == pytest.approx(1.0)
    assert figures["held_ratio"] == pytest.approx(0.1)


def test_waits_are_those_until_the_first_run_of_a_task_without_the_first_tenth() -> None:
    sent_at = [float(number) for number in range(100)]
    runs = [Run(-5, 0.0, 0.0)]
    runs += [Run(number, number + (9.0 if number < 10 else 0.002), 0.0) for number in range(100)]
    runs += [Run(50, 70.0, 70.0)]
    figures = scenarios.waits(sent_at, runs)
    assert figures == {"p50_ms": pytest.approx(2.0), "p99_ms": pytest.approx(2.0)}


def test_the_quiet_company_is_done_with_its_last_task_and_the_flood_before_it_is_told() -> None:
    flooding = [Run(number, 0.0, 1.0 + number) for number in range(8)]
    quiet = [Run(8, 0.0, 2.0), Run(9, 0.0, 3.0)]
    figures = scenarios.behind([*flooding, *quiet], range(8, 10), sent_at=0.5)
    assert figures["quiet_seconds"] == 2.5
    assert figures["flood_before"] == 3 / 8
    assert figures["flood_lost"] == figures["flood_again"] == 0
    assert "quiet_seconds" not in scenarios.behind([*flooding, quiet[0], quiet[0]], range(8, 10), sent_at=0.5)


def test_a_crash_is_over_when_the_last_task_was_first_done_and_never_when_one_is_lost() -> None:
    runs = [Run(0, 0.0, 1.0), Run(1, 0.0, 9.0), Run(0, 0.0, 20.0)]
    assert scenarios.recovery(runs, tasks=2, killed_at=2.0) == {
        "crash_lost": 0,
        "crash_again": 1,
        "recovered_seconds": 7.0,
    }
    assert scenarios.recovery(runs, tasks=3, killed_at=2.0) == {"crash_lost": 1, "crash_again": 1}


def test_ours_is_told_as_so_many_times_as_quick_for_rates_and_for_waits_alike() -> None:
    ours = measured(OURS, drained_per_second=9_000, p50_ms=2.0)
    other = measured(OTHER, drained_per_second=3_000, p50_ms=5.0)
    drain, pickup = tables.table("drain", [other, ours]), tables.table("pickup", [other, ours])
    assert row(drain, "other")[2:4] == ["3,000", "3.00 ×"]
    assert row(drain, "ours")[2:4] == ["9,000", "–"]
    assert row(pickup, "other")[2:4] == ["5.00", "2.50 ×"]
    assert drain.index("| ours |") < drain.index("| other |")


def test_medians_are_compared_and_ranges_told() -> None:
    ours, other = measured(OURS, drained_per_second=100), Measured(OTHER)
    for rate in (10, 90, 20):
        other.add({"drained_per_second": rate, "lost": 1, "again": 0})
    assert row(tables.table("drain", [ours, other]), "other")[2:6] == ["20 (10 to 90)", "5.00 ×", "–", "3 / 0"]


def test_nobody_is_compared_with_ours_on_another_store() -> None:
    table = tables.table("drain", [measured(OURS, drained_per_second=9), measured(ON_REDIS, drained_per_second=3)])
    assert row(table, "on redis")[1:4] == ["Redis", "3", "–"]


def test_a_peer_that_failed_says_why_in_its_line_and_the_others_stand() -> None:
    failed = Measured(OTHER, failures={"drain": "not installed: no such | release"})
    table = tables.table("drain", [measured(OURS, drained_per_second=9), failed])
    assert row(table, "other")[2] == "failed: not installed: no such / release"
    assert row(table, "ours")[2] == "9"
    report = tables.report([measured(OURS, drained_per_second=9), failed], ["drain"], rounds=1)
    assert "not installed" in report


def test_a_peer_that_failed_in_a_later_round_keeps_the_figures_of_the_earlier() -> None:
    other = measured(OTHER, drained_per_second=3)
    other.failures["drain"] = "the worker ended with 1"
    cells = row(tables.table("drain", [other]), "other")
    assert cells[2] == "3"
    assert cells[-1].endswith("failed: the worker ended with 1")


def test_only_peers_on_postgresql_have_a_snapshot_held_over_them() -> None:
    assert OTHER.takes_part_in("snapshot")
    assert not ON_REDIS.takes_part_in("snapshot")
    assert not replace(OTHER, scenarios=("drain",)).takes_part_in("crash")


def test_ours_comes_with_whoever_is_chosen_and_a_name_that_nobody_has_is_refused() -> None:
    peers = catalogue.chosen(["graphile"])
    assert {peer.family for peer in peers} == {"ours", "graphile"}
    assert catalogue.chosen(["all"]) == list(PEERS)
    with pytest.raises(ValueError, match="no peer is called sidekiq"):
        catalogue.chosen(["sidekiq"])


def test_every_peer_has_its_file_and_its_version() -> None:
    folder = Path(catalogue.__file__).parent / "adapters"
    node = json.loads((folder / "package.json").read_text())["dependencies"]
    for peer in PEERS:
        assert (folder / (peer.adapter if peer.environment.is_node else f"{peer.adapter}.py")).exists(), peer.name
        pins = [requirement.partition("[")[0].partition("==")[0] for requirement in peer.environment.requirements]
        assert peer.is_ours or peer.package in (node if peer.environment.is_node else pins), peer.name
    requirements = [line for peer in PEERS for line in peer.environment.requirements]
    assert [line for line in requirements if "==" not in line] == []
    assert len({peer.name for peer in PEERS}) == len(PEERS)


def test_what_is_told_of_a_failure_names_no_place_of_this_machine() -> None:
    said = """
        Looking in indexes: https://packages.example/simple
        Traceback (most recent call last):
          File "/home/somebody/peers/worker.py", line 3, in <module>
        RuntimeError: no socket at /run/server/.s.5432
    """
    assert last_words(said) == "RuntimeError: no socket at ..."
    assert last_words("killed") == "killed"
    assert last_words("") == "it said nothing"


def test_an_environment_for_a_python_that_is_nowhere_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.peers.environments.HOME", tmp_path)
    with pytest.raises(NotInstalled, match=r"needs Python 4\.1 or later"):
        install(Environment("late", ("whatever==1",), python=(4, 1)))


def test_an_environment_that_cannot_be_made_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.peers.environments.HOME", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotInstalled, match="taketurns-that-is-not-there"):
        install(Environment("absent", ("taketurns-that-is-not-there==1.0",)))
    assert not (tmp_path / "absent" / "installed.txt").exists()


def test_a_handler_leaves_one_record_of_when_it_ran(tmp_path: Path) -> None:
    path = tmp_path / "records"
    orders = Orders(records=str(path), sleep_seconds=0.01)
    program = "import asyncio; from bench.peers import adapter; adapter.run(3); asyncio.run(adapter.run_async(4))"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **orders.environment()}, check=True)
    runs = records.read(path)
    assert [run.number for run in runs] == [3, 4]
    assert all(run.ended - run.began >= 0.01 for run in runs)

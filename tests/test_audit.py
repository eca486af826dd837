"""The audit of the locks, on a real advisory service on loopback: it fails on what is found, and never pretends."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts import audit

ROOT = Path(__file__).parent.parent
TODAY = date(2030, 1, 31)
LOCK = f"""\
hasty==1.0 \\
    --hash=sha256:{"0" * 64}
sound==2.0 \\
    --hash=sha256:{"1" * 64}
"""
ADVISORY = {
    "id": "PYSEC-2030-1",
    "aliases": ["CVE-2030-1"],
    "summary": "It hurries.",
    "details": "It hurries.",
    "affected": [
        {
            "package": {"name": "hasty", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}
ACCEPTED = """
[[accepted]]
id = "PYSEC-2030-1"
package = "hasty"
until = {until}
reason = "{reason}"
"""


class Service:
    """An advisory service: what it has about each package, and which status it answers with."""

    def __init__(self) -> None:
        self.advisories: dict[str, list[Any]] = {}
        self.status = 200
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/query"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found = service.advisories.get(asked["package"]["name"])
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(service.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    return Handler


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def accepted(tmp_path: Path) -> Path:
    accepted = tmp_path / "advisories.toml"
    accepted.write_text("")
    return accepted


def audited(url: str, accepted: Path) -> int:
    lock = accepted.parent / "lock.txt"
    lock.write_text(LOCK)
    options = ["--vulnerability-service", "osv", "--osv-url", url, "--cache-dir", str(accepted.parent / "cache")]
    return audit.main(options, locks=[lock], accepted=accepted, today=TODAY)


def test_locks_without_advisories_pass(service: Service, accepted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(service.url, accepted) == 0
    assert capsys.readouterr() == ("2 packages were audited.\n", "")


def test_an_advisory_fails_with_its_name_and_what_mends_it_unless_it_is_accepted(
    service: Service, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.advisories["hasty"] = [ADVISORY]
    assert audited(service.url, accepted) == 1
    assert capsys.readouterr().err == "hasty 1.0: PYSEC-2030-1, CVE-2030-1, fixed in 1.1\n"
    accepted.write_text(ACCEPTED.format(until="2030-01-31", reason="we never hurry"))
    assert audited(service.url, accepted) == 0


@pytest.mark.parametrize(
    ("until", "reason", "count"),
    [
        ("2030-01-31", "we never hurry", 0),
        ("2030-04-30", "we never hurry", 0),
        ("2030-01-30", "we never hurry", 1),
        ("2030-06-01", "we never hurry", 1),
        ("2030-04-30", " ", 1),
    ],
)
def test_an_advisory_is_accepted_with_a_reason_and_until_a_day(until: str, reason: str, count: int) -> None:
    known = [audit.Accepted("PYSEC-2030-1", "hasty", date.fromisoformat(until), reason)]
    assert len(list(audit.overdue(known, TODAY))) == count


def test_a_service_that_cannot_be_reached_fails_nothing_and_is_said_to_be(
    service: Service, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.status = 403
    assert audited(service.url, accepted) == audit.UNKNOWN
    assert capsys.readouterr().out == f"{audit.NOT_AUDITED}\n"
    accepted.write_text(ACCEPTED.format(until="2030-01-30", reason="we never hurry"))
    assert audited("http://127.0.0.1:1/v1/query", accepted) == 1
    told = capsys.readouterr()
    assert told.out == f"{audit.NOT_AUDITED}\n"
    assert "PYSEC-2030-1 of hasty is accepted until 2030-01-30: look again" in told.err


def test_a_mirror_that_knows_no_advisories_is_not_taken_for_a_clean_answer() -> None:
    unknown = {"name": "hasty", "skip_reason": "not found"}
    assert audit.reach([unknown, unknown]) == audit.reach([]) == audit.NOT_AUDITED
    known = {"name": "sound", "version": "2.0", "vulns": []}
    told = "1 packages were audited. NOT AUDITED, for the advisory service does not know them: hasty."
    assert audit.reach([known, unknown]) == told


def test_a_lock_that_cannot_be_read_fails(service: Service, accepted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = accepted.parent / "missing.txt"
    assert audit.main([], locks=[missing], accepted=accepted, today=TODAY) == 1
    assert "pip-audit failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("codes", "code", "told"),
    [
        ([0, 0], 0, "All checks passed."),
        ([0, audit.UNKNOWN], 0, "Could not be made, so nothing is known:\n  two"),
        ([1, audit.UNKNOWN], 1, "Failed:\n  one"),
        ([0, 2], 1, "Failed:\n  two"),
    ],
)
def test_a_check_that_could_not_be_made_fails_nothing_and_is_told_at_the_end(
    tmp_path: Path, codes: list[int], code: int, told: str
) -> None:
    """The script itself, with other checks."""
    ours = re.sub(r"(?m)^check .*\n", "", (ROOT / "scripts" / "check").read_text("utf-8"))
    checks = "".join(
        f"{name}() {{ return {one}; }}\ncheck {name}\n" for name, one in zip(("one", "two"), codes, strict=True)
    )
    script = tmp_path / "scripts" / "check"
    script.parent.mkdir()
    script.write_text(ours.replace("\n}\n", f"\n}}\n{checks}", 1))
    made = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
    assert made.returncode == code
    assert told in f"{made.stderr}{made.stdout}"
    assert ("All checks passed." in made.stdout) == (codes == [0, 0])

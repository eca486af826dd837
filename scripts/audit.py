"""Asks a public advisory service about every package of the locks, by pip-audit, and fails on what it finds.

`requirements/advisories.toml` accepts an advisory, with a reason and until a day. Where no service can be asked, or it
does not know a package, that is said, and the exit code is neither that of a failure nor that of a clean audit.
Arguments are handed to pip-audit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parent.parent / "requirements"
ACCEPTED = REQUIREMENTS / "advisories.toml"
LONGEST = timedelta(days=92)
UNKNOWN = 75  # sysexits: try again where there is a network
UNREACHABLE = re.compile(r"ConnectionError|Could not connect|ConnectTimeout|ReadTimeout|Max retries exceeded|HTTPError")
NOT_AUDITED = "NOT AUDITED: no advisory service can be reached from here, so nothing is known of the locks."
OPTIONS = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "--timeout", "20"]


@dataclass(frozen=True)
class Accepted:
    """An advisory that is known."""

    id: str
    package: str
    until: date
    reason: str


def main(options: Sequence[str], *, locks: Sequence[Path], accepted: Path = ACCEPTED, today: date) -> int:
    """Audit the locks and print what was found. The exit code."""
    known = [Accepted(**told) for told in tomllib.loads(accepted.read_text("utf-8")).get("accepted", [])]
    complaints, told = list(overdue(known, today)), NOT_AUDITED
    asked = subprocess.run(_command(options, locks, known), capture_output=True, text=True, check=False)
    if asked.stdout.startswith("{"):
        packages = json.loads(asked.stdout)["dependencies"]
        complaints += _findings(packages)
        told = reach(packages)
    elif not UNREACHABLE.search(asked.stderr):
        complaints.append(f"pip-audit failed:\n{asked.stderr}")
    print(told)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else UNKNOWN if "NOT AUDITED" in told else 0


def reach(packages: Sequence[Any]) -> str:
    """How far the audit reached. A mirror that has packages and no advisories knows none of them."""
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        return NOT_AUDITED
    audited = f"{len(packages) - len(unknown)} packages were audited."
    return (
        f"{audited} NOT AUDITED, for the advisory service does not know them: {', '.join(unknown)}."
        if unknown
        else audited
    )


def _command(options: Sequence[str], locks: Sequence[Path], known: Sequence[Accepted]) -> list[str]:
    files = [option for lock in locks for option in ("--requirement", str(lock))]
    ignored = [option for one in known for option in ("--ignore-vuln", one.id)]
    return [sys.executable, "-m", "pip_audit", *OPTIONS, *files, *ignored, *options]


def overdue(known: Sequence[Accepted], today: date) -> Iterator[str]:
    """Complaints about what is accepted without a reason, too long ahead, or longer than it was to be."""
    for one in known:
        if not one.reason.strip() or not today <= one.until <= today + LONGEST:
            yield f"{one.id} of {one.package} is accepted until {one.until}: look again, and give a reason and a day"


def _findings(packages: Sequence[Any]) -> Iterator[str]:
    for package in packages:
        for found in package.get("vulns", []):
            fixed = ", ".join(found["fix_versions"]) or "no version"
            names = ", ".join([found["id"], *found["aliases"]])
            yield f"{package['name']} {package['version']}: {names}, fixed in {fixed}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], locks=sorted(REQUIREMENTS.glob("*.txt")), today=datetime.now(UTC).date()))

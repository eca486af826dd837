"""Take the pictures of the README: starts the demo, and looks at Live and Overview by Chromium, light and dark.

python scripts/screenshots.py           writes docs/live-light.png and its like

"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from playwright import sync_api

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"live": "live", "overview": ""}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WINDOW: Any = {"width": 1280, "height": 800}
STORY_SECONDS = 100  # Live shows the last minute, and the first figures are told after ten seconds
PATIENCE_SECONDS = 60
SETTINGS = {
    "TAKETURNS_WORKER_NAME": "worker-1",  # no picture tells the host's name
    **dict.fromkeys(["TAKETURNS_PORT", "TAKETURNS_METRICS_PORT", "TAKETURNS_SMTP_PORT"], "0"),
}
MOST_BYTES = 150_000


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("there is no chromium here: apt-get install chromium", file=sys.stderr)
        return 1
    DOCS.mkdir(exist_ok=True)
    with demo() as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        time.sleep(STORY_SECONDS)
        taken = [take(browser, address, page, scheme) for page in PAGES for scheme in SCHEMES]
        browser.close()
    for picture in taken:
        print(f"{picture.relative_to(DOCS.parent)}  {picture.stat().st_size // 1000} kB")
    return 1 if any(picture.stat().st_size > MOST_BYTES for picture in taken) else 0


def take(browser: Any, address: str, name: str, scheme: Literal["light", "dark"]) -> Path:
    """A picture of a page as it has come to rest."""
    picture = DOCS / f"{name}-{scheme}.png"
    context = browser.new_context(viewport=WINDOW, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{address}/dashboard/{PAGES[name]}")
    page.locator("canvas").first.wait_for()
    if name == "live":
        page.locator("[data-live-legend] li").nth(2).wait_for()
    page.wait_for_timeout(1_500)
    page.screenshot(path=picture)
    context.close()
    return picture


@contextmanager
def demo() -> Iterator[str]:
    """Where the demo answers, on data that is gone afterwards."""
    with tempfile.TemporaryDirectory() as directory, (Path(directory) / "said").open("w+") as said:
        Path(directory).chmod(0o755)  # its PostgreSQL does not run as root
        process = subprocess.Popen(
            [sys.executable, "-m", "taketurns.cli", "demo", "--home", str(Path(directory) / "home")],
            env={name: value for name, value in os.environ.items() if not name.startswith("TAKETURNS_")} | SETTINGS,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            yield _address(process, Path(said.name))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_SECONDS)


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if "Ctrl-C finishes" in (told := said.read_text()):
            return str(re.findall(r"Taketurns answers at (http://\S+),", told)[0])
        time.sleep(0.1)
    raise SystemExit(f"the demo did not start:\n{said.read_text()}")


if __name__ == "__main__":
    sys.exit(main())

"""Take the pictures of pages that the docs show: `make screenshots`, into docs/images.

PAGES lists the pages: a name, and the commands that write `page.html` in a folder with a copy of demo/. Each page is
photographed at 1280 and 390 pixels, light and dark. Needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PAGES: dict[str, Sequence[str]] = {
    "report": (
        "metrist score demo/sample.jsonl -m rougeL,chrf,ter -o run",
        "metrist report run -o page.html",
    ),
}
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


def photograph(page: Path, name: str, folder: Path) -> None:
    """Write the pictures NAME-WIDTH-SCHEME.png of a page."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for width in WIDTHS:
            for scheme in SCHEMES:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                sheet = context.new_page()
                sheet.goto(page.resolve().as_uri())
                sheet.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
                context.close()
        browser.close()


def main() -> None:
    """Write the pictures of all pages."""
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    scripts = Path(sys.executable).parent
    for name, commands in PAGES.items():
        with TemporaryDirectory() as temporary:
            shutil.copytree(ROOT / "demo", Path(temporary) / "demo")
            for command in commands:
                subprocess.run([scripts / "metrist", *command.split()[1:]], cwd=temporary, check=True)
            photograph(Path(temporary) / "page.html", name, folder)


if __name__ == "__main__":
    main()

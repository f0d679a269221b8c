"""Take the pictures that the docs show: `make screenshots`, into docs/images.

The pages show the samples of demo/. Each of PICTURES is a page that a command writes, or that a server shows, in a
folder with a copy of demo/. Pictures are WebP, so that all of them together stay small. Needs Chromium, playwright and
the extras `standard` and `web`. `--all FOLDER` writes every page at 1280 and 390 pixels, light and dark, to look
through.
"""

from __future__ import annotations

import argparse
import base64
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
#: Items of demo/ in scripts that not every machine has a font for.
LEFT_OUT = "tra-"
#: What makes the run that most pictures show.
COMMANDS = (
    "metrist score versions.csv --output *_output -m rougeL,chrf,errors -o run/",
    "metrist report run/ -o report.html --title 'Two versions of a summariser'",
)
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")


@dataclass(frozen=True)
class Picture:
    """A page at a size: `page` is a file, or the path below the address that the command `serve` prints. Before the
    picture is taken, `click` is clicked, `ready` waited for, and `scroll_to` brought to the top."""

    name: str
    page: str
    serve: str = ""
    width: int = 1280
    height: int = 800
    scheme: str = "light"
    click: str = ""
    ready: str = "body"
    scroll_to: str = ""


PICTURES = (
    Picture("report", "report.html"),
    Picture("report-outputs", "report.html", scroll_to="#worst"),
    Picture("viewer", "?sort=errors", serve="metrist view run/ --port 0", click="td.item a", ready="#detail .errors"),
)


@contextmanager
def start_server(command: str, folder: Path) -> Iterator[str]:
    """The first address that a server prints."""
    with subprocess.Popen(_find_program(command), cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            addresses = (re.search(r"http://\S+", line) for line in process.stdout)
            yield next(match[0] for match in addresses if match)
        finally:
            process.terminate()


def _find_program(command: str) -> list[str]:
    name, *arguments = shlex.split(command)
    return [str(Path(sys.executable).parent / name), *arguments]


def photograph(browser: Any, picture: Picture, address: str, path: Path) -> None:
    """Write one picture."""
    size = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=size, color_scheme=picture.scheme)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    if picture.click:
        page.locator(picture.click).first.click()
    page.locator(picture.ready).first.wait_for()
    if picture.scroll_to:
        page.eval_on_selector(picture.scroll_to, "element => element.scrollIntoView()")
    page.wait_for_timeout(500)
    shot = context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 70})
    path.write_bytes(base64.b64decode(shot["data"]))
    context.close()


def main() -> None:
    """Write the pictures of the docs, or with --all every page at all sizes."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    folder: Path = parser.parse_args().all or IMAGES
    every_size = folder != IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with TemporaryDirectory() as temporary, sync_playwright() as driver:
        place = Path(temporary)
        shutil.copytree(ROOT / "demo", place / "demo")
        lines = (place / "demo" / "versions.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        shown = "".join(line for line in lines if not line.startswith(LEFT_OUT))
        (place / "versions.csv").write_text(shown, encoding="utf-8")
        for command in COMMANDS:
            subprocess.run(_find_program(command), cwd=place, check=True)
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for picture in PICTURES:
            sizes = [(picture.width, picture.scheme)]
            sizes = [(width, scheme) for width in WIDTHS for scheme in SCHEMES] if every_size else sizes
            for width, scheme in sizes:
                own = replace(picture, width=width, scheme=scheme)
                path = folder / (f"{picture.name}-{width}-{scheme}.webp" if every_size else f"{picture.name}.webp")
                if picture.serve:
                    with start_server(picture.serve, place) as address:
                        photograph(browser, own, address + picture.page, path)
                else:
                    photograph(browser, own, (place / picture.page).as_uri(), path)
        browser.close()


if __name__ == "__main__":
    main()

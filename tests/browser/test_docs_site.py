"""The documentation site in a browser: pages load nothing from elsewhere, links lead somewhere, and search works from a
folder. The site is built once; METRIST_TEST_MKDOCS names the program, by default that of `make docs-site`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index.html", "quickstart.html", "guides/report.html", "reference/metrics/lexical.html")
_ADDRESS = re.compile(r"""(?:href|src)=(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s>"']+))""")
_IDENTIFIER = re.compile(r"""\sid=["']?([^\s"'>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site that was built with all warnings as errors."""
    own = os.environ.get("METRIST_TEST_MKDOCS") or shutil.which("mkdocs") or str(ROOT / ".venv-docs" / "bin" / "mkdocs")
    if not Path(own).is_file():
        pytest.skip("MkDocs is not installed (make docs-site)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [own, "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_links_of_all_pages_lead_to_files_and_headings(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 40
    identifiers = {page: set(_IDENTIFIER.findall(text)) for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for match in _ADDRESS.finditer(text):
            address = urlsplit(next(filter(None, match.groups()), ""))
            if address.scheme or address.netloc:
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            target = target / "index.html" if target.is_dir() else target
            missing = (
                target in identifiers and address.fragment and unquote(address.fragment) not in identifiers[target]
            )
            if not target.exists() or (missing and not address.fragment.startswith("__")):
                broken.append(f"{page.relative_to(site)}: {address.geturl()}")
    assert broken == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_requests_nothing_from_elsewhere(site: Path, name: str, open_page: Callable[..., Any]) -> None:
    page, watch = open_page()
    page.goto((site / name).as_uri())
    page.wait_for_load_state("networkidle")
    assert [address for address in watch.requests if urlsplit(address).scheme not in ("file", "data", "blob")] == []
    assert watch.errors == []
    broken = page.evaluate("() => [...document.images].filter((i) => !i.naturalWidth).map((i) => i.src)")
    assert broken == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_search_finds_a_page_from_a_folder(site: Path, open_page: Callable[..., Any]) -> None:
    page, watch = open_page()
    page.goto((site / "index.html").as_uri())
    page.locator("input[name=query]").click()
    page.keyboard.type("Is one system better than another")
    result = page.locator(".md-search-result__link").first
    result.wait_for()
    assert "Is one system better than another?" in result.inner_text()
    result.click()
    page.wait_for_url("**/guides/compare.html*")
    assert all(urlsplit(address).scheme in ("file", "data", "blob") for address in watch.requests)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_fault(
    site: Path, scheme: str, open_page: Callable[..., Any], axe: Callable[[Any], list[str]]
) -> None:
    page, _ = open_page(color_scheme=scheme)
    faults = {}
    for name in PAGES:
        page.goto((site / name).as_uri())
        faults[name] = axe(page)
    assert not any(faults.values()), faults

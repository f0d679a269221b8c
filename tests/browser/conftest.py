"""Fixtures of browser tests: Chromium, and pages that note each request, error and message."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A started Chromium, for all tests of a session."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make test-browser)")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@dataclass
class Watch:
    """What a page did: the addresses that it requested, and its errors and messages on the console."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., tuple[Any, Watch]]]:
    """`page, watch = open_page(width=390, color_scheme="dark")`: a new page in a context of its own (no cookies)."""
    contexts = []

    def open_one(*, width: int = 1280, height: int = 800, **settings: Any) -> tuple[Any, Watch]:
        context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page, watch = context.new_page(), Watch()
        page.on("request", lambda request: watch.requests.append(request.url))
        page.on("pageerror", lambda error: watch.errors.append(str(error)))
        page.on("console", lambda message: watch.errors.append(message.text) if message.type == "error" else None)
        return page, watch

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def axe() -> Callable[[Any], list[str]]:
    """`axe(page)`: the serious faults that axe-core finds. METRIST_TEST_AXE names its file, axe.min.js."""
    path = os.environ.get("METRIST_TEST_AXE")
    if not path or not Path(path).is_file():
        pytest.skip("axe-core is not here (METRIST_TEST_AXE names its axe.min.js)")
    source = Path(path).read_text(encoding="utf-8")

    def check(page: Any) -> list[str]:
        page.evaluate(source)
        found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{fault['id']}: {node['html'][:200]}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]

    return check

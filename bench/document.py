"""The page that benchmarks write into, and what they say of the machine."""

from __future__ import annotations

import platform
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def machine() -> str:
    """Processor, system, Python and kernels, in words."""
    from metrist.kernels import have_compiled

    kernels = "compiled kernels" if have_compiled else "plain Python kernels"
    return f"{_processor()}, {platform.system()}, Python {platform.python_version()}, {kernels}"


def put(name: str, report: str) -> None:
    """Lay the report between the markers of its name, where the page must have them."""
    opened, closed = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = DOCUMENT.read_text(encoding="utf-8")
    before, found, rest = text.partition(opened)
    _, ended, after = rest.partition(closed)
    if not (found and ended):
        raise SystemExit(f"{DOCUMENT}: wanted the markers {opened} and {closed}")
    DOCUMENT.write_text(f"{before}{opened}\n{report}\n{closed}{after}", encoding="utf-8")


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()

"""The page that benchmarks write to, and the description of the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks.md"


def machine() -> str:
    """Describe processor, system, Python and kernels."""
    from metrist.kernels import have_compiled

    kernels = "compiled kernels" if have_compiled else "plain Python kernels"
    return f"{_processor()}, {platform.system()}, Python {platform.python_version()}, {kernels}"


def run_in_child(module: str, *arguments: str, **environment: str) -> Any:
    """Run a benchmark's module in a process of its own, and return the JSON of its last line."""
    command = [sys.executable, "-m", module, *arguments]
    output = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(output.stdout.splitlines()[-1])


def show_section(name: str, report: str) -> None:
    """Print a report; with `--write` on the command line, put it into the page of benchmarks."""
    print(report)
    if "--write" in sys.argv[1:]:
        write_section(name, report)


def write_section(name: str, report: str, page: Path = DOCUMENT) -> None:
    """Replace the text between the markers `<!-- name -->` and `<!-- /name -->` of a page."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = page.read_text(encoding="utf-8")
    if start not in text or end not in text.partition(start)[2]:
        raise SystemExit(f"{page}: expected the markers {start} and {end}")
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{start}\n{report}\n{end}{after}", encoding="utf-8")


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

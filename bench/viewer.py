"""Times of `metrist view` on a run of 100,000 real outputs and on one of a million made-up ones, over HTTP and in
Chromium, and of opening a report: `python -m bench.viewer [--run FOLDER] [--large FOLDER] [--write]`

Without --run and --large, outputs are scored first, which takes minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from bench.document import machine, show_section
from bench.scale_texts import write_records
from bench.texts import rows

OUTPUTS, MANY_OUTPUTS = 100_000, 1_000_000
ROUNDS = 9
SETS = (
    *("summeval", "wmt23.en-de", "wmt22.zh-en", "wmt22.en-ru", "wmt22.en-de"),
    *("wmt-qe23-mqm.zh-en", "wmt-qe23-mqm.en-de"),
)
METRICS = ("rougeL", "chrf", "bleu", "ter")
REPORT_METRICS = (
    *("rouge1", "rouge2", "rougeL", "bleu", "chrf", "ter", "meteor"),
    *("length", "copy_rate", "distinct"),
)
#: Milliseconds that opening, the first view, a filter and opening a report may take.
OPENING, FIRST_VIEW, FILTER, REPORT = 2000, 1000, 300, 2000
FILTERS: dict[str, dict[str, str]] = {
    "first page": {},
    "last page": {"page": "2000"},
    "search for “the” in outputs": {"q": "the"},
    "search for a rare word in outputs": {"q": "wiederaufnahme"},
    "search in sources and references": {"q": "president", "in": "context"},
    "search in reasons and errors": {"q": "mistranslation", "in": "reason"},
    "range of one metric, sorted by another": {"min.rougeL": "0.2", "max.rougeL": "0.4", "sort": "chrf"},
    "outputs with major errors, longest first": {"errors": "major", "sort": "characters", "descending": "1"},
    "disagreement of four metrics": {"sort": "disagreement", "descending": "1"},
    "compared with a system, largest loss first": {"vs": "system:refA", "sort": "chrf change"},
}

LARGE_FILTERS: dict[str, dict[str, str]] = {
    "first page": {},
    "last page": {"page": "20000"},
    "one system": {"system": "system-3"},
    "search for a rare word in outputs": {"q": "xxmrl"},
    "search in sources and references": {"q": "xxmrl", "in": "context"},
    "sorted by a metric": {"sort": "chrf"},
    "range of one metric, sorted by another": {"min.rougeL": "0.2", "max.rougeL": "0.4", "sort": "chrf"},
    "disagreement of four metrics": {"sort": "disagreement", "descending": "1"},
    "compared with a system, largest loss first": {"vs": "system:system-0", "sort": "chrf change"},
}


def main() -> None:
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Path(arguments[arguments.index("--run") + 1]) if "--run" in arguments else make_run(folder)
        large = Path(arguments[arguments.index("--large") + 1]) if "--large" in arguments else make_large_run(folder)
        text = measure(run, large, folder / "cache", make_report(folder))
    show_section("bench-viewer", text)


def make_large_run(folder: Path) -> Path:
    """Score made-up outputs of ten systems."""
    write_records(folder / "many.jsonl", MANY_OUTPUTS)
    score(folder / "many.jsonl", METRICS, folder / "many")
    return folder / "many"


def make_run(folder: Path) -> Path:
    """Score real outputs; the items of each data set begin with its name."""
    with open(folder / "outputs.jsonl", "w", encoding="utf-8") as file:
        count = 0
        for name in SETS:
            for row in rows(name):
                if count < OUTPUTS:
                    file.write(json.dumps({**row, "item": f"{name}/{row['item']}"}) + "\n")
                    count += 1
    score(folder / "outputs.jsonl", METRICS, folder / "run")
    return folder / "run"


def make_report(folder: Path) -> Path:
    """The report of SummEval's 1,600 outputs."""
    data, page = folder / "summeval.jsonl", folder / "report.html"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows("summeval")), encoding="utf-8")
    score(data, REPORT_METRICS, folder / "summeval")
    run_metrist("report", f"{folder}/summeval/", "-o", str(page))
    return page


def score(data: Path, metrics: Sequence[str], run: Path) -> None:
    """Score a file into a run folder."""
    run_metrist("score", str(data), *(word for metric in metrics for word in ("-m", metric)), "-o", f"{run}/")


def run_metrist(*arguments: str) -> None:
    """Run a command to its end."""
    subprocess.run([sys.executable, "-m", "metrist", *arguments], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def start_viewer(run: Path, cache: Path) -> Iterator[tuple[str, int, float, float]]:
    """The address of a viewer, its process, and the seconds until it has answered the first page: of the wall clock and
    of CPU time."""
    command = [sys.executable, "-m", "metrist", "view", str(run), "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        for path in ("", "api/runs", "api/outputs"):
            with urlopen(f"{address}{path}") as answer:
                answer.read()
        try:
            yield address, process.pid, time.perf_counter() - start, read_cpu_seconds(process.pid)
        finally:
            process.terminate()


def read_cpu_seconds(process: int) -> float:
    """User and system time of a process (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(run: Path, large: Path, cache: Path, report: Path) -> str:
    """Measure, and return the tables with a description of the setup."""
    lines = [
        f"Measured by `make bench-viewer` on {machine()}, {os.cpu_count()} cores: a run of {OUTPUTS:,} real outputs "
        f"with {len(METRICS)} metrics, and people's ratings and errors, and one of {MANY_OUTPUTS:,} made-up outputs "
        f"with ratings; {ROUNDS} requests each over HTTP on the same machine. CPU time is that of the server, per "
        f"request; on cores with other work the wall clock is that much longer. The limits are {OPENING} ms for "
        f"opening a run, {FILTER} ms for a filter, {FIRST_VIEW} ms for the first view and {REPORT} ms for a report.",
    ]
    for folder, count, filters in ((run, OUTPUTS, FILTERS), (large, MANY_OUTPUTS, LARGE_FILTERS)):
        starts = []
        for _ in range(3):
            with start_viewer(folder, cache) as (*_, wall, cpu):
                starts.append((wall, cpu))
        with start_viewer(folder, cache) as (address, process, wall, cpu):
            starts.append((wall, cpu))
            _wait_until_idle(process)  # Searches are prepared in the background.
            rows = [_measure_filter(n, f"{address}api/outputs?{urlencode(q)}", process) for n, q in filters.items()]
            pages = measure_pages(address, process, report) if folder == run else []
        start_wall, start_cpu = (statistics.median(column) for column in zip(*starts, strict=True))
        lines += [
            "",
            f"{count:,} outputs: `metrist view` has answered the first page after {start_wall:.1f} s "
            f"({start_cpu:.1f} s of CPU time; median of {len(starts)}; load average {os.getloadavg()[0]:.1f}).",
            "",
            "| request | outputs | CPU, ms | wall clock, median, ms | slowest, ms |",
            "|---|--:|--:|--:|--:|",
            *rows,
            *pages,
        ]
    return "\n".join(lines)


def _wait_until_idle(process: int) -> None:
    before = -1.0
    while (now := read_cpu_seconds(process)) > before:
        before = now
        time.sleep(3)


def _measure_filter(name: str, url: str, process: int) -> str:
    with urlopen(url) as answer:
        total = json.load(answer)["total"]
    before = read_cpu_seconds(process)
    times = [_time_request(url) for _ in range(ROUNDS)]
    cpu = 1000 * (read_cpu_seconds(process) - before) / ROUNDS
    if statistics.median(times) > FILTER:
        print(f"{name}: {statistics.median(times):.0f} ms, above the limit of {FILTER} ms", file=sys.stderr)
    return f"| {name} | {total:,} | {cpu:.0f} | {statistics.median(times):.0f} | {max(times):.0f} |"


def _time_request(url: str) -> float:
    start = time.perf_counter()
    with urlopen(url) as answer:
        answer.read()
    return 1000 * (time.perf_counter() - start)


def measure_pages(address: str, process: int, report: Path) -> list[str]:
    """Times in Chromium, from the request of the page or the key press until the new rows are there."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        before = read_cpu_seconds(process)
        views = [_time_view(browser, address, "#outputs tbody tr") for _ in range(5)]
        view_cpu = 1000 * (read_cpu_seconds(process) - before) / len(views)
        page = browser.new_page()
        page.goto(address)
        _wait_for(page, f"{OUTPUTS:,} outputs")
        words = [("the", "of"), ("president", "of"), ("wiederaufnahme", "of"), ("", "outputs")] * 2
        before = read_cpu_seconds(process)
        filters = [_time_search(page, word, expected) for word, expected in words]
        filter_cpu = 1000 * (read_cpu_seconds(process) - before) / len(filters)
        reports = [_time_view(browser, report.as_uri(), "#explorer .output") for _ in range(5)]
        browser.close()
    names = (
        "Chromium: first view, in a new window",
        "Chromium: a word typed, with a pause of 150 ms, until its rows are shown",
    )
    lines = [
        f"| {name} | | {cpu:.0f} | {statistics.median(times):.0f} | {max(times):.0f} |"
        for name, cpu, times in zip(names, (view_cpu, filter_cpu), (views, filters), strict=True)
    ]
    size = f"{report.stat().st_size / 1e6:.1f} MB"
    name = f"Chromium: a report of {len(REPORT_METRICS)} metrics ({size}) opened, until its last list is shown"
    return [*lines, f"| {name} | 1,600 | | {statistics.median(reports):.0f} | {max(reports):.0f} |"]


def _time_view(browser: Any, address: str, last: str) -> float:
    """Milliseconds from a request until the element `last` is there."""
    context = browser.new_context()
    page = context.new_page()
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector(last, state="attached")
    milliseconds = 1000 * (time.perf_counter() - start)
    context.close()
    return milliseconds


def _time_search(page: Any, words: str, expected: str) -> float:
    before = page.inner_text("#status")
    start = time.perf_counter()
    page.fill("#text", words)
    while (now := page.inner_text("#status")) == before or expected not in now:
        page.wait_for_timeout(5)
    return 1000 * (time.perf_counter() - start)


def _wait_for(page: Any, words: str) -> None:
    while words not in page.inner_text("#status"):
        page.wait_for_timeout(5)


if __name__ == "__main__":
    main()

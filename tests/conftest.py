"""Shared fixtures: the folder of real human judgments (optional), tiny models, users' own metrics."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

# Tests run in parallel, one per core: more threads would compete. Set before importing numpy or torch, and for the
# processes that tests start; it also makes sums of floats the same in all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Some containers forbid Python to keep compiled modules. Tests start hundreds of processes: each would compile metrist.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck, settings

import tiers
import torture_table

# The same for pytest, whose workers would each compile all tests.
sys.dont_write_bytecode = False

ROOT = Path(__file__).resolve().parent.parent
BEGAN = time.time()
DATA = Path(os.environ.get("METRIST_TEST_DATA") or ROOT / ".." / "shared" / "data")

# No deadline: shared machines are slow at times. CI checks the same cases every time; `make fuzz` looks for new ones.
settings.register_profile("fuzz", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=500)
settings.register_profile("metrist", settings.get_profile("fuzz"), max_examples=50, derandomize=True)
settings.load_profile("metrist")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture-page", metavar="FILE", help="write the table of torture tests into this page")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files whose tests are all left out: many import torch."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(config.rootpath):
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    return tiers.is_left_out(file, config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker of pytest-xdist begin with other files: the first to import one compiles it for the others."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and collector.path == ROOT / "tests":
        start = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = report.result[start:] + report.result[:start]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in all workers: files with slow tests first, so that no worker ends with one alone. Those that
    import torch come later, since a process takes longer to fork afterwards."""
    marked = {marker: {item.path for item in items if item.get_closest_marker(marker)} for marker in tiers.PATTERNS}
    counts = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int, Path]:
        is_quick = item.path not in marked["slow"] | marked["models"]
        return (is_quick, item.path in marked["models"], -counts[item.path], item.path)

    items.sort(key=place)


def pytest_itemcollected(item: pytest.Item) -> None:
    for marker in tiers.find_markers(item.nodeid, getattr(item, "fixturenames", ())):
        item.add_marker(marker)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table of torture tests, if any ran."""
    rows = torture_table.collect_rows(report for reports in terminalreporter.stats.values() for report in reports)
    if not rows:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(torture_table.format_table(rows))
    if page := config.getoption("--torture-page"):
        from bench.document import machine, write_section

        report = f"Measured by `make torture` in {(time.time() - BEGAN) / 60:.0f} minutes on {machine()}.\n\n"
        write_section("torture", report + torture_table.format_table(rows, complete=True), Path(page))


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the modules and tests loaded so far, which live as long as the process: with them
    a full collection takes most of a second, and metrist asks for one whenever memory runs out."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def torture_row(request: pytest.FixtureRequest) -> Iterator[Callable[[str], torture_table.TortureRow]]:
    """`torture_row("kill -9: train")`: the row of a fault, in which a test counts what it tried and what was lost."""
    rows: list[torture_table.TortureRow] = []

    def make(fault: str) -> torture_table.TortureRow:
        assert fault in torture_table.FAULTS, fault
        rows.append(torture_table.TortureRow(fault))
        return rows[-1]

    yield make
    request.node.user_properties += map(torture_table.describe, rows)
    for row in rows:
        if row.tried:
            row.check()


@pytest.fixture(scope="session", autouse=True)
def _default_signals() -> Iterator[None]:
    """SIGINT as in a foreground process, for the tests and the processes that they start. A job in the background
    (`make test &`, `nohup make test`) inherits SIGINT ignored, and some supervisors leave signals blocked."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ()) if hasattr(signal, "pthread_sigmask") else ()
    yield
    if blocked:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(autouse=True)
def _installed_from_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints about missing packages name the checkout that metrist runs from; in tests they name the index, wherever
    the tests run."""
    monkeypatch.setattr("metrist.errors.find_origin", lambda: None)
    monkeypatch.setattr("metrist.errors.find_pip", lambda: "pip")


@pytest.fixture(autouse=True)
def _answers_apart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own cache of LLMs' answers, which is created when it is used."""
    folder = tmp_path_factory.getbasetemp() / f"llm-{uuid.uuid4().hex}"
    monkeypatch.setenv("METRIST_LLM_CACHE", str(folder))
    # A Runtime that a test builds itself does not read that variable. In the user's folder, an answer of another run
    # would come back as soon as a test's server has the same port again.
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "user"))


@pytest.fixture
def popen() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """`subprocess.Popen` for processes that end with the test, even if it fails. A process left behind is reported by a
    ResourceWarning when it is collected, which fails whichever test runs then."""
    started: list[subprocess.Popen[Any]] = []

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen[Any]:
        started.append(subprocess.Popen(*args, **kwargs))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


@pytest.fixture
def onednn_kept() -> Iterator[None]:
    """For tests that compute in bfloat16 on the CPU. Where the processor has no instructions for it, torch turns oneDNN
    off for the rest of the process, and float32 results of later tests are rounded differently."""
    import torch

    enabled = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = enabled


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """`data("summeval")`: the path of a data set; skips the test if it is missing."""

    def path(name: str) -> Path:
        file = DATA / f"{name}.jsonl.xz"
        if not file.exists():
            pytest.skip(f"{file.name} is not in {DATA} (METRIST_TEST_DATA names the folder)")
        return file

    return path


OWN_METRICS_PREAMBLE = """
import os, signal, time
from dataclasses import dataclass
import numpy as np
from metrist import Metric, Score, Scores
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """`module(source)`: an imported module with that source, which workers can import too."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def import_source(source: str) -> ModuleType:
        (tmp_path / "own_metrics.py").write_text(OWN_METRICS_PREAMBLE + source)
        importlib.invalidate_caches()
        return importlib.import_module("own_metrics")

    yield import_source
    sys.modules.pop("own_metrics", None)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny("bart")`: the folder of a small random model of that kind (see tiny_models.py)."""
    folders: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in folders:
            import tiny_models

            folders[kind] = tiny_models.save(kind, tmp_path_factory.mktemp(kind))
        return folders[kind]

    return folder

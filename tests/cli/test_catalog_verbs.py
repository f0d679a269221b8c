"""`metrist list`, `metrist explain-metric` and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from metrist import __version__
from metrist.metrics import registry


def test_another_packages_broken_metric_is_listed_with_the_reason(metrist, monkeypatch) -> None:
    point = EntryPoint(name="broken", value="no_such_module:Metric", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [point])
    rows = json.loads(metrist("list", "--format", "json").out)["rows"]
    assert rows[-1]["metric"] == "broken"
    assert "no_such_module" in rows[-1]["install"]


def test_every_metric_can_be_explained(metrist) -> None:
    for name in registry.names():
        answer = metrist("explain-metric", name)
        assert answer.code == 0
        assert "What it measures" in answer.out
        assert "When not to trust it" in answer.out
        # Weights that are not on this machine cannot be named by their hash, and are not fetched for a description.
        text = " ".join(answer.out.split())
        assert f"metrist {__version__}" in text or "Signature not known here: " in text


def test_the_version_is_printed(metrist) -> None:
    assert metrist("--version").out == f"metrist {__version__}\n"


@pytest.mark.parametrize("start", ["import metrist", "from metrist.cli.app import main; main()"])
def test_neither_import_nor_help_loads_heavy_modules(start: str) -> None:
    heavy = "{'numpy', 'scipy', 'pandas', 'torch', 'pyarrow', 'polars', 'rich', 'sacrebleu', 'zstandard'}"
    code = f"import atexit, sys; atexit.register(lambda: print({heavy} & set(sys.modules))); {start}"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_metric_without_local_weights_can_be_explained(metrist, module: Callable[[str], ModuleType]) -> None:
    module("""
from metrist.errors import ModelError
@dataclass(frozen=True)
class Heavy(Metric):
    '''Holds a model.'''
    def facts(self):
        raise ModelError("no model of that name: see https://example.org")
""")
    answer = metrist("explain-metric", "own_metrics.Heavy")
    assert answer.code == 0
    assert "Holds a model." in answer.out
    assert "Signature\n  not known here: no model of that name: see https://example.org" in answer.out


@pytest.mark.parametrize(
    ("verb", "default"),
    [
        (["compare"], "[default: (all)]"),
        (["convert"], "[default: (detected)]"),
        (["reproduce"], "[default: (standard output)]"),
        (["train", "export"], "[default: (a whole row)"),
    ],
)
def test_help_shows_described_defaults(metrist, verb: list[str], default: str) -> None:
    """Brackets within a help text were taken for markup once, and vanished."""
    code, out, _ = metrist(*verb, "--help")
    assert code == 0
    assert default in " ".join(out.split())


def test_too_little_memory_is_one_line(metrist, outputs, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("metrist.run.score", fail)
    answer = metrist("score", outputs, "-m", "length")
    assert answer.code == 2
    assert "not enough memory" in answer.err

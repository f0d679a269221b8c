"""Metrics of other programs, called for real: each test's program runs as a subprocess in an environment of its own.

The packages in that environment are stand-ins with the functions that the real ones have (unbabel-comet 2.2.7,
google-research/bleurt, maszhongming/UniEval as of 2024); what they should answer is plain arithmetic.
"""

from __future__ import annotations

import ast
import os
import pickle
import sys
import venv
from pathlib import Path

import pytest

import metrist
from error_codes import raises_code
from metrist.errors import ModelError
from metrist.metrics.base import Shard
from metrist.metrics.external import packages
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.scores import Scores

ADAPTERS = Path(packages.__file__).parent / "adapters"

TORCH = """
class cuda:
    @staticmethod
    def is_available():
        return False
"""

# A score is the output's length in tenths, less the distance to the reference's; every 'xx' is an error.
COMET = """
import sys

print("noise that is no answer")
class Model:
    def __init__(self, path):
        self.path = path
    def requires_references(self):
        return "qe" not in self.path
    def predict(self, samples, batch_size=16, gpus=1, progress_bar=True):
        assert gpus == 0 and not progress_bar and batch_size == 3
        scores = [len(s["mt"]) / 10 - abs(len(s.get("ref", s["mt"])) - len(s["mt"])) / 100 for s in samples]
        found = {"scores": scores, "system_score": 0.0}
        if "xcomet" in self.path:
            spans = [[{"text": "xx", "confidence": 0.5, "severity": "major", "start": s["mt"].index("xx"),
                       "end": s["mt"].index("xx") + 2}] if "xx" in s["mt"] else [] for s in samples]
            found["metadata"] = {"mqm_scores": [1.0 - 0.2 * len(s) for s in spans], "error_spans": spans}
        return found

def download_model(name):
    if "nowhere" in name:
        raise KeyError("Model 'nowhere' not supported by COMET.")
    return "/downloaded/" + name

def load_from_checkpoint(path):
    return Model(path)
"""

BLEURT = """
class BleurtScorer:
    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
    def score(self, references, candidates, batch_size=None):
        return [len(r) - len(c) for r, c in zip(references, candidates)]
"""

UNIEVAL = """
class Evaluator:
    dimensions = ["coherence", "consistency", "fluency", "relevance"]
    def __init__(self, task):
        self.task = task
    def evaluate(self, data, dims=None, overall=True, print_result=False):
        assert overall is False and all(one["system_output"].strip() for one in data)
        print("Evaluating!!!")
        return [{dim: len(dim) + len(one["source"]) / 10 + len(one["context"]) / 100 for dim in dims} for one in data]

class Fact:
    def evaluate(self, data, print_result=False):
        return [{"consistency": 0.5} for one in data]

def get_evaluator(task, max_length=1024, device="cuda:0", cache_dir=None):
    assert device == "cpu"
    return Fact() if task == "fact" else Evaluator(task)
"""


class Environment:
    """A virtual environment without anything but what a test puts in."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = str(folder / "bin" / "python")
        (self.site,) = folder.glob("lib/python*/site-packages")

    def add(self, module: str, source: str, version: tuple[str, str] | None = None) -> None:
        path = self.site / module
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
        if version:
            about = self.site / f"{version[0].replace('-', '_')}-{version[1]}.dist-info"
            about.mkdir(exist_ok=True)
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {version[0]}\nVersion: {version[1]}\n")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One with stand-ins of all three packages."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.add("torch.py", TORCH)
    environment.add("comet/__init__.py", COMET, ("unbabel-comet", "2.2.7"))
    environment.add("bleurt/__init__.py", "")
    environment.add("bleurt/score.py", BLEURT, ("BLEURT", "0.0.2"))
    environment.add("unieval/metric/evaluator.py", UNIEVAL)
    environment.add("unieval/metric/scorer.py", "")
    environment.add("unieval/utils.py", "")
    return environment


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables of the machine, and no cached versions."""
    for name in [name for name in os.environ if name.startswith("METRIST_")]:
        monkeypatch.delenv(name)
    packages.query_versions.cache_clear()


@pytest.fixture
def named(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """The environment, named as users name it."""
    for tool in ("COMET", "BLEURT", "UNIEVAL"):
        monkeypatch.setenv(f"METRIST_{tool}_PYTHON", environment.python)
    monkeypatch.setenv("METRIST_UNIEVAL_FOLDER", str(environment.site / "unieval"))
    return environment


def records(*outputs: str, references: tuple[str, ...] = ("12345",), **more: str) -> list[Record]:
    return [
        Record(item=str(i), system="s", output=output, source="abcde", references=references, extra=more)
        for i, output in enumerate(outputs)
    ]


def scored(spec: str, rows: list[Record]) -> Scores:
    return build(spec).score(Shard(rows))


# ---- COMET ----


@pytest.mark.usefixtures("named")
def test_comet_scores_in_order_and_the_signature_names_adapter_and_package() -> None:
    metric = build("comet(batch_size=3)")
    assert metric.score(Shard(records("123", "12345", ""))).values.tolist() == pytest.approx([0.28, 0.5, -0.05])
    spec, *facts = metric.signature.split(" | ")
    assert spec == "comet(reduce='mean', model='Unbabel/wmt22-comet-da', needs=['source', 'references'])"
    assert facts[-1] == "unbabel-comet 2.2.7"
    assert facts[-2].startswith("adapter ")


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(("reduce", "expected"), [("mean", 0.485), ("max", 0.5)])
def test_several_references_are_asked_about_one_by_one(reduce: str, expected: float) -> None:
    rows = records("12345", references=("12345", "12"))
    assert scored(f"comet(batch_size=3, reduce='{reduce}')", rows).values.tolist() == pytest.approx([expected])


@pytest.mark.usefixtures("named")
def test_error_spans_become_errors_with_their_place_and_penalty() -> None:
    scores = scored("comet(model='org/xcomet', batch_size=3)", records("a xx b", "clean", references=("1", "22")))
    (error,) = scores.errors[0]
    assert (error.text, error.start, error.end, error.severity, error.penalty) == ("xx", 2, 4, "major", 5)
    assert error.explanation == "confidence 0.50"
    assert list(scores.errors) == [0]
    assert scores.parts["mqm_scores"].tolist() == [0.8, 1.0]


@pytest.mark.usefixtures("named")
def test_a_reference_free_model_gets_no_references_and_one_that_needs_them_says_so() -> None:
    free = build("comet(model='org/qe', needs=['source'], batch_size=3)")
    assert free.needs == ("source",)
    assert free.score(Shard(records("1234"))).values.tolist() == [0.4]
    with raises_code(ModelError, "model_unusable", "'source'"):
        scored("comet(needs=['source'], batch_size=3)", records("1234"))


@pytest.mark.usefixtures("named")
def test_a_model_that_cannot_be_downloaded_is_named_with_what_to_do() -> None:
    with raises_code(ModelError, "model_unusable", "'org/nowhere'"):
        scored("comet(model='org/nowhere')", records("1"))


def test_where_it_runs_is_no_part_of_what_a_metric_is(environment: Environment) -> None:
    metric = build(f"comet(python={environment.python!r}, time_limit=60, batch_size=3, reduce='max')")
    assert metric.text == "comet(reduce='max')"
    assert build(metric.text) == metric
    again = pickle.loads(pickle.dumps(metric))
    assert again.score(Shard(records("12345"))).values.tolist() == [0.5]


@pytest.mark.usefixtures("named")
def test_a_run_scores_with_it_and_records_without_references_fail_alone(tmp_path: Path) -> None:
    rows = [*records("12345", "123"), Record(item="9", system="s", output="1", source="a")]
    results = metrist.score(rows, "comet(batch_size=3)", out=tmp_path / "run")
    assert [score.failure for score in results.scores["comet"]][:2] == [None, None]
    assert "comet needs references, but the record has none" in str(results.scores["comet"][2].failure)


# ---- BLEURT and UniEval ----


def test_bleurt_finds_a_checkpoint_by_its_name(named: Environment, tmp_path: Path, monkeypatch) -> None:
    with raises_code(ModelError, "model_unusable", "'BLEURT-20'"):
        scored("bleurt", records("1"))
    (tmp_path / "BLEURT-20").mkdir()
    monkeypatch.setenv("METRIST_BLEURT_CHECKPOINTS", str(tmp_path))
    assert scored("bleurt", records("1", "1234567")).values.tolist() == [4, -2]
    assert build("bleurt").signature.endswith("| bleurt 0.0.2")
    assert named.python


@pytest.mark.usefixtures("named")
def test_weights_on_this_machine_are_named_by_their_hash(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "inner").mkdir(parents=True)
    weights = tmp_path / "checkpoint" / "inner" / "weights"
    weights.write_bytes(b"1")
    spec = f"comet(model={str(tmp_path / 'checkpoint')!r})"
    before = build(spec).signature
    assert " | weights " in before
    weights.write_bytes(b"12")
    assert build(spec).signature != before
    assert " | weights " not in build("comet").signature


@pytest.mark.usefixtures("named")
def test_unieval_gives_its_dimensions_as_parts_and_their_mean_as_value() -> None:
    scores = scored("unieval", records("some text", " "))
    parts = {name: column[0] for name, column in scores.parts.items()}
    assert parts == {"coherence": 9.5, "consistency": 11.5, "fluency": 7.5, "relevance": 9.5}
    assert scores.values[0] == 9.5
    assert scores.failures == {1: "the output is empty"}


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("spec", "needs", "value"),
    [
        ("unieval(aspect='fluency')", ("source",), 7.54),
        ("unieval(aspect='relevance')", ("source", "references"), 9.54),
        ("unieval(task='data2text')", ("references",), (11 + 15) / 2 + 0.54),
        ("unieval(task='fact')", ("source",), 0.5),
        ("unieval(task='dialogue', aspect='groundedness')", ("source",), 12.54),
    ],
)
def test_unieval_needs_what_its_question_looks_at(spec: str, needs: tuple[str, ...], value: float) -> None:
    metric = build(spec)
    assert metric.needs == needs
    assert metric.score(Shard(records("text", context="fact"))).values.tolist() == pytest.approx([value])


@pytest.mark.usefixtures("named")
def test_unieval_misses_the_fact_that_a_response_should_use() -> None:
    scores = scored("unieval(task='dialogue')", records("text"))
    assert "in a column named 'context'" in scores.failures[0]


def test_unieval_without_its_folder_says_how_to_have_it(named: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIST_UNIEVAL_FOLDER")
    with raises_code(ModelError, "invalid_value", "METRIST_UNIEVAL_FOLDER=UniEval"):
        scored("unieval", records("text"))
    monkeypatch.setenv("METRIST_UNIEVAL_FOLDER", str(named.site))
    with raises_code(ModelError, "model_unusable", "environment"):
        assert build("unieval").signature


# ---- What is absent or broken ----


@pytest.mark.parametrize("name", ["comet", "bleurt", "unieval"])
def test_without_an_environment_the_commands_that_make_one_are_shown(name: str, monkeypatch) -> None:
    monkeypatch.setenv("METRIST_UNIEVAL_FOLDER", ".")
    values = (f"`metrist setup {name}`", f"{name}-env/bin/pip install", f"METRIST_{name.upper()}_PYTHON={name}")
    with raises_code(ModelError, "model_unusable", *values):
        assert build(name).signature


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises_code(ModelError, "model_unusable", "directory"):
        scored(f"comet(python={str(tmp_path / 'none')!r})", records("1"))


def test_a_package_that_is_not_there_is_missed_before_anything_is_scored(tmp_path: Path) -> None:
    empty = Environment(tmp_path / "empty")
    for name in ("comet", "bleurt"):
        metric = build(f"{name}(python={empty.python!r})")
        with raises_code(ModelError, "model_unusable", name, tmp_path / "empty", f"`metrist setup {name}`"):
            assert metric.signature
        with raises_code(ModelError, "model_unusable", f"No module named '{name}'"):
            metric.score(Shard(records("1")))


def test_an_environment_that_says_no_versions_is_named(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with raises_code(ModelError, "model_unusable", "versions"):
        assert build(f"comet(python={str(program)!r})").signature


# ---- The adapters themselves ----


@pytest.mark.parametrize("path", sorted(ADAPTERS.glob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_stands_alone_in_old_pythons(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names, "__future__"}

"""Metrics of other programs, called for real: each test's program runs as a subprocess in an environment of its own.

The packages in that environment are stand-ins with the functions that the real ones have (unbabel-comet 2.2.7,
google-research/bleurt, maszhongming/UniEval as of 2024); what they should answer is plain arithmetic.
"""

from __future__ import annotations

import ast
import math
import os
import pickle
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import metrist
from metrist.errors import ModelError, RunError, SpecError
from metrist.metrics.catalog import build
from metrist.metrics.external import adapted
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.scores import Scores

ADAPTERS = Path(adapted.__file__).parent / "adapters"

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
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.add("torch.py", TORCH)
    made.add("comet/__init__.py", COMET, ("unbabel-comet", "2.2.7"))
    made.add("bleurt/__init__.py", "")
    made.add("bleurt/score.py", BLEURT, ("BLEURT", "0.0.2"))
    made.add("unieval/metric/evaluator.py", UNIEVAL)
    made.add("unieval/metric/scorer.py", "")
    made.add("unieval/utils.py", "")
    return made


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment of the machine's own, and nothing remembered."""
    for name in [name for name in os.environ if name.startswith("METRIST_")]:
        monkeypatch.delenv(name)
    adapted.about.cache_clear()


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


def scored(spec: str, made: list[Record]) -> Scores:
    return build(spec).score(Shard(made))


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
    made = records("12345", references=("12345", "12"))
    assert scored(f"comet(batch_size=3, reduce='{reduce}')", made).values.tolist() == pytest.approx([expected])


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
    with pytest.raises(ModelError, match=r"comet cannot have its model: this model needs references: needs=\['source'"):
        scored("comet(needs=['source'], batch_size=3)", records("1234"))


@pytest.mark.usefixtures("named")
def test_a_model_that_cannot_be_downloaded_is_named_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"'org/nowhere' is no checkpoint on this machine .* go online once"):
        scored("comet(model='org/nowhere')", records("1"))


def test_where_it_runs_is_no_part_of_what_a_metric_is(environment: Environment) -> None:
    metric = build(f"comet(python={environment.python!r}, time_limit=60, batch_size=3, reduce='max')")
    assert metric.text == "comet(reduce='max')"
    assert build(metric.text) == metric
    again = pickle.loads(pickle.dumps(metric))
    assert again.score(Shard(records("12345"))).values.tolist() == [0.5]


@pytest.mark.usefixtures("named")
def test_a_run_scores_with_it_and_records_without_references_fail_alone(tmp_path: Path) -> None:
    made = [*records("12345", "123"), Record(item="9", system="s", output="1", source="a")]
    results = metrist.score(made, "comet(batch_size=3)", out=tmp_path / "run")
    assert [score.failure for score in results.scores["comet"]][:2] == [None, None]
    assert "comet needs references, but item '9'" in str(results.scores["comet"][2].failure)


# ---- BLEURT and UniEval ----


def test_bleurt_finds_a_checkpoint_by_its_name(named: Environment, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ModelError, match="there is no checkpoint folder 'BLEURT-20': download it"):
        scored("bleurt", records("1"))
    (tmp_path / "BLEURT-20").mkdir()
    monkeypatch.setenv("METRIST_BLEURT_CHECKPOINTS", str(tmp_path))
    assert scored("bleurt", records("1", "1234567")).values.tolist() == [4, -2]
    assert build("bleurt").signature.endswith("| bleurt 0.0.2")
    assert named.python


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
    with pytest.raises(ModelError, match=r"unieval is no package: git clone .* METRIST_UNIEVAL_FOLDER=UniEval"):
        scored("unieval", records("text"))
    monkeypatch.setenv("METRIST_UNIEVAL_FOLDER", str(named.site))
    with pytest.raises(ModelError, match="unieval is not installed in its environment: no UniEval in "):
        assert build("unieval").signature


# ---- What is absent or broken ----


@pytest.mark.parametrize("name", ["comet", "bleurt", "unieval"])
def test_without_an_environment_the_commands_that_make_one_are_shown(name: str, monkeypatch) -> None:
    monkeypatch.setenv("METRIST_UNIEVAL_FOLDER", ".")
    wanted = (
        rf"{name} runs in a Python environment of its own, and none is named. Make an environment for it \(python -m "
        rf"venv {name}-env; {name}-env/bin/pip install .*\) and name its Python: METRIST_{name.upper()}_PYTHON={name}"
    )
    with pytest.raises(ModelError, match=wanted):
        assert build(name).signature


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"comet: cannot start '.*/none': No such file or directory. Make an env"):
        scored(f"comet(python={str(tmp_path / 'none')!r})", records("1"))


def test_a_package_that_is_not_there_is_missed_before_anything_is_scored(tmp_path: Path) -> None:
    empty = Environment(tmp_path / "empty")
    for name in ("comet", "bleurt"):
        metric = build(f"{name}(python={empty.python!r})")
        with pytest.raises(ModelError, match=rf"{name} is not installed in its environment: no package .* Make an env"):
            assert metric.signature
        with pytest.raises(
            ModelError, match=rf"{name} is not installed in its environment: cannot import {name}: No m"
        ):
            metric.score(Shard(records("1")))


def test_an_environment_that_says_no_versions_is_named(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with pytest.raises(ModelError, match="did not say its versions but 'hello"):
        assert build(f"comet(python={str(program)!r})").signature


# ---- A program of the user's own ----

HEAD = "import json, os, signal, sys, time\nasked, answered, told = sys.argv[-3:]\n"
ANSWER = """
rows = [json.loads(line) for line in open(asked)]
assert json.load(open(told)) == {"protocol": 1, "metric": METRIC}
with open(answered, "w") as file:
    for row in rows:
        file.write(json.dumps(answer(row)) + "\\n")
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """`program("…", needs=…)`: the text of a metric whose program has this source."""

    def made(source: str, settings: str = "") -> str:
        path = tmp_path / "program.py"
        text = f"external(command=[{sys.executable!r}, {str(path)!r}]{settings})"
        path.write_text(HEAD + source.replace("METRIC", repr(text)))
        return text

    return made


def answers(body: str) -> str:
    return f"def answer(row):\n    return {body}\n{ANSWER}"


def test_a_users_program_gets_all_of_a_record_and_may_answer_with_all_of_a_score(program) -> None:
    spec = program(
        answers(
            "{'value': len(row['output']), 'parts': {'sources': len(row['source']), 'none': None},"
            " 'explanation': row['item'] + row['system'], 'errors': [{'aspect': 'a', 'severity': None, 'start': 0,"
            " 'end': 1}, {'aspect': 'b', 'start': 5, 'end': 99}]}"
        )
    )
    (score,) = scored(spec, records("\ud800öx"))
    assert score.value == 3
    assert score.parts["sources"] == 5
    assert math.isnan(score.parts["none"])
    assert score.explanation == "0s"
    assert [(error.aspect, error.text, error.start) for error in score.errors] == [("a", "\ud800", 0), ("b", "", None)]


def test_needs_and_direction_are_the_users_to_say(program) -> None:
    metric = build(program(answers("{'value': 1}"), ", needs=['source'], better='lower'"))
    assert (metric.needs, metric.higher_is_better) == (("source",), False)
    assert build(metric.text) == metric


def test_an_edited_program_is_another_metric(program) -> None:
    first = build(program(answers("{'value': 1}"))).signature
    second = build(program(answers("{'value': 2}"))).signature
    assert first != second
    assert first.split(" | ")[0] == second.split(" | ")[0]


def test_a_command_is_also_a_line_as_in_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "a program.py"
    path.write_text(HEAD + "open(answered, 'w').write('{\"value\": 7}\\n')")
    assert scored(f"external(command={f'{sys.executable} {str(path)!r}'!r})", records("x")).values.tolist() == [7]


def test_failures_and_nan_are_data(program) -> None:
    scores = scored(
        program(answers("{'failure': 'too hot'} if row['item'] == '0' else {'value': float('nan')}")), records("a", "b")
    )
    assert scores.failures == {0: "too hot", 1: "external gave nan, which is no score"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sys.exit('boom went the model')", "external ended with exit code 1; its last words: boom went the model"),
        ("raise KeyError('x')", r"ended with exit code 1; its last words: Traceback .* \| KeyError: 'x'"),
        ("", "external ended well but wrote no answers: wanted one JSON line per record"),
        ("open(answered, 'w').write('{\"value\": 1}\\n')", "external gave 1 answers to 2 records: wanted one each"),
        ("open(answered, 'w').write('{\"value\": 1}\\n' * 3)", "external gave 3 answers to 2 records"),
        ("open(answered, 'w').write('1\\n2\\n')", r"answer 1 of external cannot be read .*, got '1'"),
        ("open(answered, 'w').write('{\"value\": 1}\\n{}\\n')", r"answer 2 of external cannot be read \('value'\)"),
        ("open(answered, 'w').write('{\"value\": \"9\"}\\n' * 2)", r"answer 1 .* \('value' is no number\): wanted"),
        ("open(answered, 'w').write('{\"value\": 1}\\n{\"va')", r"answer 2 of external cannot be read .*got '{\"va'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"external was ended by the signal SIGKILL \(too little memory is"),
        ("print('no weights'); sys.exit(4)", "external cannot have its model: no weights"),
        ("sys.exit(3)", "external is not installed in its environment: it did not say why. Check the command"),
    ],
)
def test_a_program_that_breaks_is_told_with_its_last_words(program, source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        scored(program(source), records("a", "b"))


def test_time_is_limited_for_the_program_and_all_that_it_started(program, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    spec = program(
        "import subprocess\n"
        f"later = 'import time, pathlib; time.sleep(4); pathlib.Path(\"{alive}\").touch()'\n"
        "subprocess.Popen([sys.executable, '-c', later])\n"
        "print('working', flush=True); time.sleep(60)",
        ", time_limit=2",
    )
    before = time.monotonic()
    with pytest.raises(ModelError, match=r"external did not answer within 2 seconds and was ended; .*words: working"):
        scored(spec, records("a"))
    assert time.monotonic() - before < 30
    time.sleep(4.5)
    assert not alive.exists()


def test_a_fault_of_the_program_stops_a_run_with_its_message(program) -> None:
    with pytest.raises(ModelError, match="ended with exit code 5"):
        metrist.score(records("a", "b"), program("sys.exit(5)"))


def test_programs_that_fail_on_every_record_alike_are_raised(program) -> None:
    with pytest.raises(RunError, match="failed on all 2 records: no"):
        metrist.score(records("a", "b"), program(answers("{'failure': 'no'}")))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("external(command='')", "external: command is empty"),
        ("external", "external needs the setting 'command'"),
        (
            "external(command='x', better='up')",
            "external: better must be one of 'higher', 'lower', 'neither', got 'up'",
        ),
        (
            "external(command='x', needs=['sauce'])",
            "external: needs must be a list, each one of 'source', 'references'",
        ),
        ("external(command='x', time_limit=0)", "external: time_limit must be 1 to 604800, got 0"),
        ("comet(needs=['references'])", r"comet: needs must be \['source', 'references'\] or \['source'\], got"),
        ("comet(reduce='native')", "comet: reduce must be one of 'mean', 'max', got 'native'"),
        ("unieval(task='facts')", "unieval: task must be one of .*, got 'facts'"),
        ("unieval(task='fact', aspect='fluency')", "aspect must be one of 'overall', 'consistency', got 'fluency'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build(spec)


@pytest.mark.parametrize("spec", ["external(command='rm')", "comet(python='rm')", "unieval(folder='.')"])
def test_a_file_cannot_name_a_program_to_run(spec: str) -> None:
    with pytest.raises(SpecError, match="names a program to run, taken only from Python and the command line"):
        build(spec, allow_import=False)
    assert build("comet", allow_import=False).name == "comet"


# ---- The adapters themselves ----


@pytest.mark.parametrize("path", sorted(ADAPTERS.glob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_stands_alone_in_old_pythons(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names, "__future__"}

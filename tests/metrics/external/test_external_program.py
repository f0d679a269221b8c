"""A metric that the user's own program computes: real programs, run as subprocesses, that answer well or break."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import metrist
from error_codes import raises_code
from metrist.errors import ModelError, RunError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.scores import Scores


def records(*outputs: str) -> list[Record]:
    return [Record(item=str(i), system="s", output=output, source="abcde") for i, output in enumerate(outputs)]


def scored(spec: str, rows: list[Record]) -> Scores:
    return build(spec).score(Shard(rows))


HEAD = "import json, os, signal, sys, time\ninputs, outputs, settings = sys.argv[-3:]\n"
ANSWER = """
rows = [json.loads(line) for line in open(inputs)]
assert json.load(open(settings)) == {"protocol": 1, "metric": METRIC}
with open(outputs, "w") as file:
    for row in rows:
        file.write(json.dumps(answer(row)) + "\\n")
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """`program("…", needs=…)`: the text of a metric whose program has this source."""

    def write(source: str, settings: str = "") -> str:
        path = tmp_path / "program.py"
        text = f"external(command=[{sys.executable!r}, {str(path)!r}]{settings})"
        path.write_text(HEAD + source.replace("METRIC", repr(text)))
        return text

    return write


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
    path.write_text(HEAD + "open(outputs, 'w').write('{\"value\": 7}\\n')")
    assert scored(f"external(command={f'{sys.executable} {str(path)!r}'!r})", records("x")).values.tolist() == [7]


def test_failures_and_nan_are_data(program) -> None:
    scores = scored(
        program(answers("{'failure': 'too hot'} if row['item'] == '0' else {'value': float('nan')}")), records("a", "b")
    )
    assert scores.failures == {0: "too hot", 1: "external gave nan, which is not a score"}


@pytest.mark.parametrize(
    ("source", "code", "values"),
    [
        ("sys.exit('boom went the model')", "model_unusable", ["code 1", "boom went the model"]),
        ("raise KeyError('x')", "model_unusable", ["code 1", "Traceback", "| KeyError: 'x'"]),
        ("", "invalid_value", ["code 0"]),
        ("open(outputs, 'w').write('{\"value\": 1}\\n')", "invalid_value", ["1 answer to 2 records"]),
        ("open(outputs, 'w').write('{\"value\": 1}\\n' * 3)", "invalid_value", ["3 answers to 2 records"]),
        ("open(outputs, 'w').write('1\\n2\\n')", "invalid_value", ["answer 1", "'1'"]),
        ("open(outputs, 'w').write('{\"value\": 1}\\n{}\\n')", "invalid_value", ["answer 2", "('value')"]),
        ("open(outputs, 'w').write('{\"value\": \"9\"}\\n' * 2)", "invalid_value", ["answer 1", "('value' "]),
        ("open(outputs, 'w').write('{\"value\": 1}\\n{\"va')", "invalid_value", ["answer 2", "'{\"va'"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", "model_unusable", ["SIGKILL", "memory"]),
        ("print('no weights'); sys.exit(4)", "model_unusable", ["model: no weights"]),
        ("sys.exit(3)", "model_unusable", ["not installed", "Check the command"]),
    ],
)
def test_a_program_that_breaks_is_reported_with_its_last_output(program, source, code, values) -> None:
    with raises_code(ModelError, code, "external", *values):
        scored(program(source), records("a", "b"))


def test_time_is_limited_for_the_program_and_all_that_it_started(program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        child = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        spec = program(
            "import subprocess\n"
            f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
            "print('working', flush=True); time.sleep(600)",
            ", time_limit=5",
        )
        with raises_code(ModelError, "metric_failed", "5"):
            scored(spec, records("a"))
        listening.settimeout(60)
        connection, _ = listening.accept()
    # The connection of the process that the program started is closed when that process has ended.
    with connection:
        connection.settimeout(60)
        assert connection.recv(1) == b""


def test_a_fault_of_the_program_stops_a_run_with_its_message(program) -> None:
    with raises_code(ModelError, "model_unusable", "code 5"):
        metrist.score(records("a", "b"), program("sys.exit(5)"))


def test_programs_that_fail_on_every_record_alike_are_raised(program) -> None:
    with raises_code(RunError, "metric_failed", "2 records: no"):
        metrist.score(records("a", "b"), program(answers("{'failure': 'no'}")))


@pytest.mark.parametrize(
    ("spec", "code", "values"),
    [
        ("external(command='')", "no_data", ["command"]),
        ("external", "missing_value", ["'command'"]),
        ("external(command='x', better='up')", "invalid_value", ["better", "'higher'", "'lower'", "'neither'", "'up'"]),
        ("external(command='x', needs=['sauce'])", "invalid_value", ["needs", "'source'", "'references'", "'sauce'"]),
        ("external(command='x', time_limit=0)", "invalid_value", ["time_limit", "1 to 604800"]),
        ("comet(needs=['references'])", "invalid_value", ["needs", "['source']", "got ['references']"]),
        ("comet(reduce='native')", "invalid_value", ["reduce", "'mean'", "'max'", "'native'"]),
        ("unieval(task='facts')", "invalid_value", ["task", "'fact'", "'facts'"]),
        ("unieval(task='fact', aspect='fluency')", "invalid_value", ["aspect", "'consistency'", "'fluency'"]),
    ],
)
def test_settings_that_make_no_sense_are_refused(spec, code, values) -> None:
    with raises_code(SpecError, code, *values):
        build(spec)


@pytest.mark.parametrize("spec", ["external(command='rm')", "comet(python='rm')", "unieval(folder='.')"])
def test_a_file_cannot_name_a_program_to_run(spec: str) -> None:
    with raises_code(SpecError, "untrusted", "accepted"):
        build(spec, allow_import=False)
    assert build("comet", allow_import=False).name == "comet"

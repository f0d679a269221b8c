"""The same cases of resuming, hashing, failing and interrupting for score, prefer, judge and explain: one pipeline."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist.llm.messages import Completion
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Metric
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.errors.error_analysis import ErrorAnalysis
from metrist.metrics.judge.judge import Judge
from metrist.scores import Failure, FailureKind, Score
from run_contents import write_rows

ITEMS = 8
SHARD = 2
Run = Callable[[list[dict[str, Any]], Path], list[Any]]


@dataclass
class Script:
    """What the metrics do: which items fail and how, where the user interrupts, and what was computed."""

    failures: dict[str, str] = field(default_factory=dict)
    interrupt: str | None = None
    seen: list[str] = field(default_factory=list)

    def meet(self, text: str) -> Failure | None:
        item = re.findall(r"text (\d+)", text)[-1]
        if item == self.interrupt:
            raise KeyboardInterrupt
        self.seen.append(item)
        return Failure(self.failures[item], "it did not work") if item in self.failures else None

    def take_seen(self) -> set[str]:
        seen, self.seen = set(self.seen), []
        return seen


SCRIPT = Script()


@pytest.fixture(autouse=True)
def script() -> Script:
    SCRIPT.__init__()  # type: ignore[misc]
    return SCRIPT


class Plain(Metric):
    """A metric without settings, as a user writes it."""

    def score_record(self, record: Any) -> float | Score:
        failure = SCRIPT.meet(record.output)
        if failure:
            return Score.failed(failure)
        # These words once made a resumed run compute a score for ever.
        return Score(value=float(len(record.output)), explanation="no answer came: not here")


class Longer(Comparator):
    """Prefers the longer output."""

    def prefer(self, pairs: Any) -> list[Judgment]:
        return [
            Judgment.failed(failure)
            if (failure := SCRIPT.meet(pair.first.output))
            else Judgment(preference="first", explanation="no answer came: not here")
            for pair in pairs
        ]


def answer(conversation: Any, _sampling: Any) -> str | Completion:
    """Grades and errors, in the forms that `judge` and `error_analysis` ask for."""
    text = conversation[-1].text
    prompt = " ".join(message.text for message in conversation)
    if failure := SCRIPT.meet(prompt):
        return Completion(failure=failure)
    if marks := re.findall(r'"mark": "(\w+)"', text):
        error = {"error_location": "text", "error_aspect": "A", "explanation": "e", "severity": "Major"}
        return json.dumps({"mark": marks[-1], "errors": [{**error, "score_reduction": 2, "revision": ""}]})
    mark = re.search(r"carry the mark (\w+)", text)
    grades = dict.fromkeys(("naturalness", "relatedness", "correctness"), 3)
    return json.dumps({**grades, "id": mark[1]}) if mark else "My analysis."


def score_with(metric: Metric) -> Run:
    def run(rows: list[dict[str, Any]], folder: Path) -> list[Any]:
        results = metrist.score(rows, metric, out=folder, shard_size=SHARD, executor="serial")
        return [(result.value, result.failure) for result in results[metric]]

    return run


def prefer(rows: list[dict[str, Any]], folder: Path) -> list[Any]:
    both = [{**row, "system": system} for row in rows for system in ("a", "b")]
    results = metrist.prefer(both, Longer(), out=folder, shard_size=SHARD, executor="serial")
    return [(result.preference, result.failure) for result in results.judgments[Longer().text]]


def explain(rows: list[dict[str, Any]], folder: Path) -> list[Any]:
    results = score_with(ErrorAnalysis(llm=FakeLLM(answer)))(rows, folder)
    texts = write_rows(folder.parent / "texts.jsonl", rows)
    explained = metrist.explain(folder, texts=texts, limit=None)
    assert sum(bool(output.errors) for output in explained.outputs) == sum(failure is None for _, failure in results)
    return results


RUNS: dict[str, Run] = {
    "score": score_with(Plain()),
    "prefer": prefer,
    "judge": score_with(Judge(llm=FakeLLM(answer))),
    "explain": explain,
}


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    return RUNS[request.param]


def rows() -> list[dict[str, Any]]:
    return [
        {"item": str(n), "system": "a", "source": "s", "instruction": "do", "output": f"a text {n}"}
        for n in range(ITEMS)
    ]


def shard_of(*items: int) -> set[str]:
    """The items that share a shard with these."""
    return {str(other) for item in items for other in range(item - item % SHARD, item - item % SHARD + SHARD)}


EVERYTHING = {str(n) for n in range(ITEMS)}


def test_a_second_run_computes_nothing_and_returns_the_same(run: Run, script: Script, tmp_path: Path) -> None:
    first = run(rows(), tmp_path / "run")
    assert script.take_seen() == EVERYTHING
    assert run(rows(), tmp_path / "run") == first
    assert script.take_seen() == set()


@pytest.mark.parametrize("change", [{"output": "another text 5"}, {"colour": "red"}, {"source": "t"}])
def test_only_shards_whose_content_changed_are_computed_again(
    run: Run, script: Script, tmp_path: Path, change: dict[str, str]
) -> None:
    run(rows(), tmp_path / "run")
    script.take_seen()
    changed = rows()
    changed[5].update(change)
    again = run(changed, tmp_path / "run")
    # Pairs are cut between items, so that their shards hold as many items as those of records hold pairs.
    assert {"5"} <= script.take_seen() <= shard_of(5)
    assert again == run(changed, tmp_path / "fresh")


def test_transient_failures_are_tried_again_and_permanent_ones_are_not(
    run: Run, script: Script, tmp_path: Path
) -> None:
    script.failures = {"3": FailureKind.transient, "6": FailureKind.unparsable}
    first = run(rows(), tmp_path / "run")
    assert [failure.kind for _, failure in first if failure] == ["transient", "unparsable"]
    script.take_seen()
    script.failures = {}
    again = run(rows(), tmp_path / "run")
    assert {"3"} <= script.take_seen() <= shard_of(3)
    assert [failure.kind for _, failure in again if failure] == ["unparsable"]
    run(rows(), tmp_path / "run")
    assert script.take_seen() == set()


def test_an_interrupted_run_goes_on_where_it_stopped(run: Run, script: Script, tmp_path: Path) -> None:
    script.interrupt = "5"
    with pytest.raises(KeyboardInterrupt):
        run(rows(), tmp_path / "run")
    assert shard_of(0, 2) <= script.take_seen()
    script.interrupt = None
    resumed = run(rows(), tmp_path / "run")
    assert script.take_seen().isdisjoint(shard_of(0, 2))
    assert resumed == run(rows(), tmp_path / "fresh")


PROGRAM = """
import os, sys, time
import metrist
from metrist.metrics.comparator import Comparator, Judgment

def note(text):
    with open(sys.argv[2], "a") as log:
        log.write(text.split()[-1] + "\\n")
    if last := sys.argv[4]:  # The run is slow, so that results are logged at once, and never comes beyond this text.
        time.sleep(600 if text == last else 0.1)

class Plain(metrist.Metric):
    def score_record(self, record):
        note(record.output)
        return len(record.output)

class Longer(Comparator):
    def prefer(self, pairs):
        for pair in pairs:
            note(pair.first.output)
        return [Judgment(preference="first") for _ in pairs]

rows = [{"item": str(n), "system": s, "output": f"a text {n}"} for n in range(8) for s in "ab"]
options = dict(out=sys.argv[3], shard_size=2, executor="serial")
if sys.argv[1] == "score":
    metrist.score(rows, Plain(), **options)
else:
    metrist.prefer(rows, Longer(), **options)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("verb", ["score", "prefer"])
def test_a_killed_run_goes_on_where_it_stopped(verb: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "log"

    def start(last: str = "") -> subprocess.Popen[bytes]:
        arguments = [verb, str(log), str(tmp_path / "run"), last]
        return subprocess.Popen([sys.executable, str(tmp_path / "program.py"), *arguments])

    killed = start(last="a text 4")
    while not log.exists() or "4" not in log.read_text().split():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    log.write_text("")
    assert start().wait(timeout=100) == 0
    resumed = log.read_text().split()
    assert resumed
    assert "0" not in resumed
    log.write_text("")
    assert start().wait(timeout=100) == 0
    assert log.read_text() == ""

"""What a judge said, read from a run: scores and choices with their texts, ratings and costs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import metrist
from error_codes import raises_code
from fault_server import Act, FaultServer, Request, answer
from metrist.errors import RunError, SpecError
from metrist.evaluate.distill import MAX_INSTRUCTION, distill_preference, read_judge, read_judged_run
from metrist.run.manifest import Manifest
from metrist.run.store import Store
from metrist.scores import Score
from tiny_models import WORDS


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_rows(items: int = 24, systems: str = "ab") -> list[dict[str, Any]]:
    """System a is good; people say so too."""
    rows = []
    for n in range(items):
        text = " ".join([WORDS[n], WORDS[n + 1], WORDS[2 * n % 30]])
        for system in systems:
            ending = "good" if system == "a" else "bad"
            ratings = {"quality": [5, 3] if system == "a" else [1, 2]}
            source = f"{text} {WORDS[n + 2]} {n}"
            output = f"{text} {ending}"
            rows.append({"item": f"i{n}", "system": system, "source": source, "output": output, "ratings": ratings})
    return rows


class Grader(metrist.Metric):
    """2 for a good output; fails where the output begins with a certain word."""

    bounds = (0.0, 2.0)

    def score_record(self, record: metrist.Record) -> Score:
        if record.output.startswith(WORDS[3]):
            return Score.failed("no idea")
        return Score(value=2.0 if "good" in record.output else 1.0, parts={"spread": 0.25})


class Faults(Grader):
    """As above, but lower is better."""

    higher_is_better = False


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    return write(tmp_path / "outputs.jsonl", make_rows())


def test_scores_are_read_with_texts_and_ratings(rows_file: Path, tmp_path: Path) -> None:
    metrist.score(rows_file, Grader, out=tmp_path / "run")
    outputs = read_judge(tmp_path / "run")
    assert outputs.values["i0", "a"] == 2
    assert outputs.values["i0", "b"] == 1
    assert outputs.spreads["i0", "a"] == 0.25
    assert outputs.ratings == {"quality": {(f"i{n}", s): 4 if s == "a" else 1.5 for n in range(24) for s in "ab"}}
    assert outputs.records["i1", "a"].source == make_rows()[2]["source"]
    assert outputs.left_out == {"outputs without a score, which failed,": 2}
    assert ("i3", "a") not in outputs.values
    assert outputs.instruction.endswith("Grader")
    assert outputs.judge["judged_outputs"] == 46
    # The code is not known here, so whether it called an LLM is not known either.
    assert outputs.cost["judge_us_dollars_per_1000_outputs"] is None


def test_failures_are_counted_for_a_consistency_metric_too(rows_file: Path, tmp_path: Path) -> None:
    metrist.score(rows_file, Grader, out=tmp_path / "run")
    files = read_judged_run(tmp_path / "run")
    assert len(files.examples) == 46
    assert "2 outputs without a score, which failed, left out" in files.notes
    metrist.score(rows_file, Grader, out=tmp_path / "bare", texts=False)
    write(rows_file, make_rows(12))
    assert len(read_judged_run(tmp_path / "run").examples) == 46
    with raises_code(RunError, "changed", "outputs.jsonl", "24"):
        read_judged_run(tmp_path / "bare")


def test_lower_scores_are_better_where_the_metric_says_so(rows_file: Path, tmp_path: Path) -> None:
    metrist.score(rows_file, Faults, out=tmp_path / "run")
    outputs = read_judge(tmp_path / "run")
    assert outputs.values["i0", "a"] == -2


def test_a_metric_is_chosen_by_name(rows_file: Path, tmp_path: Path) -> None:
    metrist.score(rows_file, ["length", "copy_rate", "distinct"], out=tmp_path / "run")
    with raises_code(SpecError, "missing_value", "`metric`", "length, copy_rate, distinct"):
        read_judge(tmp_path / "run")
    with raises_code(RunError, "unknown_name", "'copy_rat'"):
        read_judge(tmp_path / "run", "copy_rat")
    with raises_code(SpecError, "missing_value", "length"):
        read_judge(tmp_path / "run", "length")
    with raises_code(RunError, "unknown_name", "'fluency'"):
        read_judge(tmp_path / "run", "copy_rate:fluency")


def test_texts_are_those_that_were_scored(rows_file: Path, tmp_path: Path) -> None:
    metrist.score(rows_file, Grader, out=tmp_path / "run")
    metrist.score(rows_file, Grader, out=tmp_path / "bare", texts=False)
    rows = make_rows()
    rows[0]["output"] = "another text"
    write(rows_file, rows)
    assert read_judge(tmp_path / "run").records["i0", "a"].output == make_rows()[0]["output"]
    with raises_code(RunError, "changed", "outputs.jsonl"):
        read_judge(tmp_path / "bare")
    for run in ("run", "bare"):
        with raises_code(RunError, "missing_value", "1 of 46", "'i0'", "'a'"):
            read_judge(tmp_path / run, texts=[rows_file])
    rows_file.unlink()
    assert len(read_judge(tmp_path / "run").values) == 46
    with raises_code(RunError, "missing_value", "outputs.jsonl"):
        read_judge(tmp_path / "bare")
    moved = write(tmp_path / "moved.jsonl", make_rows())
    assert len(read_judge(tmp_path / "bare", texts=[moved]).values) == 46


def begin_again(run: Path, text: str) -> None:
    """Forget that a metric of a run was finished."""

    def change(manifest: Manifest) -> Manifest:
        metric = manifest.metric(text)
        assert metric
        versions = tuple(structs.replace(version, finished=False) for version in metric.versions)
        return manifest.replace_metric(structs.replace(metric, versions=versions))

    Store(run).update(change)


def test_what_is_not_finished_is_left_out_or_refused(rows_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    metrist.score(rows_file, Grader, out=run)
    more = write(tmp_path / "more.jsonl", make_rows(systems="c"))
    metrist.score(more, "copy_rate", out=run)
    grader = next(name for name in metrist.load(run).scores if "Grader" in name)
    left_out = read_judge(run, grader).left_out
    assert left_out == {"outputs without a score, which failed,": 2, "outputs that are not scored yet": 24}
    begin_again(run, "copy_rate")
    with raises_code(RunError, "unfinished", "copy_rate"):
        read_judge(run, "copy_rate")
    begin_again(run, grader)
    with raises_code(RunError, "unfinished", "`metrist score`"):
        read_judge(run)
    with raises_code(RunError, "invalid_value"):
        read_judge(tmp_path)
    with raises_code(RunError, "invalid_value"):
        read_judge(rows_file)


def grade_by_ending(request: Request) -> Act:
    """A judge that grades, or compares, by the word `good`; `id` is the mark that an answer must carry."""
    prompt = request.prompt
    marks = re.findall(r'"id": "([^"]+)"', prompt)
    if not marks:
        return answer("yes")  # The question by which metrist gets to know a server.
    good, bad = (re.search(rf" {ending}$", prompt, re.MULTILINE) for ending in ("good", "bad"))
    if good and bad:
        fields: dict[str, Any] = {"better": "A" if good.start() < bad.start() else "B"}
    else:
        fields = dict.fromkeys(("naturalness", "relatedness", "correctness"), 3 if good else 1)
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return answer(json.dumps({"reasons": "…", **fields, "id": marks[-1]}), usage=usage)


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('[[price]]\nmodel = "m"\ninput = 10\noutput = 100\nseen = 2026-11-01\n')
    monkeypatch.setenv("METRIST_PRICES", str(path))


@pytest.mark.usefixtures("prices")
def test_a_judge_has_an_instruction_and_a_cost(rows_file: Path, tmp_path: Path) -> None:
    """100 tokens at 10 dollars a million and 10 at 100 are .002 dollars an output; the first question to a server
    costs a little more."""
    with FaultServer(grade_by_ending) as server:
        llm = f"openai(model='m', url='{server.url}')"
        metrist.score(rows_file, {"judge": f"judge(llm={llm})"}, out=tmp_path / "run")
    outputs = read_judge(tmp_path / "run")
    assert set(outputs.values.values()) == {1.0, 3.0}
    assert outputs.cost["judge_us_dollars_per_1000_outputs"] == pytest.approx(2, rel=0.01)
    assert outputs.cost["judge_seconds_per_1000_outputs"]
    questions = [aspect.question for aspect in metrist.load(tmp_path / "run").metrics[0].load_rubric().aspects]  # type: ignore[attr-defined]
    assert outputs.instruction == " ".join(questions)
    assert (outputs.name, outputs.criterion) == ("judge", "overall")
    part = read_judge(tmp_path / "run", "judge:correctness", criterion="correctness")
    assert (part.instruction, part.criterion) == (questions[2], "correctness")


@pytest.mark.usefixtures("prices")
def test_choices_are_read_with_both_orders_merged(rows_file: Path, tmp_path: Path) -> None:
    """Two questions a pair, .002 dollars each."""
    with FaultServer(grade_by_ending) as server:
        llm = f"openai(model='m', url='{server.url}')"
        metrist.prefer(rows_file, f"judge_pair(llm={llm}, criteria='The calmer one.')", out=tmp_path / "run")
        long = "The better one. " * (MAX_INSTRUCTION // 10)
        metrist.prefer(rows_file, {"long": f"judge_pair(llm={llm}, criteria={long!r})"}, out=tmp_path / "long")
    with raises_code(RunError, "missing_value", "`texts`"):
        read_judge(tmp_path / "run")
    outputs = read_judge(tmp_path / "run", texts=[rows_file])
    assert outputs.choices == {(f"i{n}", "a", "b"): 1.0 for n in range(24)}
    assert outputs.instruction == "The calmer one."
    assert outputs.cost["judge_us_dollars_per_1000_pairs"] == pytest.approx(4, rel=0.01)
    assert read_judge(tmp_path / "run", "judge_pair", texts=[rows_file]).choices == outputs.choices
    with raises_code(RunError, "unknown_name", "'chrf'"):
        read_judge(tmp_path / "run", "chrf", texts=[rows_file])
    assert read_judge(tmp_path / "long", texts=[rows_file]).instruction == "long"
    rows = make_rows()
    rows[1]["output"] += " or worse"
    with raises_code(RunError, "missing_value", "judge_pair"):
        read_judge(tmp_path / "run", texts=[write(tmp_path / "changed.jsonl", rows)])
    with raises_code(RunError, "missing_value", "'i0'", "'a'", "'b'"):
        read_judge(tmp_path / "run", texts=[write(tmp_path / "part.jsonl", rows[1:])])
    # The table of the run counts, not the file that is written for other tools.
    exported = next((tmp_path / "run" / "exports").glob("*.jsonl"))
    exported.write_text(exported.read_text().replace('"first"', '"second"'))
    assert read_judge(tmp_path / "run", texts=[rows_file]).choices == outputs.choices
    # Where the run has the records, too, their texts are known.
    metrist.score(rows_file, "copy_rate", out=tmp_path / "run")
    assert read_judge(tmp_path / "run", "judge_pair").choices == outputs.choices
    (comparator,) = (metric for metric in metrist.open_run(tmp_path / "long").manifest.metrics)
    begin_again(tmp_path / "long", comparator.text)
    with raises_code(RunError, "unfinished"):
        read_judge(tmp_path / "long", texts=[rows_file])


def test_a_run_in_python_becomes_a_metric(rows_file: Path, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    metrist.score(rows_file, Grader, out=tmp_path / "run")
    settings = {"epochs": 2, "lr": 3e-3, "dtype": "float32"}
    card = distill_preference(tmp_path / "run", tmp_path / "mine", base=str(tiny("bert")), **settings)
    assert card["metric"] == f"preference(model={str(tmp_path / 'mine')!r})"
    assert card["data"]["training_items"] + card["data"]["held_out_items"] == 23
    assert {row["target"] for row in card["agreement"]["rows"]} == {card["agreement"]["judge"], "people: quality"}
    results = metrist.score(rows_file, card["metric"])
    assert len(results) == 48
    assert not any("has not learned" in note for note in results.notes)

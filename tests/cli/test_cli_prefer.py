"""`metrist prefer` and `metrist audit` as a user calls them, with an LLM on a real server over loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_server import FaultServer, answer
from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.tigerscore import format_tiger_answer


def answer_text(text: str) -> str:
    if not (marked := re.search(r"its fences carry the mark (\w{6})", text)):
        return "Hello."
    mark = marked[1]
    texts = dict(re.findall(r"\[([\w ]+) \w{6} begins\]\n(.*?)\n\[", text, re.DOTALL))
    if "output A" in texts:
        a, b = (texts[f"output {letter}"].count("good") for letter in "AB")
        return json.dumps({"reasons": "I counted.", "better": "A" if a > b else "B" if b > a else "tie", "id": mark})
    return json.dumps({"reasons": "I counted.", "quality": 2 + texts["output"].count("good"), "id": mark})


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """The output with more of the word good is better, and a grade is 2 plus how often it says so."""
    with FaultServer(lambda request: answer(answer_text(request.prompt))) as running:
        yield running


def count_questions(server: FaultServer) -> int:
    """How often an output was judged: a client may first find out what the server can do."""
    return sum("its fences carry the mark" in request.prompt for request in server.requests)


def name_llm(server: FaultServer) -> str:
    return f"openai(model='m', url='{server.url}')"


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    """Eight items of three systems; item by item `best` says good three times, `middle` twice, `worst` never."""
    rows = [
        {
            "item": str(i),
            "system": system,
            "output": " ".join(["good"] * times + ["word"] * (3 + i)),
            "ratings": {"q": times},
        }
        for i in range(8)
        for system, times in (("best", 3), ("middle", 2), ("worst", 0))
    ]
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prefer_with_a_judge_asks_both_orders_and_a_second_run_asks_nothing(metrist, server, rated, tmp_path):
    out = tmp_path / "prefs.jsonl"
    arguments = ("prefer", rated, "-m", f"judge_pair(llm={name_llm(server)})", "-o", out)
    first = metrist(*arguments)
    assert first.code == 0, first.err
    assert count_questions(server) == 8 * 3 * 2
    assert "0 of 24 choices" in first.out
    written = out.read_text()
    row = json.loads(written.splitlines()[0])
    assert (row["choice"], row["flipped"], row["shown"]) == ("first", False, ["first", "second"])
    assert row["explanation"] == "in the given order: I counted.\n\nin reverse order: I counted."
    again = metrist(*arguments)
    assert again.code == 0
    assert count_questions(server) == 48
    assert out.read_text() == written


def test_a_dry_run_of_prefer_counts_requests(metrist, server, rated):
    done = metrist("prefer", rated, "-m", f"judge_pair(llm={name_llm(server)})", "--baseline", "worst", "--dry-run")
    assert done.code == 0, done.err
    assert re.search(r"openai\(model='m'.* 32 +0 ", done.out)
    assert not server.requests


def test_meta_takes_the_preferences_of_a_file(metrist, tmp_path):
    rows = [
        {"item": str(i), "systems": ["a", "b"], "outputs": ["x" * (i + 2), "x"], "ratings": {"p": 1 if i % 3 else 2}}
        for i in range(12)
    ]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    preferred = metrist(
        "prefer", pairs, "-m", "by_score(metric=length(unit='characters'), better='higher')", "-o", tmp_path / "p.jsonl"
    )
    assert "0.667" in preferred.out
    meta = metrist("meta", pairs, tmp_path / "p.jsonl", "--preferences", "--measure", "accuracy", "--draws", "100")
    assert meta.code == 0, meta.err
    assert re.search(r"by_score\(metric=length.*0\.6667", meta.out)


def test_audit_prints_a_card_and_writes_it(metrist, server, rated, tmp_path):
    card = tmp_path / "card.md"
    arguments = ("audit", rated, "--llm", name_llm(server), "--rubric", "single_answer", "--own", "best", "-o", card)
    done = metrist(*arguments)
    assert done.code == 0, done.err
    assert "metrist: asking: probes" in done.err
    assert "12 checks (4 not measured)" in done.out
    assert re.search(r"position +choices changed by the order +0 % \[0, \d+\] +8 pairs  ok +> 5 %", done.out)
    assert re.search(r" spearman, q, ref hidden +1\.00", done.out)
    assert "the data have no references" in done.out
    assert "| position | choices changed by the order |" in card.read_text()
    requests = count_questions(server)
    again = metrist(*arguments, "--format", "json")
    assert count_questions(server) == requests
    assert json.loads(again.out)["data"] == {"items": 8, "outputs": 24, "pairs": 8, "aspects": ["q"]}


def test_a_dry_run_of_audit_counts_requests(metrist, server, rated):
    done = metrist("audit", rated, "--llm", name_llm(server), "--rubric", "single_answer", "--items", 4, "--dry-run")
    assert done.code == 0, done.err
    # Twelve grades, four pairs both ways, two repeats of four, twenty probes on five outputs.
    assert re.search(rf"openai\(model='m'.* {12 + 8 + 8 + 100} +0 ", done.out)
    assert not server.requests


def test_the_analyses_of_a_metric_are_audited(metrist, tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text(
        "".join(json.dumps({"item": str(n), "system": "s", "output": f"the cat {n}"}) + "\n" for n in range(4))
    )
    error = WrittenError(location="cat", aspect="Accuracy", explanation="No.", severity="Minor", penalty=1.0)
    metric = f"tigerscore(llm=fake(answers={format_tiger_answer([error])!r}))"
    second = "fake(answers='nothing that can be read')"
    answer = metrist("audit", path, "--metric", metric, "--second-llm", second, "--format", "json")
    assert answer.code == 0, answer.err
    card = json.loads(answer.out)
    findings = {finding["name"]: finding for finding in card["findings"]}
    assert findings["made-up analyses"]["reason"].startswith("only 0 analyses")
    assert findings["errors that are not in the texts"]["reason"].startswith("only 4 errors")
    planned = metrist("audit", path, "-m", metric, "--second-llm", second, "--dry-run", "--format", "json")
    assert [row["questions"] for row in json.loads(planned.out)["rows"]] == [4, 4]

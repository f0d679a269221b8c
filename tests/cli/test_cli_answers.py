"""`metrist answers`, and what `metrist score` does about metrics that ask LLMs: dry runs and limits on cost."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fault_server import FaultServer, answer, status
from metrist.io.compression import open_bytes
from metrist.llm import gateway
from metrist.llm.cache import CachedAnswer, build_requests, open_cache
from metrist.llm.messages import Completion, Sampling, Usage
from metrist.scores import Failure, FailureKind
from scripted_llm import Scripted, read_log, say

ASKING = """
from metrist.llm import gateway
from metrist.llm.messages import Message, Sampling
from scripted_llm import Scripted
@dataclass(frozen=True)
class Asking(Metric):
    log: str
    asks_llm = True
    resident = True
    def score(self, shard):
        talks = [[Message("user", record.output)] for record in shard.records]
        scripted = Scripted(log=self.log, tokens=(20, 10))
        answers = gateway.complete(scripted, talks, Sampling(max_tokens=100), runtime=shard.runtime)
        return Scores.of([float(len(answer.text)) for answer in answers])
"""


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices.toml").write_text(
        "[[price]]\nmodel = 'm'\ninput = 10_000\noutput = 10_000\nseen = 2026-02-03\n"
    )
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "prices.toml"))


@pytest.fixture
def asking(module: Callable[[str], ModuleType], tmp_path: Path) -> str:
    """The text of a metric that asks an LLM once per output."""
    module(ASKING)
    return f"own_metrics.Asking(log={str(tmp_path / 'asked.txt')!r})"


@pytest.mark.usefixtures("prices")
def test_a_dry_run_prints_what_would_be_asked_and_leaves_no_files(metrist, outputs, asking, tmp_path):
    before = sorted(tmp_path.glob("[!_]*"))  # Without the bytecode of the user's module.
    done = metrist("score", outputs, "-m", asking, "-m", "chrf", "-o", tmp_path / "run", "--dry-run")
    assert done.code == 0
    row = next(line for line in done.out.splitlines() if line.startswith("scripted"))
    texts = [json.loads(line)["output"] for line in outputs.read_text().splitlines()]
    most = sum(len(text) + 32 + 100 for text in set(texts)) / 100
    assert row.split()[1:4] == ["80", "0", f"{sum(-(-len(t) // 4) + 4 for t in texts):,}"]
    assert row.split()[4:] == ["8,000", f"${sum(-(-len(t) // 4) + 4 for t in texts) / 100:,.2f}", f"${most:,.2f}"]
    assert "list price of 2026-02-03" in done.out
    assert read_log(tmp_path / "asked.txt") == []
    assert sorted(tmp_path.glob("[!_]*")) == before
    assert not open_cache().path.parent.exists()


def test_a_dry_run_as_json_has_plain_numbers_and_says_where_a_price_is_unknown(
    metrist, outputs, asking, tmp_path, monkeypatch
):
    done = metrist("score", outputs, "-m", asking, "--dry-run", "--format", "json")
    table = json.loads(done.out)
    (row,) = table["rows"]
    assert (row["questions"], row["answered"], row["cost from"], row["to"]) == (80, 0, None, None)
    assert any("METRIST_PRICES" in note for note in table["notes"])
    (tmp_path / "others.toml").write_text("[[price]]\nmodel = 'm1'\ninput = 1.0\noutput = 2.0\n")
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "others.toml"))
    again = json.loads(metrist("score", outputs, "-m", asking, "--dry-run", "--format", "json").out)
    assert any("the price is unknown; it is not in others.toml" in note for note in again["notes"])


def test_a_dry_run_says_how_the_range_of_a_time_came_about(metrist, outputs, tmp_path):
    spread, guess = "a 95 % interval from the spread of the sample", "timed once, so the range is a guess"
    done = metrist("score", outputs, "-m", "chrf", "--dry-run")
    assert (spread in done.out, guess in done.out) == (True, False)
    (tmp_path / "one.jsonl").write_text('{"item": "1", "output": "a b", "reference": "a c"}\n')
    done = metrist("score", tmp_path / "one.jsonl", "-m", "chrf", "--dry-run")
    assert (spread in done.out, guess in done.out) == (False, True)


def test_a_dry_run_of_a_finished_run_says_that_no_question_is_left(metrist, outputs, asking, tmp_path):
    arguments = ["score", outputs, "-m", asking, "-o", tmp_path / "run"]
    assert metrist(*arguments).code == 0
    for more in ([], ["-m", "chrf"]):
        done = metrist(*arguments, *more, "--dry-run")
        assert "no question is left for an LLM" in done.out
        assert "80 of 80 by own_metrics.Asking" in done.out
        assert "0 of 80 by chrf" not in done.out


def test_a_dry_run_times_local_metrics_and_shows_a_prompt(metrist, outputs, asking):
    done = metrist("score", outputs, "-m", asking, "-m", "chrf", "--dry-run")
    assert "Dry run: 80 records, nothing was written" in done.out
    assert re.search(r"^chrf +80 +\S+ +[\d.]+ s +[\d.]+ s +[\d.]+ s$", done.out, re.MULTILINE)
    first = json.loads(outputs.read_text().splitlines()[0])["output"]
    assert re.search(
        rf"^The first prompt of own_metrics.Asking.* to scripted.*:\n--- user ---\n{re.escape(first)}\n", done.out, re.M
    )
    facts = json.loads(metrist("score", outputs, "-m", asking, "-m", "chrf", "--dry-run", "--format", "json").out)
    (row,) = facts["times"]["rows"]
    assert (row["metric"], row["records"]) == ("chrf", 80)
    assert 0 <= row["from"] <= row["time"] <= row["to"]
    assert facts["prompts"][0]["messages"] == [{"role": "user", "text": first}]


@pytest.mark.usefixtures("prices")
def test_a_run_stops_at_its_cost_limit_and_a_second_run_continues(metrist, outputs, asking, tmp_path):
    log = tmp_path / "asked.txt"
    stopped = metrist("score", outputs, "-m", asking, "--max-cost", "10", "--workers", "1")
    assert stopped.code == 2
    assert "the limit of $10 " in stopped.err
    requests = len(read_log(log))
    assert 0 < requests * 0.3 <= 10
    assert "METRIST_MAX_COST" not in os.environ
    dry_run = metrist("score", outputs, "-m", asking, "--dry-run")
    row = next(line for line in dry_run.out.splitlines() if line.startswith("scripted"))
    assert row.split()[1:3] == ["80", str(requests)]
    done = metrist("score", outputs, "-m", asking, "--max-cost", "200", "--workers", "1")
    assert done.code == 0
    assert len(read_log(log)) == 80


def test_answers_are_counted_exported_imported_and_deleted(metrist, tmp_path):
    gateway.complete(Scripted(), say("a", "b"), Sampling())
    gateway.complete(Scripted(model="other"), say("a"), Sampling())
    sized = metrist("answers", "size")
    assert [line.split() for line in sized.out.splitlines()[2:4]] == [
        ["scripted", "2", "0"],
        ["scripted(model='other')", "1", "0"],
    ]
    assert f"{open_cache().path}: 0.1 MB" in sized.out
    file = tmp_path / "answers.jsonl"
    assert metrist("answers", "export", file).out == f"{file}: 3 answers\n"
    one, other = tmp_path / "one.jsonl.gz", tmp_path / "other"
    assert metrist("answers", "export", one, "--llm", "scripted(model='other')").out == f"{one}: 1 answer\n"
    imported = metrist("answers", "import", file, one, "--cache", other)
    assert imported.out == f"{file}: 3 answers, 3 of them new\n{one}: 1 answer, 0 of them new\n"
    assert metrist("answers", "clear", "--cache", other, "--llm", "scripted", "--yes").out == "2 answers deleted\n"
    assert metrist("answers", "clear", "--cache", other, "--all", "--yes").out == "1 answer deleted\n"
    assert metrist("answers", "export", file, "--cache", other).code == 2


@pytest.mark.parametrize("suffix", ["", ".xz", ".GZ"])
def test_answers_can_be_exported_and_imported_compressed(metrist, tmp_path, suffix):
    gateway.complete(Scripted(), say("a", "b"), Sampling())
    file, other = tmp_path / f"answers.jsonl{suffix}", tmp_path / "other"
    assert metrist("answers", "export", file).code == 0
    with open_bytes(file) as lines:
        assert len(lines.read().splitlines()) == 2
    assert metrist("answers", "import", file, "--cache", other).out == f"{file}: 2 answers, 2 of them new\n"
    if suffix:
        file.write_bytes(file.read_bytes()[:-6])
        broken = metrist("answers", "import", file, "--cache", tmp_path / "third")
        assert (broken.code, str(file) in broken.err) == (2, True)
        file.write_bytes(b"no archive at all")
        assert metrist("answers", "import", file, "--cache", tmp_path / "third").code == 2


@pytest.mark.usefixtures("prices")
@pytest.mark.parametrize("count", ["1" + "0" * 400, "-1", "NaN"])
def test_a_token_count_that_cannot_be_right_does_not_end_a_run(metrist, outputs, count):
    """Costs are then estimated, and a note tells so."""
    good = answer('{"naturalness": 3, "relatedness": 3, "correctness": 2}').data.partition(b"\r\n\r\n")[2]
    body = good.replace(b'"prompt_tokens": 12', f'"prompt_tokens": {count}'.encode())
    assert body != good
    with FaultServer(lambda _: status(200, body)) as server:
        judge = f"judge(llm=openai(model='m', url='{server.url}'))"
        done = metrist("score", outputs, "-m", judge, "--max-cost", "100000")
    assert done.code == 0, done.err
    assert "estimated" in done.out


def store_aged(days: float, *texts: str, failure: str | None = None, cost: float | None = 0.5) -> None:
    """Store answers that came this many days ago."""
    for request in build_requests(Scripted(), say(*texts), Sampling()):
        usage = Usage(prompt_tokens=1, completion_tokens=1, cost=cost)
        completion = Completion(text="x", usage=usage)
        if failure:
            completion = Completion(failure=Failure(FailureKind.filtered, failure), finish="filter", usage=usage)
        answer = CachedAnswer(request=request, completion=completion, arrived=time.time() - days * 86_400)
        open_cache().store([answer])


def stored_texts() -> list[str]:
    return [answer.request.messages[-1].text for answer in open_cache().entries()]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--all"], []),
        (["--older-than", "30d"], ["new", "refused", "garbled"]),
        (["--older-than", "2w"], ["new", "refused"]),
        (["--older-than", "12h"], ["new"]),
        (["--failed"], ["old", "new"]),
        (["--failed", "--older-than", "10d"], ["old", "new", "refused"]),
        (["--llm", "scripted", "--older-than", "10d"], ["new", "refused"]),
    ],
)
def test_answers_are_deleted_by_age_and_failure(metrist, options, left):
    store_aged(40, "old")
    store_aged(0, "new")
    store_aged(5, "refused", failure="no")
    store_aged(20, "garbled")
    (garbled,) = build_requests(Scripted(), say("garbled"), Sampling())
    open_cache().mark_unreadable([garbled.key])
    assert "scripted        4           1" in metrist("answers", "size").out
    done = metrist("answers", "clear", *options, "--yes")
    assert (done.code, stored_texts()) == (0, left)
    assert done.out == f"{4 - len(left)} answer{'' if len(left) == 3 else 's'} deleted\n"
    assert sum(open_cache().contents().unreadable.values()) == ("garbled" in left)


@pytest.mark.parametrize("options", ["", "--all --failed", "--older-than 30", "--older-than -1d", "--llm scriptd"])
def test_without_a_scope_nothing_is_deleted(metrist, options):
    store_aged(1, "a")
    assert metrist("answers", "clear", *options.split(), "--yes").code == 2
    assert stored_texts() == ["a"]


def test_answers_are_deleted_only_after_a_yes(metrist, monkeypatch):
    store_aged(1, "a", "b")
    store_aged(1, "c", cost=None)
    piped = metrist("answers", "clear", "--all")
    assert piped.code == 2
    assert "3 answers (" in piped.err
    assert "$1.00 paid for them, the cost of 1 unknown" in piped.err
    for reply, code, left in (("n", 1, 3), ("y", 0, 0)):
        terminal = io.StringIO(f"{reply}\n")
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        done = metrist("answers", "clear", "--all")
        assert (done.code, len(stored_texts())) == (code, left)
        assert "Delete 3 answers (" in done.err


def test_stored_answers_are_announced_and_asked_for_again(metrist, outputs, tmp_path):
    # Fewer than the 20 unreadable answers that would end the run.
    few = tmp_path / "few.jsonl"
    few.write_text("".join(outputs.read_text(encoding="utf-8").splitlines(keepends=True)[:16]), encoding="utf-8")
    with FaultServer(lambda _: answer("no grades")) as server:
        judge = f"judge(llm=openai(model='m', url='{server.url}'))"
        metrist("score", few, "-m", judge)
        count = len(server.requests)
        again = metrist("score", few, "-m", judge)
        assert "16 of 16 answers came from the cache, 16 of them are unreadable" in again.out
        assert len(server.requests) == count
        dry = metrist("score", few, "-m", judge, "--retry-failed", "--dry-run", "--format", "json")
        assert json.loads(dry.out)["rows"][0]["answered"] == 0
        for option in ("--retry-failed", "--fresh"):
            dry = metrist("score", few, "-m", judge, option, "--dry-run", "-o", tmp_path / "run", "--format", "json")
            row = json.loads(dry.out)["rows"][0]
            assert (row["questions"], row["answered"]) == (16, 0)
            metrist("score", few, "-m", judge, option, "-o", tmp_path / "run")
            assert len(server.requests) == count + 16
            count += 16

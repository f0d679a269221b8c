"""Which outputs of all items are kept, and how a stopped call goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import CHRF

import metrist
from error_codes import raises_code
from metrist import Record
from metrist.errors import InputError, RunError
from metrist.evaluate.rerank.items import ItemReader


class Quality(metrist.Metric):
    """A number that the record carries."""

    def score_record(self, record: Record) -> float | None:
        return record.extra["quality"]


def make_records(*items: dict[str, float | None]) -> list[Record]:
    """Items with outputs and their quality."""
    return [
        Record(item=str(number), system="s", output=output, extra={"quality": quality})
        for number, outputs in enumerate(items)
        for output, quality in outputs.items()
    ]


def choose(records: list[Record], **options: Any) -> list[tuple[str, str]]:
    return [(choice.record.item, choice.record.output) for choice in metrist.rerank(records, Quality(), **options)]


ITEMS = make_records({"a": 1, "b": 3, "c": 2}, {"d": 9, "e": 8}, {"f": 0, "g": None, "h": 4})


def test_outputs_below_the_minimum_are_left_out() -> None:
    assert choose(ITEMS, k=2, minimum=3) == [("0", "b"), ("1", "d"), ("1", "e"), ("2", "h")]
    longest = [
        Record(item=str(n), system=str(m), output="x " * m, references=("x",)) for n in range(2) for m in range(1, 5)
    ]
    edits = metrist.rerank(longest, "ter", k=4, minimum=200)
    assert [choice.score for choice in edits] == [0, 100, 200] * 2


@pytest.mark.parametrize(
    ("keep", "kept"), [("50%", "deh"), ("2", "de"), ("0%", ""), ("100%", "bcdehf"), ("99", "bcdehf")]
)
def test_the_best_of_all_items_are_kept_in_their_order(keep: str, kept: str) -> None:
    assert "".join(output for _, output in choose(ITEMS, k=2, keep=keep)) == kept


def test_outputs_that_repeat_a_chosen_one_give_way_to_the_next_best() -> None:
    records = make_records({"Yes, it is.": 3, "no": 2, "yes,  it is.": 1}, {"YES, IT IS.": 5, "maybe": 1}, {"no": 1})
    assert choose(records, k=2, dedupe=True) == [("0", "Yes, it is."), ("0", "no"), ("1", "maybe")]
    assert len(choose(records, k=2)) == 5


def test_outputs_that_resemble_a_better_chosen_one_give_way() -> None:
    outputs = {"the cat sat on the mat": 4.0, "the cat sat on a mat": 3.0, "dogs bark": 2.0, "dogs bark loudly": 1.0}
    texts = list(outputs)
    chrf = CHRF(beta=1)
    near, far = (chrf.sentence_score(texts[n], [texts[n - 1]]).score / 100 for n in (1, 3))
    assert far < near
    records = make_records(outputs)
    for limit, expected in ((near, [0, 1, 2, 3]), (near - 0.001, [0, 2, 3]), (far - 0.001, [0, 2])):
        assert choose(records, k=4, diverse=limit) == [("0", texts[n]) for n in expected]


def test_gains_are_those_of_what_is_kept() -> None:
    reranked = metrist.rerank(ITEMS, Quality(), keep="1")
    (gain,) = reranked.gains
    assert (gain.items, gain.before, gain.after) == (1, 8.5, 9)
    assert "Means are over items with a chosen output; 2 of 3 items have none" in reranked.table().notes
    assert not any("have none" in note for note in metrist.rerank(ITEMS, Quality()).table().notes)


def test_filters_that_cannot_work_are_refused() -> None:
    for keep in ("most", "120%", "-1"):
        with raises_code(RunError, "invalid_value", keep):
            choose(ITEMS, keep=keep)
    with raises_code(RunError, "invalid_value", "diverse"):
        choose(ITEMS, diverse=2.0)
    references = [Record(item="1", system="s", output="a", references=("a",))]
    for options in ({"keep": "5"}, {"minimum": 1.0}):
        with raises_code(RunError, "conflict"):
            metrist.rerank(references, ["chrf", "ter"], **options)


def test_a_stopped_call_goes_on_from_the_tasks_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[str] = []

    class Fragile(metrist.Metric):
        def score_record(self, record: Record) -> float | None:
            scored.append(record.output)
            if broken and record.item == "2":
                raise ValueError("stop")
            return record.extra["quality"]

    monkeypatch.setattr("metrist.evaluate.rerank.items.SHARD_SIZE", 1)
    source, out = tmp_path / "in.jsonl", tmp_path / "best.jsonl"
    rows = [{"item": r.item, "output": r.output, **r.extra} for r in ITEMS]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    broken = True
    with raises_code(RunError, "metric_failed"):
        metrist.rerank(source, Fragile(), out=out, executor="serial")
    assert not out.exists()
    log = tmp_path / ".best.jsonl.scores"
    with log.open("ab") as file:
        file.write(b'\n[1]\n{"task": "1"}\n{"task": "cut \xc3')
    broken, scored[:] = False, []
    reranked = metrist.rerank(source, Fragile(), out=out, executor="serial")
    assert scored == ["f", "g", "h"]
    assert [json.loads(line)["output"] for line in out.read_text().splitlines()] == ["b", "d", "h"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.jsonl", "in.jsonl"]
    assert (reranked.gains[0].before, reranked.outputs) == ((2 + 8.5 + 2) / 3, 8)


def test_a_call_in_which_everything_fails_leaves_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    class Silent(metrist.Metric):
        def score_record(self, record: Record) -> float | None:
            return None if record.item else 1.0

    out = tmp_path / "best.jsonl"
    out.write_text("earlier\n")
    with raises_code(RunError, "metric_failed"):
        metrist.rerank(ITEMS, Silent(), out=out, executor="serial")
    assert out.read_text() == "earlier\n"


def test_scores_that_changed_on_disk_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Length(metrist.Metric):
        def score_record(self, record: Record) -> float | None:
            if record.output == "stop":
                raise ValueError("stop")
            return float(len(record.output))

    monkeypatch.setattr("metrist.evaluate.rerank.items.SHARD_SIZE", 1)
    source, out, log = tmp_path / "in.jsonl", tmp_path / "best.jsonl", tmp_path / ".best.jsonl.scores"
    rows = [{"item": item, "output": output} for item, output in (("1", "a"), ("1", "bb"), ("2", "c"), ("2", "stop"))]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with raises_code(RunError, "metric_failed"):
        metrist.rerank(source, Length(), out=out, executor="serial")
    assert b"[[1.0, 2.0]]" in log.read_bytes()
    log.write_bytes(log.read_bytes().replace(b"[[1.0, 2.0]]", b"[[3.0, 2.0]]"))
    source.write_text(source.read_text().replace("stop", "dddd"))
    metrist.rerank(source, Length(), out=out, executor="serial")
    assert [json.loads(line)["output"] for line in out.read_text().splitlines()] == ["bb", "dddd"]


def test_rows_that_cannot_be_read_leave_no_log_of_scores(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("[]\n")
    with raises_code(InputError, "invalid_row"):
        metrist.rerank(source, mbr="chrf", out=tmp_path / "best.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ".best.jsonl.scores").mkdir()
    with raises_code(RunError, "unreadable", ".best.jsonl.scores"):
        metrist.rerank(
            [{"item": "1", "output": "a"}, {"item": "1", "output": "b"}], mbr="chrf", out=tmp_path / "best.jsonl"
        )


def test_means_of_huge_scores_are_numbers_or_refused() -> None:
    huge = [Record(item="1", system="s", output=text, extra={"x": x}) for text, x in (("a", 1.5e308), ("b", 1.4e308))]

    class Extreme(metrist.Metric):
        def score_record(self, record: Record) -> float:
            return float(record.extra["x"])

    (gain,) = metrist.rerank(huge, Extreme(), draws=0).gains
    assert (gain.before, gain.after) == (pytest.approx(1.45e308), 1.5e308)
    others = [Record(item="2", system="s", output=r.output, extra=r.extra) for r in huge]
    assert metrist.rerank([*huge, *others], Extreme(), draws=0).gains[0].after == pytest.approx(1.5e308)
    signed = [replace(r, extra={"x": -1.5e308 if r.output == "b" else 1.5e308}) for r in (*huge, *others)]
    with raises_code(RunError, "invalid_value"):
        metrist.rerank(signed, Extreme(), draws=10)


def test_an_item_is_done_with_when_its_last_row_was_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"item": str(n // 2), "output": str(n)}) + "\n" for n in range(10_000)))
    reader = metrist.read_records(path)
    items = iter(ItemReader(reader, keep_rows=True))
    first = next(items)
    assert [record.output for record in first.records] == ["0", "1"]
    assert first.rows[1] == {"item": "0", "output": "1"}
    share = reader.share_read
    assert share is not None
    assert 1 + sum(1 for _ in items) == 5000


def test_rows_that_can_be_read_once_are_grouped_in_memory() -> None:
    def rows() -> Iterator[dict[str, str]]:
        for n in range(6):
            yield {"item": str(n % 2), "output": "x" * n}

    items = list(ItemReader(metrist.read_records(rows()), keep_rows=False))
    assert [[record.output for record in item.records] for item in items] == [["", "xx", "xxxx"], ["x", "xxx", "xxxxx"]]

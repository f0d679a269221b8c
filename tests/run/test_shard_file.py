"""Shard files: contents survive a round trip, and damage is always detected."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.errors import InputError, RunError
from metrist.metrics.comparator import Judgment
from metrist.ratings import Error
from metrist.records import Pair, Record
from metrist.run.shard_file import (
    Header,
    Torn,
    content_hash,
    decode,
    decode_header,
    digest_of,
    encode,
    find_unsettled,
    hash_units,
)
from metrist.scores import Failure, FailureKind, Score, Scores

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
NUMBERS = st.floats(allow_nan=False)


def records(count: int) -> list[Record]:
    return [Record(item=f"i{n}", system="s", output="o") for n in range(count)]


def header(count: int) -> Header:
    return Header(metric="chrf", signature="chrf | metrist", start=7, count=count, digest="d" * 32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit, apart from which NaN it is."""
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a), np.signbit(b))


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[Record], Scores]:
    rows = draw(
        st.lists(st.tuples(ANY_TEXT, ANY_TEXT, NUMBERS | st.none(), NUMBERS | st.just(np.nan), ANY_TEXT), max_size=5)
    )
    scores = [
        Score(value=np.nan, failure=why, stats=(0.0, 0.0))
        if value is None
        else Score(value=value, parts={"p": part}, stats=(value, 3.0), explanation=why)
        for _, _, value, part, why in rows
    ]
    return [Record(item=item, system=system, output="") for item, system, *_ in rows], Scores.of(scores)


@given(scored())
def test_any_scores_of_any_names_are_read_back_to_the_bit(case: tuple[list[Record], Scores]) -> None:
    rows, scores = case
    block = decode(encode(header(len(rows)), rows, scores))
    assert block.items == [r.item for r in rows]
    assert block.systems == [r.system for r in rows]
    assert same(block.scores.values, scores.values)
    assert block.scores.parts.keys() == scores.parts.keys()
    assert all(same(block.scores.parts[name], column) for name, column in scores.parts.items())
    assert not rows or same(block.scores.stats, scores.stats)
    assert block.scores.failures == scores.failures
    assert block.scores.explanations == scores.explanations


def test_errors_raw_answers_and_tokens_survive_and_usage_is_kept_out() -> None:
    error = Error(aspect="fluency", severity="major", penalty=2.5, text="a\ud800", start=1, end=3, side="source")
    score = Score(value=1.0, errors=(error,), raw="answer", tokens=["a"], usage={"tokens": 3})
    data = encode(header(1), records(1), Scores.of([score]))
    decoded = decode(data).scores[0]
    assert (decoded.errors, decoded.raw, decoded.tokens, decoded.usage) == ((error,), "answer", ["a"], None)


def test_every_line_is_strict_ascii_json() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    scores = Scores.of([Score(value=np.inf, parts={"p": np.nan}), Score(value=np.nan, failure="why")])
    for line in encode(header(2), [*records(1), Record(item="\udcff\0", system="é\n", output="")], scores).splitlines():
        json.loads(line.decode("ascii"), parse_constant=refuse)


def test_integral_statistics_are_written_as_integers() -> None:
    data = encode(header(1), records(1), Scores.of([Score(value=2.0, stats=(3.0, -0.0, 1e16, 0.5))]))
    assert data.splitlines()[1] == b'["i0","s",2.0,[],[3,-0.0,1e+16,0.5]]'


def test_a_shard_cut_off_anywhere_is_torn() -> None:
    data = encode(header(3), records(3), Scores.of([1.0, 2.0, 3.0]))
    for end in range(len(data)):
        with pytest.raises(Torn, match=r"ends before its closing line|does not match its checksum"):
            decode(data[:end])


def test_a_shard_with_any_byte_changed_is_torn() -> None:
    data = encode(header(2), records(2), Scores.of([1.0, 2.0]))
    for at in range(len(data)):
        with pytest.raises(Torn, match=r"closing line|checksum"):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_a_shard_with_fewer_records_than_promised_is_torn() -> None:
    with pytest.raises(Torn, match="holds 2 records, its first line promises 3"):
        decode(encode(header(3), records(2), Scores.of([1.0, 2.0])))


def test_a_score_that_json_cannot_represent_is_refused() -> None:
    with pytest.raises(RunError, match="a score cannot be written as JSON"):
        encode(header(1), records(1), Scores.of([Score(value=1.0, tokens=object())]))


@pytest.mark.parametrize(
    "change",
    [
        {"item": "x"},
        {"system": "x"},
        {"output": "x"},
        {"source": ""},
        {"references": ("",)},
        {"instruction": ""},
        {"task": ""},
        {"language": ""},
        {"extra": {"a": 1}},
    ],
)
def test_each_field_of_a_record_counts_for_the_digest(change: dict[str, object]) -> None:
    record = Record(item="i", system="s", output="o")
    assert content_hash([record]) == content_hash([Record(item="i", system="s", output="o")])
    assert content_hash([record]) != content_hash([replace(record, **change)])


def test_each_record_has_a_hash_of_its_own_wherever_it_stands() -> None:
    everything = records(7)
    hashes = hash_units(everything)
    assert len(set(hashes)) == 7
    assert hash_units(everything[3:5]) == hashes[3:5]
    assert hash_units([Pair(first=everything[0], second=everything[1])]) != hash_units(
        [Pair(first=everything[1], second=everything[0])]
    )


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"metric": "chrf"}', b"[" * 100_000])
def test_a_first_line_that_is_none_is_torn(line: bytes) -> None:
    with pytest.raises(Torn):
        decode_header(line)


def test_the_first_line_names_the_records_and_must_name_them_all() -> None:
    rows = records(2)
    named = replace(header(2), hashes=hash_units(rows), tokens=True)
    data = encode(named, rows, Scores.of([1.0, 2.0]))
    assert decode_header(data.split(b"\n")[0]) == decode(data).header == named
    short = named.encode().replace(f', "{named.hashes[1]}"', "")
    with pytest.raises(Torn, match="it names 1 records, its first line promises 2"):
        decode_header(short.encode())


def test_files_that_are_nested_too_deep_are_torn() -> None:
    body = b"[" * 100_000 + b"\n"
    with pytest.raises(Torn, match="its lines cannot be read"):
        decode(body + b'{"sha256": "%s"}\n' % hashlib.sha256(body).hexdigest().encode())


def test_passing_failures_are_unsettled_and_so_is_a_block_without_any_score() -> None:
    failed = Score.failed("why", FailureKind.unparsable)
    passing = Score.failed("why", FailureKind.transient)
    assert find_unsettled(Scores.of([1.0, failed, passing])) == {2}
    assert find_unsettled(Scores.of([Score(value=1.0, incomplete=True), 2.0])) == {0}
    assert find_unsettled(Scores.of([failed, failed])) == {0, 1}
    assert find_unsettled([Judgment(preference="first"), Judgment.failed(Failure(FailureKind.transient, "w"))]) == {1}


def test_the_digest_depends_on_metrics_and_reference_borders() -> None:
    assert digest_of(["content"], "a") != digest_of(["content"], "b")
    plain = digest_of(["content"], "a"), digest_of(["content"], "atokens")
    assert digest_of(["content"], "a", tokens=True) not in plain
    first, second = (Record(item="i", system="s", output="o", references=r) for r in (("a", "b"), ("a\0b",)))
    assert content_hash([first]) != content_hash([second])


def test_columns_that_json_does_not_know_can_be_hashed() -> None:
    odd = Record(item="i", system="s", output="o", extra={"b": {1, 2}, "a": np.float64(2.0), "\ud800": None})
    assert content_hash([odd]) == content_hash([odd])


def test_records_nested_too_deeply_to_be_hashed_are_named() -> None:
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    extras: dict[str, dict[str, Any]] = {"1": {}, "2": {"t": tree}}
    nested = [Record(item=item, system="a", output="x", extra=extra) for item, extra in extras.items()]
    with pytest.raises(InputError, match=r"item '2' of system 'a': 't' is nested too deeply.*--field t="):
        content_hash(nested)

"""Records: frozen, small, and picklable."""

from __future__ import annotations

import json
import math
import pickle
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist import client
from metrist.errors import InputError
from metrist.evaluate.meta.join import join
from metrist.io import read_records
from metrist.io.hashes import hash_records
from metrist.metrics.base import Shard
from metrist.metrics.registry import build
from metrist.metrics.trained.calibrated import read_column
from metrist.records import (
    CONTEXT_FIELDS,
    TAG_FIELDS,
    TEXT_FIELDS,
    Record,
    RecordColumns,
    hash_units,
    records_from_lists,
)
from metrist.run.run import open_run
from metrist.run.tables import read_records_table
from metrist.web.annotation.project import record_from_dict, record_to_dict
from metrist.web.playground import OutputBody
from metrist.web.service.endpoints import _make_record
from metrist.web.service.models import RecordBody
from metrist.web.viewer import Query


def test_no_references_means_that_references_are_lacking_but_an_empty_source_is_a_source() -> None:
    record = Record(item="1", system="a", output="b", source="")
    assert record.lacks("references")
    assert record.lacks("instruction")
    assert not record.lacks("source")


# ---- Every field reaches every place that takes records ----

#: A record with a value of its own in each field.
FULL = Record(
    **{
        **{field.name: f"the {field.name}" for field in fields(Record)},
        "references": ("a reference", "another"),
        "extra": {"doc": "d1"},
    }
)
PLAIN = replace(FULL, extra={})
ROW = {**{field.name: getattr(PLAIN, field.name) for field in fields(Record)}, "references": list(FULL.references)}
del ROW["extra"]
each_field = pytest.mark.parametrize("name", [field.name for field in fields(Record)])


def test_each_field_is_in_one_of_the_lists() -> None:
    assert {field.name for field in fields(Record)} == {*TEXT_FIELDS, "references", "extra"}
    assert len(set(TEXT_FIELDS)) == len(TEXT_FIELDS) == 3 + len(CONTEXT_FIELDS) + len(TAG_FIELDS)


def test_copies_of_a_record_have_all_fields() -> None:
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert list(RecordColumns.of([FULL])) == [FULL]
    assert list(read_records([{**ROW, "doc": "d1"}])) == [FULL]
    assert record_from_dict(record_to_dict(FULL)) == FULL


def test_a_run_and_its_results_have_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({**ROW, "doc": "d1", "ratings": {"quality": 1}}))
    results = metrist.score(path, ["length"], out=tmp_path / "run", executor="serial")
    assert list(read_records_table(open_run(tmp_path / "run").records())) == [FULL]
    wide = results.wide().to_dict("records")[0]
    assert {name: wide[name] for name in [*ROW, "doc"]} == {**ROW, "doc": "d1"}
    columns = join(tmp_path / "run").columns
    assert {name: columns[name].names for name in columns} == {
        **{name: (getattr(FULL, name),) for name in TAG_FIELDS},
        "doc": ("d1",),
    }


def test_a_service_gets_all_fields_but_columns() -> None:
    body = RecordBody.model_validate(client._to_body(FULL))
    assert _make_record(body, 1, body.system, body.output) == PLAIN
    names = {*TEXT_FIELDS, "references"} - {"item", "system"}
    shown = OutputBody(metric="length", **{name: ROW[name] for name in names}).list_fields()
    assert shown == {name: getattr(FULL, name) for name in names}


def test_a_users_program_gets_all_fields_but_columns(tmp_path: Path) -> None:
    path, seen = tmp_path / "program.py", tmp_path / "seen.jsonl"
    path.write_text(
        "import sys\ninputs, outputs, settings = sys.argv[-3:]\n"
        f"open({str(seen)!r}, 'w').write(open(inputs).read())\nopen(outputs, 'w').write('{{\"value\": 1}}\\n')"
    )
    build(f"external(command=[{sys.executable!r}, {str(path)!r}])").score(Shard([FULL]))
    row = json.loads(seen.read_text())
    assert {name: row[name] for name in ROW} == ROW
    assert [name for name in row if name in ROW] == list(ROW)


def test_the_viewer_filters_by_each_tag() -> None:
    assert {field.name for field in fields(Query)} >= set(TAG_FIELDS)


@pytest.mark.parametrize("name", ["item", "system", *TAG_FIELDS, "doc"])
def test_records_are_grouped_by_tags(name: str) -> None:
    assert read_column(FULL, name) == {**ROW, "doc": "d1"}[name]


@each_field
def test_records_that_differ_in_one_field_are_not_the_same(name: str) -> None:
    other = replace(FULL, **{name: {"references": ("b",), "extra": {"doc": "d2"}}.get(name, "other")})
    for pair in ([FULL, other], [PLAIN, replace(other, extra={})]):
        # Those without extra columns are hashed by another, faster function.
        hashes = hash_records(RecordColumns.of(pair))
        assert (hashes == hash_units(pair)).all()
        assert (hashes[0].tobytes() == hashes[1].tobytes()) == (pair[0] == pair[1])
    assert len(list(read_records([FULL, FULL]))) == 1
    if name in ("item", "system"):
        assert len(list(read_records([FULL, other]))) == 2
        return
    with pytest.raises(InputError) as caught:
        list(read_records([FULL, other]))
    assert repr("doc" if name == "extra" else name) in str(caught.value) or name in TAG_FIELDS


# ---- Records from lists ----


def test_lists_become_records_numbered_from_one() -> None:
    records = records_from_lists(["a", "b"], ["x", ["y", "z"]], ["s", "t"])
    assert [(r.item, r.system, r.output, r.references, r.source) for r in records] == [
        ("1", "predictions", "a", ("x",), "s"),
        ("2", "predictions", "b", ("y", "z"), "t"),
    ]
    assert [(r.item, r.system, r.output) for r in records_from_lists({"v1": ["a"], "v2": ["b"]})] == [
        ("1", "v1", "a"),
        ("1", "v2", "b"),
    ]
    assert records_from_lists(iter(["a"]), (("x",),), system="mine")[0].system == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("outputs.jsonl",),
            r"must be a list of texts, got 'outputs.jsonl' \(str\); a file is read with",
        ),
        ((b"a",), r"predictions must be a list of texts, got b'a' \(bytes\)"),
        ((3,), r"predictions must be a list of texts, got 3 \(int\)"),
        ((["a", None],), r"predictions\[1\] must be a text, got None"),
        ((["a", math.nan],), r"predictions\[1\] must be a text, got nan \(float\)"),
        (([],), "predictions is empty"),
        (({},), "predictions is empty"),
        ((["a"], "x"), r"references must be a list, got 'x' \(str\)"),
        ((["a"], ["x", "y"]), r"references: expected an entry for each prediction \(1\), got 2"),
        ((["a", "b"], [["x", "y"]]), r"got 1; each entry is a set .* zip\(\*references\)"),
        ((["a"], [["x", 3]]), r"references\[0\]\[1\] must be a text, got 3"),
        ((["a"], [3]), r"references\[0\] must be a list of texts, got 3"),
        ((["a"], ["x"], ["s", "t"]), r"sources: expected one for each prediction \(1\), got 2"),
        (({"v1": ["a"], "v2": ["b", "c"]},), r"predictions\['v1'\]: expected 2 texts, as of another system, got 1"),
    ],
)
def test_lists_that_do_not_fit_are_refused_with_the_reason(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        records_from_lists(*arguments)

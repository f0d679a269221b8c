"""OpenAI evals: the log of `oaieval`, and output items of the evals API.

{"spec": {"eval_name", "completion_fns"}}, then a line per event:
{"sample_id", "type": "sampling", "data": {"prompt", "sampled"}}, {"type": "match", "data": {"correct", "expected"}}

{"object": "eval.run.output_item", "datasource_item_id", "datasource_item", "sample": {"input", "output", "model"},
 "results": [{"name", "score", "passed"}]}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metrist.io.row_model import RowError
from metrist.io.tools.entries import (
    Entries,
    Row,
    Rows,
    as_plain_text,
    as_scores,
    convert_each,
    describe_input,
    get_object,
    get_objects,
)

_OWN = frozenset(("item", "system", "output", "source", "scores", "ratings", "id"))


def is_entry(value: Row) -> bool:
    spec = value.get("spec")
    is_log = isinstance(spec, dict) and {"eval_name", "completion_fns"} <= spec.keys()
    return is_log or value.get("object") == "eval.run.output_item"


def rows(entries: Entries) -> Rows:
    spec: Row = {}
    samples: dict[str, Row] = {}
    for line, entry in entries:
        if entry.get("object") == "eval.run.output_item":
            yield from convert_each([(line, entry)], _convert_item)
        elif "spec" in entry:
            spec = entry["spec"]
        elif "sample_id" in entry:
            sample = samples.setdefault(str(entry["sample_id"]), {"line": line, "scores": {}})
            _add_event(sample, entry.get("type"), get_object(entry, "data"))
    functions = spec.get("completion_fns") or ["unnamed"]
    for name, sample in samples.items():
        line, output = sample.pop("line"), sample.get("output")
        if output is None:
            yield line, RowError(f"the sample {name!r} has no event with its output")
            continue
        scores = as_scores(sample.pop("scores"))
        yield line, {"item": name, "system": str(functions[0]), **sample, **({"scores": scores} if scores else {})}


def _add_event(sample: Row, kind: Any, data: Row) -> None:
    """Add what an event says of its sample. The first text that was sampled is the output: later ones are a judge's."""
    if kind == "sampling" and "output" not in sample:
        sampled = data.get("sampled")
        sample |= describe_input(data.get("prompt"))
        sample["output"] = as_plain_text(sampled[0] if isinstance(sampled, list) and sampled else sampled)
    elif kind == "match":
        expected = data.get("expected")
        references = expected if isinstance(expected, list) else [expected]
        sample["references"] = [text for text in references if isinstance(text, str)]
        sample["scores"]["match"] = data.get("correct")
    elif kind == "metrics":
        sample["scores"] |= data


def _convert_item(entry: Row) -> Iterable[Row]:
    sample = get_object(entry, "sample")
    if not sample.get("output"):
        raise RowError(f"the output item {entry.get('id')!r} has no output")
    fields = get_object(entry, "datasource_item")
    fields = {**fields, **get_object(fields, "item")} if isinstance(fields.get("item"), dict) else fields
    yield {
        **{key: value for key, value in fields.items() if key not in _OWN},
        "item": str(entry.get("datasource_item_id")),
        "system": sample.get("model"),
        **describe_input(sample.get("input")),
        "output": as_plain_text(sample["output"]),
        "scores": as_scores({result.get("name", ""): result.get("score") for result in get_objects(entry, "results")}),
    }

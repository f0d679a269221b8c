"""Logs of evaluation harnesses: inspect_ai, lm-evaluation-harness, OpenAI evals."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import IO, Any

from metrist.errors import InputError
from metrist.io.compression import check_unpacked
from metrist.io.row_model import RowError, format_value
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

# ---- Logs of inspect_ai: `.eval` archives, and the same as one JSON document
#
# {"version", "eval": {"task", "model"}, "samples": [{"id", "epoch", "input", "target", "output": {"choices": […]},
#  "scores": {scorer: {"value", "answer", "explanation"}}, "metadata"}]}

#: What inspect_ai's letters count as: correct, incorrect, partly correct, no answer.
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
#: The number of Zstandard in zip archives, which Python reads since 3.14, and the size of an entry's own header.
_ZSTANDARD, _HEADER = 93, 30


def read_inspect_logs(entries: Entries) -> Rows:
    for _, log in entries:
        header = get_object(log, "eval")
        if not log.get("samples"):
            yield 1, RowError("the log has no samples: it is of a run that failed, or was written without them")
        samples = enumerate(get_objects(log, "samples"), 1)
        yield from convert_each(samples, partial(_convert_inspect_sample, header=header))


def read_archive(path: str, name: str) -> Rows:
    """Read a `.eval` file, one sample at a time."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            start = members.get("header.json") or members.get("_journal/start.json")
            if start is None:
                raise InputError(f"{name}: has no header.json, which logs of inspect_ai have", code="invalid_value")
            header = get_object(json.loads(_read_member(archive, file, start, name)), "eval")
            samples = [info for path, info in members.items() if path.startswith("samples/")]
            entries = ((n, json.loads(_read_member(archive, file, info, name))) for n, info in enumerate(samples, 1))
            yield from convert_each(entries, partial(_convert_inspect_sample, header=header))
    except (OSError, zipfile.BadZipFile, struct.error, ValueError, RecursionError, RowError) as error:
        raise InputError(f"{name}: is no readable log of inspect_ai: {error}") from None


def _read_member(archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, name: str) -> bytes:
    check_unpacked(name, info.file_size, info.compress_size)
    if info.compress_type != _ZSTANDARD:
        return archive.read(info)
    import zstandard

    file.seek(info.header_offset)
    name_size, extra_size = struct.unpack("<26xHH", file.read(_HEADER))
    file.seek(name_size + extra_size, 1)
    packed = file.read(info.compress_size)
    with closing(zstandard.ZstdDecompressor().stream_reader(packed)) as stream:
        try:
            return bytes(stream.read(info.file_size))
        except zstandard.ZstdError as error:
            raise ValueError(f"{info.filename}: {error}") from None


def _convert_inspect_sample(sample: Row, header: Row) -> Iterator[Row]:
    output = get_object(sample, "output")
    choices = get_objects(output, "choices")
    if not choices and sample.get("error"):
        raise RowError(f"sample {sample.get('id')!r} failed, and has no output")
    epoch = sample.get("epoch", 1)
    target = sample.get("target")
    targets = target if isinstance(target, list) else [target]
    metadata = {key: value for key, value in get_object(sample, "metadata").items() if key not in ("item", "output")}
    yield {
        **metadata,
        "item": str(sample.get("id")) if epoch == 1 else f"{sample.get('id')}#{epoch}",
        "system": header.get("model"),
        "task": header.get("task"),
        **describe_input(sample.get("input")),
        "references": [text for text in targets if isinstance(text, str) and text] or None,
        "output": as_plain_text([get_object(choices[0], "message")] if choices else output.get("completion")),
        "scores": as_scores(dict(_scores(get_object(sample, "scores")))),
    }


def _scores(scores: Row) -> Iterator[tuple[str, Any]]:
    """Yield each score under its scorer's name; those of one scorer with several values as `scorer/value`."""
    for scorer in scores:
        value = get_object(scores, scorer).get("value")
        for key, part in value.items() if isinstance(value, dict) else [(None, value)]:
            yield (f"{scorer}/{key}" if key else scorer), _GRADES.get(part, part) if isinstance(part, str) else part


# ---- Sample logs of lm-evaluation-harness (`--log_samples`): a line per document and filter
#
#     {"doc_id", "doc", "target", "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": continuation or settings}},
#      "resps": [[…]], "filtered_resps": […], "filter", "metrics": […], metric: value}
#
# The output is the first raw answer, or the choice that the model finds most likely. Scores are named as in the
# harness's tables: `exact_match,strict-match`.

_LM_EVAL_FIELDS = frozenset({"item", "system", "output", "source", "references", "scores", "ratings"})


def convert_lm_eval_sample(entry: Row) -> Iterable[Row]:
    arguments = entry.get("arguments")
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments
    requests = [tuple(request.values()) if isinstance(request, dict) else request for request in requests or ()]
    answers = entry.get("resps")
    if not requests or not all(requests) or not isinstance(answers, list) or len(answers) != len(requests):
        raise RowError(f"'resps' must have an answer for each of 'arguments', got {format_value(answers)}")
    doc = entry.get("doc")
    target = entry.get("target")
    first = answers[0][0] if isinstance(answers[0], list) and answers[0] else answers[0]
    if isinstance(first, str):
        output = first
        references = target if isinstance(target, list) else [target]
    else:
        choices = [str(request[1]).strip() for request in requests]
        values = [_log_likelihood(answer) for answer in answers]
        output = choices[values.index(max(values))]
        index = str(target)
        references = [choices[int(index)] if index.isdecimal() and int(index) < len(choices) else target]
    name = entry.get("filter", "none")
    yield {
        **({key: value for key, value in doc.items() if key not in _LM_EVAL_FIELDS} if isinstance(doc, dict) else {}),
        "item": str(entry["doc_id"]),
        "source": str(requests[0][0]),
        "references": [str(text) for text in references if text is not None] or None,
        "output": output,
        "scores": as_scores({f"{metric},{name}": entry.get(metric) for metric in entry.get("metrics") or ()}),
    }


def _log_likelihood(answer: Any) -> float:
    try:
        return float(answer[0][0])
    except (TypeError, ValueError, LookupError):
        raise RowError(f"'resps' must hold texts or log-likelihoods, got {format_value(answer)}") from None


# ---- OpenAI evals: the log of `oaieval`, and output items of the evals API
#
# {"spec": {"eval_name", "completion_fns"}}, then a line per event:
# {"sample_id", "type": "sampling", "data": {"prompt", "sampled"}}, {"type": "match", "data": {"correct", "expected"}}
#
# {"object": "eval.run.output_item", "datasource_item_id", "datasource_item", "sample": {"input", "output", "model"},
#  "results": [{"name", "score", "passed"}]}

_OPENAI_FIELDS = frozenset(("item", "system", "output", "source", "scores", "ratings", "id"))


def read_openai_events(entries: Entries) -> Rows:
    spec: Row = {}
    samples: dict[str, Row] = {}
    for line, entry in entries:
        if entry.get("object") == "eval.run.output_item":
            yield from convert_each([(line, entry)], _convert_output_item)
        elif "spec" in entry:
            spec = entry["spec"]
        elif "sample_id" in entry:
            sample = samples.setdefault(str(entry["sample_id"]), {"line": line, "scores": {}})
            kind = entry.get("type")
            data = get_object(entry, "data")
            if kind == "sampling" and "output" not in sample:  # The first text is the output: later ones are a judge's.
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
    functions = spec.get("completion_fns") or ["unnamed"]
    for name, sample in samples.items():
        line, output = sample.pop("line"), sample.get("output")
        if output is None:
            yield line, RowError(f"the sample {name!r} has no event with its output")
            continue
        scores = as_scores(sample.pop("scores"))
        yield line, {"item": name, "system": str(functions[0]), **sample, **({"scores": scores} if scores else {})}


def _convert_output_item(entry: Row) -> Iterable[Row]:
    sample = get_object(entry, "sample")
    if not sample.get("output"):
        raise RowError(f"the output item {entry.get('id')!r} has no output")
    fields = get_object(entry, "datasource_item")
    fields = {**fields, **get_object(fields, "item")} if isinstance(fields.get("item"), dict) else fields
    yield {
        **{key: value for key, value in fields.items() if key not in _OPENAI_FIELDS},
        "item": str(entry.get("datasource_item_id")),
        "system": sample.get("model"),
        **describe_input(sample.get("input")),
        "output": as_plain_text(sample["output"]),
        "scores": as_scores({result.get("name", ""): result.get("score") for result in get_objects(entry, "results")}),
    }

"""Logs of inspect_ai: `.eval` archives, and the same as one JSON document.

{"version", "eval": {"task", "model"}, "samples": [{"id", "epoch", "input", "target", "output": {"choices": […]},
 "scores": {scorer: {"value", "answer", "explanation"}}, "metadata"}]}
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import IO, Any

from metrist.errors import InputError
from metrist.io.compression import check_unpacked
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

#: What inspect_ai's letters count as: correct, incorrect, partly correct, no answer.
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
#: The number of Zstandard in zip archives, which Python reads since 3.14, and the size of an entry's own header.
_ZSTANDARD, _HEADER = 93, 30


def is_entry(value: Row) -> bool:
    return isinstance(value.get("eval"), dict) and {"version", "status"} <= value.keys() and "plan" in value


def rows(entries: Entries) -> Rows:
    for _, log in entries:
        header = get_object(log, "eval")
        if not log.get("samples"):
            yield 1, RowError("the log has no samples: it is of a run that failed, or was written without them")
        samples = enumerate(get_objects(log, "samples"), 1)
        yield from convert_each(samples, partial(_convert_sample, header=header))


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
            yield from convert_each(entries, partial(_convert_sample, header=header))
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


def _convert_sample(sample: Row, header: Row) -> Iterator[Row]:
    output = get_object(sample, "output")
    choices = get_objects(output, "choices")
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
        "output": as_plain_text([get_object(choices[0], "message")]) if choices else _completion(sample, output),
        "scores": as_scores(dict(_scores(get_object(sample, "scores")))),
    }


def _completion(sample: Row, output: Row) -> str:
    if sample.get("error"):
        raise RowError(f"sample {sample.get('id')!r} failed, and has no output")
    return as_plain_text(output.get("completion"))


def _scores(scores: Row) -> Iterator[tuple[str, Any]]:
    """Yield each score under its scorer's name; those of one scorer with several values as `scorer/value`."""
    for scorer in scores:
        value = get_object(scores, scorer).get("value")
        for key, part in value.items() if isinstance(value, dict) else [(None, value)]:
            yield (f"{scorer}/{key}" if key else scorer), _GRADES.get(part, part) if isinstance(part, str) else part

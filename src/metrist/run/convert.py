"""Read run folders of earlier versions, and write what they hold as runs. This module goes with version 1.0.

A folder of format 2 has, per input, a list of its records with their hashes (inputs/*.jsonl), per metric files with
scores by the hash of the record (results/<metric>/*.jsonl), each with a file of seconds and costs (timings/…), and a
page per finished metric (complete.json). Choices between two outputs are in a folder of this kind, preferences/shards.
Texts are not stored. A folder of format 1 has no lists and no hashes, only the names of its records.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.documents import check_folder
from metrist.errors import MetristError, RunError, format_count, format_path
from metrist.io import read_records
from metrist.metrics.base import NAME
from metrist.metrics.comparator import Judgment
from metrist.ratings import Error
from metrist.records import HASH_BYTES, Hashes, Pair, Record, RecordColumns, hash_units
from metrist.run.manifest import FORMAT, MANIFEST, Input, Manifest, Part, StoredMetric, Version, folder_name
from metrist.run.score_tables import judgments_table, scores_table
from metrist.run.store import Store
from metrist.run.stored_scores import HashIndex
from metrist.run.tables import drop_texts, judged_tables, records_table
from metrist.run.tasks import Block, join_blocks
from metrist.scores import Failure, FailureKind, Scores

_SHARDS = "preferences/shards"
_ENTRIES = (MANIFEST, "inputs", "results", "timings", "preferences")
_SHARD = re.compile(r"\d{9,}-[0-9a-f]{32}\.jsonl")
#: What decoding a file of a stranger's folder may raise.
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)
#: Rows of a part.
_PART_ROWS = 1 << 16
#: Reading options that a run stores, with the types of their values in JSON.
_OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("system", "delimiter", "encoding", "sheet"), str),
    "fields": dict,
    "item_key": list,
    "outputs": (str, list, dict),
    "skip_bad": bool,
}


def is_old_run(path: Path) -> bool:
    return any(0 < _read_format(folder) < FORMAT for folder in (path, path / _SHARDS))


def _read_format(folder: Path) -> int:
    """The format of a run folder; 0 if it is none. The first had no number."""
    try:
        facts = json.loads((folder / MANIFEST).read_bytes())
        return int(facts.get("format", 1)) if {"metrist", "metrics"} <= set(facts) else 0
    except (OSError, *_UNREADABLE):
        return 0


@dataclass(eq=False)
class Conversion:
    """What was converted."""

    records: int = 0
    without_text: int = 0
    scores: int = 0
    choices: int = 0
    metrics: int = 0
    damaged: list[str] = field(default_factory=list)

    def describe(self) -> list[str]:
        counts = [format_count(self.records, "record"), format_count(self.scores, "score")]
        counts += [format_count(self.choices, "choice")] if self.choices else []
        lines = [f"{', '.join(counts)} by {format_count(self.metrics, 'metric')}"]
        if self.without_text:
            missing = f"the texts of {self.without_text:,} of {format_count(self.records, 'record')} were not found"
            lines.append(f"{missing}: the new run stores none, and commands that need them read its files again")
        return lines + [f"left out: {problem}" for problem in self.damaged]


def convert_run(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> Conversion:
    """Write what a run folder of an older version holds as a run. The old folder is not changed.

    Every score, choice, failure, answer, cost and timing is kept; scores by earlier versions of a metric and those of
    runs that were not finished are versions of it. Texts and ratings are added from the files that the run read, if
    these still have each record as it was scored; else the new run stores none, as the old one did.
    """
    source = Path(old)
    store = Store(Path(new))
    if not is_old_run(source):
        raise RunError(
            f"{format_path(source)} is not a run folder of an older version of metrist", code="invalid_value"
        )
    check_folder(source, _ENTRIES, RunError)
    store.check()
    begun = store.read_manifest()
    is_used = begun is not None and (bool(begun.inputs or begun.metrics) or not begun.texts)
    if is_used or source.resolve() in (store.path.resolve(), *store.path.resolve().parents):
        raise RunError(f"{store.name} is in use: name a new folder for the converted run", code="in_use")
    conversion = Conversion()
    try:
        with store.write():
            store.update(lambda manifest: manifest)  # Parts that a killed conversion leaves are those of a run.
            manifest = _convert(source, store, conversion)
            store.update(lambda _: manifest)
            store.has_strays = True
    except BaseException:
        with suppress(RunError):
            store.delete_run()
        raise
    conversion.metrics = len(manifest.metrics)
    return conversion


def _convert(source: Path, store: Store, conversion: Conversion) -> Manifest:
    """Write the parts of a run, and return the manifest that lists them."""
    lists = _read_lists(source)
    # Texts are stored only if all are found: each file is read once to know, and once more to write.
    places = list[Path | None]()
    for one in lists:
        place = _find_file(one, source)
        found = _count_records(one, place) if place else 0
        conversion.records += len(one.hashes)
        conversion.without_text += len(one.hashes) - found
        places.append(place if found == len(one.hashes) else None)
    texts = not conversion.without_text
    inputs = []
    for number, (one, place) in enumerate(zip(lists, places, strict=True)):
        tables = _write_records(one, number, place, store, texts=texts)
        facts = one.facts
        path = facts["path"] and os.path.relpath((source / facts["path"]).resolve(), store.path.resolve())
        inputs.append(
            Input(
                number=number,
                name=facts["name"],
                path=path and Path(path).as_posix(),
                sha256=facts["sha256"],
                options=facts["options"],
                references=tuple(facts["references"]),
                records=len(one.hashes),
                tables={name: tuple(parts) for name, parts in tables.items()},
            )
        )
    metrics = [
        metric
        for folder, compares in ((source, False), (source / _SHARDS, True))
        for metric in _convert_metrics(folder, store, conversion, compares=compares)
    ]
    for metric in metrics:
        export = source / _SHARDS.partition("/")[0] / f"{_old_folder_name(metric.text)}.jsonl"
        if metric.compares and export.is_file():
            store.write_bytes(metric.export, export.read_bytes())
    return Manifest(texts=texts, inputs=tuple(inputs), metrics=tuple(metrics))


# ---- Inputs


@dataclass(frozen=True, kw_only=True, eq=False)
class _List:
    """The list of an input's records."""

    facts: Mapping[str, Any]
    items: Sequence[str]
    systems: Sequence[str]
    hashes: Hashes
    #: Digests of the sources.
    sources: Sequence[str]


def _read_lists(source: Path) -> list[_List]:
    lists = []
    for path in sorted((source / "inputs").glob("*.jsonl")):
        try:
            lists.append(_read_list(path.read_bytes()))
        except _UNREADABLE as error:
            raise RunError(
                f"{path} is damaged ({error}): delete it, and score again what it listed", code="damaged"
            ) from None
    lists.sort(key=lambda one: one.facts["order"])
    if not lists and _read_format(source) == 1:
        return [_list_names(source)]
    return lists


def _read_list(data: bytes) -> _List:
    """The list of an input's records: facts, a line per record, and a checksum, which the first lists did not have."""
    lines = data.splitlines()
    if lines[-1].startswith(b'{"sha256"'):
        _check_sum(data)
        lines.pop()
    facts, *rows = json.loads(b"[" + b",".join(lines) + b"]")
    if len(rows) != facts["records"] or not all(isinstance(text, str) for row in rows for text in row):
        raise ValueError("it does not list the records that it promises")
    if not all(isinstance(facts[name], str | None) for name in ("name", "path", "sha256")):
        raise ValueError("its name and path must be texts")
    for name, value in facts["options"].items():  # They become arguments of the reader.
        if value is not None and not isinstance(value, _OPTIONS.get(name, ())):
            raise ValueError(f"{name!r:.60} is no option of reading, or has another type")
    return _List(
        facts={**facts, "order": int(facts["order"]), "references": list(map(int, facts["references"]))},
        items=[row[0] for row in rows],
        systems=[row[1] for row in rows],
        hashes=_decode_hashes([row[2] for row in rows]),
        sources=[row[3] if len(row) > 3 else "" for row in rows],
    )


def _list_names(source: Path) -> _List:
    """The records of a folder of format 1, of which only the names are known: their hashes are those of the names."""
    names: dict[tuple[str, str], None] = {}
    for row in _list_metrics(source):
        folder = _old_folder_name(row["text"])
        for shard in _read_shards(source, folder, sorted(_list_shards(source / "results" / folder)), []):
            names |= dict.fromkeys(shard.names)
    return _List(
        facts={"name": None, "path": None, "sha256": None, "options": {}, "references": []},
        items=[item for item, _ in names],
        systems=[system for _, system in names],
        hashes=_hash_names(names),
        sources=[""] * len(names),
    )


def _hash_names(names: Iterable[tuple[str, str]]) -> Hashes:
    return hash_units([Record(item=item, system=system, output="") for item, system in names])


def _find_file(one: _List, source: Path) -> Path | None:
    """The file that an input was read from; None if it is gone."""
    if one.facts["path"] is None or one.facts["name"] is None:
        return None
    name = Path(one.facts["name"])
    places = (source / one.facts["path"], name, source.parent / name.name)
    return next((path for path in places if path.is_file()), None)


def _count_records(one: _List, place: Path) -> int:
    """How many records of an input its file still has as they were scored."""
    index = HashIndex(one.hashes)
    try:
        reader = read_records(format_path(place), **one.facts["options"])
        return sum(int((index.find(batch.hashes) >= 0).sum()) for batch in reader.batches(judgments=False))
    except MetristError:  # It holds something else now.
        return 0


def _write_records(
    one: _List, number: int, place: Path | None, store: Store, *, texts: bool
) -> Mapping[str, Sequence[Part]]:
    """Write the records of an input with what people said, from the file that still has all of them; without one,
    their names."""
    if not len(one.hashes):
        return {}
    if place is None:
        return {"records": [store.write_part("records", _make_bare_table(one, number))]}
    index = HashIndex(one.hashes)
    written: dict[str, list[Part]] = {}
    waiting: dict[str, list[pa.Table]] = {}
    order: list[NDArray[np.int64]] = []

    def write() -> None:
        for folder, blocks in waiting.items():
            table = pa.concat_tables(blocks)
            if folder == "records":
                table = table.take(pa.array(np.argsort(np.concatenate(order), kind="stable")))
            written.setdefault(folder, []).append(store.write_part(folder, table))
        waiting.clear()
        order.clear()

    found = 0
    for batch in read_records(format_path(place), **one.facts["options"]).batches():
        positions = index.find(batch.hashes)
        rows = np.flatnonzero(positions >= 0)
        if len(rows):
            lines = [batch.lines[row] for row in rows.tolist()]
            records = batch.records.take(rows.tolist())
            table = records_table(records, batch.hashes[rows], number, lines)
            if not texts:  # Names with lone surrogates stay escaped.
                table = drop_texts(table).append_column("original", pa.nulls(len(table), pa.string()))
            waiting.setdefault("records", []).append(table)
            order.append(positions[rows])
        for folder, table in judged_tables(batch.judged, number, texts).items():
            waiting.setdefault(folder, []).append(table)
        found += len(rows)
        # A part is written where all records so far are in the order of the list.
        if sum(map(len, order)) >= _PART_ROWS and np.concatenate(order).max() < found:
            write()
    write()
    if found < len(one.hashes):
        raise RunError(f"{place} has changed while it was read: convert the run again", code="changed")
    return written


def _make_bare_table(one: _List, number: int) -> pa.Table:
    """The names and hashes of records whose texts are not known."""
    size = len(one.hashes)
    nothing: Any = [None] * size
    records = RecordColumns(
        items=one.items,
        systems=one.systems,
        outputs=[""] * size,
        sources=nothing,
        references=[()] * size,
        instructions=nothing,
        tasks=nothing,
        languages=nothing,
    )
    # Not `texts=False`, which refuses items that are texts: the old folder has them, too.
    table = records_table(records, one.hashes, number, nothing)
    digests = pa.array(one.sources, pa.string())
    table = table.set_column(table.column_names.index("source_digest"), "source_digest", digests)
    return drop_texts(table).append_column("original", table["original"])


# ---- Scores and choices


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shard:
    """A file of results: scores, or judgments of pairs."""

    metric: str
    signature: str
    tokens: bool
    hashes: Hashes
    names: Sequence[tuple[str, str]]
    pairs: Sequence[Pair]
    block: Block
    seconds: float
    records: int


def _convert_metrics(source: Path, store: Store, conversion: Conversion, *, compares: bool) -> Iterator[StoredMetric]:
    """The metrics of a folder, whose results are written as parts."""
    listed = {_old_folder_name(row["text"]): row for row in _list_metrics(source)}
    results = source / "results"
    existing = sorted(folder.name for folder in results.iterdir() if folder.is_dir()) if results.is_dir() else ()
    for name in dict.fromkeys([*listed, *existing]):
        facts = listed.get(name, {})
        page = _read_page(results / name)
        # Of several scores of a record the last counts: one that the page lists.
        files = sorted(_list_shards(results / name), key=lambda file: (file in page.get("shards", ()), file))
        shards = _read_shards(source, name, files, conversion.damaged)
        first = next(shards, None)
        text = facts.get("text") or page.get("metric") or (first.metric if first else None)
        if text is None:
            continue
        short = facts.get("name")
        metric = StoredMetric(
            text=text,
            folder=folder_name(text),
            name=short if isinstance(short, str) and NAME.fullmatch(short) else None,
            higher_is_better=page.get("higher_is_better"),
            compares=isinstance(first.block, list) if first else compares,
        )
        parts = _write_parts(store, metric, shards if first is None else chain([first], shards))
        rows = sum(part.rows for listed_parts in parts.values() for part in listed_parts)
        if metric.compares:
            conversion.choices += rows
        else:
            conversion.scores += rows
        # Versions that were set aside, the finished one, and one that was begun after it.
        finished, begun = page.get("signature"), facts.get("signature")
        aside = [signature for signature in parts if signature not in (finished, begun)]
        versions = [
            Version(
                signature=signature,
                finished=signature == finished,
                notes=tuple(page["notes"]) if signature == finished else (),
                parts=tuple(parts.get(signature, ())),
            )
            for signature in dict.fromkeys([*aside, finished, begun])
            if signature is not None
        ]
        yield msgspec.structs.replace(metric, versions=tuple(versions))


def _write_parts(store: Store, metric: StoredMetric, shards: Iterable[_Shard]) -> dict[str, list[Part]]:
    """Write results as parts, by the signature of the metric's version."""
    parts = dict[str, list[Part]]()
    waiting = dict[tuple[str, bool], list[_Shard]]()

    def write(signature: str, tokens: bool) -> None:
        group = waiting.pop((signature, tokens))
        hashes = np.concatenate([shard.hashes for shard in group])
        block = join_blocks([shard.block for shard in group])
        if isinstance(block, Scores):
            table = scores_table(metric.text, hashes, block)
        else:
            pairs = [pair for shard in group for pair in shard.pairs]
            table = judgments_table(metric.text, hashes, pairs, block, has_records=False)
        facts = {
            "signature": signature,
            "seconds": round(sum(shard.seconds for shard in group), 6),
            "records": sum(shard.records for shard in group),
        }
        parts.setdefault(signature, []).append(store.write_part(metric.place, table, facts, tokens=tokens))

    for shard in shards:
        group = waiting.setdefault((shard.signature, shard.tokens), [])
        group.append(shard)
        if sum(len(other.hashes) for other in group) >= _PART_ROWS:
            write(shard.signature, shard.tokens)
    for key in list(waiting):
        write(*key)
    return parts


def _list_metrics(source: Path) -> list[Mapping[str, Any]]:
    """The metrics of the manifest; a torn one lists none."""
    try:
        rows = json.loads((source / MANIFEST).read_bytes())["metrics"]
        return [row for row in rows if isinstance(row["text"], str) and isinstance(row["signature"], str)]
    except (OSError, *_UNREADABLE):
        return []


def _read_page(folder: Path) -> dict[str, Any]:
    """The page of a finished metric; empty if it is not finished."""
    try:
        page = json.loads((folder / "complete.json").read_bytes())
        texts = (page["metric"], page["signature"], *page["shards"], *page.get("notes", ()))
        if not all(isinstance(text, str) for text in texts) or page["higher_is_better"] not in (True, False, None):
            return {}
        return {**page, "shards": frozenset(page["shards"]), "notes": page.get("notes", ())}
    except (OSError, *_UNREADABLE):
        return {}


def _list_shards(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if _SHARD.fullmatch(path.name)] if folder.is_dir() else []


def _read_shards(source: Path, folder: str, files: Iterable[str], damaged: list[str]) -> Iterator[_Shard]:
    """Files of results. Those that are not whole are added to `damaged`."""
    for name in files:
        path = source / "results" / folder / name
        try:
            timing = json.loads((source / "timings" / folder / f"{path.stem}.json").read_bytes())
            timing = {"seconds": float(timing["seconds"]), "records": int(timing["records"]), "usage": timing["usage"]}
        except (OSError, *_UNREADABLE):
            timing = {"seconds": 0.0, "records": 0, "usage": {}}
        try:
            yield _decode_shard(path.read_bytes(), timing)
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}", code="unreadable") from error
        except _UNREADABLE as error:
            damaged.append(f"{format_path(path)} is damaged: {error}")


def _decode_shard(data: bytes, timing: Mapping[str, Any]) -> _Shard:
    _check_sum(data)
    header, *rows = json.loads(b"[" + b",".join(data.splitlines()[:-1]) + b"]")
    if len(rows) != header["count"]:
        raise ValueError(f"it holds {len(rows)} records, its first line promises {header['count']}")
    usages = {int(row): usage for row, usage in timing["usage"].items()}
    names = list[tuple[str, str]]()
    pairs = list[Pair]()
    block = list[Judgment]()
    if rows and isinstance(rows[0], dict):
        for number, row in enumerate(rows):
            first, second = (Record(item=row["item"], system=system, output="") for system in row["systems"])
            pairs.append(Pair(first=first, second=second))
            block.append(_read_judgment(row, usages.get(number)))
    else:
        names = [(row[0], row[1]) for row in rows]
    return _Shard(
        metric=header["metric"],
        signature=header["signature"],
        tokens=bool(header.get("tokens")),
        hashes=_decode_hashes(header["hashes"]) if header.get("hashes") else _hash_names(names),
        names=names,
        pairs=pairs,
        block=block or _read_scores(header["parts"], rows, usages),
        seconds=timing["seconds"],
        records=timing["records"],
    )


def _read_scores(parts: Sequence[str], rows: Sequence[Sequence[Any]], usages: Mapping[int, Any]) -> Scores:
    """Rows of [item, system, value, [parts], [statistics]], some with what only some scores carry."""
    sparse = {number: row[5] for number, row in enumerate(rows) if len(row) > 5}

    def column(key: str) -> dict[int, Any]:
        return {number: fields[key] for number, fields in sparse.items() if fields.get(key) is not None}

    return Scores(
        values=np.array([row[2] for row in rows], np.float64),
        parts={name: np.array([row[3][n] for row in rows], np.float64) for n, name in enumerate(parts)},
        stats=np.array([row[4] for row in rows], np.float64),
        errors={number: tuple(Error(**error) for error in errors) for number, errors in column("errors").items()},
        explanations=column("explanation"),
        raws=column("raw"),
        tokens=column("tokens"),
        failures={n: _read_failure(text, sparse[n].get("failure_kind")) for n, text in column("failure").items()},
        incomplete=frozenset(column("incomplete")),
        usages=usages,
    )


def _read_judgment(row: Mapping[str, Any], usage: Any) -> Judgment:
    return Judgment(
        preference=row["choice"],
        explanation=row["explanation"],
        failure=None if row["failure"] is None else _read_failure(row["failure"], row.get("failure_kind")),
        flipped=row.get("flipped"),
        shown=tuple(row.get("shown") or ()),
        raws=tuple(row.get("raws") or ()),
        incomplete=bool(row.get("incomplete")),
        usage=usage,
    )


def _read_failure(message: str, kind: str | None) -> Failure:
    """A failure. Files written before kinds existed mark what a server did not answer by its words."""
    if kind is None:
        kind = FailureKind.transient if "no answer came:" in message else FailureKind.other
    return Failure(kind, message)


def _decode_hashes(texts: Sequence[str]) -> Hashes:
    return np.frombuffer(bytes.fromhex("".join(texts)), np.uint8).reshape(len(texts), HASH_BYTES)


def _check_sum(data: bytes) -> None:
    """Refuse a file whose last line is not the checksum of all others."""
    end = data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1
    if data[end:] != b'{"sha256": "%s"}\n' % hashlib.sha256(data[:end]).hexdigest().encode("ascii"):
        raise ValueError("its content does not match its checksum")


def _old_folder_name(text: str) -> str:
    """The folder of a metric: its plain name, or the legible part of its text and a hash of the whole."""
    if re.fullmatch(r"[A-Za-z0-9_]+", text):
        return text
    legible = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60]
    return f"{legible}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"

"""Files of preferences: one JSON object a line, which `read_records` and `metrist meta --preferences` read back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import RunError
from metrist.io import whole
from metrist.io.writer import check_apart
from metrist.metrics.comparator import Comparator, Judgment
from metrist.records import Pair
from metrist.run.pairing import Key
from metrist.run.preferred import as_row
from metrist.run.store.flat import check_writable, flat_suffix
from metrist.run.store.metric_folder import folder_name
from metrist.run.store.shards import INCOMPLETE, KIND, read_failure

_FOLDER = "preferences"


@dataclass(frozen=True, slots=True)
class PreferenceTarget:
    """Where judgments go: a file for all comparators, or a folder with a file for each, which a second call completes;
    at most one of them."""

    file: Path | None = None
    folder: Path | None = None


def preference_target(out: str | os.PathLike[str] | None, inputs: Iterable[str]) -> PreferenceTarget:
    """What a path asks for; what could not be written in the end is refused at once."""
    if out is None:
        return PreferenceTarget()
    path = Path(out)
    if path.is_dir() or not path.suffix or os.fspath(out).endswith(("/", os.sep)):
        return PreferenceTarget(folder=path / _FOLDER)
    if flat_suffix(path) != ".jsonl":
        raise RunError(f"cannot write preferences to {path}: wanted a folder, or a file that ends in .jsonl")
    check_writable(path)
    check_apart(path, inputs)
    return PreferenceTarget(file=path)


def write_rows(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """One row a line; the file appears whole or not at all."""
    with whole(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class StoredJudgments:
    """One comparator's file in a folder, and beside it a page that says of which pairs it was made, and by what; the
    page has the file's hash."""

    def __init__(self, folder: Path, comparator: Comparator, signature: str, pairs: Sequence[Pair]) -> None:
        name = folder_name(comparator.text)
        self._file, self._page = folder / f"{name}.jsonl", folder / f"{name}.json"
        self._comparator = comparator.text
        self._made_by = {"comparator": comparator.text, "signature": signature, "pairs": content_of(pairs)}

    def read(self) -> list[Judgment] | None:
        """What the folder holds of these very pairs; None where that is nothing, or where a pair, or a judge of one,
        had failed: what was answered before is in the LLM's cache, so asking again costs only what is missing."""
        try:
            page, rows = json.loads(self._page.read_text(encoding="utf-8")), self._file.read_bytes()
        except (OSError, ValueError):
            return None
        if page != {**self._made_by, "file": hashlib.sha256(rows).hexdigest()}:
            return None
        found = [_judgment(json.loads(row)) for row in rows.splitlines()]
        return found if all(map(_is_settled, found)) else None

    def write(self, keys: Sequence[Key], judgments: Sequence[Judgment]) -> None:
        """Write the file, then the page."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        rows = zip(keys, judgments, strict=True)
        write_rows(
            self._file,
            ({"item": item, "systems": [a, b], **as_row(self._comparator, one)} for (item, a, b), one in rows),
        )
        with whole(self._page) as page:
            made = {**self._made_by, "file": hashlib.sha256(self._file.read_bytes()).hexdigest()}
            page.write(json.dumps(made, indent=1) + "\n")


def content_of(pairs: Sequence[Pair]) -> str:
    """A hash of all that the pairs say."""
    digest = hashlib.sha256()
    for pair in pairs:
        for record in (pair.first, pair.second):
            said = (record.item, record.system, record.output, record.source, record.references, record.instruction)
            digest.update(repr((*said, record.task, record.language)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _is_settled(judgment: Judgment) -> bool:
    return judgment.failure is None and not judgment.incomplete


def _judgment(row: Mapping[str, Any]) -> Judgment:
    return Judgment(
        preference=row["choice"],
        explanation=row["explanation"],
        failure=None if row["failure"] is None else read_failure(row["failure"], row.get(KIND)),
        flipped=row.get("flipped"),
        shown=tuple(row.get("shown") or ()),
        raws=tuple(row.get("raws") or ()),
        incomplete=bool(row.get(INCOMPLETE)),
    )

"""The records of a run: what each of its inputs held when it was last read, and all of them together.

run/inputs/<name>-<hash>.jsonl    one per file with its reading options, and one per call with rows that have no file

    {"name": …, "path": …, "sha256": …, "options": {…}, "order": …, "references": […], "records": …}
    [item, system, hash of everything that metrics see, short hash of the source]
                                                               one line per record, in the input's order
    {"sha256": …}                                              of all lines above

Texts are not stored. A record is found among a metric's scores by its hash. Each file is written whole when its input
has been read to the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metrist.columns import HashColumn
from metrist.errors import RunError, agree, format_count, format_path, label_item, quote_word
from metrist.io.dedup import SourceCheck, digest_source
from metrist.io.remote import is_remote
from metrist.io.writer import atomic_write_bytes
from metrist.records import Record
from metrist.run import columns
from metrist.run.columns import ColumnsWriter, NamesWriter, open_columns, read_names, to_keys, to_rows
from metrist.run.shard_file import CHECKSUM

FOLDER = "inputs"
_HASH = re.compile(r"[0-9a-f]{32}")
_ROWS_IN_MEMORY = "rows in memory"
_CHECKSUM_OPENING = CHECKSUM.partition(b"%s")[0]
#: Reading options that change which rows are read, and not what a record is: another value is no other input.
_PASSING_OPTIONS = frozenset({"skip_bad"})

#: Lines of a long list that are read at a time.
_LINES = 4096

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunInput:
    """One input of a run and its records. `path` leads from the run folder to the file and `sha256` is of its bytes;
    both are None for rows that have no file. `order` counts the inputs as they were added."""

    name: str | None
    path: str | None
    sha256: str | None
    options: Mapping[str, Any]
    order: int
    #: The different numbers of references that records have, records without any aside.
    references: tuple[int, ...]
    items: Sequence[str]
    systems: Sequence[str]
    hashes: Sequence[str]
    #: Digests of the sources, by which systems' items are compared; empty where there is none, or in older folders.
    sources: Sequence[str]
    #: The hash of its file, where its records are read from columns.
    key: str = ""

    @property
    def label(self) -> str:
        """The input as it was named."""
        return self.name or _ROWS_IN_MEMORY

    @property
    def file_name(self) -> str:
        """The name of its file in the run folder."""
        return name_list(self.name, self.path, self.options, () if self.path else self.hashes)

    def keys(self) -> Iterator[Key]:
        return zip(self.items, self.systems, strict=True)

    def locate(self, run: Path) -> list[Path]:
        """Where the file may be: beside the run folder as it was then, or under the name that was typed."""
        if self.path is None or self.name is None:
            return []
        places = [run / self.path, Path(self.name), run.parent / Path(self.name).name]
        return list({os.path.abspath(place): place for place in places}.values())

    def find(self, run: Path) -> Path | None:
        """The first of these places that has a file."""
        return next((place for place in self.locate(run) if place.is_file()), None)

    def describe(self, run: Path) -> str:
        """The input as messages name it: its URL, or its file as seen from the current folder, which tells files of
        one name apart."""
        if self.path is None or self.name is None or is_remote(self.name):
            return self.label
        return format_path(self.find(run) or run / self.path)

    def describe_command(self, run: Path) -> str:
        """The arguments that read this input again, from the current folder."""
        return " ".join([quote_word(self.describe(run)), *self.describe_options()])

    def describe_options(self) -> list[str]:
        """The options with which it was read, as they are typed."""
        texts: list[str] = []
        for name, value in self.options.items():
            option = f"--{name.replace('_', '-')}"
            if name == "fields":
                texts += [f"--field {quote_word(f'{ours}={theirs}')}" for ours, theirs in value.items()]
            elif name == "item_key":
                texts.append(f"{option} {quote_word('+'.join(value))}")
            elif name == "outputs":
                named = [f"{system}={column}" for system, column in value.items()] if isinstance(value, dict) else value
                texts += [f"--output {quote_word(entry)}" for entry in ([named] if isinstance(named, str) else named)]
            elif value is True:
                texts.append(option)
            elif isinstance(value, str):
                texts.append(f"{option} {'tab' if value == chr(9) else quote_word(value)}")
        return texts

    def encode_facts(self, records: int) -> bytes:
        """The first line of its file."""
        facts = {
            "name": self.name,
            "path": self.path,
            "sha256": self.sha256,
            "options": dict(self.options),
            "order": self.order,
            "references": list(self.references),
            "records": records,
        }
        return f"{json.dumps(facts, default=str)}\n".encode("ascii")

    def encode(self) -> bytes:
        """The bytes of its file."""
        rows = _encode_rows(self.items, self.systems, self.hashes, self.sources)
        data = self.encode_facts(len(self.hashes)) + rows
        return data + CHECKSUM % hashlib.sha256(data).hexdigest().encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> RunInput:
        """Read a file back; ValueError, TypeError, KeyError or RecursionError if it is none of ours."""
        end = data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1
        if data[end:].startswith(_CHECKSUM_OPENING):  # Lists of older versions have none.
            _check_sum(data[end:], hashlib.sha256(data[:end]))
            data = data[:end]
        facts, *rows = json.loads(b"[" + b",".join(data.splitlines()) + b"]")
        _check_count(facts, len(rows))
        items, systems, hashes, sources = _decode_rows(rows)
        return cls._of(facts, items=items, systems=systems, hashes=hashes, sources=sources)

    @classmethod
    def _of(cls, facts: Mapping[str, Any], **rows: Any) -> RunInput:
        for name in ("name", "path", "sha256"):
            if not isinstance(facts[name], str | None):
                raise TypeError(f"{name} must be a text or null")
            if "\0" in (facts[name] or ""):
                raise ValueError(f"{name} holds a NUL character")
        _check_options(facts["options"])
        return cls(
            name=facts["name"],
            path=facts["path"],
            sha256=facts["sha256"],
            options=dict(facts["options"]),
            order=int(facts["order"]),
            references=tuple(int(number) for number in facts["references"]),
            **rows,
        )

    @classmethod
    def read(cls, path: Path, run: Path) -> RunInput:
        """Read a file of a run folder; a long one is mapped, as columns."""
        with path.open("rb") as file:
            facts = json.loads(file.readline())
        if facts["records"] <= columns.MAX_IN_MEMORY:
            return cls.decode(path.read_bytes())
        key = hash_file(str(path))
        stored = open_columns(
            run / columns.FOLDER / FOLDER / path.stem, key, lambda writer: _write_columns(writer, path)
        )
        return cls._of(
            facts,
            items=read_names(stored, "item"),
            systems=read_names(stored, "system"),
            hashes=HashColumn(stored.arrays["hashes"]),
            sources=HashColumn(stored.arrays["sources"]),
            key=key,
        )


#: Reading options that a run stores, with the types of their values in JSON.
_OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "fields": dict,
    "item_key": list,
    "outputs": (str, list, dict),
    "system": str,
    "delimiter": str,
    "encoding": str,
    "sheet": str,
    "skip_bad": bool,
}


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse reading options that no run has stored: they become arguments of the reader."""
    for name, value in options.items():
        if value is not None and not isinstance(value, _OPTIONS.get(name, ())):
            raise ValueError(f"{name!r:.60} is no option of reading, or has another type")
        names = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if not all(isinstance(text, str | None) for text in names):
            raise ValueError(f"the option {name!r} must hold texts")


def _encode_rows(items: Sequence[str], systems: Sequence[str], hashes: Sequence[str], sources: Sequence[str]) -> bytes:
    names = zip(map(quoted, items), map(quoted, systems), hashes, sources, strict=True)
    return "".join(f'[{item},{system},"{digest}","{source}"]\n' for item, system, digest, source in names).encode(
        "ascii"
    )


def _decode_rows(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[str], list[str], list[str]]:
    """Items, systems, hashes and sources of rows; ValueError if they are none of ours."""
    texts = [text for row in rows for text in row]
    width = len(rows[0]) if rows else 4
    if width not in (3, 4) or any(len(row) != width for row in rows) or not all(isinstance(t, str) for t in texts):
        raise ValueError("expected an item, a system and the hashes of the record and of its source in each line")
    if not all(map(_HASH.fullmatch, texts[2::width])):
        raise ValueError("the hash of a record must have 32 digits")
    sources = texts[3::width] if width == 4 else [""] * len(rows)
    return texts[0::width], texts[1::width], texts[2::width], sources


def _check_sum(line: bytes, digest: Any) -> None:
    if line != CHECKSUM % digest.hexdigest().encode("ascii"):
        raise ValueError("its content does not match its checksum")


def _check_count(facts: Mapping[str, Any], count: int) -> None:
    if count != facts["records"]:
        raise ValueError(f"it lists {count} records, its first line promises {facts['records']}")


def name_list(name: str | None, path: str | None, options: Mapping[str, Any], hashes: Sequence[str]) -> str:
    """The name of the list of an input in its run folder."""
    digest = hashlib.sha256((path or "").encode("utf-8", "surrogatepass"))
    for start in range(0, len(hashes), _LINES):
        digest.update("".join(hashes[start : start + _LINES]).encode("ascii"))
    legible = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(name or "rows").name).strip("-.")[:40] or "input"
    digest.update(f"\n{json.dumps(_identity(options), sort_keys=True, default=str)}".encode("utf-8", "surrogatepass"))
    return f"{legible}-{digest.hexdigest()[:12]}.jsonl"


def _write_columns(writer: ColumnsWriter, path: Path) -> dict[str, Any]:
    """Write the rows of a list of records as columns, a few thousand at a time."""
    item_names, system_names, count = NamesWriter(writer, "item"), NamesWriter(writer, "system"), 0
    with path.open("rb") as file:
        first = file.readline()
        facts, digest = json.loads(first), hashlib.sha256(first)
        while lines := list(islice(file, _LINES)):
            checksum = lines.pop() if lines[-1].startswith(_CHECKSUM_OPENING) else None
            digest.update(b"".join(lines))
            if checksum is not None:
                _check_sum(checksum, digest)
            if not lines:
                break
            items, systems, hashes, sources = _decode_rows(json.loads(b"[" + b",".join(lines) + b"]"))
            item_names.append(items)
            system_names.append(systems)
            writer.append("hashes", to_rows(hashes, 16))
            writer.append("sources", to_rows(sources, 8))
            count += len(items)
    _check_count(facts, count)
    return {"rows": count}


@dataclass(eq=False)
class View:
    """All records of a run, in the order in which its inputs were added; a record that several inputs share is there
    once."""

    run: Path
    inputs: list[RunInput]
    items: Sequence[str] = field(init=False)
    systems: Sequence[str] = field(init=False)
    hashes: Sequence[str] = field(init=False)
    sources: Sequence[str] = field(init=False)
    notes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs.sort(key=lambda one: (one.order, one.file_name))
        if len(self.inputs) == 1 and self.inputs[0].key:  # An input names each of its records once.
            (only,) = self.inputs
            self.items, self.systems, self.hashes, self.sources = only.items, only.systems, only.hashes, only.sources
            self.notes = []
            return
        names: dict[str, str] = {}
        hashes: dict[Key, str] = {}
        sources: dict[str, str] = {}
        owners: dict[Key, RunInput] = {}
        self.notes = []
        for one in self.inputs:
            sources |= zip(one.hashes, one.sources, strict=True)
            for item, system, digest in zip(one.items, one.systems, one.hashes, strict=True):
                key = names.setdefault(item, item), names.setdefault(system, system)
                if hashes.setdefault(key, digest) == digest:
                    owners.setdefault(key, one)
                elif one.path is None and owners[key].path is None:
                    hashes[key], owners[key] = digest, one  # Rows without a file replace earlier ones.
                elif not self.notes:  # Two runs at once added them.
                    self.notes.append(
                        f"item {label_item(item)!r} of system {system!r} has one text in "
                        f"{owners[key].describe(self.run)} and another in {one.describe(self.run)}: the first is used; "
                        "`metrist remove` one of them"
                    )
        self.items = [item for item, _ in hashes]
        self.systems = [system for _, system in hashes]
        self.hashes = list(hashes.values())
        self.sources = [sources[digest] for digest in self.hashes]
        if len(self.inputs) > 1:
            check = SourceCheck()
            check.add(self.items, self.sources)
            self.notes += check.describe()

    @classmethod
    def read(cls, run: Path) -> View:
        """The view that is stored in a run folder; empty if nothing was read to its end."""
        inputs = []
        folder = run / FOLDER
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            try:
                inputs.append(RunInput.read(path, run))
            except FileNotFoundError:
                continue  # Removed by another run at the same time.
            except OSError as error:
                raise RunError(f"cannot read {path}: {error.strerror}") from error
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
                raise RunError(
                    f"{path} is damaged ({error}): delete it and run the same `metrist score` again; no score is lost"
                ) from None
        return cls(run, inputs)

    @property
    def references(self) -> tuple[int, ...]:
        """The different numbers of references that records have."""
        return tuple(sorted({number for one in self.inputs for number in one.references}))

    def find(self, path: str, options: Mapping[str, Any], sha256: str) -> RunInput | None:
        """The input that was read from this file with these options, also where the same file was moved since."""
        moved = None
        for one in self.inputs:
            if one.path is None or one.name is None or _normal_form(one.options) != _normal_form(options):
                continue
            places = {os.path.realpath(self.run / one.path)}
            if os.path.isabs(one.name):
                places.add(os.path.realpath(one.name))
            if os.path.realpath(path) in places:
                return one
            if one.sha256 == sha256 and Path(one.name).name == Path(path).name and not any(map(os.path.exists, places)):
                moved = one
        return moved

    def describe_missing(self, metric: str, name: str | None, missing: Sequence[str] | set[str]) -> list[str]:
        """Notes on the records, by hash, that a metric, which may have a short name, has not scored, with the command
        that adds their scores."""
        notes = []
        for one in self.inputs:
            if isinstance(missing, HashColumn):
                count = int(np.isin(to_keys(to_rows(one.hashes, 16)), to_keys(missing.rows)).sum())
            else:
                count = sum(digest in missing for digest in one.hashes)
            if not count:
                continue
            outputs = f"{count:,} of {len(one.hashes):,} outputs of {one.describe(self.run)}"
            options = f"-m {quote_word(f'{name}={metric}' if name else metric)} -o {quote_word(f'{self.run}/')}"
            command = f"`metrist score {one.describe_command(self.run)} {options}`"
            if one.path is None:
                command = "score the same rows again"
            notes.append(f"{name or metric} has not scored {outputs}: {command} to add them")
        return notes


@dataclass(eq=False)
class Draft:
    """An input that is being read. `path` is None for rows that have no file."""

    name: str | None
    path: str | None
    options: Mapping[str, Any]
    references: set[int] = field(default_factory=set)
    items: list[str] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    sha256: str | None = None
    previous: RunInput | None = None
    #: The rows of a long input, and their hashes, in files without a name.
    _rows_file: IO[bytes] | None = None
    _hashes_file: IO[bytes] | None = None
    count: int = 0

    def place(self, run: Path) -> str | None:
        """The path of its file, as seen from the run folder."""
        place = self.path and os.path.relpath(os.path.realpath(self.path), os.path.realpath(run))
        return place and Path(place).as_posix()

    def file_name(self, run: Path) -> str | None:
        """The name of its list in a run folder; None for rows without a file, whose name depends on all of them."""
        return name_list(self.name, self.place(run), self.options, ()) if self.path else None

    def add(self, items: list[str], systems: list[str], hashes: Sequence[str], sources: list[str], near: Path) -> None:
        """Add records. Those of a long input go to disk, near the run folder."""
        self.count += len(items)
        self.items += items
        self.systems += systems
        self.hashes += hashes
        self.sources += sources
        if self.path is not None and (self._rows_file or self.count > columns.MAX_IN_MEMORY):
            if self._rows_file is None or self._hashes_file is None:
                place = next((folder for folder in (near, *near.parents) if folder.is_dir()), None)
                place = place if place and os.access(place, os.W_OK) else None
                self._rows_file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
                self._hashes_file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
                weakref.finalize(self, self._rows_file.close)
                weakref.finalize(self, self._hashes_file.close)
            self._rows_file.write(_encode_rows(self.items, self.systems, self.hashes, self.sources))
            self._hashes_file.write(bytes.fromhex("".join(self.hashes)))
            self.items, self.systems, self.hashes, self.sources = [], [], [], []

    def hash_rows(self) -> NDArray[np.uint8]:
        """The hashes of all records as rows of bytes."""
        if self._hashes_file is None:
            return to_rows(self.hashes, 16)
        self._hashes_file.flush()
        return np.memmap(self._hashes_file, np.uint8, "r", shape=(self.count, 16))

    def write(self, entry: RunInput, path: Path, run: Path) -> RunInput:
        """Write the list of the records, and return the entry with them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._rows_file is None:
            data = entry.encode()
            if not path.exists() or path.read_bytes() != data:
                with atomic_write_bytes(path) as file:
                    file.write(data)
            return entry if self.count <= columns.MAX_IN_MEMORY else RunInput.read(path, run)
        self._rows_file.seek(0)
        digest, part = hashlib.sha256(), entry.encode_facts(self.count)
        with atomic_write_bytes(path) as file:
            while part:
                digest.update(part)
                file.write(part)
                part = self._rows_file.read(1 << 20)
            file.write(CHECKSUM % digest.hexdigest().encode("ascii"))
        self._rows_file.close()
        return RunInput.read(path, run)


def _set_aside_damaged(run: Path, drafts: Sequence[Draft]) -> Iterator[str]:
    """Rename the lists of these inputs that cannot be read; a message for each."""
    for name in dict.fromkeys(draft.file_name(run) for draft in drafts):
        path = run / FOLDER / (name or "")
        if name and path.is_file():
            try:
                RunInput.read(path, run)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
                path.replace(path.with_name(f"{name}.set-aside"))
                yield f"{path} was set aside and written again: {error}"


@dataclass(eq=False)
class ViewUpdate:
    """The inputs of one run joined with those that the folder has. Nothing is written before `finish`."""

    view: View
    drafts: list[Draft]
    notes: list[str] = field(default_factory=list)
    _others: dict[Key, tuple[str, RunInput]] = field(init=False)

    @classmethod
    def open(cls, run: Path, drafts: list[Draft]) -> ViewUpdate:
        """Join the drafts with the view of a run folder. A damaged list of one of them, which is read again anyway, is
        set aside."""
        try:
            return cls(View.read(run), drafts)
        except RunError:
            notes = list(_set_aside_damaged(run, drafts))
            if not notes:
                raise
            return cls(View.read(run), drafts, notes)

    def __post_init__(self) -> None:
        for draft in self.drafts:
            if draft.path is not None:
                draft.sha256 = hash_file(draft.path)
                draft.previous = self.view.find(draft.path, draft.options, draft.sha256)
        own = {id(draft.previous) for draft in self.drafts}
        has_rows = any(draft.path is None for draft in self.drafts)
        self._others = {
            key: (digest, one)
            for one in self.view.inputs
            if id(one) not in own and not (has_rows and one.path is None)
            for key, digest in zip(one.keys(), one.hashes, strict=True)
        }

    def add(self, draft: Draft, records: Sequence[Record], hashes: Sequence[str]) -> None:
        """Add records of one input. One whose name another input holds with other texts is refused."""
        items, systems = [record.item for record in records], [record.system for record in records]
        if self._others:
            for item, system, digest in zip(items, systems, hashes, strict=True):
                other = self._others.get((item, system))
                if other and other[0] != digest:
                    raise RunError(self._describe_conflict(draft, item, system, other[1]))
        sources = [digest_source(record.source) for record in records]
        draft.add(items, systems, hashes, sources, self.view.run)
        draft.references |= {len(record.references) for record in records if record.references}

    def _describe_conflict(self, draft: Draft, item: str, system: str, other: RunInput) -> str:
        own = draft.name or _ROWS_IN_MEMORY
        same = draft.path is not None and other.path is not None
        same = same and os.path.realpath(str(draft.path)) == os.path.realpath(self.view.run / str(other.path))
        where = other.describe(self.view.run)
        removal = f"`metrist remove {quote_word(f'{self.view.run}/')} --input {quote_word(where)}`"
        if same:
            now = dataclasses.replace(other, options=draft.options)
            earlier, later = other.describe_command(self.view.run), now.describe_command(self.view.run)
            where += f", read as `{earlier}` and now as `{later}` (--output NAME=COLUMN for each column reads both)"
        return (
            f"{own}: item {label_item(item)!r} of system {system!r} is in {self.view.run} already, with other texts, "
            f"from {where}; nothing was scored. Give these outputs a system of their own (--system NAME), name a new "
            f"run folder, or remove the earlier ones with {removal}"
        )

    def finish(self) -> View:
        """Write what was read, and return the new view. What changed is in `notes`."""
        order = max((one.order for one in self.view.inputs), default=-1) + 1
        replaced: set[int] = set()
        written: list[RunInput] = []
        for draft in self.drafts:
            earlier = draft.previous
            if draft.path is None:
                self._drop_stored_rows(draft)
                draft.count = len(draft.hashes)
                if not draft.hashes:
                    continue
            elif earlier is None:
                earlier = self._find_same(draft)
            entry = RunInput(
                name=draft.name,
                path=draft.place(self.view.run),
                sha256=draft.sha256,
                options=draft.options,
                order=order if earlier is None else earlier.order,
                references=tuple(sorted(draft.references)),
                items=draft.items,
                systems=draft.systems,
                hashes=draft.hashes,
                sources=draft.sources,
            )
            order += 1
            if earlier is not None:
                replaced.add(id(earlier))
            entry = draft.write(entry, self.view.run / FOLDER / entry.file_name, self.view.run)
            if draft.path is not None and draft.previous is not None:
                self._note_changes(draft, entry, draft.previous)
            if earlier is not None and earlier.file_name != entry.file_name:
                (self.view.run / FOLDER / earlier.file_name).unlink(missing_ok=True)
            written.append(entry)
        names = {entry.file_name for entry in written}
        kept = [one for one in self.view.inputs if id(one) not in replaced and one.file_name not in names]
        view = View(self.view.run, [*kept, *written])
        added = len(view.hashes) - len(self.view.hashes)
        if self.view.hashes and added > 0:
            labels = ", ".join(dict.fromkeys(one.describe(view.run) for one in view.inputs))
            new = f"{added:,} {agree(added, 'is', 'are')} new"
            self.notes.append(f"{view.run} now holds {format_count(len(view.hashes), 'output')} of {labels}; {new}")
        return view

    def _find_same(self, draft: Draft) -> RunInput | None:
        """The same file, read with other options that changed nothing: it stays one input."""
        for one in self.view.inputs:
            is_same_file = one.path and os.path.realpath(str(draft.path)) == os.path.realpath(self.view.run / one.path)
            if is_same_file and np.array_equal(to_rows(one.hashes, 16), draft.hash_rows()):
                return one
        return None

    def _note_changes(self, draft: Draft, entry: RunInput, earlier: RunInput) -> None:
        if np.array_equal(to_rows(entry.hashes, 16), to_rows(earlier.hashes, 16)):
            return
        now = dict(zip(entry.keys(), entry.hashes, strict=True))
        changed = gone = 0
        for key, digest in zip(earlier.keys(), earlier.hashes, strict=True):
            changed += key in now and now[key] != digest
            gone += key not in now
        parts = []
        if changed:
            parts.append(f"{format_count(changed, 'output')} changed and {agree(changed, 'was', 'were')} scored again")
        if gone:
            verb, ending = agree(gone, "is", "are"), agree(gone, "was", "were")
            parts.append(f"{gone:,} {verb} no longer in the file and {ending} set aside")
        if parts:
            removal = f"`metrist remove {quote_word(f'{self.view.run}/')} --unused` deletes the earlier scores"
            self.notes.append(f"{draft.name}: {', '.join(parts)}; {removal}")

    def _drop_stored_rows(self, draft: Draft) -> None:
        """Leave only those rows in a draft that the folder does not have yet."""
        known = {
            key: digest
            for one in self.view.inputs
            if one.path is None
            for key, digest in zip(one.keys(), one.hashes, strict=True)
        }
        rows = list(zip(draft.items, draft.systems, draft.hashes, draft.sources, strict=True))
        new = [row for row in rows if known.get(row[:2]) != row[2]]
        changed = sum(row[:2] in known for row in new)
        if changed:
            removal = f"`metrist remove {quote_word(f'{self.view.run}/')} --unused` deletes the earlier scores"
            outputs = f"{format_count(changed, 'output')} changed and {agree(changed, 'was', 'were')} scored again"
            self.notes.append(f"{outputs}; {removal}")
        draft.items, draft.systems, draft.hashes, draft.sources = ([row[n] for row in new] for n in range(4))


def _identity(options: Mapping[str, Any]) -> dict[str, Any]:
    """The reading options that make the same file another input."""
    return {name: value for name, value in options.items() if name not in _PASSING_OPTIONS}


def _normal_form(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same of two ways to say the same: `--output v1` is `--output v1=v1`."""
    options, outputs = _identity(options), options.get("outputs")
    if outputs:
        named = (
            [f"{system}={column}" for system, column in outputs.items()] if isinstance(outputs, Mapping) else outputs
        )
        entries = ",".join([named] if isinstance(named, str) else named).split(",")
        options["outputs"] = sorted(entry if {"=", "*"} & set(entry) else f"{entry}={entry}" for entry in entries)
    return options


def hash_file(path: str) -> str:
    """The SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error

"""The store of a run: immutable Parquet parts, and the manifest that lists those which count.

run/manifest.json                    the inputs, the metrics, and the parts of each
run/records/<hash>.parquet           records with their texts; ratings/, errors/, preferences/, given/: what people said
run/scores/<metric>/<hash>.parquet   one metric's scores, by the hash of the record; judgments/<comparator>/ of pairs
run/exports/<comparator>.jsonl       the choices of the latest `metrist prefer`, for other tools
run/log/<id>.log                     results of the last seconds, until they are in a part

A part is named by the SHA-256 of its bytes. It is written under another name, synced and renamed; then a new manifest
that lists it is written in the same way. Readers use only what the manifest lists, so that a run that is killed at any
step loses nothing that it listed and shows no row twice. Two processes may add to one folder: each manifest is made
from the latest one, under a lock. A part that is no longer listed is deleted when no other process uses the folder.

A part is compared with its name when a process first opens it: DuckDB looks at no checksum, and pyarrow at none of a
file's footer. This takes .6 s per GB on a Neoverse core.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metrist.documents import check_folder
from metrist.errors import RunError, format_path
from metrist.io.locks import is_at, lock, share, try_lock
from metrist.io.writer import sync_folder
from metrist.run.manifest import (
    EXPORTS,
    FRAME,
    LOG,
    MANIFEST,
    PART_NAME,
    TABLES,
    Damaged,
    Manifest,
    Missing,
    Part,
    Rows,
    Version,
    check_name,
    decode_manifest,
    encode_part,
    format_manifest,
    format_rows,
    join_logs,
    name_damage,
    read_log,
)
from metrist.run.tables import REQUIRED, has_schema

ENTRIES = (MANIFEST, *TABLES, "scores", "judgments", EXPORTS, LOG)
#: A file whose writer was killed before renaming it.
_UNFINISHED = re.compile(r"\.[^/]+\.[0-9a-f]{12}\.part")
#: Parts and unfinished files; whatever else is in the folder is not ours to delete.
_OWN_FILE = re.compile(
    rf"({'|'.join(TABLES)}|(scores|judgments)/[^/]+)/({PART_NAME.pattern}|{_UNFINISHED.pattern})"
    rf"|{EXPORTS}/{_UNFINISHED.pattern}"
    r"|\.(manifest|writer)\.json\.[0-9a-f]{12}\.part"
)
#: Files that processes lock while they change the manifest, and as writers. Readers lock the folder itself.
_LOCK, WRITERS = ".lock", ".writers"
#: How often a folder is created again that others delete.
_ATTEMPTS = 100


class Store:
    """A run folder on this machine. Opening it writes nothing."""

    #: Whether there may be parts that nobody lists: an input was replaced, parts were merged, or workers died before
    #: theirs were listed.
    has_strays = False
    #: Whether the parts are files of this machine.
    is_local = True

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The lock of this writer, and the parts that it has written.
        self._writer: Any = None
        self._written: list[str] = []
        self._log = f"{LOG}/{os.getpid()}-{secrets.token_hex(6)}.log"
        #: The bytes of the log that were written to their end.
        self._log_size = 0

    @property
    def name(self) -> str:
        """The folder as messages name it."""
        return format_path(self.path)

    def check(self) -> None:
        """Refuse a folder that holds something else than a run, or links out of it."""
        try:
            names = {entry.name for entry in self.path.iterdir()}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise RunError(f"{self.path} is a file, expected a run folder", code="invalid_value") from None
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror}", code="unreadable") from error
        # A run that was killed before its first manifest has left records at most.
        known = (*TABLES, _LOCK, WRITERS)
        others = {name for name in names if name not in known and not _UNFINISHED.fullmatch(name)}
        if others and MANIFEST not in names:
            raise RunError(
                f"{self.path} is not a run folder and not empty (it holds {min(others)!r}): name a new folder",
                code="invalid_value",
            )
        check_folder(self.path, ENTRIES, RunError)

    # ---- The manifest

    def read_manifest(self) -> Manifest | None:
        """The manifest; None if no run was begun here."""
        data = self.read_bytes(MANIFEST)
        return None if data is None else decode_manifest(data, self.name)

    def require_texts(self, manifest: Manifest, texts: bool) -> Manifest:
        """The manifest of a run to which texts are to be added, or none. A new run follows `texts`; to one that stores
        none, none are added, also when everything in it was removed."""
        if texts or not manifest.texts:
            return manifest
        if manifest.inputs or manifest.metrics:
            raise RunError(f"{self.name} stores texts: name a new folder for a run without them", code="conflict")
        return msgspec.structs.replace(manifest, texts=False)

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Change the latest manifest, and return the new one once it is on disk."""
        if self._writer and not is_at(self._writer, self.path / WRITERS):
            raise RunError(
                f"{self.name} was deleted while this command wrote to it: run the same command again", code="changed"
            )
        try:
            lock, _ = self._open_lock(_LOCK, wait=True)
        except RunError:
            known = self.read_manifest()
            if known is None or change(known) != known:
                raise
            return known
        with lock:
            old = self.read_manifest() or Manifest()
            new = change(old)
            if new != old or not (self.path / MANIFEST).exists():
                self.write_bytes(MANIFEST, format_manifest(new))
        return new

    # ---- Files

    def read_bytes(self, name: str) -> bytes | None:
        """The bytes of a file of the run; None if there is none."""
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"cannot read {self.path / name}: {error.strerror}", code="unreadable") from error

    def write_bytes(self, name: str, data: bytes | memoryview) -> None:
        """Write a file whole: it appears under its name when it is on disk."""
        path = self.path / name
        part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        try:
            try:
                with _open_with_folder(part, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, path)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
            sync_folder(path.parent)
        except OSError as error:
            raise self._describe_failure(path, error) from error

    def _describe_failure(self, path: Path, error: OSError) -> RunError:
        kept = "; earlier results are kept" if (self.path / MANIFEST).is_file() else ""
        return RunError(f"cannot write {path}: {error.strerror}{kept}", code="cannot_write")

    def open_file(self, name: str) -> Any:
        """A file of the run for pyarrow."""
        return pa.OSFile(str(self.path / name))

    def list_files(self, folder: str) -> list[str]:
        """The files below a folder, seen from the run folder."""
        root = self.path / folder
        return sorted(path.relative_to(self.path).as_posix() for path in root.rglob("*") if path.is_file())

    def list_written(self) -> list[str]:
        """The parts in the folder, whether they are listed or not, and files that were not written to their end."""
        return [name for name in self.list_files("") if _OWN_FILE.fullmatch(name)]

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that the manifest no longer lists, and folders that are then empty."""
        for name in names:
            path = self.path / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise RunError(f"cannot remove {path}: {error.strerror}", code="cannot_write") from error
            for folder in path.parents:
                if folder == self.path:
                    break
                with suppress(OSError):  # Something else is in it.
                    folder.rmdir()

    def add_to_log(self, results: Rows) -> None:
        """Log rows that are in no part yet; they are on disk when this returns."""
        facts = {**results.facts, "metric": results.metric, "signature": results.signature, "tokens": results.tokens}
        data = encode_part(results.table, facts)
        self._append_log(FRAME.pack(len(data), hashlib.sha256(data).digest()) + data)

    def _append_log(self, data: bytes) -> None:
        path = self.path / self._log
        try:
            with _open_with_folder(path, "ab") as file:
                # Nothing could be read after the half of a frame that a full disk has left.
                file.truncate(min(file.tell(), self._log_size))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._describe_failure(path, error) from error
        self._log_size += len(data)

    def clear_log(self) -> None:
        """Forget what was logged: it is in parts that the manifest lists."""
        self.delete([self._log])
        self._log_size = 0

    # ---- Parts

    def write_part(
        self, folder: str, table: pa.Table, facts: Mapping[str, Any] | None = None, *, tokens: bool = False
    ) -> Part:
        """Write a table as a part. `facts`, such as timings, go into its metadata."""
        data = encode_part(table, facts or {})
        file = f"{hashlib.sha256(data).hexdigest()[:32]}.parquet"
        self.write_bytes(f"{folder}/{file}", data)
        self._written.append(f"{folder}/{file}")
        if self.is_local:
            _checked[self.path / folder / file] = _read_stamp(self.path / folder / file)
        return Part(file=file, rows=len(table), tokens=tokens)

    def check_part(self, folder: str, part: Part) -> None:
        """Verify a part, unless this process did so before. Of a remote one, pages are checked as they are read."""
        path = self.path / folder / part.file
        try:
            stamp = _read_stamp(path)
        except OSError:
            raise Missing(f"{path} is missing") from None
        if _checked.get(path) != stamp:
            self.verify_part(folder, part)
            _checked[path] = stamp

    def verify_part(self, folder: str, part: Part) -> None:
        """Raise `Damaged` where a part does not have the bytes that were written."""
        data = self.read_bytes(f"{folder}/{part.file}")
        if data is None:
            raise Missing(f"{self.path}/{folder}/{part.file} is missing")
        check_name(f"{self.path}/{folder}/{part.file}", data)

    def open_part(self, folder: str, part: Part, encoded: Sequence[str] = ()) -> pq.ParquetFile:
        """A part, opened for reading; columns in `encoded` are read as dictionaries. Raises `Damaged` where it is
        missing or not whole."""
        path = f"{self.path}/{folder}/{part.file}"
        self.check_part(folder, part)
        with name_damage(path):
            file = pq.ParquetFile(
                self.open_file(f"{folder}/{part.file}"),
                page_checksum_verification=not self.is_local,
                pre_buffer=not self.is_local,
                read_dictionary=list(encoded),
            )
        try:
            if file.metadata.num_rows != part.rows:
                raise Damaged(f"{path} holds {file.metadata.num_rows} rows, the manifest says {part.rows}")
            if not has_schema(folder.partition("/")[0], file.metadata.schema.to_arrow_schema()):
                raise Damaged(f"{path} has other columns than it should")
        except BaseException:
            file.close()
            raise
        return file

    def read_part(
        self, folder: str, part: Part, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> pa.Table:
        """The columns of a part that it has, those in `encoded` as dictionaries."""
        file = self.open_part(folder, part, encoded)
        names = file.schema_arrow.names
        wanted = None if columns is None else [name for name in columns if name in names]
        with name_damage(f"{self.path}/{folder}/{part.file}"):
            with file:
                if file.num_row_groups > 1 and any("." in name for name in encoded):
                    # Dictionaries within maps are read from one row group at a time only.
                    groups = range(file.num_row_groups)
                    table = pa.concat_tables([file.read_row_group(n, wanted, use_threads=False) for n in groups])
                else:
                    table = file.read(wanted, use_threads=False)
            if len(table) != part.rows:
                raise ValueError(f"{len(table)} of its {part.rows} rows are there")
            if empty := [name for name in table.column_names if name in REQUIRED and table[name].null_count]:
                raise ValueError(f"{empty[0]!r} is missing in a row")
        return table

    def find_filled(self, folder: str, part: Part) -> set[str]:
        """The columns of a part that have a value in some row."""
        with self.open_part(folder, part) as file:
            groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
            columns = [group.column(n) for group in groups for n in range(group.num_columns)]
        with name_damage(f"{self.path}/{folder}/{part.file}"):
            return {
                column.path_in_schema.partition(".")[0]
                for column in columns
                if not (known := column.statistics) or not known.has_null_count or known.null_count < column.num_values
            }

    def read_facts(self, folder: str, part: Part) -> dict[str, Any]:
        """What the metadata of a part say; empty where there is nothing."""
        with self.open_part(folder, part) as file:
            data = (file.schema_arrow.metadata or {}).get(b"metrist", b"{}")
        try:
            facts = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return {}
        return facts if isinstance(facts, dict) else {}

    # ---- Writers

    @contextmanager
    def write(self) -> Iterator[None]:
        """Be a writer of the folder. The only one first saves and removes what killed writers have left. A run that
        cannot be written is accepted: the same command again changes nothing."""
        try:
            file, is_alone = self._open_lock(WRITERS, wait=False)
        except RunError:
            if self.read_manifest() is None:
                raise
            yield
            return
        with file:
            if is_alone:
                self.recover()
            share(file)  # Other writers come in, none of which is then alone.
            self._writer = file
            self._written.clear()
            try:
                yield
            except BaseException:
                # Another writer may have written the same part, and be about to list it.
                if self._is_last(file):
                    self._discard_unlisted()
                raise
            finally:
                self._writer = None
            if self.has_strays and self._is_last(file):
                self.recover()

    def _is_last(self, file: Any) -> bool:
        """Whether there is no other writer, and the folder is still that which this one has locked."""
        return is_at(file, self.path / WRITERS) and lock(file, wait=False)

    def is_alone(self) -> bool:
        """Whether nobody else writes to the run or reads it, so that this writer may replace parts by others."""
        if self._writer is None or not lock(self._writer, wait=False):
            return False
        share(self._writer)
        return not self._has_readers()

    def hold_parts(self) -> None:
        """Keep writers from deleting what the manifest lists now, as long as this object lives. File systems without
        locks are accepted."""
        with suppress(OSError):
            folder = os.open(self.path, os.O_RDONLY)
            weakref.finalize(self, os.close, folder)
            share(folder)

    def _has_readers(self) -> bool:
        """Whether readers may use parts that are no longer listed, also where the file system cannot tell."""
        with self._open_folder() as folder:
            return try_lock(folder) is not True

    @contextmanager
    def _open_folder(self) -> Iterator[int | None]:
        """The folder for a lock; None where folders cannot be opened."""
        try:
            folder = os.open(self.path, os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            yield folder
        finally:
            os.close(folder)

    def discard(self, names: Iterable[str]) -> None:
        """Delete parts that are not listed when this writer ends, if nobody else uses the folder then. Another writer
        may have written the same part, and a reader may use one that was listed. Else a later writer deletes them."""
        self._written += names
        self.has_strays = True

    def _discard_unlisted(self) -> None:
        """Delete what this writer has written and not listed, and the folder if nothing else is in it."""
        with suppress(RunError, OSError):
            manifest = self.read_manifest()
            if manifest is None:
                self.delete(self._written)
                self._delete_folder()
            elif not self._has_readers():  # They may use a part that was listed before.
                listed = set(manifest.list_parts())
                self.delete(name for name in self._written if name not in listed)

    def delete_run(self) -> None:
        """Delete everything that runs wrote, and the folder if nothing else is in it. The manifest goes last: a killed
        removal can be repeated. A run that another process uses is refused."""
        with self._lock_out_others():
            known = self.read_manifest() or Manifest()
            self.delete(metric.export for metric in known.metrics if metric.compares)
            self.update(lambda manifest: Manifest(texts=manifest.texts))
            self.delete([*self.list_written(), *self.list_files(LOG)])
            self.delete([MANIFEST])
            self._delete_folder()

    @contextmanager
    def _lock_out_others(self) -> Iterator[None]:
        """Let nobody else write or read the run, as far as the file system has locks."""
        with self._open_folder() as folder, self._open_file(WRITERS) as file:
            if try_lock(file) is False or try_lock(folder) is False or not is_at(file, self.path / WRITERS):
                raise RunError(f"{self.name} is in use by another command: try again when it has ended", code="in_use")
            yield

    def _delete_folder(self) -> None:
        self.delete([_LOCK, WRITERS])
        with suppress(OSError):  # Something else is in it.
            self.path.rmdir()

    def _open_lock(self, name: str, *, wait: bool) -> tuple[Any, bool]:
        """A file that is locked until it is closed, and whether this process alone has it."""
        while True:
            file = self._open_file(name)
            is_alone = lock(file, wait=wait)
            if is_at(file, self.path / name):
                return file, is_alone
            file.close()  # Another process has deleted the folder meanwhile.

    def _open_file(self, name: str) -> Any:
        try:
            return _open_with_folder(self.path / name, "ab")
        except OSError as error:
            raise self._describe_failure(self.path, error) from error

    def recover(self) -> None:
        """Put what killed writers have logged into parts, and delete the parts that they had not listed yet. Only for a
        writer that is alone."""
        manifest = self.read_manifest() or Manifest()
        logs = self.list_files(LOG)
        for results in join_logs(result for name in logs for result in read_log(self.read_bytes(name) or b"")):
            table = self._find_new_rows(manifest, results)
            if len(table):
                self.add_results([msgspec.structs.replace(results, table=table)])
        listed = set((self.read_manifest() or manifest).list_parts())
        self.delete(logs)
        strays = [name for name in self.list_written() if name not in listed]
        self.delete(() if strays and self._has_readers() else strays)

    def _find_new_rows(self, manifest: Manifest, results: Rows) -> pa.Table:
        """The logged rows that are in no listed part: a killed writer may not have come to delete its log."""
        key = "pair" if results.metric.compares else "record"
        keys, known = results.table[key].combine_chunks(), set[str]()
        metric = manifest.metric(results.metric.text)
        version = metric.version(results.signature) if metric else None
        for part in version.parts if version else ():
            if part.tokens == results.tokens:
                with suppress(Damaged):
                    table = self.read_part(results.metric.place, part)
                    known |= set(format_rows(table.filter(pc.is_in(table[key], keys))))
        is_new = list[bool]()
        for row in format_rows(results.table):
            is_new.append(row not in known)
            known.add(row)  # Two processes may have computed the same.
        return results.table.filter(pa.array(is_new, pa.bool_()))

    def write_rows(self, rows: Rows) -> Part | None:
        """Write rows as a part, which is not listed yet; None if there are none."""
        if not rows.table:
            return rows.part
        facts = {**rows.facts, "signature": rows.signature}
        return self.write_part(rows.metric.place, rows.table, facts, tokens=rows.tokens)

    def add_results(self, rows: Sequence[Rows], *, finish: bool = False) -> Manifest:
        """Write results as parts and list them; `finish` marks the versions of their metrics as finished."""
        parts = [self.write_rows(one) for one in rows]

        def change(manifest: Manifest) -> Manifest:
            for own, part in zip(rows, parts, strict=True):
                metric = manifest.metric(own.metric.text) or own.metric
                known = {version.signature: version for version in metric.versions}
                version = known.pop(own.signature, Version(signature=own.signature))
                added = (part,) if part and part not in version.parts else ()
                version = msgspec.structs.replace(
                    version,
                    parts=(*version.parts, *added),
                    finished=version.finished or finish,
                    notes=version.notes if own.notes is None else own.notes,
                )
                metric = msgspec.structs.replace(
                    metric,
                    versions=(*known.values(), version),
                    name=own.metric.name,
                    higher_is_better=own.metric.higher_is_better,
                )
                manifest = manifest.replace_metric(metric)
            return manifest

        return self.update(change)

    def drop_parts(self, text: str, parts: Sequence[Part], added: Sequence[Part] = ()) -> None:
        """List these parts of a metric no longer, but others in the place of the first."""
        gone = set(parts)

        def change(manifest: Manifest) -> Manifest:
            metric = manifest.metric(text)
            if metric is None:
                return manifest
            versions = list[Version]()
            for version in metric.versions:
                listed = version.parts
                # Another process may have merged some of them already.
                if not gone.isdisjoint(listed) and (not added or gone.issubset(listed)):
                    first = next(n for n, part in enumerate(listed) if part in gone)
                    listed = (*listed[:first], *added, *(part for part in listed[first:] if part not in gone))
                versions.append(msgspec.structs.replace(version, parts=listed))
            return manifest.replace_metric(msgspec.structs.replace(metric, versions=tuple(versions)))

        self.update(change)
        self.has_strays = True


def _open_with_folder(path: Path, mode: str) -> Any:
    """Open a file for writing in a folder that is created if need be. Another writer may delete the folder, which is
    still empty, before the file is in it: then it is created again."""
    attempts = _ATTEMPTS
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open(mode)
        except (FileNotFoundError, FileExistsError):  # The latter from mkdir, where the folder goes while it looks.
            attempts -= 1
            if not attempts:
                raise


#: The parts whose bytes this process has compared with their names, as they were then.
_checked: dict[Path, tuple[int, int, int]] = {}


def _read_stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino

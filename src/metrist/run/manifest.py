"""The files of a run: the manifest, with its inputs, its metrics and the parts of each; parts in Parquet; and the log,
whose frames hold results until they are in a part."""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from metrist._version import __version__
from metrist.errors import RunError
from metrist.metrics.base import NAME
from metrist.records import OPTIONAL_FIELDS

TABLES = ("records", "ratings", "errors", "preferences", "given")
LOG, EXPORTS = "log", "exports"
PART_NAME = re.compile(r"[0-9a-f]{32}\.parquet")
MANIFEST = "manifest.json"
FORMAT = 3
_FOLDER = re.compile(r"[A-Za-z0-9_.-]+")
_LISTED_PART = re.compile(rb'\{\s+"file": "[0-9a-f.parquet]+",[^{}]+\}')
FRAME = struct.Struct("<q32s")
#: Columns with few distinct values; trying to find such in others takes a fifth of the time of writing.
_REPEATED = (
    "item", "system", *OPTIONAL_FIELDS, "references.list.element", "source_digest", "aspect", "rater", "choice",
    "metric", "parts.key_value.key", "failure", "failure_kind", "first", "second",
)  # fmt: skip
#: Rows of a part's row group.
_GROUP_ROWS = 1 << 16


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file of a table. `tokens` says whether scores of single tokens were asked for."""

    file: str
    rows: int
    tokens: bool = False


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input of the run. `path` leads from the run folder to the file and `sha256` is of its bytes; both are None for
    rows that have no file. `number` is what its rows have in the column `input`; inputs are in the order in which they
    were added."""

    number: int
    name: str | None = None
    path: str | None = None
    sha256: str | None = None
    options: dict[str, Any] = {}
    #: The field that each column with another name was read as, such as `system` for `model`.
    columns: dict[str, str] = {}
    #: The different numbers of references that records have, records without any aside.
    references: tuple[int, ...] = ()
    records: int = 0
    #: Rows that could not be read and were left out, as `skip_bad` asks for.
    skipped: int = 0
    #: What was remarked about the input when it was read.
    notes: tuple[str, ...] = ()
    #: The parts of each table that hold its rows.
    tables: dict[str, tuple[Part, ...]] = {}


class Version(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The scores by one version of a metric."""

    signature: str
    finished: bool = False
    #: On records that the metric is not made for.
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()


class StoredMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric or comparator of the run with its scores, the latest version last."""

    text: str
    folder: str
    name: str | None = None
    higher_is_better: bool | None = True
    compares: bool = False
    versions: tuple[Version, ...] = ()

    @property
    def label(self) -> str:
        """What tables and checks call the metric."""
        return self.name or self.text

    @property
    def place(self) -> str:
        """The folder of its parts, seen from the run folder."""
        return f"{'judgments' if self.compares else 'scores'}/{self.folder}"

    @property
    def export(self) -> str:
        """The file with the choices of a comparator, seen from the run folder."""
        return f"{EXPORTS}/{self.folder}.jsonl"

    def version(self, signature: str) -> Version | None:
        return next((version for version in self.versions if version.signature == signature), None)

    @property
    def finished(self) -> Version | None:
        """The latest version that was finished."""
        return next((version for version in reversed(self.versions) if version.finished), None)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The run in a page. It holds no date and no machine."""

    metrist: str = __version__
    format: int = FORMAT
    #: Whether the run stores texts. Later additions follow.
    texts: bool = True
    inputs: tuple[Input, ...] = ()
    metrics: tuple[StoredMetric, ...] = ()
    #: Of everything else, in the file only.
    checksum: str | None = None

    def metric(self, text: str) -> StoredMetric | None:
        return next((metric for metric in self.metrics if metric.text == text), None)

    def replace_metric(self, metric: StoredMetric) -> Manifest:
        """The manifest with this metric in place of the one with its text, or after all others."""
        known = any(other.text == metric.text for other in self.metrics)
        metrics = [metric if other.text == metric.text else other for other in self.metrics]
        return msgspec.structs.replace(self, metrics=(*metrics, *(() if known else (metric,))))

    def list_parts(self) -> Iterator[str]:
        """The paths of all parts, seen from the run folder."""
        for one in self.inputs:
            for table, parts in one.tables.items():
                yield from (f"{table}/{part.file}" for part in parts)
        for metric in self.metrics:
            yield from (f"{metric.place}/{part.file}" for version in metric.versions for part in version.parts)


class _Format(msgspec.Struct):
    """What the manifests of all versions have; the first had no number."""

    metrist: str
    format: int = 1


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Read a manifest. What no run has written, and paths out of the folder, are refused."""
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version != FORMAT:
            age, remedy = ("an older", "score into a new folder") if version < FORMAT else ("a newer", "update metrist")
            raise RunError(f"{name} is a run of {age} version of metrist: {remedy}", code="unsupported")
        manifest = msgspec.json.decode(data, type=Manifest)
        for one in manifest.inputs:
            if not set(one.tables) <= set(TABLES):
                raise ValueError("it names a table that there is not")
        for metric in manifest.metrics:
            check_metric_folder(metric)
            if metric.name is not None and not NAME.fullmatch(metric.name):
                raise ValueError(f"{metric.name!r} cannot name a metric")
        listed = list(manifest.list_parts())
        numbers, texts = [one.number for one in manifest.inputs], [metric.text for metric in manifest.metrics]
        if any(len(set(values)) < len(values) for values in (listed, numbers, texts)):
            raise ValueError("it lists something twice")
        for path in listed:
            if not PART_NAME.fullmatch(path.rpartition("/")[2]):
                raise ValueError("it names a part that no run has written")
        written, manifest = manifest.checksum, msgspec.structs.replace(manifest, checksum=None)
        if written is not None and written != _sum_up(manifest):
            raise ValueError("it is not as it was written")
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{name}/{MANIFEST} is damaged ({error}): restore it, or score into a new folder", code="damaged"
        ) from None
    return manifest


def check_metric_folder(metric: StoredMetric) -> None:
    if not _FOLDER.fullmatch(metric.folder) or metric.folder.startswith("."):
        raise ValueError("it names a folder out of the run")


def folder_name(text: str) -> str:
    """A folder name for a metric's text, which differs from others also where case does not count: the plain name, or
    its legible part and a hash of the whole."""
    if re.fullmatch(r"[a-z0-9_]+", text):
        return text
    legible = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60]
    return f"{legible}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def format_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest, with a part in a line."""
    manifest = msgspec.structs.replace(manifest, checksum=_sum_up(manifest))
    page = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    return _LISTED_PART.sub(lambda part: b" ".join(part[0].split()), page) + b"\n"


def _sum_up(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()[:32]


# ---- Parts and the log ----


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one metric's table to be added to a run, or the `part` that holds them already. `facts` are what their
    part's metadata say."""

    metric: StoredMetric
    signature: str
    table: Any = None
    part: Part | None = None
    facts: dict[str, Any] = {}
    #: In place of the notes of the version; None leaves those.
    notes: tuple[str, ...] | None = None
    tokens: bool = False


def read_log(data: bytes) -> Iterator[Rows]:
    """The results of a log, up to one that was not written to its end."""
    position = 0
    while position + FRAME.size <= len(data):
        size, digest = FRAME.unpack_from(data, position)
        body = data[position + FRAME.size : position + FRAME.size + size]
        if size < 0 or hashlib.sha256(body).digest() != digest:
            return
        try:
            table = pq.read_table(io.BytesIO(body))
            facts = msgspec.json.decode((table.schema.metadata or {}).get(b"metrist", b"{}"))
            metric = msgspec.convert(facts.pop("metric"), StoredMetric)
            check_metric_folder(metric)
            yield Rows(
                metric=metric,
                signature=facts.pop("signature"),
                tokens=facts.pop("tokens"),
                table=table.replace_schema_metadata(),
                facts=facts,
            )
        except MemoryError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException):  # No run has written it.
            return
        position += FRAME.size + size


def join_logs(logged: Iterable[Rows]) -> list[Rows]:
    """Logged rows by metric and version."""
    groups: dict[tuple[str, str, bool], list[Rows]] = {}
    for rows in logged:
        groups.setdefault((rows.metric.text, rows.signature, rows.tokens), []).append(rows)
    joined = []
    for group in groups.values():
        facts = {name: sum(rows.facts.get(name, 0) for rows in group) for name in group[0].facts}
        table = pa.concat_tables([rows.table for rows in group], promote_options="default")
        joined.append(msgspec.structs.replace(group[-1], table=table, facts=facts))
    return joined


def format_rows(table: pa.Table) -> list[str]:
    """Rows as texts that are the same for the same rows, whatever empty columns their tables have."""
    return [repr(sorted((k, v) for k, v in row.items() if v is not None)) for row in table.to_pylist()]


class Damaged(Exception):
    """A part does not hold what it should; the message says what is wrong."""


class Missing(Damaged):
    """A part that is not there."""


def encode_part(table: pa.Table, facts: Mapping[str, Any]) -> memoryview:
    if facts:
        table = table.replace_schema_metadata({"metrist": msgspec.json.encode(facts)})
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=1,
        row_group_size=_GROUP_ROWS,
        use_dictionary=[name for name in _REPEATED if name.partition(".")[0] in table.column_names],
        write_page_checksum=True,
    )
    return sink.getbuffer()


def check_name(path: str, data: bytes) -> None:
    """Raise `Damaged` where a part does not have the bytes that were written."""
    if hashlib.sha256(data).hexdigest()[:32] != path.rpartition("/")[2].removesuffix(".parquet"):
        raise Damaged(f"{path} is not as it was written")


@contextmanager
def name_damage(path: str) -> Iterator[None]:
    """Raise `Damaged` where a part is missing or not whole."""
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"{path} is missing") from None
    except MemoryError:  # One of Arrow's exceptions, too.
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise RunError(f"cannot read {path}: {error.strerror}", code="unreadable") from error
        reason = (str(error).splitlines() or [""])[0].rstrip(".:")
        raise Damaged(f"{path} is damaged ({reason})") from None

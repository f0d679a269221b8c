"""Read records and judgments from any common file format, and write files atomically."""

from metrist.io.batches import Skipped
from metrist.io.reader import Reader, read_records
from metrist.io.row_model import Location, ParsedRow, StoredChoice, StoredError, StoredScore
from metrist.io.rows import read_rows
from metrist.io.writer import atomic_write, atomic_write_bytes

__all__ = [
    "Location",
    "ParsedRow",
    "Reader",
    "Skipped",
    "StoredChoice",
    "StoredError",
    "StoredScore",
    "atomic_write",
    "atomic_write_bytes",
    "read_records",
    "read_rows",
]

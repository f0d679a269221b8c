"""Files: records and judgments read from any common format, results written whole."""

from metrist.io.reader import Reader, Skipped, read_records
from metrist.io.row_model import Entry, FoundError, Place, StoredChoice, StoredScore
from metrist.io.rows import open_rows
from metrist.io.writer import whole, whole_bytes

__all__ = [
    "Entry",
    "FoundError",
    "Place",
    "Reader",
    "Skipped",
    "StoredChoice",
    "StoredScore",
    "open_rows",
    "read_records",
    "whole",
    "whole_bytes",
]

"""Files: records and judgments read from any common format, results written whole."""

from metrist.files.entry import Entry, FoundError, StoredChoice, StoredScore
from metrist.files.place import Place
from metrist.files.reader import Reader, Skipped, read_records
from metrist.files.rows import open_rows
from metrist.files.writing import whole, whole_bytes

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

"""Hashes of files, and of records in columns: those of `metrist.records.hash_units`, several times faster."""

from __future__ import annotations

from hashlib import file_digest, sha256
from itertools import pairwise

import numpy as np

from metrist import kernels
from metrist.errors import RunError
from metrist.records import HASH_BYTES, Hashes, RecordColumns, hash_units


def hash_records(records: RecordColumns) -> Hashes:
    """For each record, a hash of everything that metrics see of it, one row of bytes each."""
    r = records
    texts, starts = kernels.json_arrays(
        # The order is that of `hash_units`; the last entry is that of the extra columns.
        [r.items, r.systems, r.outputs, r.sources, r.references, r.instructions, r.tasks, r.languages, [None] * len(r)]
    )
    view = memoryview(texts)
    digests = b"".join([sha256(view[start:end]).digest()[:HASH_BYTES] for start, end in pairwise(starts.tolist())])
    hashes = np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES)
    if r.extras is not None:
        more = [n for n, extra in enumerate(r.extras) if extra]
        hashes = hashes.copy()
        hashes[more] = hash_units(r.take(more))
    return hashes


def hash_file(path: str) -> str:
    """The SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}", code="unreadable") from error

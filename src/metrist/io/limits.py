"""How much a file of a stranger may unpack to. Users set other limits by environment variables."""

from __future__ import annotations

import os

from metrist.errors import InputError

#: Times by which a file unpacks to more than its own size where it is damaged, or made to fill the memory. Texts that
#: people write reach a tenth of that.
HIGHEST_RATIO = 200
_ROW, _FILE = 1 << 26, 1 << 30


def largest_row() -> int:
    """Bytes of a row: `METRIST_MAX_ROW`, or 64 MiB."""
    return _read("METRIST_MAX_ROW", _ROW)


def check_unpacked(name: str, unpacked: int, packed: int) -> None:
    """Refuse a file that unpacks to more than `METRIST_MAX_UNPACKED` bytes, or 1 GiB, and far more than its size."""
    if unpacked > HIGHEST_RATIO * packed and unpacked > (limit := _read("METRIST_MAX_UNPACKED", _FILE)):
        raise InputError(
            f"{name}: {packed:,} bytes unpack to more than {limit:,}: it is damaged, or made to fill the memory; "
            "METRIST_MAX_UNPACKED sets another limit",
            code="too_large",
        )


def _read(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or not int(text):
        raise InputError(f"{variable} must be a number of bytes, got {text!r}", code="invalid_value")
    return int(text)

"""Plain and compressed files, whole and damaged."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard

from error_codes import raises_code
from metrist.errors import ErrorCode, InputError
from metrist.io.compression import display_name, open_bytes, uncompressed_name

TEXT = "".join(f"line {i} ünïcode\n" for i in range(20_000)).encode()
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    "": bytes,
}


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_is_opened_by_its_suffix(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.txt{suffix}"
    path.write_bytes(PACK[suffix](TEXT))
    with open_bytes(path) as stream:
        assert stream.read() == TEXT
    assert uncompressed_name(path) == "data.txt"


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_concatenated_archives_are_read_to_the_end(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.txt{suffix}"
    path.write_bytes(PACK[suffix](TEXT) + PACK[suffix](b"tail"))
    with open_bytes(path) as stream:
        assert stream.read() == TEXT + b"tail"


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".xz", "xz"), (".zst", "Zstandard")])
def test_a_truncated_archive_is_named(suffix: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.txt{suffix}"
    path.write_bytes(PACK[suffix](os.urandom(100_000))[:-50_000])
    message = re.escape(f"{path}: the {kind} archive is cut short: its end is missing")
    with open_bytes(path) as stream, pytest.raises(InputError, match=message):
        stream.read()


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".xz", "xz"), (".zst", "Zstandard")])
def test_a_file_that_is_not_an_archive_is_named(suffix: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.txt{suffix}"
    path.write_bytes(b'{"item": 1}\n' * 100)
    message = re.escape(f"{path}: not a {kind} archive, or a damaged one: ")
    with open_bytes(path) as stream, pytest.raises(InputError, match=message):
        stream.read()


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_bit_that_was_flipped_never_escapes_as_another_exception(suffix: str, tmp_path: Path) -> None:
    packed = PACK[suffix](TEXT[:2000])
    path = tmp_path / f"data.txt{suffix}"
    for position in range(0, len(packed), 7):
        path.write_bytes(packed[:position] + bytes([packed[position] ^ 0x55]) + packed[position + 1 :])
        with open_bytes(path) as stream, suppress(InputError):
            stream.read()


@pytest.mark.parametrize("suffix", PACK)
def test_standard_input_is_opened_by_its_first_bytes(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PACK[suffix](TEXT))))
    with open_bytes("-") as stream:
        assert stream.read() == TEXT


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize(("text", "code"), [(b"\n" * 2**20, "damaged"), (b"ab\n" * 2**20, "too_large")])
def test_an_archive_that_unpacks_without_end_is_refused_in_a_pipe(
    suffix: str, text: bytes, code: ErrorCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_MAX_UNPACKED", "1000000")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PACK[suffix](text))))
    with open_bytes("-") as stream, raises_code(InputError, code, "standard input"):
        stream.read()
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe := tmp_path / f"data{suffix}")
        writer = threading.Thread(target=pipe.write_bytes, args=(PACK[suffix](text),))
        writer.start()
        with open_bytes(pipe) as stream, raises_code(InputError, code, pipe):
            stream.read()
        writer.join()


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with raises_code(InputError, "unreadable", tmp_path):
        open_bytes(tmp_path)
    with pytest.raises(InputError, match=r"'a\\x00b': cannot be read: embedded null byte"):
        open_bytes("a\0b")


def test_a_file_name_that_is_not_utf8_can_be_printed() -> None:
    assert display_name("caf\udce9.jsonl").encode() == b"caf\\udce9.jsonl"
    assert display_name("-") == "standard input"

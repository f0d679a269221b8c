"""A file appears complete or not at all."""

from __future__ import annotations

import errno
import gzip
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import InputError, RunError
from metrist.io import atomic_write, atomic_write_bytes
from metrist.io.compression import open_bytes
from metrist.io.writer import escape_formula, json_line, unescape_formula

SUFFIXES = ["", ".gz", ".xz", ".zst"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_files_are_read_back(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{suffix}"
    with atomic_write(path) as file:
        file.write("ünïcode\r\nline\n" * 1000)
        assert not path.exists()
    with open_bytes(path) as stream:
        assert stream.read().decode() == "ünïcode\r\nline\n" * 1000
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"old")
    with suppress(KeyboardInterrupt), atomic_write(path) as file:
        file.write("new" * 100_000)
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_content_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    names = [f"one{suffix}", f"two{suffix}"]
    for name in names:
        with atomic_write_bytes(tmp_path / name) as file:
            file.write(b"content" * 100)
    first, second = ((tmp_path / name).read_bytes() for name in names)
    assert first == second
    if suffix == ".gz":
        assert first[4:8] == b"\0\0\0\0"  # RFC 1952: the time of modification, 0 for none
        assert gzip.decompress(first) == b"content" * 100


def test_a_link_and_the_mode_of_the_old_file_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with atomic_write(link) as file:
        file.write("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_not_replaced() -> None:
    with atomic_write(os.devnull) as file:
        file.write("gone")
    assert not Path(os.devnull).is_file()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a.txt"
    message = re.escape(f"{path}: cannot be written: No such file or directory")
    with pytest.raises(RunError, match=message), atomic_write(path):
        pass


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    message = re.escape(f"{tmp_path / 'a.txt'}: cannot be written: {os.strerror(errno.ENOSPC)}")
    with pytest.raises(RunError, match=message), atomic_write(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert os.listdir(tmp_path) == []


def test_errors_of_other_files_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), atomic_write(tmp_path / "a.txt"):
        raise ConnectionError("no line")


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-x", "@SUM(A1)", "\tx", "\rx", "'=x", "''=x", "＝x"])
def test_formulas_are_escaped_and_come_back(text: str) -> None:
    assert escape_formula(text) == f"'{text}"
    assert unescape_formula(escape_formula(text)) == text


@pytest.mark.parametrize("text", ["-1.5", "+3", "1e-3", "-.5", "", "x=1", "'quoted'", "'", "5"])
def test_other_texts_are_not_escaped(text: str) -> None:
    assert escape_formula(text) == unescape_formula(text) == text


@given(st.text(alphabet="'=+-@\t\rx1.", max_size=6))
def test_every_text_comes_back(text: str) -> None:
    assert unescape_formula(escape_formula(text)) == text


def test_a_row_that_is_nested_too_deeply_is_named() -> None:
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    with raises_code(InputError, "too_large", "'7'"):
        json_line({"item": "7", "tree": tree})

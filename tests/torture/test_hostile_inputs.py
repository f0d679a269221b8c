"""Files that unpack without end, texts that fill every mark, and servers that repeat keys or count absurdly: all are
refused or borne within bounds of memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import command, run

from fault_server import FaultServer, answer, error, status
from metrist.metrics.prompt_layout import make_mark
from torture_table import TortureRow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory by RLIMIT_AS")
Rows = Callable[[str], TortureRow]
MB = 1 << 20
#: Megabytes of address space: far less than what the files unpack to.
LIMIT = 1500


def score(path: Path, *, piped: bool = False) -> subprocess.CompletedProcess[str]:
    """`metrist score` of a file, or of standard input, in little memory."""
    limited = ["sh", "-c", f'ulimit -v {LIMIT * 1024}; exec "$@"', "sh"]
    arguments = [
        *limited,
        *command("score", "-" if piped else path, "-m", "length", "-o", path.with_name(f"{path.name}-run")),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with path.open("rb") if piped else nullcontext() as file:
        return subprocess.run(
            arguments, env=environment, stdin=file, capture_output=True, text=True, check=False, timeout=300
        )


def write_bombs(folder: Path) -> Iterator[tuple[Path, str]]:
    """Small files that unpack to much, and devices behind links, each with a word of the error."""
    text = "a" * (100 * MB)
    value = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({"item": [str(i) for i in range(2000)], "output": value}), folder / "value.parquet")
    yield folder / "value.parquet", "METRIST_MAX_ROW"
    pq.write_table(pa.table({"item": ["1"], "output": [text]}), folder / "row.parquet", compression="zstd")
    yield folder / "row.parquet", "METRIST_MAX_ROW"
    row = json.dumps({"item": "1", "output": "a" * MB}).encode() + b"\n"
    for name, data, times, word in (
        ("blank.jsonl.gz", b"\n" * MB, 50, "without a character"),
        ("blank.csv.gz", b"\n" * MB, 50, "without a character"),
        ("line.jsonl.gz", b"a" * MB, 100, "METRIST_MAX_ROW"),
        ("rows.jsonl.gz", row, 1100, "METRIST_MAX_UNPACKED"),
    ):
        with gzip.open(folder / name, "wb", 6) as file:
            for _ in range(times):
                file.write(data)
        yield folder / name, word
    for name, device in (("zero.jsonl", "/dev/zero"), ("zero.parquet", "/dev/zero"), ("random.csv", "/dev/urandom")):
        (folder / name).symlink_to(device)
        yield folder / name, "device"


def test_files_that_unpack_without_end(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("hostile files: bombs, devices")
    for path, word in write_bombs(tmp_path):
        for piped in (False, True) if path.suffix == ".gz" else (False,):
            with row.attempt():
                done = score(path, piped=piped)
                assert (done.returncode, word in done.stderr) == (2, True), (path.name, piped, done.stderr[-1500:])


def test_an_output_with_every_mark_of_six_digits(torture_row: Rows) -> None:
    row = torture_row("hostile texts: marks of prompts")
    text = list_all_words("0123456789abcdef", 6)
    with row.attempt():
        mark = make_mark([text])
        assert mark not in text


def list_all_words(letters: str, length: int) -> str:
    """A de Bruijn sequence, which holds each word of this length."""
    word, pieces = [-1], []
    while word:
        word[-1] += 1
        if length % len(word) == 0:
            pieces.append("".join(letters[i] for i in word))
        word = (word * length)[:length]
        while word and word[-1] == len(letters) - 1:
            word.pop()
    text = "".join(pieces)
    return text + text[: length - 1]


def test_servers_that_repeat_the_key_or_count_absurdly(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("hostile LLM servers: keys, token counts")
    key = "sk-plum/1234567890+abcdefghij"
    forms = [key, quote(key, safe=""), b64encode(key.encode()).decode()]
    texts = " ".join(forms)
    hostile = [
        status(302, b"", headers={"Location": f"https://there.example/?key={forms[1]}"}),
        status(307, b"", headers={"Location": f"https://{forms[2]}:port/"}),
        status(401, texts.encode()),
        error(500, texts),
        answer(texts),
    ]
    (tmp_path / "in.jsonl").write_text(json.dumps({"item": "1", "output": "yes", "source": "yes"}) + "\n")
    environment = {**os.environ, "PLUM_KEY": key, "METRIST_LLM_ATTEMPTS": "1", "XDG_CACHE_HOME": str(tmp_path)}

    def judge(url: str, *more: str) -> subprocess.CompletedProcess[str]:
        spec = f"judge(llm=openai(model='m', url={url!r}, key='PLUM_KEY'))"
        return run("score", tmp_path / "in.jsonl", "-m", spec, "-v", *more, env=environment)

    for act in hostile:
        with row.attempt(), FaultServer(lambda _, act=act: act) as server:  # type: ignore[misc]
            done = judge(server.url)
            assert server.requests
            assert not any(form in done.stdout + done.stderr for form in forms), (done.stdout, done.stderr)
    absurd = answer("{}", usage={"prompt_tokens": 10**6, "completion_tokens": 3})
    with row.attempt(), FaultServer(lambda _: absurd) as server:
        (tmp_path / "prices.toml").write_text("[[price]]\nmodel = '*'\ninput = 1\noutput = 1\n")
        environment["METRIST_PRICES"] = str(tmp_path / "prices.toml")
        done = judge(server.url, "--max-cost", "0.5")
        assert "cannot be right" in done.stdout + done.stderr, (done.stdout, done.stderr)

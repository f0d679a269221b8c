"""Files that unpack without end, texts that fill every mark, servers that repeat keys or count absurdly, scores without
measure and URLs of any scheme: all are refused or borne within bounds of memory."""

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

import metrist
from fault_server import FaultServer, answer, error, status
from metrist.errors import MetristError
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


EXTREME = """
import metrist

class Extreme(metrist.Metric):
    def score_record(self, record):
        return float(record.extra["x"])
"""


def test_scores_that_are_huge_or_far_from_zero(tmp_path: Path, torture_row: Rows) -> None:
    """Tests of scores + 1e12 have the p-values and the interval of the same scores; near 1e308 each command ends with
    its result or a clear error."""
    row = torture_row("hostile scores: 1e12, 1e308")
    (tmp_path / "extreme.py").write_text(EXTREME)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    compared = {}
    for name, offset, unit in (("near", 0.0, 1.0), ("far", 1e12, 1.0), ("huge", 0.0, 1e307), ("below", -1e308, 1e306)):
        source, folder = tmp_path / f"{name}.jsonl", tmp_path / name
        values = {"a": [n * 7 % 11 for n in range(30)], "b": [n * 7 % 11 + bool(n % 5) for n in range(30)]}
        rows = [
            {"item": str(n), "system": system, "output": "o", "x": offset + unit * value}
            for system, own in values.items()
            for n, value in enumerate(own)
        ]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for arguments in (
            ["score", source, "-m", "extreme.Extreme", "-o", folder],
            ["compare", folder, "--format", "json"],
            ["report", folder, "-o", tmp_path / f"{name}.html"],
            ["leaderboard", folder, "--draws", 20],
            ["rerank", source, "-m", "extreme.Extreme", "--draws", 20],
        ):
            with row.attempt():
                done = run(*arguments, env=environment)
                said = done.stdout + done.stderr
                assert "Traceback" not in said and "Warning" not in said, said[-2000:]  # noqa: PT018
                assert done.returncode == 0 or (done.returncode == 2 and unit != 1.0), (arguments, said[-2000:])
            if arguments[0] == "compare" and unit == 1.0:
                compared[name] = json.loads(done.stdout)["rows"][0]
    tested = {key: value for key, value in compared["near"].items() if not key.startswith("score")}
    assert tested["better"] == "b"
    row.compare(tested, {key: compared["far"][key] for key in tested})


SCHEMES = "ftp sftp gopher data file jar zip tar s3 gs abfs hdfs webhdfs smb git ldap mailto javascript jupyter HTTP S3"


def test_urls_of_any_scheme(torture_row: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be read or written there: each is an error of metrist's own, whatever package is missing."""
    row = torture_row("hostile URLs")
    for name in ("AWS_EC2_METADATA_DISABLED", "NO_GCE_CHECK"):
        monkeypatch.setenv(name, "true")
    records = [{"item": "1", "system": "s", "output": "a", "references": ["a"]}]
    for scheme in SCHEMES.split():
        for rest in ("//127.0.0.1:1/x.jsonl", "//", "///", "//user:pw@127.0.0.1:1/x.jsonl", "//127.0.0.1:port/x.jsonl"):
            url = f"{scheme}:{rest}"
            with row.attempt(), pytest.raises(MetristError) as error:
                metrist.score(url, ["length"])
            assert "pw@" not in str(error.value), str(error.value)
        with row.attempt(), pytest.raises(MetristError):
            metrist.score(records, ["rougeL"], out=f"{scheme}://127.0.0.1:1/run/")

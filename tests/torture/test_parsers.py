"""Every parser on mutated files: it reads them, or raises an error of metrist's own, within seconds.

A case that fails is printed with its bytes. `METRIST_TEST_SEED` gives other cases; `METRIST_TEST_CASES` more of them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import random
import re
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import write_records

import metrist
import tiny_models
from metrist.errors import MetristError
from metrist.evaluate.compare.config import read_config
from metrist.io.convert import convert
from metrist.llm import http, openai_format, replay
from metrist.metrics.judge.judge import parse_grades
from metrist.metrics.judge.rubrics import load_rubric, parse_rubric
from metrist.metrics.registry import build_all
from metrist.metrics.trained.calibrated import read_calibration
from metrist.models.numpy_inference.storage import read_arrays, read_quantized
from metrist.models.pretrained import convert_state_dict
from metrist.train.checkpoints import _read_tensors
from metrist.web.annotation.project import open_project
from metrist.web.annotation.schemas import load_schema
from metrist.web.service.settings import AccessTokens
from torture_table import TortureRow

Rows = Callable[[str], TortureRow]
SEED = int(os.environ.get("METRIST_TEST_SEED", "18"))
CASES = int(os.environ.get("METRIST_TEST_CASES", "1500"))
SECONDS = 20.0
#: What parsers trip over: numbers out of range, nesting, quotes, encodings, control characters.
TOKENS = (
    *(b"1e999", b"-1", b"0", b"99999999999999999999999999", b"NaN", b"Infinity", b"null", b"true", b'""', b"[]", b"{}"),
    *(b"[" * 5000, b'{"a":' * 3000, b"(" * 3000, b'"', b"'", b"\\", b",", b":", b"\n", b"\r", b"\t", b"=", b"\x00"),
    *(b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\\ud800", "\u202e".encode(), b"9" * 5000, b"x" * 20000),
    *(b"../../../../etc/passwd", b"__class__", b"os.system('x')", b"%s%n", b"1_0", b"0x1f", b"-0.0", b"\x1b[31m"),
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes after a few of the things that happen to files."""
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 8, 64, 1000)))
        piece = data[at:end]
        kind = rng.randrange(9)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:at] + piece * rng.choice((2, 3, 50)) + data[end:]
        elif kind == 3:
            data = data[:at]
        elif kind == 4:
            data = data[:at] + rng.choice(TOKENS) + data[at:]
        elif kind == 5:
            data = data[:at] + rng.choice(TOKENS) + data[end:]
        elif kind == 6:
            data = data[:at] + rng.randbytes(len(piece)) + data[end:]
        elif kind == 7:
            other = rng.randrange(len(data) + 1)
            data = data[:at] + data[other : other + 200] + data[at:]
        else:  # A value of JSON or TOML becomes another.
            values = [*re.finditer(rb'-?\d+(\.\d+)?|"[^"\n]{0,80}"|true|false|null', data)]
            if values:
                match = rng.choice(values)
                data = (
                    data[: match.start()] + rng.choice((*TOKENS[:11], b'"text"', b"[1]", b"3.5")) + data[match.end() :]
                )
    return data


def fuzz(
    row: TortureRow, seeds: Sequence[bytes], read: Callable[[bytes], Any], cases: int, *own: type[Exception]
) -> None:
    """Read mutated data; any exception but metrist's own, and `own`, fails."""
    rng = random.Random(f"{SEED} {row.fault} {len(seeds[0])}")
    for _ in range(cases):
        data = mutate(rng.choice(seeds), rng)
        began = time.process_time()  # Other programs may stop this one for a while.
        try:
            with row.attempt():
                with suppress(MetristError, *own):
                    read(data)
                taken = time.process_time() - began
                assert taken < SECONDS, f"took {taken:.0f} s"
        except Exception as error:
            message = f"{row.fault}: {error!r} for {len(data)} bytes: {data[:3000]!r}"
            raise AssertionError(message) from error


def read_from_file(folder: Path, name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Make a function that reads data from a file with this name."""

    def write_and_read(data: bytes) -> Any:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return write_and_read


# ---- Records


ROWS: list[dict[str, Any]] = [
    {
        "item": f"i{n}",
        "system": "s",
        "output": f"an output {n} ü",
        "source": "a source",
        "references": ["a reference", "another"],
        "task": "summarization",
        "language": "en",
        "ratings": {"fluency": [n, 3.5]},
        "errors": [{"aspect": "Accuracy", "severity": "major", "penalty": 4, "start": 0, "end": 2, "text": "an"}],
        "own": {"deep": [1, 2, {"x": None}]},
    }
    for n in range(4)
]
PAIRS = [{"prompt": "Who?", "chosen": "She.", "rejected": "Nobody."}, {"prompt": "a", "chosen": "b", "rejected": "c"}]


def make_files(folder: Path) -> dict[str, bytes]:
    """Small files of every format that is read, by suffix."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    pairs = "".join(json.dumps(pair) + "\n" for pair in PAIRS).encode()
    table = b'item,system,output,reference\n1,a,"a text, ""quoted""",ref\n2,a,"two\nlines",ref\n'
    files = {
        "rows.jsonl": lines,
        "pairs.jsonl": pairs,
        "rows.json": json.dumps(ROWS).encode(),
        "rows.csv": table,
        "rows.tsv": table.replace(b",", b"\t"),
        "rows.jsonl.gz": gzip.compress(lines),
        "rows.jsonl.xz": lzma.compress(lines),
    }
    flat = [{key: row[key] for key in ("item", "system", "output", "references")} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(flat), folder / "seed.parquet")
    return {**files, "rows.parquet": (folder / "seed.parquet").read_bytes()}


def test_records_in_every_format(tmp_path: Path, torture_row: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    # At the limit of recursion the end of a generator may fail, and pytest's hook for that, too.
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    row = torture_row("fuzz: records in every format")
    for name, data in make_files(tmp_path).items():
        path = tmp_path / name

        def read(data: bytes, path: Path = path) -> None:
            path.write_bytes(data)
            records = list(metrist.read_records(path))
            assert all(isinstance(record.output, str) and record.item for record in records)

        fuzz(row, [data], read, CASES)


# ---- Specs, settings, rubrics


SPECS = (
    "judge=judge(llm=openai(model='gpt-4o-mini', url='http://127.0.0.1:8000/v1', omit=['seed']), rubric='reliability')",
    "rougeL(stem=True, tokenizer='rouge-score')",
    "by_score(metric=bleu, tie=0.5)",
    "calibrated(metric=chrf(word_order=2), file='x.json')",
    "panel(judges=[judge(llm=fake(answers='3')), judge(llm=fake(answers='4'))])",
)
SETTINGS = b"""
input = "outputs.jsonl"
metrics = ["exact", "token_f1"]
output = "run/"
executor = "serial"
[read]
item_key = "id"
fields = {output = "prediction"}
[check]
min = {token_f1 = 0.5}
systems = ["good"]
junit = "report.xml"
[compare]
test = "randomisation"
draws = 200
"""


def test_specs_settings_and_rubrics(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("fuzz: specs, settings, rubrics")
    package = Path(metrist.__file__).parent

    def build(data: bytes) -> None:
        for metric in build_all([data.decode("utf-8", "surrogateescape")]):
            assert metric.text

    in_file = partial(read_from_file, tmp_path)
    rubrics = [path.read_bytes() for path in sorted((package / "metrics" / "rubrics").glob("*.toml"))]
    assert rubrics
    fuzz(row, [spec.encode() for spec in SPECS], build, CASES)
    fuzz(row, [SETTINGS], in_file("study.toml", read_config), CASES)
    fuzz(row, rubrics, in_file("rubric.toml", lambda path: load_rubric(str(path))), CASES)
    fuzz(row, rubrics, in_file("schema.toml", lambda path: load_schema(str(path))), CASES // 2)
    fuzz(row, rubrics, lambda data: parse_rubric(data.decode("utf-8", "replace"), "a file"), CASES // 2)
    calibration = b'{"metric": "chrf", "signature": "s", "x": [0, 1], "y": [0.1, 0.9], "groups": {}}'
    fuzz(row, [calibration], in_file("calibration.json", read_calibration), CASES // 2)
    tokens = b"ci:second-token-0123456789\nx:sha256:" + b"ab" * 32 + b"\n"
    lines = lambda data: data.decode("utf-8", "replace").splitlines()  # noqa: E731
    fuzz(row, [tokens], lambda data: AccessTokens.parse(lines(data), "file"), CASES // 2)


# ---- Run folders


def test_run_folders_of_strangers(tmp_path: Path, torture_row: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests and parts whose checksums and names are right, whatever they hold; annotation projects."""
    monkeypatch.setattr("metrist.run.store.Store.check_part", lambda *_: None)
    monkeypatch.setattr("metrist.run.manifest._sum_up", lambda _: "right")
    row = torture_row("fuzz: run folders")
    source = write_records(tmp_path / "in.jsonl", 6)
    metrist.score(str(source), ["rougeL", "length"], out=tmp_path / "whole", executor="serial")
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", run)
    for path in sorted(file for file in run.rglob("*") if file.is_file()):
        whole = path.read_bytes()

        def read(data: bytes, path: Path = path) -> None:
            path.write_bytes(data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # Sums of infinite numbers.
                results = metrist.load(run)
                results.system_scores()

        fuzz(row, [whole], read, CASES // 5)
        path.write_bytes(whole)
    from annotation_projects import make_project, make_rows

    project = make_project(tmp_path, rows=make_rows(2), raters=2).folder
    for name in ("project.json", "tasks.jsonl"):
        whole = (project / name).read_bytes()

        def open_it(data: bytes, name: str = name) -> None:
            (project / name).write_bytes(data)
            with open_project(project).open_store():
                pass

        fuzz(row, [whole], open_it, CASES // 5)
        (project / name).write_bytes(whole)


# ---- Answers of LLMs


def test_answers_of_llms(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("fuzz: LLM answers")
    top = [{"token": "4", "logprob": -0.5}, {"token": "3", "logprob": -1.5}]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "An answer", "reasoning_content": None},
        "finish_reason": "stop",
        "logprobs": {"content": [{"token": "An", "logprob": -0.1, "top_logprobs": top}]},
    }
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    chat = json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    text = json.dumps({"choices": [{"text": "An answer", "logprobs": {"tokens": ["An"], "token_logprobs": [-0.1],
                       "top_logprobs": [{"An": -0.1}]}}], "usage": usage}).encode()  # fmt: skip
    own = http.UnreadableResponse
    for seed, parse in ((chat, openai_format.parse_chat_completion), (text, openai_format.parse_text_completion)):

        def read(data: bytes, parse: Callable[[Any], Any] = parse) -> None:
            completion = parse(http.Response(200, {}, data).data)
            json.dumps(completion.text, ensure_ascii=False).encode()

        fuzz(row, [seed], read, 2 * CASES, own)
    rubric = load_rubric("reliability")
    grades = b'Well. {"reasons": "Wrong.", "naturalness": 3, "relatedness": 2, "correctness": 1, "id": "abc"}'
    from metrist.metrics.llm_metric import UnparsableAnswer

    def grade(data: bytes) -> None:
        answer = data.decode("utf-8", "surrogateescape")
        levels = parse_grades(answer, rubric.aspects, "abc", ["a text"]).levels
        assert all(level.value in (1, 2, 3) for level in levels.values())

    fuzz(row, [grades, b"```json\n" + grades + b"\n```"], grade, 2 * CASES, UnparsableAnswer)
    from metrist.llm.cache import CachedAnswer, Request
    from metrist.llm.messages import Completion, Message, Sampling

    request = Request(llm="m", messages=(Message("user", "q"),), sampling=Sampling(max_tokens=5))
    line = replay.format_line(CachedAnswer(request=request, completion=Completion(text="a"), arrived=1.0))
    path = tmp_path / "answers.jsonl"

    def read_replay(data: bytes) -> None:
        path.write_bytes(data)
        list(replay.read_answers(path))

    fuzz(row, [(line.rstrip() + "\n").encode() * 2], read_replay, CASES)


# ---- Weights, and files of other tools


LABEL_STUDIO = [
    {
        "id": 1,
        "data": {"item": "i1", "system": "s", "output": "a text", "source": "a source", "text": "a text"},
        "annotations": [
            {
                "completed_by": {"email": "a@b.example"},
                "result": [
                    {"from_name": "fluency", "to_name": "output", "type": "rating", "value": {"rating": 4}},
                    {"from_name": "errors", "to_name": "output", "type": "labels",
                     "value": {"start": 0, "end": 3, "text": "a t", "labels": ["Accuracy"]}},
                    {"from_name": "better", "type": "choices", "value": {"choices": ["first"]}},
                ],
            }
        ],
    }
]  # fmt: skip
ALPACA = [{"instruction": "Say hi", "output": "hi", "generator": "m", "dataset": "x", "datasplit": "eval"}]
BARTSCORE = {"0": {"src": "a", "ref_summ": "b", "sys_summs": {"s": {"sys_summ": "c", "scores": {"fluency": 3.0}}}}}


def test_weights_and_files_of_other_tools(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("fuzz: weights, archives of other tools")

    in_file = partial(read_from_file, tmp_path)
    for kind, document in (("label_studio", LABEL_STUDIO), ("alpaca_eval", ALPACA), ("bartscore", BARTSCORE)):
        seed = json.dumps(document).encode()
        fuzz(row, [seed], in_file(f"{kind}.json", lambda path, kind=kind: list(convert(path, kind=kind))), CASES)  # type: ignore[misc]
        fuzz(row, [seed], in_file(f"{kind}.json", lambda path: list(convert(path))), CASES // 5)
    folder = tiny_models.save("bart", tmp_path / "model")
    weights = (folder / "model.safetensors").read_bytes()
    size = 8 + int.from_bytes(weights[:8], "little")
    head, body = weights[: size + 64], weights[size + 64 :]

    def load_safetensors(data: bytes) -> None:
        (folder / "model.safetensors").write_bytes(data + body)
        _read_tensors(folder / "model.safetensors", hashlib.sha256(data + body).hexdigest())

    fuzz(row, [head], load_safetensors, CASES // 2, ValueError)
    import torch

    torch.save({"weight": torch.zeros(3, 4), "bias": torch.ones(2)}, tmp_path / "seed.pt")
    out = tmp_path / "converted.safetensors"
    fuzz(
        row,
        [(tmp_path / "seed.pt").read_bytes()],
        in_file("state.pt", lambda path: convert_state_dict(path, out)),
        CASES // 2,
    )
    np.savez(tmp_path / "seed.npz", a=np.zeros((3, 4), np.float32), b=np.ones(5, np.float16))
    archive = (tmp_path / "seed.npz").read_bytes()
    for read_archive in (read_arrays, read_quantized):
        fuzz(row, [archive], in_file("model.npz", read_archive), CASES // 2)

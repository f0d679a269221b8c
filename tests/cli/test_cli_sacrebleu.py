"""`metrist sacrebleu` beside sacreBLEU's own command."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

OUTPUTS = ["The cat sat on a mat.", "It was not, he said, a surprise!", "Two dogs run.", "Nobody knows."]
OTHERS = ["A cat sat there.", "He was not surprised.", "Two dogs ran away.", "No one knows."]
FIRST = ["The cat sat on the mat.", "He said that it was no surprise.", "Two dogs are running.", "Nobody knows it."]
SECOND = ["There sat a cat.", "It was not a surprise, he said.", "Two dogs run.", "Who knows?"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    for name, lines in {"out": OUTPUTS, "other": OTHERS, "ref1": FIRST, "ref2": SECOND}.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def peer(*arguments: str) -> str:
    command = [sys.executable, "-m", "sacrebleu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-m bleu chrf ter",
        "-m bleu chrf ter -f text -w 4",
        "-m ter bleu -f text -sh -lc -tok intl -s floor -sv 0.5",
        "-m bleu chrf -ci -cin 50 -f text",
        "-b -w 3 -f text",
        "-m chrf -cw 2 --chrf-beta 3 --chrf-lowercase --chrf-whitespace -cc 4 --chrf-eps-smoothing",
        "-m ter --ter-normalized --ter-no-punct --ter-case-sensitive --ter-asian-support",
        "-sl -m bleu",
    ],
)
@pytest.mark.usefixtures("files")
def test_output_equals_that_of_the_command(metrist, options):
    arguments = ["ref1.txt", "ref2.txt", "-i", "out.txt", *options.split()]
    code, out, err = metrist("sacrebleu", *arguments)
    assert (code, err) == (0, "")
    assert out == peer(*arguments)


@pytest.mark.usefixtures("files")
def test_several_systems_print_the_same_json(metrist):
    arguments = ["ref1.txt", "-i", "out.txt", "other.txt", "-m", "chrf", "bleu"]
    assert metrist("sacrebleu", *arguments).out == peer(*arguments)


def test_tabs_separate_references_and_systems(metrist, files, monkeypatch):
    rows = [f"{a}\t{b}\n" for a, b in zip(FIRST, SECOND, strict=True)]
    with gzip.open(files / "refs.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(rows)
    expected = metrist("sacrebleu", "ref1.txt", "ref2.txt", "-i", "out.txt").out
    assert metrist("sacrebleu", "refs.tsv.gz", "-nr", "2", "-i", "out.txt").out == expected
    systems = "".join(f"{a}\t{b}\n" for a, b in zip(OUTPUTS, OTHERS, strict=True))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(systems.encode())))
    rows_out = json.loads(metrist("sacrebleu", "ref1.txt").out)
    assert [row["system"] for row in rows_out] == ["System 1", "System 2"]


def test_another_encoding_is_one_line(metrist, files):
    (files / "latin.txt").write_bytes("café\n".encode("latin-1") * 4)
    code, out, err = metrist("sacrebleu", "ref1.txt", "-i", "latin.txt")
    assert (code, out) == (2, "")
    assert "latin.txt is not utf-8" in err


def test_tokenised_outputs_are_noted(metrist, files):
    (files / "tokenised.txt").write_text("a b .\n" * 100)
    arguments = ["sacrebleu", "tokenised.txt", "-i", "tokenised.txt", "-b", "-f", "text"]
    assert "seem to be tokenised" in metrist(*arguments).err
    assert metrist(*arguments, "--force") == (0, metrist(*arguments, "-q").out, "")

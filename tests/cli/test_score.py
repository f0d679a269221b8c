"""`metrist score` and `metrist export`."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from metrist.metrics.trained import quality


def test_standard_input_is_read(metrist, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(outputs.read_bytes())))
    assert "good" in metrist("score", "-", "-m", "exact").out


def test_fields_under_other_names_and_built_items_are_read(metrist, tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    path.write_text("doc,segment,prediction,reference\nd,1,a b,a b\nd,2,a b,a c\n")
    answer = metrist("score", path, "-m", "exact", "--field", "output=prediction", "--item-key", "doc+segment")
    assert (answer.code, answer.err) == (0, "")
    assert "theirs" in answer.out


@pytest.mark.parametrize("count", [1, 3])
def test_a_metric_that_scores_nothing_is_shown_and_sets_the_exit_code(
    metrist, tmp_path: Path, module, count: int
) -> None:
    module("""
@dataclass(frozen=True)
class Failing(Metric):
    def score(self, shard):
        return Scores.of(Score(value=np.nan, failure=f"no luck with {r.item}") for r in shard.records)
""")
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"item": "{i}", "system": "a", "output": "o"}}\n' for i in range(count)))
    answer = metrist("score", path, "-m", "length", "-m", "own_metrics.Failing", "--workers", 1)
    assert answer.code == 2
    assert "1.00" in next(line for line in answer.out.splitlines() if line.startswith("a "))
    which = ": no luck with 0" if count == 1 else ", such as: no luck with 0"
    assert answer.err == f"metrist: own_metrics.Failing failed on all {count} records{which}\n"
    assert "not scored" not in answer.out


@pytest.mark.parametrize("verb", ["score", "prefer"])
def test_a_slash_at_the_end_asks_for_a_folder_whatever_its_name(
    metrist, outputs: Path, tmp_path: Path, verb: str
) -> None:
    assert metrist(verb, outputs, "-m", "chrf", "-o", f"{tmp_path}/{verb}.out/").code == 0
    assert (tmp_path / f"{verb}.out").is_dir()


def test_the_suggested_command_works_as_it_is_from_another_folder(
    metrist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    (folder / "two files.csv").write_text("id\tv1\tv2\n1\tx x\ty\n2\tz\tw\n", encoding="utf-16")
    (folder / "long.jsonl").write_text('{"item": "1", "system": "s", "output": "o"}\n')
    monkeypatch.chdir(folder)
    wide = ("two files.csv", "--output", "first one=v1", "--output", "v2=v2", "--delimiter", "tab")
    assert metrist("score", *wide, "-m", "length", "-o", "../run/").code == 0
    assert metrist("score", "long.jsonl", "-m", "length", "-m", "words=distinct(order=1)", "-o", "../run/").code == 0
    for place in (tmp_path, folder, Path("/")):
        monkeypatch.chdir(place)
        run = os.path.relpath(tmp_path / "run") + "/"
        answer = metrist("worst", run, "-m", "words", "-n", 1)
        command = re.search(r"words has not scored 4 of 4 outputs of .*?: `(metrist score .*?)` to add", answer.out)
        assert command, answer.out + answer.err
        words = shlex.split(command[1])
        assert os.path.samefile(words[2], folder / "two files.csv")
        assert os.path.samefile(words[-1], tmp_path / "run")
    assert metrist(*words[1:]).code == 0
    assert "has not scored" not in metrist("worst", run, "-m", "words").out


def test_without_a_metric_some_are_chosen_and_told_why(
    metrist, outputs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part = quality.MixturePart(metric="distinct", weight=1.0, centre=0.5, spread=0.1)
    mixture = quality.Mixture(task="general", needs=(), basis="measured on words", parts=(part,))
    monkeypatch.setattr(quality, "load_mixtures", lambda: (mixture,))
    path = tmp_path / "outputs.csv"
    reference = "the cat sat on the mat by the door"
    path.write_text(f"id,output,reference\n1,the dog sat on the mat,{reference}\n2,{reference},{reference}\n")
    answer = metrist("score", path)
    assert answer.code == 0
    assert "no -m was given: chose quality, rougeL, chrf" in answer.err
    assert "distinct; measured on words" in answer.err
    assert answer.err.count("reading") == 1
    header = next(line for line in answer.out.splitlines() if line.startswith("system"))
    assert header.split()[1:5] == ["quality", "quality:distinct", "rougeL", "chrf"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(outputs.read_bytes())))
    piped = metrist("score", "-")
    assert piped.code == 2
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert metrist("score", empty).code == 2

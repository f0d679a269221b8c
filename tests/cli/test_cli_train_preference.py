"""`metrist train preference`, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def row(number: int, task: str, split: str, ends: tuple[str, str]) -> str:
    source = ["source", f"the cat sat on the mat {number}"]
    good, bad = ([source, ["answer", f"it was {number % 7} {end}"]] for end in ends)
    fields = {"task": task, "pair": number, "split": split, "good": good, "bad": bad, "instruction": "is it good ?"}
    return json.dumps(fields) + "\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    lines = [row(n, "A", "train" if n < 60 else "dev", ("good", "bad")) for n in range(80)]
    lines += [row(n, "B", "train" if n < 30 else "dev", ("cat", "dog")) for n in range(40)]
    path.write_text("".join(lines))
    return path


def test_a_dry_run_describes_the_training(metrist, tiny, pairs: Path) -> None:
    """Rows of 4 + 1, 7 + 1 (two digits are two tokens) and 4 tokens within a frame of 2, two rows a pair."""
    command = ["train", "preference", "--data", pairs, "--base", tiny("bert"), "-o", "x", "--dry-run"]
    answer = metrist(*command, "--batch", 8, "--epochs", 2)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[:3] == [
        "training pairs     90 of 2 criteria",
        "development pairs  30",
        "steps              24 (2 epochs of 12)",
    ]
    assert lines[3].startswith("tokens             3,")
    assert lines[4].startswith("padding            ")
    assert lines[5] == "an answer's vector mean over its tokens and the closing separator, in rows of 64 tokens at most"
    assert not Path("x").exists()


def test_a_model_is_trained_and_not_trained_again(metrist, tiny, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    command = ["train", "preference", "--data", pairs, "--base", tiny("bert"), "-o", out, "--lr", "3e-3",
               "--epochs", 2, "--batch", 10, "--balance", 0.5, "--labelled", "--keep", "both", "--pooling", "first",
               "--ties", "soft", "--max-length", 40, "--head-lr", "5e-3", "--licence", "MIT"]  # fmt: skip
    answer = metrist(*command)
    assert answer.code == 0, answer.err
    assert "step 0: mean accuracy over 2 criteria of the development data 0." in answer.err
    assert "step 9: mean accuracy over 2 criteria of the development data " in answer.err
    lines = answer.out.splitlines()
    assert lines[0].startswith("mean accuracy over 2 criteria of the development pairs: 0.")
    assert lines[1].startswith("  A  ")
    assert lines[1].endswith("  20 pairs")
    assert lines[-1] == f"use it: metrist score … -m \"preference(model='{out}', criterion='A')\""
    settings = json.loads((out / "reward.json").read_text())
    assert settings["pooling"] == "first"
    assert settings["layout"] == {"labelled": True, "max_length": 40, "keep": "both"}
    card = json.loads((out / "card.json").read_text())
    assert (card["recipe"]["ties"], card["recipe"]["head_lr"], card["licence"]) == ("soft", 5e-3, "MIT")
    assert card["data"]["files"][0]["file"] == "pairs.jsonl"
    again = metrist(*command)
    assert again.code == 0
    assert "mine is already finished; nothing was trained" in again.err


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", [], "pairs.jsonl: has no pairs"),
        ('{"task": "A", "good": [["a", "x"]]}\n', [], "'bad' is missing"),
        (None, ["--regression", 1], "no pair has ratings ('good_rank', 'bad_rank') for --regression"),
        (None, ["--max-length", 7], "leaves no room for an answer; shorten it"),
        (None, ["--dev", "0.2"], "already has 30 development pairs; leave out --dev 0.2"),
    ],
)
def test_errors_are_one_line(
    metrist, tiny, pairs: Path, content: str | None, options: list[object], message: str
) -> None:
    if content is not None:
        pairs.write_text(content)
    answer = metrist("train", "preference", "--data", pairs, "--base", tiny("bert"), "-o", "x", *options, "--dry-run")
    assert answer.code != 0
    assert message in answer.err
    assert "Traceback" not in answer.err


@pytest.fixture
def judged(metrist, tmp_path: Path) -> Path:
    """A run in which chrF is the judge: outputs that end as the reference does are better."""
    rows = []
    for n in range(30):
        source = f"the cat {n} sat on the mat {n * n}"
        for system, end in (("a", "good"), ("b", "bad")):
            texts = {"source": source, "references": [f"it {n} was good"], "output": f"it {n} was {end}"}
            rows.append(
                {"item": str(n), "system": system, **texts, "ratings": {"quality": [4 if end == "good" else 2]}}
            )
    data = tmp_path / "outputs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert metrist("score", data, "-m", "chrf", "-o", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_a_run_is_learned_from(metrist, tiny, judged: Path, tmp_path: Path) -> None:
    command = ["train", "preference", "--from-run", judged, "--base", tiny("bert")]
    command += ["-o", tmp_path / "mine", "--lr", "3e-3"]
    plan = metrist(*command, "--dry-run")
    assert plan.code == 0, plan.err
    assert "training pairs     24 of 1 criteria\ndevelopment pairs  6\n" in plan.out
    assert "chrf: 24 pairs of 24 items to learn from, 6 of 6 items held out; context: source and references" in plan.err
    answer = metrist(*command)
    assert answer.code == 0, answer.err
    assert "agreement with chrf on 6 pairs of 6 held-out items: accuracy; Spearman within items\n" in answer.out
    assert "accuracy by people: quality on 6 pairs of 6 held-out items: the judge 1.000, this metric " in answer.out
    assert "cost: 1,000 outputs cost 0 US dollars by the judge, nothing by this metric" in answer.out
    # `good` is longer than `bad`, so length is always right, but six items are few.
    assert "this metric agrees with people: quality" in answer.err
    assert "output length alone (the longer one is better)" in answer.err
    assert "that is too few to tell" in answer.err
    assert answer.out.splitlines()[-1] == f"use it: metrist score … -m \"preference(model='{tmp_path / 'mine'}')\""
    card = json.loads((tmp_path / "mine" / "card.json").read_text())
    assert card["data"]["criteria"]["overall"]["instruction"] == "chrf"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from-run", "RUN", "more.jsonl"], "--from-run learns from a run: leave out other files"),
        (["--from-run", "RUN", "--metric", "chr"], "no metric 'chr' in the run"),
        (["--from-run", "RUN", "--dev", "dev.jsonl"], "--dev must be a share"),
        (["--from-run", "RUN", "--across"], "--across is for items with one output each"),
        (["--from-run", "RUN", "--suite", "heap"], "leave out --from-run"),
        (["--from-run", "nowhere"], "nowhere is no run folder"),
        (["pairs.jsonl", "--across"], "--across is for --from-run RUN"),
        (["pairs.jsonl", "--texts", "x.jsonl"], "--texts is for --from-run RUN"),
    ],
)
def test_options_of_runs_are_checked(metrist, tiny, judged: Path, options: list[str], message: str) -> None:
    named = [judged if option == "RUN" else option for option in options]
    answer = metrist("train", "preference", *named, "--base", tiny("bert"), "-o", "x", "--dry-run")
    assert answer.code != 0
    assert message in answer.err
    assert "Traceback" not in answer.err

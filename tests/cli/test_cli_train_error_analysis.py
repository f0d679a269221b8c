"""`metrist train error-analysis`: from records to a metric, its evaluation and a meta-evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from toy_analyses import make_rows, write_rows


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost tiny models more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_from_records_to_a_meta_evaluation(metrist, tiny, tmp_path: Path) -> None:
    """A tiny model learns to mark the word `bad`; people gave such outputs 1 of 5."""
    data = write_rows(tmp_path / "data.jsonl", make_rows(80))
    judged = [
        {
            "item": f"new {row['item']}",
            "system": "toy",
            "instruction": row["instruction"],
            "source": row["source"],
            "references": ["the sun is good"],
            "output": row["output"],
            "ratings": {"quality": [5 if row["score"] == 0 else 1]},
            "errors": [{**error, "category": error["aspect"]} for error in row["errors"]],
        }
        for row in make_rows(112)[100:]
    ]
    records = write_rows(tmp_path / "judged.jsonl", judged)
    out = tmp_path / "analyst"
    command = ["train", "error-analysis", data, "--base", tiny("analyst"), "-o", out, "--eval", records]
    settings = ["--lr", "0.02", "--epochs", "10", "--batch", "8", "--dev", "0.1"]
    plan = metrist(*command, *settings, "--dry-run")
    assert plan.code == 0, plan.err
    assert "trained            an adapter of rank 16\nprompt             in the chat template\n" in plan.out
    answer = metrist(*command, *settings)
    assert answer.code == 0, answer.err
    card = json.loads((out / "card.json").read_text())
    (trained,) = card["evaluation"]["models"].values()
    by_set = {result["set"]: result for result in trained}
    assert by_set["judged"]["parse_rate"] == 1
    assert by_set["judged"]["spans"]["f1"] == 1
    assert by_set["judged"]["ratings"][0]["spearman"] == pytest.approx(1)
    assert by_set["judged"]["gold"]["zero"] == 1
    assert by_set["held-out analyses"]["spans"]["f1"] == 1
    assert "this metric:\n  held-out analyses: 7 outputs; 100.0% of the answers can be read\n" in answer.out
    assert "## Evaluation on held-out data" in (out / "card.md").read_text()
    run = tmp_path / "run"
    score = metrist("score", records, "-m", card["metric"], "-o", run)
    assert score.code == 0, score.err
    meta = metrist("meta", run, "--measure", "spearman", "--group", "none", "--format", "json")
    assert meta.code == 0, meta.err
    assert '"spearman"' in meta.out
    explained = metrist("explain", records, "-m", card["metric"])
    assert explained.code == 0, explained.err
    assert "bad" in explained.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--base"),
        (["--base", "BASE", "--preset", "tigerscore-70b"], "no preset 'tigerscore-70b'; expected one of lora"),
        (["--base", "BASE", "--eval", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--base", "BASE", "--ablate", "channel"], "1 channel with errors (synthetic); an ablation by channel needs"),
        (["--base", "BASE", "--ablate", "task", "--tasks", "summarization"], "leave out --channels, --tasks"),
    ],
)
def test_options_that_do_not_fit_are_refused(metrist, tiny, tmp_path: Path, options: list[str], message: str) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(10))
    given = [tiny("analyst") if option == "BASE" else option for option in options]
    answer = metrist("train", "error-analysis", data, "-o", tmp_path / "out", "--dev", "0.2", *given)
    assert answer.code != 0
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_an_ablation_is_one_command(metrist, tiny, tmp_path: Path) -> None:
    rows = [
        {**row, "channel": channel, "item": f"{channel}{row['item']}", "source": f"{channel} {row['source']}"}
        for channel, start in (("human", 0), ("synthetic", 20))
        for row in make_rows(12 + start)[start:]
    ]
    data = write_rows(tmp_path / "data.jsonl", rows)
    command = ["train", "error-analysis", data, "--base", tiny("analyst"), "-o", tmp_path / "out"]
    settings = ["--ablate", "channel", "--epochs", "1", "--dev", "0.1", "--batch", "4", "--rank", "2"]
    settings += ["--eval-outputs", "1"]
    plan = metrist(*command, *settings, "--dry-run")
    assert plan.code == 0, plan.err
    assert [line.split()[0] for line in plan.out.splitlines()][-1] == "all"
    answer = metrist(*command, *settings)
    assert answer.code == 0, answer.err
    assert "Error analysts by channel of their training data" in answer.out
    assert (tmp_path / "out" / "ablation.md").is_file()

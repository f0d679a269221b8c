"""BARTScore on one CPU core: the original procedure and metrist's engine. `python -m bench.bartscore_cpu [--write]`

The model has BART-base's shape and random weights, which take as long as trained ones. Its tokenizer is a byte-level
BPE trained on SummEval, because BART's own cannot be downloaded without a hub.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.document import machine, show_section
from bench.texts import rows

#: Sources with the outputs of all 16 systems, and sources with one output each.
SHARED_SOURCES = 3
UNSHARED_SOURCES = 12
SEED = 7
#: The original's own defaults.
BATCH = 4
MAX_LENGTH = 1024

TextPair = tuple[str, str]
Scorer = Callable[[Sequence[TextPair]], NDArray[np.float64]]


class Row(NamedTuple):
    """CPU seconds and scores of one contender."""

    name: str
    seconds: float
    scores: NDArray[np.float64]


def main() -> None:
    text = report()
    show_section("bench-bartscore-cpu", text)


def report() -> str:
    """Measure, and return the tables with a description of the setup."""
    sets = {
        f"{SHARED_SOURCES} sources, each with the outputs of 16 systems": system_major(SHARED_SOURCES, systems=16),
        f"{UNSHARED_SOURCES} sources with one output each: nothing shared": system_major(UNSHARED_SOURCES, systems=1),
    }
    with tempfile.TemporaryDirectory() as directory, _one_thread():
        folder = build_model(Path(directory) / "bart-base")
        scorers = {name: start(folder) for name, start in CONTENDERS.items()}
        tables = [_table(name, pairs, folder, scorers) for name, pairs in sets.items()]
    return "\n\n".join([_describe_setup(), *tables])


def system_major(sources: int, systems: int) -> list[TextPair]:
    """Return (source, output) pairs in the order in which the original scores them: system by system."""
    items: dict[str, list[TextPair]] = {}
    for row in rows("summeval"):
        items.setdefault(row["item"], []).append((row["source"], row["output"]))
    return [items[item][system] for system in range(systems) for item in islice(items, sources)]


def build_model(folder: Path) -> Path:
    """Save a random model of BART-base's shape, with a tokenizer that adds the same special tokens as BART's."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(SEED)
    config = BartConfig(
        vocab_size=50_265,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        max_position_embeddings=1024,
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    _train_tokenizer().save_pretrained(folder)
    return folder


def _train_tokenizer() -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained = ByteLevelBPETokenizer()
    texts = dict.fromkeys(text for row in rows("summeval") for text in (row["source"], row["output"]))
    trained.train_from_iterator(texts, vocab_size=50_265, min_frequency=3, special_tokens=special)
    trained._tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, model_max_length=MAX_LENGTH, **names)


def count_tokens(folder: Path, pairs: Sequence[TextPair]) -> tuple[float, float]:
    """Return the mean number of tokens of sources and outputs."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    means = [np.mean([len(ids) for ids in tokenizer(list(side)).input_ids]) for side in zip(*pairs, strict=True)]
    return float(means[0]), float(means[1])


def original_scorer(folder: Path) -> Scorer:
    """Score as bart_score.py does: four pairs at a time in input order, padded; the model receives labels, and the
    log-softmax of all logits is computed once more."""
    import torch
    from transformers import AutoTokenizer, BartForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    log_softmax = torch.nn.LogSoftmax(dim=1)
    loss = torch.nn.NLLLoss(reduction="none", ignore_index=model.config.pad_token_id)

    def batch(pairs: Sequence[TextPair]) -> list[float]:
        sources, outputs = (
            tokenizer(list(side), max_length=MAX_LENGTH, truncation=True, padding=True, return_tensors="pt")
            for side in zip(*pairs, strict=True)
        )
        labels = outputs.input_ids
        with torch.no_grad():
            logits = model(input_ids=sources.input_ids, attention_mask=sources.attention_mask, labels=labels).logits
            flat = loss(log_softmax(logits.view(-1, model.config.vocab_size)), labels.view(-1))
        lengths = outputs.attention_mask.sum(dim=1)
        values: list[float] = (-flat.view(len(pairs), -1).sum(dim=1) / lengths).tolist()
        return values

    return lambda pairs: np.array([s for at in range(0, len(pairs), BATCH) for s in batch(pairs[at : at + BATCH])])


def metrist_scorer(folder: Path) -> Scorer:
    """Score with metrist's engine, all pairs in one call, as in a run."""
    from metrist.models.devices import Options
    from metrist.models.loading import load_seq2seq

    model = load_seq2seq(Options(model=str(folder)))
    model.log_probs([("one", "two")])

    def scores(pairs: Sequence[TextPair]) -> NDArray[np.float64]:
        values = model.log_probs(pairs)
        return np.array([values.of(pair).astype(np.float64).mean() for pair in range(len(values))])

    return scores


CONTENDERS: dict[str, Callable[[Path], Scorer]] = {
    "the original's procedure, batches of 4": original_scorer,
    "metrist, float32": metrist_scorer,
}


def time_scorer(name: str, scorer: Scorer, pairs: Sequence[TextPair]) -> Row:
    before = time.process_time()
    scores = scorer(pairs)
    return Row(name, time.process_time() - before, scores)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit both contenders to one thread."""
    import torch

    changed = {"OMP_NUM_THREADS": "1", "METRIST_DEVICE": "cpu"}
    saved = {name: os.environ.get(name) for name in changed}
    threads = torch.get_num_threads()
    os.environ.update(changed)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for name, value in saved.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _table(name: str, pairs: Sequence[TextPair], folder: Path, scorers: dict[str, Scorer]) -> str:
    timings = [time_scorer(tool, scorer, pairs) for tool, scorer in scorers.items()]
    source, output = count_tokens(folder, pairs)
    lines = [
        f"{len(pairs)} pairs of {name} ({source:.0f} and {output:.0f} tokens on average):",
        "",
        "| | CPU seconds | pairs/s | ratio | largest difference of a score |",
        "|---|--:|--:|--:|--:|",
    ]
    return "\n".join([*lines, *(_line(row, timings[0], len(pairs)) for row in timings)])


def _describe_setup() -> str:
    return (
        f"BARTScore of SummEval, source to output, measured by `python -m bench.bartscore_cpu` on one core of "
        f"{machine()}: CPU time of one run each, in one process, after loading. BART-base's shape "
        "with random weights, and a byte-level BPE trained on SummEval instead of BART's tokenizer. metrist encodes a "
        "source once for all of its outputs."
    )


def _line(row: Row, first: Row, pairs: int) -> str:
    ratio = "" if row is first else f"{first.seconds / row.seconds:.2f}×"
    apart = "" if row is first else f"{np.abs(row.scores - first.scores).max():.1e}"
    return f"| {row.name} | {row.seconds:.1f} | {pairs / row.seconds:.2f} | {ratio} | {apart} |"


if __name__ == "__main__":
    main()

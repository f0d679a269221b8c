"""The tools that `bench.lexical` times: metrist's kernels, `metrist.score` end to end, and each installed peer.

Every run starts cold: metrist gets a new shard, the peers' caches are cleared, and texts are new strings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from bench.texts import TextPair

#: A run that is ready to be timed, and a function that prepares one from pairs.
Run = Callable[[], Any]
Prepare = Callable[[Sequence[TextPair]], Run]


@dataclass(frozen=True)
class Contender:
    """A tool for a metric. `start` imports the tool and returns a function that prepares a run from pairs.

    `sample` limits how many pairs are timed where all would take minutes. `all_cores` says how the tool uses all cores:
    by itself, in a pool of processes, or not at all.
    """

    metric: str
    tool: str
    start: Callable[[], Prepare]
    sample: int | None = None
    all_cores: Literal["itself", "processes", "no"] = "processes"


def kernels(*specs: str) -> Callable[[], Prepare]:
    """The metrics alone, on one shard that holds all pairs."""

    def start() -> Prepare:
        from metrist.metrics.base import Shard
        from metrist.metrics.lexical import tokenizers
        from metrist.metrics.registry import build
        from metrist.records import Record

        metrics = [build(spec) for spec in specs]

        def prepare(pairs: Sequence[TextPair]) -> Run:
            records = [Record(item="", system="", output=o, references=(r,)) for o, r in pairs]
            tokenizers._cached_stem.cache_clear()

            def run() -> Any:
                shard = Shard(records)
                return [metric.score(shard).values for metric in metrics]

            return run

        return prepare

    return start


def end_to_end(*specs: str) -> Callable[[], Prepare]:
    """`metrist.score` on records in memory: serial on one core, with the default executor where there are more."""

    def start() -> Prepare:
        from metrist import Record, score
        from metrist.metrics.lexical import tokenizers

        one_core = len(os.sched_getaffinity(0)) == 1 if hasattr(os, "sched_getaffinity") else os.cpu_count() == 1

        def prepare(pairs: Sequence[TextPair]) -> Run:
            records = [Record(item=str(i), system="", output=o, references=(r,)) for i, (o, r) in enumerate(pairs)]
            tokenizers._cached_stem.cache_clear()
            return lambda: score(records, specs, executor="serial" if one_core else None)

        return prepare

    return start


def rouge_score(types: list[str], stem: bool) -> Callable[[], Prepare]:
    def start() -> Prepare:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer(types, use_stemmer=stem)
        return lambda pairs: lambda: [scorer.score(reference, output) for output, reference in pairs]

    return start


def rouge_rust() -> Prepare:
    import fast_rouge

    def prepare(pairs: Sequence[TextPair]) -> Run:
        outputs, references = ([*side] for side in zip(*pairs, strict=True))
        return lambda: fast_rouge.score_batch_flat(references, outputs)

    return prepare


def sacrebleu(name: str, **settings: Any) -> Callable[[], Prepare]:
    def start() -> Prepare:
        import sacrebleu.metrics

        metric = getattr(sacrebleu.metrics, name)(**settings)

        def prepare(pairs: Sequence[TextPair]) -> Run:
            _forget_tokens()
            return lambda: [metric.sentence_score(output, [reference]).score for output, reference in pairs]

        return prepare

    return start


def _forget_tokens() -> None:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
    from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

    for tokenizer in (Tokenizer13a, TokenizerRegexp, TercomTokenizer):
        tokenizer.__call__.cache_clear()


def fastchrf() -> Prepare:
    import fastchrf as peer

    def prepare(pairs: Sequence[TextPair]) -> Run:
        outputs, references = ([[text] for text in side] for side in zip(*pairs, strict=True))
        return lambda: peer.pairwise_chrf(outputs, references)

    return prepare


def nltk_meteor() -> Prepare:
    from nltk.translate.meteor_score import single_meteor_score

    single_meteor_score(["a"], ["b"])  # Raises LookupError where WordNet is not installed.
    return lambda pairs: lambda: [single_meteor_score(r.split(), o.split()) for o, r in pairs]


def metrist(metric: str, *specs: str, sample: int | None = None) -> tuple[Contender, Contender]:
    return (
        Contender(metric, "metrist", kernels(*specs), sample, all_cores="no"),
        Contender(metric, "metrist.score", end_to_end(*specs), sample, all_cores="itself"),
    )


@cache
def contenders() -> tuple[Contender, ...]:
    rouge, stemmed = "ROUGE-1, -2 and -L", "ROUGE-1, -2 and -L, stemmed"
    types = ["rouge1", "rouge2", "rougeL"]
    return (
        *metrist(rouge, *(f"{name}(tokenizer='rouge-score')" for name in types)),
        Contender(rouge, "rouge-rust", rouge_rust, all_cores="itself"),
        Contender(rouge, "rouge-score", rouge_score(types, stem=False), sample=1500),
        *metrist(stemmed, *(f"{name}(stem=True, tokenizer='rouge-score')" for name in types)),
        Contender(stemmed, "rouge-score", rouge_score(types, stem=True), sample=500),
        *metrist("ROUGE-Lsum", "rougeLsum(tokenizer='rouge-score')"),
        Contender("ROUGE-Lsum", "rouge-score", rouge_score(["rougeLsum"], stem=False), sample=1000),
        *metrist("BLEU", "bleu"),
        Contender("BLEU", "sacrebleu", sacrebleu("BLEU", effective_order=True), sample=4000),
        *metrist("chrF", "chrf"),
        Contender("chrF", "fastchrf", fastchrf, sample=4000, all_cores="itself"),
        Contender("chrF", "sacrebleu", sacrebleu("CHRF"), sample=1500),
        *metrist("chrF++", "chrf(word_order=2)"),
        Contender("chrF++", "sacrebleu", sacrebleu("CHRF", word_order=2), sample=1500),
        *metrist("TER", "ter", sample=4000),
        Contender("TER", "sacrebleu", sacrebleu("TER"), sample=25),
        *metrist("METEOR", "meteor"),
        Contender("METEOR", "nltk", nltk_meteor, sample=1000),
    )

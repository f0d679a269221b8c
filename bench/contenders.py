"""Who is timed: metrist through its metrics, and each peer that is installed through its own front door.

A contender makes ready once (imports, scorer objects) and is then a function from pairs to numbers. Every call starts
cold: metrist gets a new shard, and what peers remember of texts is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.texts import TextPair

Scorer = Callable[[Sequence[TextPair]], Any]


@dataclass(frozen=True)
class Contender:
    """`sample` bounds how many pairs are timed, where all would take minutes. `threads`: uses all cores by itself."""

    metric: str
    tool: str
    ready: Callable[[], Scorer]
    sample: int | None = None
    threads: bool = False


def metrist(*specs: str) -> Callable[[], Scorer]:
    def ready() -> Scorer:
        from metrist.metrics.catalog import build
        from metrist.metrics.shard import Shard
        from metrist.records import Record

        metrics = [build(spec) for spec in specs]

        def score(pairs: Sequence[TextPair]) -> Any:
            _forget_stems()
            shard = Shard([Record(item="", system="", output=o, references=(r,)) for o, r in pairs])
            return [metric.score(shard).values for metric in metrics]

        return score

    return ready


def _forget_stems() -> None:
    from metrist.metrics import porter

    forget = getattr(porter.stem, "cache_clear", None)
    if forget is not None:
        forget()


def rouge_score(types: list[str], stem: bool) -> Callable[[], Scorer]:
    def ready() -> Scorer:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer(types, use_stemmer=stem)
        return lambda pairs: [scorer.score(reference, output) for output, reference in pairs]

    return ready


def rouge_rust() -> Scorer:
    import fast_rouge

    def score(pairs: Sequence[TextPair]) -> Any:
        return fast_rouge.score_batch_flat([r for _, r in pairs], [o for o, _ in pairs])

    return score


def sacrebleu(name: str, **settings: Any) -> Callable[[], Scorer]:
    def ready() -> Scorer:
        import sacrebleu.metrics

        metric = getattr(sacrebleu.metrics, name)(**settings)

        def score(pairs: Sequence[TextPair]) -> Any:
            _forget_tokens()
            return [metric.sentence_score(output, [reference]).score for output, reference in pairs]

        return score

    return ready


def _forget_tokens() -> None:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
    from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

    for tokenizer in (Tokenizer13a, TokenizerRegexp, TercomTokenizer):
        tokenizer.__call__.cache_clear()


def fastchrf() -> Scorer:
    import fastchrf as peer

    return lambda pairs: peer.pairwise_chrf([[output] for output, _ in pairs], [[reference] for _, reference in pairs])


def nltk_meteor() -> Scorer:
    from nltk.translate.meteor_score import single_meteor_score

    single_meteor_score(["a"], ["b"])  # Raises LookupError where WordNet is not installed.
    return lambda pairs: [single_meteor_score(reference.split(), output.split()) for output, reference in pairs]


@cache
def contenders() -> tuple[Contender, ...]:
    rouge, stemmed = "ROUGE-1, -2 and -L", "ROUGE-1, -2 and -L, stemmed"
    three = ["rouge1", "rouge2", "rougeL"]
    ours = [f"{name}(tokenizer='rouge-score')" for name in three]
    return (
        Contender(rouge, "metrist", metrist(*ours)),
        Contender(rouge, "rouge-rust", rouge_rust, threads=True),
        Contender(rouge, "rouge-score", rouge_score(three, stem=False), sample=1500),
        Contender(stemmed, "metrist", metrist(*(spec.replace("(", "(stem=True, ") for spec in ours))),
        Contender(stemmed, "rouge-score", rouge_score(three, stem=True), sample=500),
        Contender("ROUGE-Lsum", "metrist", metrist("rougeLsum(tokenizer='rouge-score')")),
        Contender("ROUGE-Lsum", "rouge-score", rouge_score(["rougeLsum"], stem=False), sample=1000),
        Contender("BLEU", "metrist", metrist("bleu")),
        Contender("BLEU", "sacrebleu", sacrebleu("BLEU", effective_order=True), sample=4000),
        Contender("chrF", "metrist", metrist("chrf")),
        Contender("chrF", "fastchrf", fastchrf, sample=4000, threads=True),
        Contender("chrF", "sacrebleu", sacrebleu("CHRF"), sample=1500),
        Contender("chrF++", "metrist", metrist("chrf(word_order=2)")),
        Contender("chrF++", "sacrebleu", sacrebleu("CHRF", word_order=2), sample=1500),
        Contender("TER", "metrist", metrist("ter"), sample=4000),
        Contender("TER", "sacrebleu", sacrebleu("TER"), sample=25),
        Contender("METEOR", "metrist", metrist("meteor")),
        Contender("METEOR", "nltk", nltk_meteor, sample=1000),
    )

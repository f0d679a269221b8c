"""Who is timed: metrist through its metrics, and each peer that is installed through its own front door.

Every run starts cold: metrist gets a new shard, what peers remember of texts is forgotten, and texts are new strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.texts import TextPair

#: A run that is ready to be timed.
Run = Callable[[], Any]
Prepare = Callable[[Sequence[TextPair]], Run]


@dataclass(frozen=True)
class Contender:
    """`start` imports and builds scorers once; what it returns lays pairs out in the form that the tool takes.

    `sample` bounds how many pairs are timed, where all would take minutes. `threads`: uses all cores by itself.
    """

    metric: str
    tool: str
    start: Callable[[], Prepare]
    sample: int | None = None
    threads: bool = False


def metrist(*specs: str) -> Callable[[], Prepare]:
    def start() -> Prepare:
        from metrist.metrics.lexical import tokenizers
        from metrist.metrics.registry import build
        from metrist.metrics.shard import Shard
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

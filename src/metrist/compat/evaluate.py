"""`load(name).compute(predictions=…, references=…)` as in the package evaluate, without downloading scripts.

    from metrist.compat import evaluate  # instead of: import evaluate

rouge, sacrebleu, bleu, chrf, ter and bertscore return what their scripts on the hub return; every other name is a
metric of metrist with its settings, such as `judge(llm=…)`. It differs in one way: rouge returns the mean of all texts,
which has no randomness, where the script returns the median of resampled means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from metrist.compat import bert_score, sacrebleu
from metrist.compat.rouge_scorer import RougeScorer
from metrist.errors import RunError
from metrist.metrics import registry
from metrist.metrics.base import Metric, Shard, pairs_of
from metrist.metrics.lexical.bleu import Bleu, bleu_tokens
from metrist.records import Record

#: One reference per prediction, or a list of them.
References = Sequence[str] | Sequence[Sequence[str]]
#: The names of compute's lists, and of what they become in a record.
_INPUTS = {"predictions": "output", "references": "references", "sources": "source", "instructions": "instruction"}


class EvaluationModule:
    """A metric that collects texts with `add` and `add_batch`, and scores them with `compute`."""

    def __init__(self, name: str, compute: Callable[..., dict[str, Any]]) -> None:
        self.name = name
        self._compute = compute
        self._added: dict[str, list[Any]] = {}

    def compute(self, **inputs: Any) -> dict[str, Any]:
        """Scores of the given texts and those that were added, as a dictionary. Lists of texts are `predictions` and
        `references`, and for metrics that need them `sources` and `instructions`; all others are settings."""
        texts = {name: inputs.pop(name) for name in _INPUTS if inputs.get(name) is not None}
        self.add_batch(**texts)
        added, self._added = self._added, {}
        if "predictions" not in added:
            raise ValueError(f"{self.name}: compute needs predictions=[…]")
        return self._compute(**added, **inputs)

    def add(self, *, prediction: str, reference: Any = None, source: Any = None, instruction: Any = None) -> None:
        """Add one prediction."""
        given = {"references": reference, "sources": source, "instructions": instruction}
        self.add_batch(predictions=[prediction], **{name: [text] for name, text in given.items() if text is not None})

    def add_batch(self, **texts: Sequence[Any]) -> None:
        """Add lists of texts."""
        for name, values in texts.items():
            if name not in _INPUTS:
                raise TypeError(f"{self.name}: unknown input {name!r}; there are {', '.join(_INPUTS)}")
            if isinstance(values, str | bytes):
                raise TypeError(f"{self.name}: {name} must be a list of texts, got one text; write [{name}]")
        if len({len(values) for values in texts.values()}) > 1:
            sizes = ", ".join(f"{len(values):,} {name}" for name, values in texts.items())
            raise ValueError(f"{self.name}: lists must be equally long, got {sizes}")
        for name, values in texts.items():
            self._added.setdefault(name, []).extend(values)


def load(path: str, config_name: str | None = None, **_unused: Any) -> EvaluationModule:
    """A metric by name: one of the scripts of evaluate, or a metric of metrist."""
    name = path.rsplit("/", 1)[-1] if "(" not in path else path
    if name in _SCRIPTS:
        return EvaluationModule(name, _SCRIPTS[name])
    del config_name
    metric = registry.build(path)
    return EvaluationModule(metric.name, lambda **inputs: _compute_metric(metric, **inputs))


def combine(evaluations: Iterable[str | EvaluationModule] | Mapping[str, str]) -> EvaluationModule:
    """Several metrics as one. A value that two of them return is prefixed with the metric's name."""
    named = evaluations.items() if isinstance(evaluations, Mapping) else ((None, module) for module in evaluations)
    modules = [(key, load(module) if isinstance(module, str) else module) for key, module in named]

    def compute(**inputs: Any) -> dict[str, Any]:
        results = [(key or module.name, module.compute(**inputs)) for key, module in modules]
        keys = [key for _, result in results for key in result]
        return {
            f"{name}_{key}" if keys.count(key) > 1 else key: value
            for name, result in results
            for key, value in result.items()
        }

    return EvaluationModule("combined", compute)


def _as_lists(references: References) -> list[list[str]]:
    return [[row] if isinstance(row, str) else list(row) for row in references]


def _as_streams(references: References) -> list[list[str]]:
    rows = _as_lists(references)
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the same number of references is needed for each prediction")
    return [list(stream) for stream in zip(*rows, strict=True)]


def _compute_rouge(
    predictions: Sequence[str],
    references: References,
    rouge_types: Sequence[str] = ("rouge1", "rouge2", "rougeL", "rougeLsum"),
    use_aggregator: bool = True,
    use_stemmer: bool = False,
    tokenizer: Callable[[str], list[str]] | None = None,
) -> dict[str, Any]:
    # RougeScorer takes an object with a method.
    own_tokenizer: Any = SimpleNamespace(tokenize=tokenizer) if tokenizer else None
    scorer = RougeScorer(list(rouge_types), use_stemmer, tokenizer=own_tokenizer)
    rows = _as_lists(references)
    if all(len(row) == 1 for row in rows):
        scores = scorer.score_many([row[0] for row in rows], predictions)
    else:
        scores = [scorer.score_multi(row, text) for row, text in zip(rows, predictions, strict=True)]
    columns = {kind: [score[kind].fmeasure for score in scores] for kind in rouge_types}
    return {kind: float(np.mean(column)) if use_aggregator else column for kind, column in columns.items()}


def _compute_sacrebleu(predictions: Sequence[str], references: References, **settings: Any) -> dict[str, Any]:
    score = sacrebleu.corpus_bleu(predictions, _as_streams(references), **settings)
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    return {name: getattr(score, name) for name in names}


def _compute_chrf(predictions: Sequence[str], references: References, **settings: Any) -> dict[str, Any]:
    score = sacrebleu.CHRF(**settings).corpus_score(predictions, _as_streams(references))
    return {name: getattr(score, name) for name in ("score", "char_order", "word_order", "beta")}


def _compute_ter(
    predictions: Sequence[str],
    references: References,
    normalized: bool = False,
    ignore_punct: bool = False,
    support_zh_ja_chars: bool = False,
    case_sensitive: bool = False,
) -> dict[str, Any]:
    metric = sacrebleu.TER(normalized, ignore_punct, support_zh_ja_chars, case_sensitive)
    score = metric.corpus_score(predictions, _as_streams(references))
    return {name: getattr(score, name) for name in ("score", "num_edits", "ref_length")}


def _compute_bleu(
    predictions: Sequence[str], references: References, max_order: int = 4, smooth: bool = False
) -> dict[str, Any]:
    """BLEU from 0 to 1 of evaluate's script: the shortest reference counts as the reference length, and `smooth` adds 1
    to the counts of all orders."""
    shard = Shard(_make_records(predictions=predictions, references=references))
    metric, pairs = Bleu(smooth="none", max_order=max_order), pairs_of(shard)
    length, _, *counts = metric.score(shard).stats.sum(axis=0)[:-1].tolist()
    lengths = bleu_tokens(shard, metric.tokenize, metric.lowercase).lengths
    shortest = int(np.minimum.reduceat(lengths[pairs.references], pairs.starts[:-1]).sum())
    matches, totals = counts[:max_order], counts[max_order:]
    if smooth:
        precisions = [(hits + 1) / (total + 1) for hits, total in zip(matches, totals, strict=True)]
    else:
        precisions = [hits / total if total else 0.0 for hits, total in zip(matches, totals, strict=True)]
    mean = math.exp(sum(map(math.log, precisions)) / max_order) if min(precisions) > 0 else 0.0
    ratio = length / shortest if shortest else 0.0
    penalty = 1.0 if ratio > 1 else math.exp(1 - 1 / ratio) if ratio else 0.0
    return {
        "bleu": mean * penalty,
        "precisions": precisions,
        "brevity_penalty": penalty,
        "length_ratio": ratio,
        "translation_length": int(length),
        "reference_length": shortest,
    }


def _compute_bertscore(predictions: Sequence[str], references: References, **settings: Any) -> dict[str, Any]:
    (precision, recall, f), code = bert_score.score(predictions, references, return_hash=True, **settings)
    return {"precision": precision.tolist(), "recall": recall.tolist(), "f1": f.tolist(), "hashcode": code}


def _compute_metric(metric: Metric, **inputs: Any) -> dict[str, Any]:
    """A metric's system score under its name, and the scores of all predictions; None where there is none."""
    if unknown := sorted(set(inputs) - set(_INPUTS)):
        raise TypeError(f"{metric.name} has no argument {unknown[0]!r}; settings go into load('{metric.name}(…)')")
    records = _make_records(**inputs)
    if missing := [need for need in metric.needs if not getattr(records[0], need)]:
        needed = ", ".join(missing)
        raise RunError(f"{metric.text} needs {needed}: compute(…, {missing[0]}=[…])", code="missing_field")
    scores = metric.score(Shard(records))
    values = [None if math.isnan(value) else value for value in scores.values.tolist()]
    total = metric.pool(scores.stats[~np.isnan(scores.values)].sum(axis=0))
    return {metric.name: float(total), "scores": values}


def _make_records(**inputs: Sequence[Any]) -> list[Record]:
    columns = {_INPUTS[name]: values for name, values in inputs.items()}
    if "references" in columns:
        columns["references"] = [tuple(row) for row in _as_lists(columns["references"])]
    rows = zip(*columns.values(), strict=True)
    return [Record(item=str(n), system="", **dict(zip(columns, row, strict=True))) for n, row in enumerate(rows)]


_SCRIPTS: dict[str, Callable[..., dict[str, Any]]] = {
    "rouge": _compute_rouge,
    "sacrebleu": _compute_sacrebleu,
    "bleu": _compute_bleu,
    "chrf": _compute_chrf,
    "ter": _compute_ter,
    "bertscore": _compute_bertscore,
}

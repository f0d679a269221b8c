"""`compute(predictions=, references=)` beside the packages behind it, and BLEU from its definition."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import sacrebleu as peer
from rouge_score.rouge_scorer import RougeScorer

from error_codes import raises_code
from metrist.compat import evaluate
from metrist.errors import RunError, SpecError

PREDICTIONS = ["the cat sat on a mat today", "two dogs ran away", "nobody knows"]
REFERENCES = [
    ["the cat sat on the mat", "a cat sat there"],
    ["two dogs run away now", "dogs"],
    ["nobody knows it", "who"],
]
FIRST = [row[0] for row in REFERENCES]
STREAMS = [list(stream) for stream in zip(*REFERENCES, strict=True)]


@pytest.mark.parametrize("references", [FIRST, REFERENCES])
def test_rouge_is_the_mean_of_the_packages_f(references):
    result = evaluate.load("rouge").compute(predictions=PREDICTIONS, references=references, use_stemmer=True)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    rows = [[row] if isinstance(row, str) else row for row in references]
    scores = [scorer.score_multi(row, text) for row, text in zip(rows, PREDICTIONS, strict=True)]
    assert result == {kind: pytest.approx(np.mean([score[kind].fmeasure for score in scores])) for kind in result}
    assert list(result) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    each = evaluate.load("rouge").compute(
        predictions=PREDICTIONS,
        references=references,
        rouge_types=["rougeL"],
        use_aggregator=False,
        tokenizer=str.split,
    )
    assert len(each["rougeL"]) == 3


def test_corpus_scores_are_those_of_sacrebleu():
    inputs: dict[str, Any] = {"predictions": PREDICTIONS, "references": REFERENCES}
    score: Any = peer.corpus_bleu(PREDICTIONS, STREAMS, lowercase=True)
    result = evaluate.load("sacrebleu").compute(**inputs, lowercase=True)
    assert result["score"] == pytest.approx(score.score)
    assert (result["counts"], result["totals"], result["sys_len"]) == (score.counts, score.totals, score.sys_len)
    score = peer.CHRF(word_order=2).corpus_score(PREDICTIONS, STREAMS)
    result = evaluate.load("chrf").compute(**inputs, word_order=2)
    assert result == {"score": pytest.approx(score.score), "char_order": 6, "word_order": 2, "beta": 2}
    score = peer.TER(no_punct=True).corpus_score(PREDICTIONS, STREAMS)
    result = evaluate.load("evaluate-metric/ter").compute(**inputs, ignore_punct=True)
    assert result == {
        "score": pytest.approx(score.score),
        "num_edits": score.num_edits,
        "ref_length": pytest.approx(score.ref_length),
    }
    with pytest.raises(ValueError, match="same number of references"):
        evaluate.load("chrf").compute(predictions=["a", "b"], references=[["a"], ["b", "c"]])


def count_ngrams(text: str, order: int) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


@pytest.mark.parametrize("smooth", [False, True])
def test_bleu_follows_its_definition(smooth):
    """Matches clipped over all references, the shortest reference as the reference length (Papineni et al., 2002, as
    evaluate's script has it)."""
    precisions = []
    for order in range(1, 4):
        matches = total = 0
        for text, row in zip(PREDICTIONS, REFERENCES, strict=True):
            counts, most = count_ngrams(text, order), Counter[tuple[str, ...]]()
            for reference in row:
                most |= count_ngrams(reference, order)
            matches += sum((counts & most).values())
            total += sum(counts.values())
        precisions.append((matches + smooth) / (total + smooth))
    length = sum(len(text.split()) for text in PREDICTIONS)
    shortest = sum(min(len(text.split()) for text in row) for row in REFERENCES)
    penalty = 1.0 if length > shortest else math.exp(1 - shortest / length)
    result = evaluate.load("bleu").compute(predictions=PREDICTIONS, references=REFERENCES, max_order=3, smooth=smooth)
    assert result["precisions"] == pytest.approx(precisions)
    assert result["bleu"] == pytest.approx(penalty * math.prod(precisions) ** (1 / 3))
    assert (result["translation_length"], result["reference_length"]) == (length, shortest)
    assert result["length_ratio"] == pytest.approx(length / shortest)


def test_bleu_of_nothing_in_common_is_0():
    result = evaluate.load("bleu").compute(predictions=["", "x"], references=["a b", "c"])
    assert (result["bleu"], result["brevity_penalty"]) == (0.0, pytest.approx(math.exp(1 - 3)))


def test_bertscore_has_the_scripts_keys(tiny):
    result = evaluate.load("bertscore").compute(
        predictions=PREDICTIONS, references=FIRST, model_type=str(tiny("bert")), num_layers=2
    )
    assert [len(result[key]) for key in ("precision", "recall", "f1")] == [3, 3, 3]
    assert "_L2_no-idf_" in result["hashcode"]


def test_texts_may_be_added_in_parts():
    whole = evaluate.load("chrf").compute(predictions=PREDICTIONS, references=FIRST)
    module = evaluate.load("chrf")
    module.add(prediction=PREDICTIONS[0], reference=FIRST[0])
    module.add_batch(predictions=PREDICTIONS[1:], references=FIRST[1:])
    assert module.compute() == whole
    with pytest.raises(ValueError, match="needs predictions"):
        module.compute()


def test_any_metric_can_be_loaded():
    result = evaluate.load("chrf(word_order=2)").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["chrf"] == pytest.approx(peer.CHRF(word_order=2).corpus_score(PREDICTIONS, STREAMS).score)
    assert len(result["scores"]) == 3
    assert evaluate.load("exact").compute(predictions=["a", "b"], references=["a", "c"])["exact"] == 0.5
    assert evaluate.load("length").compute(predictions=["a b"], sources=["x"])["scores"] == [2.0]
    with raises_code(RunError, "missing_field", "references"):
        evaluate.load("exact").compute(predictions=["a"])
    with pytest.raises(TypeError, match="has no argument 'lowercase'"):
        evaluate.load("exact").compute(predictions=["a"], references=["a"], lowercase=True)
    with raises_code(SpecError, "unknown_name", "nothing"):
        evaluate.load("nothing")


def test_several_metrics_at_once():
    module = evaluate.combine(["rouge", "chrf", "ter"])
    result = module.compute(predictions=PREDICTIONS, references=FIRST)
    assert {"rougeL", "chrf_score", "ter_score", "num_edits"} <= set(result)
    named = evaluate.combine({"edits": "ter", "letters": "chrf"}).compute(predictions=PREDICTIONS, references=FIRST)
    assert {"edits_score", "letters_score"} <= set(named)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"predictions": "a", "references": ["a"]}, TypeError, "predictions must be a list"),
        ({"predictions": ["a"], "references": ["a", "b"]}, ValueError, "1 predictions, 2 references"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, error, message):
    with pytest.raises(error, match=message):
        evaluate.load("rouge").compute(**inputs)
    with pytest.raises(TypeError, match="unknown input 'texts'"):
        evaluate.load("rouge").add_batch(texts=["a"])

"""What holds alike for the metrics whose system score is not a mean: bleu, chrf and ter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER

from error_codes import raises_code
from metrist.errors import NeedsError
from metrist.metrics.base import Shard
from metrist.metrics.lexical.bleu import SACREBLEU_VERSION
from metrist.metrics.registry import build
from real_records import record

NAMES = ("bleu", "chrf", "ter")
TEXTS = [f"{name}(reduce='{reduce}')" for name in NAMES for reduce in ("native", "max", "mean")]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_scored_pools_to_nan_but_empty_texts_to_zero(name: str) -> None:
    metric = build(name)
    empty = metric.score(Shard([record("", "")])).stats
    assert metric.pool(empty).tolist() == [0.0]
    assert np.isnan(metric.pool(0 * empty)).all()


@pytest.mark.parametrize("text", [*TEXTS, "rougeL"])
def test_a_record_without_references_is_refused(text: str) -> None:
    with raises_code(NeedsError, "conflict", "1"):
        build(text).score(Shard([record("a", "b"), record("a")]))


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("bleu", BLEU()),
        ("bleu(lowercase=True, tokenize='intl')", BLEU(lowercase=True, tokenize="intl")),
        ("bleu(tokenize='zh', smooth='none')", BLEU(tokenize="zh", smooth_method="none")),
        ("bleu(smooth='floor')", BLEU(smooth_method="floor")),
        ("bleu(smooth='add-k', smooth_value=2)", BLEU(smooth_method="add-k", smooth_value=2)),
        ("chrf", CHRF()),
        ("chrf(word_order=2)", CHRF(word_order=2)),
        ("chrf(beta=3, char_order=4, lowercase=True)", CHRF(beta=3, char_order=4, lowercase=True)),
        ("chrf(whitespace=True, eps_smoothing=True)", CHRF(whitespace=True, eps_smoothing=True)),
        ("ter", TER()),
        ("ter(normalized=True, no_punct=True)", TER(normalized=True, no_punct=True)),
        (
            "ter(case_sensitive=True, asian_support=True, normalized=True)",
            TER(case_sensitive=True, asian_support=True, normalized=True),
        ),
    ],
)
@pytest.mark.parametrize("references", [[["x"]], [["x"], ["y"]], [["x", "x"], ["y", None]]], ids=["1", "2", "var"])
def test_the_peer_signature_is_that_of_sacrebleu(text: str, peer: Any, references: list[list[str | None]]) -> None:
    score = peer.corpus_score(["x"] * len(references[0]), references)
    signature = peer.get_signature()
    # sacreBLEU's command prints the score's name before the signature.
    name = score.name
    assert build(text).peer_signature(str(signature.info["nrefs"])) == f"{name}|{signature}"


def test_the_version_of_sacrebleu_is_that_of_the_tests() -> None:
    assert sacrebleu.__version__ == SACREBLEU_VERSION


@pytest.mark.parametrize(
    "text", ["bleu(max_order=2)", "bleu(reduce='max')", "bleu(tokenize='ja-mecab')", "chrf(reduce='mean')", "rougeL"]
)
def test_what_sacrebleu_cannot_express_has_no_peer_signature(text: str) -> None:
    assert build(text).peer_signature("1") == ""

"""What the tests of bleu, chrf and ter share: texts, and scores that sacrebleu computes on the spot."""

from __future__ import annotations

import random
from itertools import chain, repeat, zip_longest
from typing import Any

import numpy as np
from hypothesis import strategies as st

from metrist.metrics.base import Metric, Shard
from metrist.records import Record
from metrist.scores import Scores
from real_records import record

TOLERANCE = 1e-9

ODD_TEXTS = [
    "",
    " ",
    "\n",
    "a",
    "the cat sat on the mat .",
    "The cat sat on the mat.",
    "the the the the the the",
    "mat the on sat cat the",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "z y x w v u t s r q p o n m l k j i h g f e d c b a",
    "It's \"1,000.50\", x.,5 -- 3-4 and 2012.\tDon't (really)! <skipped>",
    "end of-\nline and\nanother line -\n",
    "&quot;Q&amp;A&quot; &lt;tag&gt; &amp;lt; &apos;",
    "..,,.. a.. 1..2 1,,2 ,5. .5, 3-a a-3 - -- ---",
    "“curly” ‘quotes’ – dash — dash… €5 £3 ½ ² Ⅳ 3٪ ١٬٢",
    "İstanbul STRASSE straße ΣΑΣ ǅ ﬁ K",
    "我喜欢猫。他说:“你好,世界!”(2012年)ABC中文123",
    "今日はとてもいい天気です。カタカナとひらがな、漢字㈱㍿",
    "ひらがな",
    "カタカナ",
    "한국어 문장입니다. 안녕하세요!",
    "ภาษาไทย हिन्दी العربية עברית",
    "🙂🙃 👩‍👩‍👧 ☃❤️ \U00020000\U0002f800 \U0001d400",
    "a\u00a0b\u2003c\u3000d\u2028e\x1cf\x85g\x00h\u200bi",
    "\ud800 lone \udfff surrogates",
    "word's worlds' 's s's x's",
    "one. two, three! four? five; six: seven (eight) [nine] {ten} /eleven\\ |twelve| ~`@#$%^&*_+=",
]


def odd_records(count: int = 160) -> list[Record]:
    """Odd texts beside one to four odd references each; each text meets itself once."""
    rng = random.Random(5)
    drawn = [record(rng.choice(ODD_TEXTS), *rng.choices(ODD_TEXTS, k=rng.randint(1, 4))) for _ in range(count)]
    return [*drawn, *(record(text, text) for text in ODD_TEXTS)]


def ragged(records: list[Record]) -> list[Record]:
    """The same records with one reference, two, three ... each."""
    return [record(r.output, *r.references[: 1 + i % len(r.references)]) for i, r in enumerate(records)]


def characters(**kinds: Any) -> st.SearchStrategy[str]:
    """Short texts of any characters, rich in those that tokenizers care about."""
    telling = st.sampled_from("..,,--''\"&;<>()$€0123٣½abABΣİß  \n\t\u00a0\u3000。,“”中文カあ한🙂")
    return st.text(st.one_of(telling, st.characters(**kinds)), max_size=30)


def records_of(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Record]]:
    one = st.builds(
        lambda output, references: record(output, *references), texts, st.lists(texts, min_size=1, max_size=3)
    )
    return st.lists(one, min_size=1, max_size=5)


def corpus_score(peer: Any, records: list[Record]) -> float:
    """sacrebleu's corpus score; None stands where a record has fewer references than others."""
    streams = list(zip_longest(*(r.references for r in records)))
    return float(peer.corpus_score([r.output for r in records], streams).score)


def assert_agrees(metric: Metric, sentence_peer: Any, corpus_peer: Any, records: list[Record]) -> Scores:
    """Our scores equal sacrebleu's, for each record and for all together."""
    result = metric.score(Shard(records))
    expected = [sentence_peer.sentence_score(r.output, list(r.references)).score for r in records]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=TOLERANCE)
    pooled = metric.pool(result.stats.sum(axis=0))
    np.testing.assert_allclose(pooled, corpus_score(corpus_peer, records), rtol=0, atol=TOLERANCE)
    return result


def assert_pools(metric: Metric, corpus_peer: Any, records: list[Record]) -> None:
    """Reweighted rows pool to what sacrebleu gives for a corpus in which the records are repeated so often."""
    weights = np.random.default_rng(3).integers(0, 3, (2, 3, len(records)))
    pooled = metric.pool(weights @ metric.score(Shard(records)).stats)
    assert pooled.shape == (2, 3)
    for value, times in zip(pooled.ravel(), weights.reshape(6, -1), strict=True):
        repeated = list(chain.from_iterable(map(repeat, records, times.tolist())))
        np.testing.assert_allclose(value, corpus_score(corpus_peer, repeated), rtol=0, atol=TOLERANCE)

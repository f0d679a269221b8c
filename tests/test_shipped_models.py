"""The likelihood model of metrist-models: complete, small, equal to transformers, and as good as its card claims."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import resources, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrist.models.devices import Options
from metrist.models.loading import load_seq2seq
from real_records import rows
from test_shipped_preference import agreement_by_item

NAME = "likelihood-small"
pytestmark = pytest.mark.skipif(
    util.find_spec("metrist_models") is None, reason="metrist-models is not installed (pip install ./models)"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(str(resources.files("metrist_models"))) / NAME


@pytest.fixture(scope="module")
def model() -> Any:
    return load_seq2seq(Options(model=f"metrist:{NAME}"))


def means(model: Any, pairs: list[tuple[str, str]]) -> list[float]:
    likelihoods = model.log_probs(pairs)
    return [float(likelihoods.of(number).mean()) for number in range(len(pairs))]


def test_good_targets_are_likelier_than_unrelated_or_garbled_ones(model: Any) -> None:
    source = "The town council voted on Monday to close the old bridge, because an engineer had found cracks in it."
    good, unrelated, garbled = means(
        model,
        [
            (source, "The council will close the old bridge because of cracks."),
            (source, "The football team won its third match in a row."),
            (source, "bridge The because cracks will the council old close of."),
        ],
    )
    assert good > unrelated
    assert good > garbled + 1


def test_values_do_not_depend_on_batch_mates(model: Any, data: Callable[[str], Path]) -> None:
    some = [(row["source"][:600], row["output"]) for row in rows(data("summeval"))[:3]]
    together = means(model, [*some, ("a", "b"), (some[0][0], "c")])[:3]
    assert together == pytest.approx([means(model, [pair])[0] for pair in some], abs=1e-5)


@pytest.mark.parametrize("step", [800, pytest.param(200, marks=pytest.mark.torture)], ids=["two", "eight"])
def test_scores_equal_those_of_transformers(model: Any, folder: Path, data: Callable[[str], Path], step: int) -> None:
    """Outputs of SummEval, one at a time, by transformers' T5 with the folder's own weights, in float64: torch's
    float32 is off by 0.000012 on some processors."""
    chosen = rows(data("summeval"))[::step]
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from metrist.models.numpy_inference.storage import read_arrays

    config = json.loads((folder / "config.json").read_text())
    sizes = {key: value for key, value in config.items() if not isinstance(value, str)}
    with torch.device("meta"):  # Drawing random weights takes seconds.
        reference = T5ForConditionalGeneration(
            T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False, pad_token_id=0)
        ).eval()
    state = {name: torch.from_numpy(array) for name, array in read_arrays(folder / "weights.safetensors").items()}
    assert not reference.load_state_dict(state, strict=False, assign=True).unexpected_keys
    reference.encoder.embed_tokens = reference.decoder.embed_tokens = reference.shared
    reference.double()
    pairs = [(row["source"], row["output"]) for row in chosen]
    likelihoods = model.log_probs(pairs)
    tokenizer = model._targets._tokenizer
    for number, (condition, _) in enumerate(pairs):
        inputs = torch.tensor([tokenizer.encode(condition).ids[:1024]])
        labels = torch.from_numpy(likelihoods.tokens[likelihoods.starts[number] : likelihoods.starts[number + 1]])[None]
        with torch.no_grad():
            logits = reference(input_ids=inputs, labels=labels).logits
        expected = logits.log_softmax(-1).gather(2, labels[..., None])[0, :, 0].numpy()
        # Rows of products may be rounded to 16 bits.
        assert likelihoods.of(number).mean() == pytest.approx(expected.mean(), abs=5e-4)


def read_claims(folder: Path) -> dict[str, list[float]]:
    """The figures of the card's table: | SummEval | .301 | .288 | ..."""
    card = (folder / "card.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (SummEval|NeR18)[^|]*\|(.+)\|$", card, re.MULTILINE)
    return {name: [float(cell) for cell in cells.split("|")] for name, cells in lines}


@pytest.mark.torture
@pytest.mark.parametrize(
    ("name", "label", "aspects"),
    [
        ("summeval", "SummEval", ("coherence", "consistency", "fluency", "relevance")),
        ("newsroom", "NeR18", ("coherence", "fluency", "informativeness", "relevance")),
    ],
)
def test_agreement_is_what_the_card_says(
    model: Any, folder: Path, data: Callable[[str], Path], name: str, label: str, aspects: tuple[str, ...]
) -> None:
    judged = rows(data(name))
    scored = zip(judged, means(model, [(row["source"], row["output"]) for row in judged]), strict=True)
    values = {(row["item"], row["system"]): value for row, value in scored}
    figures = [agreement_by_item(judged, values, aspect) for aspect in aspects]
    assert [float(np.mean(figures)), *figures] == pytest.approx(read_claims(folder)[label], abs=1e-3)

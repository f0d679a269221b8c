"""Perturbations: exact places, undoing, composition, and what each kind does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.data.faults import HARMLESS, KINDS
from metrist.data.perturbations import Edit, Perturbed, apply_edits, perturb
from metrist.errors import SpecError
from metrist.records import Record

SOURCE = (
    "Maria Lopez opened a bakery in Bristol in 2015. She sells 240 loaves a day and has not raised her prices. "
    "Her brother Daniel Reed supported the shop with 12 thousand dollars. In March the council confirmed a new lease."
)
OUTPUT = (
    "In 2015 Maria Lopez opened a bakery in Bristol. She sells 240 loaves a day and has not raised her prices. "
    "Daniel Reed supported it, and in March a new lease was confirmed. The children of the street are happy."
)
DONOR = Record(
    item="2",
    system="s",
    output="Anna Berg won the race in Oslo. The train to Bergen left four minutes late.",
    source="Anna Berg of Norway won the race in Oslo. Officials at NRK praised her.",
    task="summarization",
)
RECORD = Record(item="1", system="s", output=OUTPUT, source=SOURCE, task="summarization")
MATH = Record(
    item="1", system="s", output="There are 3 * 12 = 36 eggs. 36 - 4 = 32 are left.\nA: 32", source="", task="math"
)
GERMAN = Record(
    item="1",
    system="s",
    output="Die Bäckerei hat im Jahr 2015 geöffnet und verkauft jeden Tag 240 Brote an die Kunden der Stadt.",
    source="The bakery opened in 2015 and sells 240 loaves to customers every day.",
    task="translation",
    language="de",
)


def check(perturbed: Perturbed) -> None:
    """The text outside the errors is that of the original, the errors bound what was changed, and undoing works."""
    new = perturbed.record.output
    assert perturbed.restore() == perturbed.original
    assert len(perturbed.errors) == len(perturbed.edits)
    shift = 0
    for edit, error in zip(perturbed.edits, perturbed.errors, strict=True):
        assert error.start == edit.start + shift
        assert error.start is not None
        assert error.end == error.start + len(edit.text)
        assert new[error.start : error.end] == error.text == edit.text
        assert error.revision == perturbed.original[edit.start : edit.end]
        assert error.text != error.revision
        shift += len(edit.text) - (edit.end - edit.start)
    assert len(new) == len(perturbed.original) + shift


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from([
            "Maria", "Lopez", "Bristol", "was", "is not", "won", "12", "3,400.50", "2015", "on Monday", "children",
            "with", "3 + 4 = 7", "the", "people's", "can't", "minutes", "very", "“quoted”", ",", ".", "?", "\n", "…",
            "的", "😀",
        ]),
        max_size=40,
    ).map(" ".join),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    output=TEXTS,
    source=TEXTS,
    kinds=st.lists(st.sampled_from([*KINDS, *HARMLESS]), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_offsets_bound_the_change_and_undoing_gives_the_original(output, source, kinds, seed) -> None:
    record = Record(item="1", system="s", output=output, source=source, task="math")
    perturbed = perturb(record, kinds, seed=seed, donor=DONOR)
    if perturbed is not None:
        check(perturbed)
        assert sorted(edit.kind for edit in perturbed.edits) == sorted(kinds)
        assert perturb(record, kinds, seed=seed, donor=DONOR) == perturbed


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.tasks] + list(HARMLESS))
def test_every_kind_finds_a_place_in_an_ordinary_text(kind: str) -> None:
    output = OUTPUT.replace("Daniel Reed", "Daniel Reed of Bath’s council")
    made = [
        perturbed
        for seed in range(5)
        if (
            perturbed := perturb(
                Record(item="1", system="s", output=output, source=SOURCE), [kind], seed=seed, donor=DONOR
            )
        )
    ]
    assert made
    for perturbed in made:
        check(perturbed)


def one(kind: str, record: Record = RECORD, seed: int = 1) -> tuple[str, str, str]:
    """The new output, the new text and the old one."""
    perturbed = perturb(record, [kind], seed=seed, donor=DONOR)
    assert perturbed is not None
    (error,) = perturbed.errors
    return perturbed.record.output, error.text, error.revision


@pytest.mark.parametrize("seed", range(10))
def test_what_the_kinds_change(seed: int) -> None:
    _, new, old = one("number", seed=seed)
    assert old == "240"
    assert re.fullmatch(r"[1-9]\d\d", new)
    _, new, old = one("date", seed=seed)
    assert (new.isdigit() and old == "2015") or old == "March"
    _, new, old = one("entity", seed=seed)
    assert old in ("Maria Lopez", "Bristol", "Daniel Reed")
    assert len(new.split()) == len(old.split())
    output, _, old = one("omission", seed=seed)
    assert old.strip() not in output
    assert len(output) == len(OUTPUT) - len(old)
    output, new, _ = one("repetition", seed=seed)
    assert output.count(new.strip()) == 2
    output, _, _ = one("shuffle", seed=seed)
    assert sorted(output.split()) == sorted(OUTPUT.split())
    output, new, old = one("word_order", seed=seed)
    assert sorted(new.lower().split()) == sorted(old.lower().split())
    _, new, _ = one("unrelated", seed=seed)
    assert new.strip() in DONOR.output
    output, _, _ = one("truncation", seed=seed)
    assert OUTPUT.startswith(output)
    assert len(output) > len(OUTPUT) // 3
    output, _, _ = one("capitalisation", seed=seed)
    assert output.lower() == OUTPUT.lower()
    output, _, _ = one("role_swap", seed=seed)
    assert sorted(re.findall(r"\w+", output)) == sorted(re.findall(r"\w+", OUTPUT))


@pytest.mark.parametrize("seed", range(8))
def test_a_wrong_result_and_a_wrong_operation(seed: int) -> None:
    _, new, old = one("arithmetic", MATH, seed)
    assert old in ("36", "32")
    assert float(new) != float(old)
    _, new, old = one("operator", MATH, seed)
    assert {new, old} <= set("+-*/")


@pytest.mark.parametrize("kind", ["untranslated", "mistranslated", "number", "spelling", "truncation"])
def test_kinds_for_other_languages(kind: str) -> None:
    output, new, _ = one(kind, GERMAN)
    if kind == "untranslated":
        assert GERMAN.source is not None
        assert new in GERMAN.source
        assert new in output


@pytest.mark.parametrize("kind", ["tense", "register", "negation", "addition", "paraphrase"])
def test_english_words_are_not_put_into_other_languages(kind: str) -> None:
    assert perturb(GERMAN, [kind], donor=DONOR) is None


def test_the_evidence_is_the_sentence_of_the_source_that_has_the_word() -> None:
    perturbed = perturb(RECORD, ["number"], seed=1)
    assert perturbed is not None
    (edit,) = perturbed.edits
    assert edit.evidence is not None
    assert SOURCE[slice(*edit.evidence)] == "She sells 240 loaves a day and has not raised her prices."
    assert "“She sells 240 loaves a day and has not raised her prices.”" in perturbed.errors[0].explanation


def test_edits_that_overlap_are_refused() -> None:
    edits = [Edit(kind="number", start=at, end=at + 4, text="x", explanation="") for at in (0, 2)]
    with pytest.raises(ValueError, match="overlap"):
        apply_edits(RECORD, edits)


def test_an_unknown_kind_is_named_with_the_nearest() -> None:
    with raises_code(SpecError, "unknown_name", "'numbr'"):
        perturb(RECORD, ["numbr"])


def test_penalties_are_those_of_error_analysis() -> None:
    assert all(0.5 <= kind.penalty <= 5 for kind in KINDS.values())
    assert all((kind.penalty > 2) == (kind.severity == "major") for kind in KINDS.values())

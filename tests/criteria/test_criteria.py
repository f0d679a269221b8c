"""Criteria by name, and the HEAP table. Its figures come from the paper's Tables 1 to 4; what ties them together (sums,
averages) comes from the paper's running text."""

from __future__ import annotations

import json
import lzma
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist import criteria
from metrist.criteria import CriteriaGroup, Criterion, Suite
from metrist.errors import SpecError

CODES = [
    "AH", "AG", "AV", "QA", "HS", "CR", "BCN", "CCN", "CNG", "CNSp", "CNSu", "CNI", "CNO", "CNSt", "HSO", "SRC",
    "SRE", "SRPl", "SRPr", "SRS", "DIA", "DII",
]  # fmt: skip
#: Those of heap-pairs.jsonl.xz.
AVAILABLE = [
    "AH", "AG", "AV", "QA", "CR", "CNI", "CNO", "CNSt", "HSO", "SRC", "SRE", "SRPl", "SRPr", "SRS", "DIA", "DII",
]  # fmt: skip


@pytest.fixture(scope="module")
def heap() -> Suite:
    return criteria.suite("heap")


def mean(suite: Suite, setup: str, codes: list[str] | tuple[str, ...]) -> float:
    return statistics.mean(suite.accuracy[setup][code].mean for code in codes)


def test_general_criteria_are_found_by_their_names() -> None:
    result = criteria.find("Grammaticality")
    assert (result.name, result.code, result.data_set, result.answer) == (
        "grammaticality",
        "grammaticality",
        None,
        "output",
    )
    assert result.instruction == result.instructions[0]


def test_a_suites_criteria_are_found_by_code_and_by_name() -> None:
    assert criteria.find("CNG") is criteria.find("cng") is criteria.find("counter narrative grammaticality")
    assert criteria.find("CNG").fields == ("hate speech", "target", "counter narrative")


def test_names_are_the_general_criteria_and_then_the_codes() -> None:
    assert criteria.names()[:3] == ("overall", "fluency", "grammaticality")
    assert list(criteria.names()[-22:]) == CODES
    assert all(criteria.find(name) for name in criteria.names())


@pytest.mark.parametrize(
    ("name", "near"),
    [("gramaticality", ["'grammaticality'"]), ("CNX", ["'CNO'"]), ("?!", ["overall", "fluency", "DIA", "DII"])],
)
def test_an_unknown_criterion_is_an_error_that_names_near_ones(name: str, near: list[str]) -> None:
    with raises_code(SpecError, "unknown_name", repr(name), *near):
        criteria.find(name)


def test_an_unknown_suite_is_an_error_that_names_the_one_there_is() -> None:
    with raises_code(SpecError, "unknown_name", "'heaps'", "'heap'"):
        criteria.suite("heaps")
    with raises_code(SpecError, "unknown_name", "'x'", "'heap'"):
        criteria.suite("x")


def test_unknown_parts_of_a_suite_are_errors(heap: Suite) -> None:
    with raises_code(SpecError, "unknown_name", "'DIX'", "'heap'"):
        heap.criterion("DIX")
    with raises_code(SpecError, "invalid_value", "4", "'heap'", "1"):
        heap.cluster(4)
    with raises_code(SpecError, "unknown_name", "'why questions'", "'heap'", "'why-questions'"):
        heap.group("why questions")


@pytest.mark.parametrize(
    "criterion", [*criteria.general(), *criteria.suite("heap").criteria], ids=lambda entry: entry.code
)
def test_each_criterion_has_three_wordings_of_its_own(criterion: Criterion) -> None:
    assert len(set(criterion.instructions)) == 3
    assert all(text == text.strip() and text[-1] in ".?" and text[0].isupper() for text in criterion.instructions)
    assert criterion.fields
    assert criterion.higher


def test_no_two_criteria_have_the_same_instruction(heap: Suite) -> None:
    instructions = [text for criterion in heap.criteria for text in criterion.instructions]
    assert len(set(instructions)) == len(instructions)


def test_table_1_adds_up_to_the_229104_examples_of_the_text(heap: Suite) -> None:
    assert sum(criterion.examples or 0 for criterion in heap.criteria) == 229_104


def test_the_good_answer_is_the_more_offensive_one_in_two_criteria(heap: Suite) -> None:
    assert [criterion.code for criterion in heap.criteria if criterion.opposite] == ["CNO", "HSO"]


@pytest.mark.parametrize("setup", ["single", "multi", "cross-task"])
def test_the_rows_of_table_2_average_to_what_the_text_says(heap: Suite, setup: str) -> None:
    assert round(mean(heap, setup, CODES), 2) == heap.averages[setup]
    assert heap.averages == {"base": 50.58, "single": 63.24, "multi": 68.82, "cross-task": 54.85}


def test_the_text_divides_the_base_models_sum_by_21_of_the_22_rows(heap: Suite) -> None:
    total = sum(figure.mean for figure in heap.accuracy["base"].values())
    assert len(heap.accuracy["base"]) == 22
    assert round(total / 21, 2) == heap.averages["base"] == 50.58
    assert round(total / 22, 2) == 48.28


def test_multi_task_averages_68_over_the_comparable_criteria_available(heap: Suite) -> None:
    comparable = [code for code in AVAILABLE if heap.criterion(code).comparable]
    assert set(AVAILABLE) - set(comparable) == {"HSO"}
    assert round(mean(heap, "multi", comparable), 1) == 68.0


@pytest.mark.parametrize("cluster", criteria.suite("heap").clusters, ids=lambda entry: entry.name)
def test_the_rows_of_table_3_average_to_its_last_lines(heap: Suite, cluster: CriteriaGroup) -> None:
    own = statistics.mean(figure.mean for figure in cluster.accuracy.values())
    assert tuple(cluster.accuracy) == cluster.codes
    assert round(own, 2) == cluster.average_cross_cluster
    assert round(mean(heap, "cross-task", cluster.codes), 2) == cluster.average_cross_task


def test_clusters_overlap_and_leave_two_criteria_out(heap: Suite) -> None:
    assert [len(cluster.codes) for cluster in heap.clusters] == [9, 10, 9]
    assert heap.criterion("BCN").clusters == (1, 3)
    assert heap.criterion("CNG").cluster == 2
    assert [criterion.code for criterion in heap.criteria if criterion.cluster is None] == ["SRE", "SRS"]
    assert [criterion.code for criterion in heap.criteria if criterion.clusters == (3,)] == ["CCN"]


def test_two_groups_averages_are_printed_in_the_other_order(heap: Suite) -> None:
    """The text says "from 48.66% to 53.06%" of the why-questions, but 53.06 is what Table 2's rows give for training
    on all other criteria, the "from" of the sentence; likewise with defeasible inference, not with story rewriting."""
    result = {group.name: (group.printed, round(mean(heap, "cross-task", group.codes), 2)) for group in heap.groups}
    assert result["why-questions"] == ((48.66, 53.06), 53.06)
    assert result["story rewriting"] == ((50.91, 53.22), 50.91)
    # 61.935, which the paper rounds up.
    assert result["defeasible inference"][0] == (60.56, 61.94)
    assert mean(heap, "cross-task", ("DIA", "DII")) == pytest.approx(61.935)
    assert {group.name: (group.average_cross_task, group.average_cross_cluster) for group in heap.groups} == {
        "why-questions": (53.06, 48.66),
        "defeasible inference": (61.94, 60.56),
        "story rewriting": (50.91, 53.22),
    }


def test_groups_are_those_that_their_criteria_name(heap: Suite) -> None:
    for group in heap.groups:
        assert tuple(criterion.code for criterion in heap.criteria if criterion.group == group.name) == group.codes
    assert heap.group("why-questions").codes == ("AG", "AV", "QA")


def test_the_texts_correlations_with_size_are_not_those_of_its_tables(heap: Suite) -> None:
    """Printed are 0.15, -0.25 and 0.16."""
    sizes = [criterion.examples or 0 for criterion in heap.criteria]
    single, multi, cross = (
        [heap.accuracy[setup][code].mean for code in CODES] for setup in ("single", "multi", "cross-task")
    )
    gains = [[a - b for a, b in zip(other, single, strict=True)] for other in (multi, cross)]
    result = [round(statistics.correlation(sizes, values), 2) for values in (single, *gains)]
    assert result == [0.10, -0.26, -0.16]
    assert list(heap.size_correlations.values()) == [0.15, -0.25, 0.16]


def test_spearman_is_given_where_there_are_ratings(heap: Suite) -> None:
    rated = ["AG", "AV", "CNG", "CNSp", "CNSu", "CNI", "CNO", "CNSt", "HSO", "DIA", "DII"]
    assert [list(rows) for rows in heap.spearman.values()] == [rated] * 4
    assert heap.spearman["multi"]["CNO"] == 0.58
    assert heap.spearman["cross-task"]["CNO"] == -0.125


def test_the_chosen_settings_lie_in_the_grid_that_was_searched(heap: Suite) -> None:
    least, most = heap.grid.epochs
    assert {setup: len(rows) for setup, rows in heap.chosen.items()} == {"single": 22, "multi": 1, "cross-task": 22}
    for rows in heap.chosen.values():
        for chosen in rows.values():
            assert chosen.learning_rate in heap.grid.learning_rates
            assert chosen.gradient_accumulation in heap.grid.gradient_accumulation
            assert least <= chosen.epochs <= most
            assert chosen.truncate_right in (True, None)
    assert heap.chosen["multi"]["all"].labelled is None


def test_labels_are_chosen_alike_in_the_single_and_the_cross_task_setup(heap: Suite) -> None:
    labelled = [
        {code for code, row in heap.chosen[setup].items() if row.labelled} for setup in ("single", "cross-task")
    ]
    assert labelled[0] == labelled[1] == {"AG", "AV", "BCN", "CCN", "CNG", "CNSu", "CNO", "HSO", "SRC", "SRE", "SRPl"}


def test_fields_are_the_tags_of_the_pairs_available(heap: Suite, data: Callable[[str], Path]) -> None:
    tags: dict[str, set[tuple[str, ...]]] = {}
    with lzma.open(data("heap-pairs"), "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            tags.setdefault(pair["task"], set()).update(tuple(tag for tag, _ in pair[side]) for side in ("good", "bad"))
    assert tags == {code: {heap.criterion(code).fields} for code in AVAILABLE}

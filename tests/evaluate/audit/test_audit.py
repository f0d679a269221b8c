"""The judge audit on fake judges with known biases: the card must find each, and none in an honest judge."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from dataclasses import dataclass
from typing import Any

import pytest

import metrist
from error_codes import raises_code
from metrist.errors import MetristError, ModelError, RunError, SpecError
from metrist.evaluate.audit import Plan, audit, audit_analyses, estimate_analyses, estimate_audit
from metrist.evaluate.audit.audit import measure_cost
from metrist.evaluate.audit.card import (
    JudgeCard,
    build_estimate,
    build_share,
    correlation_by_item,
    partial_correlation_by_item,
    wilson_interval,
)
from metrist.evaluate.audit.sample import load_probes
from metrist.llm.messages import Completion, Usage
from metrist.llm.replay import FakeLLM
from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.tigerscore import TigerScore, format_tiger_answer
from metrist.spec import Spec

RUBRIC = "single_answer"
WORDS = [f"word{number}" for number in range(14)]


def make_rows(items: int = 50, *, ratings: bool = True, references: bool = True, systems: str = "abcd") -> list[dict]:
    """Outputs that state their own quality, from 2 to 8, and are of random length."""
    rng = random.Random(5)
    rows = []
    for item in range(items):
        for system in systems:
            quality = rng.randint(2, 8)
            words = " ".join(rng.choices(WORDS, k=rng.randint(5, 60)))
            row: dict[str, Any] = {
                "item": str(item),
                "system": system,
                "source": f"tell of {item}",
                "output": f"q{quality} by {system}: {words}",
            }
            if ratings:
                row["ratings"] = {"overall": [quality, quality]}
            if references:
                row["references"] = [f"q8 reference {item}"]
            rows.append(row)
    return rows


def parse_prompt(conversation) -> dict[str, str]:
    text = conversation[-1].text
    texts = {
        name: body for name, _, body in re.findall(r"\[([\w ]+) (\w{6}) begins\]\n(.*?)\n\[\1 \2 ends\]", text, re.S)
    }
    return {**texts, "mark": re.findall(r"its fences carry the mark (\w{6})", text)[0]}


def read_quality(output: str) -> int:
    return int(re.findall(r"\bq(\d)\b", output)[0])


def write_grade(mark: str, grade: int, reasons: str = "It is as it is.") -> str:
    return json.dumps({"reasons": reasons, "quality": max(1, min(10, grade)), "id": mark})


class Habits:
    """A judge: honest unless a habit is planted. `grade` changes a grade, `choose` replaces a choice."""

    def __init__(self, grade=None, choose=None, answer=None):
        self.grade, self.choose, self.answer = grade, choose, answer

    def __call__(self, conversation, sampling):
        prompt = parse_prompt(conversation)
        if "output A" in prompt:
            return self.choose_better(prompt)
        if self.answer and (answer := self.answer(prompt)) is not None:
            return answer
        honest = read_quality(prompt["output"])
        return write_grade(prompt["mark"], self.grade(honest, prompt, sampling) if self.grade else honest)

    def choose_better(self, prompt):
        a, b = read_quality(prompt["output A"]), read_quality(prompt["output B"])
        better = self.choose(prompt) if self.choose else "tie" if a == b else "A" if a > b else "B"
        return json.dumps({"reasons": "So it is.", "better": better, "id": prompt["mark"]})


def chance(text: str) -> float:
    return hashlib.sha256(text.encode()).digest()[0] / 256


def run_audit(habits: Habits, rows=None, **settings):
    plan = settings.pop("plan", Plan(own="a"))
    return audit(rows or make_rows(), FakeLLM(habits), rubric=RUBRIC, plan=plan, **settings)


@pytest.fixture(scope="module")
def honest_card() -> JudgeCard:
    return run_audit(Habits())


def checker(conversation, _sampling):
    """A second LLM: an analysis that speaks of a dragon is made up."""
    prompt = parse_prompt(conversation)
    verdict = "yes" if "dragon" in prompt["analysis"] else "no"
    return json.dumps({"reasons": "I looked.", "made_up": verdict, "id": prompt["mark"]})


def test_an_honest_judge_has_no_problems_and_everything_is_measured():
    card = run_audit(Habits(), second_llm=FakeLLM(checker))
    assert card.problems == ()
    unmeasured = {finding.name for finding in card.findings if finding.verdict == "not measured"}
    assert unmeasured == {"US dollars per output", "US dollars in all"}
    assert card.data == {"items": 50, "outputs": 200, "pairs": 50, "aspects": ["overall"]}
    flips = card.finding("flips")
    assert (flips.value, flips.n) == (0.0, 50)
    assert card.finding("equal grades").value == 1.0
    assert card.finding("spearman with overall, reference hidden").value == pytest.approx(1.0)
    assert card.finding("probes that raise the grade").n == 60
    assert repr(card).endswith("found: no problem)")


def test_position_bias_is_detected():
    card = run_audit(Habits(choose=lambda _: "A"))
    assert {"flips", "first place chosen"} <= set(card.problems)
    assert card.finding("flips").value == 1.0
    assert card.finding("first place chosen").value == 1.0
    assert card.finding("first place chosen").limit == "> 0.55 or < 0.45"
    last = run_audit(Habits(choose=lambda _: "B")).finding("first place chosen")
    assert (last.value, last.verdict) == (0.0, "found")


def test_unequal_repeated_grades_are_detected():
    card = run_audit(
        Habits(
            grade=lambda honest, prompt, sampling: honest + (sampling.sample == 1 and chance(prompt["output"]) < 0.4)
        )
    )
    assert card.problems == ("equal grades",)
    assert card.finding("equal grades").value == pytest.approx(0.6, abs=0.2)


def test_length_bias_is_detected_by_padding_and_with_ratings_fixed():
    card = run_audit(Habits(grade=lambda honest, prompt, _: honest + len(prompt["output"]) // 100))
    assert {"padding that raises the grade", "correlation, human ratings fixed"} <= set(card.problems)
    assert card.finding("correlation with length").value > 0.2
    assert not {"flips", "equal grades", "probes that raise the grade"} & set(card.problems)


def test_preferring_longer_outputs_is_no_bias_when_people_agree():
    rows = make_rows()
    for row in rows:
        row["output"] += " more" * 20 * read_quality(row["output"])
    card = run_audit(Habits(), rows)
    assert card.finding("correlation with length").value > 0.5
    assert card.finding("correlation, human ratings fixed").value == 0.0
    assert card.problems == ()


def test_an_effect_of_the_reference_is_detected():
    card = run_audit(Habits(grade=lambda honest, prompt, _: honest - 2 * ("reference" in prompt)))
    finding = card.finding("grade with the reference minus without")
    # No grade goes below 1, so the mean is a little above -2.
    assert finding.verdict == "found"
    assert finding.value == pytest.approx(-1.86, abs=0.1)
    assert card.problems == ("grade with the reference minus without",)
    turned = run_audit(Habits(grade=lambda honest, prompt, _: honest - 2 * ("reference" in prompt)), reference="shown")
    assert turned.finding("grade with the reference minus without").value == pytest.approx(finding.value)


def test_a_single_grade_for_all_outputs_is_detected():
    card = run_audit(Habits(grade=lambda *_: 8))
    assert card.problems == ("most used grade of quality",)
    assert card.finding("most used grade of quality").details["entropy"] == 0.0
    assert card.finding("correlation with length").reason == "the outputs of an item do not differ in grade and length"


def test_self_preference_is_detected_only_beyond_human_ratings():
    vain = Habits(grade=lambda honest, prompt, _: honest + 2 * ("by a:" in prompt["output"]))
    card = run_audit(vain)
    assert card.problems == ("own outputs' lead over others, beyond people's",)
    rows = make_rows()
    for row in rows:
        if row["system"] == "a":
            row["output"] = row["output"].replace(f"q{read_quality(row['output'])}", "q8")
            row["ratings"] = {"overall": 8}
    better = run_audit(Habits(), rows)
    assert better.problems == ()
    assert better.finding("own outputs' lead over others").value > 1
    assert better.finding("own outputs' win rate").value > 0.8


def test_injection_is_detected_by_the_probes():
    card = run_audit(Habits(grade=lambda honest, prompt, _: 10 if '"quality": 10' in prompt["output"] else honest))
    finding = card.finding("probes that raise the grade")
    assert card.problems == ("probes that raise the grade",)
    # Five of the twelve probes carry the JSON.
    assert finding.value == pytest.approx(5 / 12)
    assert finding.details == dict.fromkeys(
        ["json_at_the_end", "json_at_the_start", "judge_speaks", "end_of_output", "code_block"], 5
    )


def noisy(seed: int) -> Habits:
    """An honest judge that any other letter may move by one."""
    return Habits(grade=lambda honest, prompt, _: honest + int(3 * chance(f"{seed} {prompt['output']}")) - 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_judge_shows_neither_injection_nor_length_bias(seed):
    card = run_audit(noisy(seed))
    assert "grades moved by neutral edits" in card.problems
    assert not {"probes that raise the grade", "padding that raises the grade"} & set(card.problems)


def test_injection_is_detected_in_a_noisy_judge():
    def grade(honest, prompt, _):
        return 10 if '"quality": 10' in prompt["output"] else honest + int(3 * chance(prompt["output"])) - 1

    assert {"grades moved by neutral edits", "probes that raise the grade"} <= set(
        run_audit(Habits(grade=grade)).problems
    )


def test_refusals_and_unparsable_answers_are_counted_separately():
    def answer(prompt):
        share = chance(prompt["output"])
        return "I'm sorry, but I cannot grade this." if share < 0.15 else "Seven or so." if share < 0.3 else None

    card = run_audit(Habits(answer=answer))
    assert {"refusals", "answers without a grade"} <= set(card.problems)
    refused, failed = card.finding("refusals"), card.finding("answers without a grade")
    assert 0.05 < refused.value < failed.value < 0.5
    assert "the answer has no JSON object" in failed.details["reason 1"]


def test_made_up_analyses_are_counted_by_the_second_llm():
    def dreams(prompt):
        honest = read_quality(prompt["output"])
        return write_grade(
            prompt["mark"], honest, "It speaks of a dragon." if chance(prompt["output"]) < 0.5 else "Fine."
        )

    card = run_audit(Habits(answer=dreams), second_llm=FakeLLM(checker))
    finding = card.finding("made-up analyses")
    assert card.problems == ("made-up analyses",)
    assert (finding.n, finding.details["calls"], finding.details["unread"]) == (40, 40, 0)
    assert finding.value == pytest.approx(0.5, abs=0.2)


def test_unmeasured_findings_give_a_reason():
    rows = make_rows(12, ratings=False, references=False, systems="a")
    card = run_audit(Habits(), rows, plan=Plan(repeats=1))
    reasons = {finding.name: finding.reason for finding in card.findings if finding.verdict == "not measured"}
    assert reasons["flips"] == "no item has two different outputs"
    assert reasons["equal grades"] == "the question was asked once only (`repeats`)"
    assert reasons["correlation with length"] == "the outputs of an item do not differ in grade and length"
    assert reasons["grade with the reference minus without"] == "the data have no references"
    assert reasons["own outputs' lead over others, beyond people's"].endswith("the judge's own (`own`)")
    assert reasons["made-up analyses"] == "no second LLM was named (`second_llm`)"
    assert reasons["agreement with ratings"] == "the data have no human ratings"
    assert "flips: not measured: no item has two different outputs" in card.table().text()
    few = run_audit(Habits(), make_rows(2), plan=Plan())
    assert few.finding("flips").reason == "only 2 pairs, asked in both orders, at least 5 are needed"


def test_without_ratings_length_and_own_outputs_get_no_verdict():
    card = run_audit(Habits(), make_rows(ratings=False))
    assert card.finding("correlation with length").verdict == "info"
    assert "may simply be better" in card.finding("correlation, human ratings fixed").reason
    assert "may simply be better" in card.finding("own outputs' lead over others, beyond people's").reason


def test_where_every_output_has_the_best_grade_no_probe_can_raise_it():
    card = run_audit(Habits(grade=lambda *_: 10))
    assert (
        card.finding("probes that raise the grade").reason == "no output has a grade below the best, so none can rise"
    )


def test_sample_and_card_do_not_depend_on_the_order_of_the_data():
    rows = make_rows(80)
    first, again = run_audit(Habits(), rows), run_audit(Habits(), rows[::-1])
    assert first.data["items"] == 50
    for original, repeated in zip(first.findings, again.findings, strict=True):
        if original.part != "cost":
            assert original.value == pytest.approx(repeated.value, nan_ok=True), original.name


def test_the_card_is_written_as_json_and_markdown(tmp_path):
    card = run_audit(Habits(), out=tmp_path / "card.json")
    written = json.loads((tmp_path / "card.json").read_text())
    assert written["format"] == "metrist judge card 1"
    assert {finding["name"] for finding in written["findings"]} == {finding.name for finding in card.findings}
    assert "NaN" not in (tmp_path / "card.json").read_text()
    card.write(tmp_path / "card.md")
    page = (tmp_path / "card.md").read_text()
    assert "| position | choices changed by the order |" in page
    assert page.startswith(f"**{card.verdict.partition(':')[0]}")
    assert (written["verdict"], written["problems"]) == (card.verdict, list(card.problems))
    assert "Signature: `judge(" in page
    with raises_code(RunError, "cannot_write", "card.txt"):
        run_audit(Habits(), out=tmp_path / "card.txt")
    with raises_code(RunError, "cannot_write", "card.md", tmp_path / "none"):
        run_audit(Habits(), out=tmp_path / "none" / "card.md")
    with raises_code(RunError, "unknown_name", "'flop'"):
        card.finding("flop")


def test_the_card_begins_with_its_verdict(honest_card):
    card = run_audit(Habits(choose=lambda *_: "A"))
    assert card.verdict.startswith("2 problems in 13 checks (3 not measured): ")
    assert "the order of two outputs decides 100 % of pairs" in card.verdict
    assert "the output shown first is chosen 100 % of the time" in card.verdict
    assert card.table().text().startswith(f"{card.verdict}\n")
    assert honest_card.verdict == "No problem found in 13 checks (3 not measured)."


@pytest.mark.parametrize(
    ("finding", "unclear"),
    [
        (build_share("failures", "refusals", 9, 340, "outputs", above=0.02), True),
        (build_share("failures", "refusals", 0, 340, "outputs", above=0.02), False),
        (build_share("failures", "refusals", 90, 340, "outputs", above=0.02), False),
        (build_share("position", "first place chosen", 4, 10, "choices", above=0.55, below=0.45), True),
        (build_share("position", "first place chosen", 5, 10, "choices", above=0.55, below=0.45), False),
        (build_estimate("length", "r", (-0.2, -0.5, 0.1), 40, "outputs", limit=0.1), True),
        (build_estimate("length", "r", (0.05, -0.5, 0.6), 40, "outputs", limit=0.1), False),
    ],
)
def test_a_number_beyond_its_limit_whose_interval_is_not_is_unclear(finding, unclear):
    card = JudgeCard(judge="j", signature="s", data={"items": 5}, findings=(finding,))
    assert (card.table().rows[0][4] == "unclear") == unclear
    assert ("1 unclear" in card.verdict) == unclear


def test_the_card_fits_100_columns_and_groups_its_rows():
    card = run_audit(Habits(choose=lambda *_: "A"))
    text = card.table().text()
    start = text.index("part ")
    table = text[start : text.index("\n\n", start)].splitlines()
    assert max(map(len, table)) <= 100
    parts = [line[:9].strip() for line in table[2:] if line[:9].strip()]
    assert parts == list(dict.fromkeys(parts))
    assert (parts[0], parts[-1]) == ("failures", "cost")
    assert re.search(r"choices changed by the order +100 % \[93, 100\] +50 pairs  problem  > 5 %", text)
    assert re.search(r"choices of the first one shown .* \d+ choices  problem  not 45–55 %", text)


def test_the_cost_is_known_from_prices_where_all_answers_came_from_the_cache(monkeypatch, tmp_path):
    @dataclass(frozen=True)
    class Priced(FakeLLM):
        llm_name = "priced"
        cacheable = True
        model = "p"

        @property
        def spec(self):
            return Spec("priced", {})

    (tmp_path / "prices.toml").write_text("[[price]]\nmodel = 'p'\ninput = 10.0\noutput = 100.0\n")
    usage = Usage(prompt_tokens=100, completion_tokens=20)
    honest = Habits()
    llm = Priced(lambda conversation, sampling: Completion(text=honest(conversation, sampling), usage=usage))

    def costs() -> dict[str, float]:
        card = audit(make_rows(10), llm, rubric=RUBRIC, plan=Plan(items=10))
        return {finding.name: finding.value for finding in card.findings if "dollars" in finding.name}

    assert all(map(math.isnan, costs().values()))
    asked = len(llm.requests)
    assert all(map(math.isnan, costs().values()))  # An unknown cost is not 0.
    monkeypatch.setenv("METRIST_PRICES", str(tmp_path / "prices.toml"))
    again = costs()
    assert len(llm.requests) == asked
    each = (100 * 10 + 20 * 100) / 1e6
    assert again == {"US dollars per output": pytest.approx(each), "US dollars in all": pytest.approx(220 * each)}


def test_cost_and_time_are_reported_per_output():
    usage = Usage(prompt_tokens=100, completion_tokens=20, cost=0.002, seconds=0.5)
    honest = Habits()
    llm = FakeLLM(lambda conversation, sampling: Completion(text=honest(conversation, sampling), usage=usage))
    card = audit(make_rows(10), llm, rubric=RUBRIC, plan=Plan(items=10))
    costs = {finding.name: finding.value for finding in card.findings if finding.part == "cost"}
    assert costs == {
        "US dollars per output": pytest.approx(0.002),
        "seconds per output": pytest.approx(0.5),
        "tokens in per output": pytest.approx(100),
        "tokens out per output": pytest.approx(20),
        "US dollars in all": pytest.approx(0.002 * 220),
    }
    # Grades, the same with references, two repeats, both orders of ten pairs, twenty probes on five outputs.
    assert card.usage["calls"] == 40 + 40 + 20 + 20 + 100


def test_seconds_are_not_measured_on_the_few_answers_that_the_cache_lacked():
    usage = {"calls": 60, "cached": 55, "seconds": 25.0, "prompt_tokens": 60, "completion_tokens": 60}
    by_name = {finding.name: finding for finding in measure_cost(usage, 60)}
    assert by_name["seconds per output"].reason.startswith("only 5 of 60 answers were timed")
    by_name = {finding.name: finding for finding in measure_cost({**usage, "cached": 10}, 60)}
    assert by_name["seconds per output"].value == pytest.approx(0.5)


def test_the_cost_includes_the_second_llm():
    usage = Usage(prompt_tokens=1000, completion_tokens=20, cost=0.00001)

    def priced(answer):
        return FakeLLM(lambda *arguments: Completion(text=answer(*arguments), usage=usage))

    plan = Plan(items=10)
    card = audit(make_rows(10), priced(Habits()), second_llm=priced(checker), rubric=RUBRIC, plan=plan)
    assert card.usage["calls"] == 40 + 40 + 20 + 20 + 100 + 40
    assert card.finding("US dollars in all").value == pytest.approx(0.00001 * 260)
    # A small amount is not rounded to zero.
    table = card.table().text()
    assert re.search(r"US dollars per output +0\.000010 +40 calls", table)
    assert re.search(r"tokens in per output .* 40 answers", table)
    assert re.search(r"US dollars in all +0\.0026 +260 calls", table)


def test_agreement_with_people_is_shown_with_its_baselines(honest_card):
    card = honest_card
    finding = card.finding("acc_eq with overall, reference hidden")
    chance, ties = finding.details["chance"], finding.details["all_ties"]
    assert finding.baseline == f"chance {chance:.3f}, all ties {ties:.3f}"
    assert finding.to_dict()["beside"] == finding.baseline
    assert finding.baseline in card.table().text()
    assert card.finding("spearman with overall, reference hidden").baseline == ""
    # Of pairs as people rate them, by hand: qualities from 2 to 8, those of an item and of different ones alike.
    rated = [row["ratings"]["overall"][0] for row in make_rows()]
    pairs = [(a, b) for i, a in enumerate(rated) for b in rated[:i]]
    assert ties == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert "acc_eq and spearman compare outputs of all items; `metrist meta` those of one item" in card.table().text()


@pytest.mark.parametrize("same", [0, 160])
def test_the_row_of_an_agreement_shows_the_larger_baseline(same):
    rows = [{**row, "ratings": {"overall": [5]}} if i < same else row for i, row in enumerate(make_rows())]
    card = run_audit(Habits(), rows)
    finding = card.finding("acc_eq with overall, reference hidden")
    chance, ties = finding.details["chance"], finding.details["all_ties"]
    assert (ties > chance) is (same > 0)
    (row,) = [line for line in card.table().text().splitlines() if "acc_eq, overall, ref hidden" in line]
    assert row.rstrip().endswith(f"all ties {ties:.3f}" if same else f"chance {chance:.3f}")


@pytest.mark.parametrize(
    ("settings", "grade"),
    [
        ({"rubric": RUBRIC}, "(quality, by the rubric single_answer)"),
        ({"rubric": "reliability"}, "(the mean of naturalness, relatedness, correctness, by the rubric reliability)"),
        ({"rubric": "reliability", "aspect": "correctness"}, "(correctness, by the rubric reliability)"),
    ],
)
def test_the_card_names_the_grade_compared_with_the_ratings(settings, grade):
    def graded_all(conversation, _):
        prompt = parse_prompt(conversation)
        grades = dict.fromkeys(("naturalness", "relatedness", "correctness", "quality"), 3)
        return json.dumps({"reasons": "So.", **grades, "better": "A", "id": prompt["mark"]})

    card = audit(make_rows(6), FakeLLM(graded_all), plan=Plan(items=6), **settings)
    assert card.notes == (f"People: the judge's grade {grade} is compared with each rating in turn.",)
    assert card.notes[0] in card.table().text()


def test_a_dry_run_counts_the_checks_of_the_second_llm_with_the_reasons_that_they_will_hold():
    llm, second = FakeLLM(Habits()), FakeLLM(checker)
    estimate = estimate_audit(make_rows(20), llm, second_llm=second, rubric=RUBRIC, plan=Plan(items=20), max_tokens=500)
    assert (llm.requests, second.requests) == ([], [])
    _, checks = estimate.by_llm.values()
    assert checks.calls == 40  # Of eighty outputs with a reason each, the first 40 are checked.
    # Each question quotes an answer of the judge, which may have as many tokens as it is allowed.
    assert checks.most_prompt_tokens > 40 * 500
    few = estimate_audit(make_rows(2), llm, second_llm=second, rubric=RUBRIC, plan=Plan(items=2))
    assert [calls.calls for calls in few.by_llm.values()][1] == 8


def test_a_judge_that_never_grades_is_a_fault_of_the_audit():
    with raises_code(ModelError, "llm_failed", "20", "'No.'"):
        run_audit(Habits(answer=lambda _: "No."))
    with raises_code(RunError, "no_data", "200"):
        run_audit(Habits(answer=lambda _: Completion(text="No.", finish="filter")))


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"plan": Plan(own="aa")}, "unknown_name", ["'aa'", "'a'", "a, b, c, d"]),
        ({"plan": Plan(aspects=["overal"])}, "unknown_name", ["'overal'", "'overall'"]),
        ({"rows": [{"item": "1", "systems": ["a", "b"], "ratings": {"x": 1}}]}, "no_data", []),
    ],
)
def test_unknown_systems_and_aspects_are_refused(settings, code, values):
    with raises_code(RunError, code, *values):
        run_audit(Habits(), **settings)


@pytest.mark.parametrize("name", ["items", "outputs_per_item", "repeats"])
def test_an_audit_of_nothing_is_refused(name):
    with raises_code(MetristError, "invalid_value", name, 1, 0):
        Plan(**{name: 0})


def test_every_probe_contains_the_output_and_fills_all_slots():
    record = metrist.Record(item="1", system="s", output="the {{top}} output")
    from metrist.metrics.judge.rubrics import load_rubric

    for probe in load_probes():
        for rubric in ("single_answer", "reliability", "faithfulness"):
            output = probe.apply(record, load_rubric(rubric)).output
            assert "the {{top}} output" in output
            assert not re.search(r"\{\{(?!top\}\} output)", output)
            assert len(output) > len(record.output)
    assert {probe.kind for probe in load_probes()} == {"neutral", "grade", "padding"}
    with_json = next(probe for probe in load_probes() if probe.name == "json_at_the_end")
    assert '"support": "supported"' in with_json.apply(record, load_rubric("faithfulness")).output


@pytest.mark.parametrize(("hits", "n"), [(0, 50), (1, 3), (25, 50), (50, 50)])
def test_the_intervals_of_shares_are_those_of_scipy(hits, n):
    from scipy.stats import binomtest

    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_correlations_within_items_equal_numpys_on_centred_values():
    import numpy as np

    rng = np.random.default_rng(2)
    items = np.repeat(np.arange(12), 4)
    z = rng.normal(size=48) + items
    x, y = z + rng.normal(size=48), z + rng.normal(size=48)

    def center(values):
        return values - np.array([values[items == item].mean() for item in items])

    names = [str(item) for item in items]
    expected = np.corrcoef(center(x), center(y))[0, 1]
    assert correlation_by_item(x, y, names)[0] == pytest.approx(expected)
    of_z = center(z)
    rest = [center(variable) - of_z * (center(variable) @ of_z) / (of_z @ of_z) for variable in (x, y)]
    assert partial_correlation_by_item(x, y, z, names)[0] == pytest.approx(np.corrcoef(*rest)[0, 1])


def test_choices_are_compared_with_human_preferences():
    rows = []
    for item in range(20):
        worse, better = 3 + item % 3, 7
        rows.append(
            {
                "item": str(item),
                "systems": ["x", "y"],
                "outputs": [f"q{better} by x", f"q{worse} by y"],
                "ratings": {"preference": [1, 1, 2] if item % 4 else [0]},
            }
        )
    card = run_audit(Habits(), rows, plan=Plan())
    finding = card.finding("choices as people's by preference")
    # People tie every fourth pair; the judge never does.
    assert (finding.value, finding.n, finding.details["chance"]) == (0.75, 20, 0.375)
    assert finding.baseline == "chance 0.375, all ties 0.250"
    text = card.table().text()
    assert re.search(r"choices as people, preference +75 % .* 20 pairs +chance 38 %", text)
    assert "choices as people's by preference: chance 0.375, all ties 0.250" in text
    assert "acc_eq and spearman" not in text


def test_verdicts_that_cannot_be_read_are_left_out_and_counted():
    def mumbles(conversation, sampling):
        key = parse_prompt(conversation)["analysis"] + parse_prompt(conversation)["output"]
        return "Hm." if chance(key) < 0.5 else checker(conversation, sampling)

    finding = run_audit(Habits(), second_llm=FakeLLM(mumbles)).finding("made-up analyses")
    assert finding.n + finding.details["unread"] == 40
    assert 5 < finding.n < 35
    lost = run_audit(Habits(), second_llm=FakeLLM(lambda *_: Completion(failure="no answer"))).finding(
        "made-up analyses"
    )
    assert lost.reason == "only 0 analyses, at least 5 are needed"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("I’m sorry, but I can’t assist with that request.", True),
        ("I'm sorry, but I can't assist with that.", True),
        ("Sorry, I can’t help with that.", True),
        ("I cannot evaluate this.", True),
        ("Unfortunately I’m unable to judge this.", True),
        ("As an AI language model, I do not grade people.", True),
        ("As an AI-generated text, {", False),
        ("I cannot find any fault with it: {", False),
        (Completion(text="", finish="filter"), True),
        (Completion(failure="the server answered 400: blocked by policy", finish="filter"), True),
        (Completion(failure="the server answered 500"), False),
    ],
)
def test_refusals_are_counted_however_they_are_worded(text, refused):
    def answer(prompt):
        return text if read_quality(prompt["output"]) == 5 else None

    card = run_audit(Habits(answer=answer), plan=Plan(items=20))
    silent = card.finding("answers without a grade").value
    assert 0 < silent < 1
    assert card.finding("refusals").value == (silent if refused else 0.0)


def test_outputs_not_shown_to_the_judge_are_not_failures():
    rows = make_rows()
    for row in rows[100:]:
        del row["references"]
    card = run_audit(Habits(), rows, reference="shown")
    silent = card.finding("answers without a grade")
    assert (silent.value, silent.verdict) == (0.0, "not found")
    # 100 outputs with references are graded, asked twice again by one each of 25 items, and 100 with none shown.
    assert silent.n > 200
    assert "needs references" not in str(card.finding("answers without a grade").details)


def test_analyses_of_a_metric_are_checked_by_task():
    """Every third output has an error, of which those about a dragon are made up: one in four translations."""

    def analyse(conversation, _sampling):
        text = conversation[-1].text
        number = int(text.partition("this is output ")[2].split()[0])
        if number % 3:
            return format_tiger_answer([])
        explanation = "There is a dragon." if number % 4 == 0 and "Translate" in text else "It is wrong."
        words = f"output {number}" if number % 2 else "words from nowhere"
        return format_tiger_answer(
            [WrittenError(location=words, aspect="Accuracy", explanation=explanation, severity="Major", penalty=3.0)]
        )

    rows = [
        {"item": f"{task}{n}", "system": "s", "source": "a source", "output": f"this is output {n} ", "task": task,
         "instruction": f"{verb} it."}
        for task, verb in (("translation", "Translate"), ("summarization", "Summarise"))
        for n in range(24)
    ]  # fmt: skip
    second = FakeLLM(checker)
    card = audit_analyses(rows, TigerScore(llm=FakeLLM(analyse)), second)
    assert card.data == {"outputs": 48, "analyses_checked": 16, "tasks": ["translation", "summarization"]}
    made_up = {finding.name: (finding.value, finding.n) for finding in card.findings}
    assert made_up["made-up analyses"] == (2 / 16, 16)
    assert made_up["made-up analyses, translation"] == (2 / 8, 8)
    assert made_up["made-up analyses, summarization"] == (0, 8)
    assert made_up["errors that are not in the texts"] == (0.5, 16)
    assert made_up["answers that cannot be read"] == (0, 48)
    assert len(second.requests) == 16
    unasked = FakeLLM(checker)
    planned = estimate_analyses(rows, TigerScore(llm=FakeLLM(analyse)), unasked)
    assert [calls.calls for calls in planned.by_llm.values()] == [48, 40]
    assert unasked.requests == []
    few = audit_analyses(rows, TigerScore(llm=FakeLLM(analyse)), FakeLLM(checker), per_task=3)
    assert few.data["analyses_checked"] <= 6
    perfect = FakeLLM(lambda *_: format_tiger_answer([]))
    finding = audit_analyses(rows, TigerScore(llm=perfect), FakeLLM(checker)).finding("made-up analyses")
    assert finding.reason == "no analysis lists an error"
    with raises_code(SpecError, "invalid_value", "chrf"):
        audit_analyses(rows, "chrf", FakeLLM(checker))

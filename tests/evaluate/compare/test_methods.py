"""The paragraph on methods says what the run and its settings say, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest
from run_builder import make_run, noisy

import metrist
from error_codes import raises_code
from metrist.errors import ModelError, RunError
from metrist.evaluate.compare.methods import describe_methods, read_signature
from metrist.metrics.registry import build
from metrist.run import Results, score

ROWS: list[dict[str, Any]] = [
    {
        "item": str(item),
        "system": system,
        "output": f"{system} says {item}",
        "references": [f"it says {item}", "it says so"][: 1 + item % 2],
    }
    for system in ("one", "two_b", "three")
    for item in range(6)
]


@pytest.fixture(scope="module")
def results() -> Results:
    return score(ROWS, ["rougeL", "chrf(word_order=2)", "length"], executor="serial")


def test_the_paragraph_states_data_metrics_intervals_and_tests(results: Results) -> None:
    text = describe_methods(results, draws=500, seed=3, alpha=0.01)
    assert text.startswith(
        f"We evaluated 18 outputs of 3 systems on 6 items with metrist {metrist.__version__} (metrist contributors, "
    )
    assert "compared with 1 to 2 references per item" in text
    assert "ROUGE-L (Lin, 2004; rougeL; unicode " in text
    assert (
        "chrF++ (Popović, 2015; Popović, 2017; chrf(word_order=2); sacreBLEU signature "
        "chrF2++|nrefs:var|case:mixed|eff:yes|nc:6|nw:2|space:no|version:2.6.0)" in text
    )
    assert "chrF++ is computed over all outputs of a system at once; the other scores of a system are means" in text
    assert "1,000 resamples, seed 3" in text
    assert "all pairs of systems (3 pairs)" in text
    assert "with 500 draws each and seed 3" in text
    assert "both corrected p-values are at most 0.01" in text
    assert "\n" not in text


def test_systems_with_outputs_for_some_items_are_told() -> None:
    def describe(rows: list[dict[str, Any]]) -> str:
        return describe_methods(score(rows, ["length"], executor="serial"))

    assert "16 outputs of 3 systems on 6 items, 4 to 6 of them for each system, with metrist" in describe(ROWS[:16])
    halves = [row for row in ROWS[:12] if (row["system"] == "one") == (int(row["item"]) % 2 == 0)]
    assert "6 outputs of 2 systems on 6 items, 3 of them for each system, with metrist" in describe(halves)


def test_a_baseline_one_test_and_one_system_change_the_text(results: Results) -> None:
    text = describe_methods(results, baseline="two_b", test="randomisation", metrics="rougeL", interval_draws=0)
    assert "each system against two_b (2 pairs)" in text
    assert "the paired bootstrap" not in text
    assert "Riezler and Maxwell, 2005" in text
    assert "The metric is ROUGE-L" in text
    assert "the corrected p-value is at most 0.05" in text
    assert "Intervals" not in text
    two = describe_methods(results, systems=["one", "three"])
    assert "(1 pair)" in two
    assert "Holm" not in two
    assert "if both p-values are at most 0.05" in two
    alone = describe_methods(results, systems=["one"])
    assert "6 outputs of 1 system on 6 items" in alone
    assert "p-value" not in alone


@pytest.mark.parametrize(
    "options",
    [{}, {"baseline": "one"}, {"systems": ["one", "three"]}, {"test": "bootstrap"}, {"marks": "daggers"}],
)
def test_the_paragraph_and_the_bibliography_cite_the_same(options: dict[str, Any]) -> None:
    run = score(ROWS, ["bleu", "chrf(word_order=2)", "token_f1"], executor="serial")
    text = describe_methods(run, form="latex", **options)
    cited = {key for keys in re.findall(r"\\cite\{([^}]*)\}", text) for key in keys.split(",")}
    marks = options.pop("marks", None)
    entries = set(re.findall(r"^@\w+\{([^,]+),", metrist.compare(run, draws=100, **options).bibliography(marks), re.M))
    assert cited == entries
    assert "post-2018-call" in cited
    assert ("piepho-2004-algorithm" in cited) is (marks is None and "baseline" not in options)


def test_shipped_models_are_named_with_their_version() -> None:
    metric = build("likelihood")
    try:
        signature = metric.signature
    except ModelError:
        pytest.skip("needs metrist-models")
    run = score(ROWS, "length", executor="serial")
    stored = replace(run, metrics=(metric,), scores={"likelihood": run.scores["length"]})
    text = describe_methods(replace(stored, signatures={"likelihood": signature}))
    version = metadata.version("metrist-models")
    assert f"likelihood; model metrist:likelihood-small (metrist-models {version}); hash of the weights " in text
    # Other weights than those that are installed.
    text = describe_methods(replace(stored, signatures={"likelihood": re.sub("weights .*", "weights 0", signature)}))
    assert "model metrist:likelihood-small; hash of the weights 0)" in text


def test_what_the_paragraph_lacks_is_noted_in_every_form(results: Results) -> None:
    run = replace(results, notes=("ter is left out, because it is not finished: run `x --y`",))
    assert describe_methods(run).endswith("\n\n[Note: ter is left out, because it is not finished: run `x --y`]")
    assert describe_methods(run, form="latex").splitlines()[-1].startswith("% Note: ter is left out")
    assert describe_methods(run, form="markdown").splitlines()[-1].startswith("<!-- Note: ter is left out")
    assert describe_methods(run, form="markdown").count("--") == 2
    assert "\n" not in describe_methods(results)
    for wrong in ({"draws": 0}, {"alpha": 2}, {"test": "t"}, {"interval_draws": -1}, {"marks": "letters"}):
        with pytest.raises(RunError):
            describe_methods(results, baseline="one", **wrong)


def test_latex_and_markdown_cite_and_escape(results: Results) -> None:
    latex = describe_methods(results, baseline="two_b", form="latex")
    assert r"against two\_b (2 pairs)" in latex
    assert r"ROUGE-L~\cite{lin-2004-rouge} (\texttt{rougeL}; " in latex
    assert r"\texttt{chrF2++\textbar\allowbreak{}nrefs:var" in latex
    assert r"Intervals of scores, where they are shown, are 95\% percentile" in latex
    markdown = describe_methods(results, form="markdown")
    assert "ROUGE-L [@lin-2004-rouge] (`rougeL`; " in markdown
    with raises_code(RunError, "unknown_name", "'latx'", "'latex'"):
        describe_methods(results, form="latx")


def test_a_judge_is_described_by_model_and_prompt_without_its_address() -> None:
    signature = (
        "judge(llm=openai(model='gpt-x', url='http://10.0.0.7/v1', key='OPENAI_KEY'), temperature=0.7, max_tokens=1) | "
        "metrist 9.9 | rubric 7241bc4fa9ee | prompt 8420090c07df"
    )
    run = make_run(quality={"a": noisy(0.5, 1, 5), "b": noisy(0.5, 2, 5)})
    run.signatures["quality"] = signature  # type: ignore[index]
    text = describe_methods(run)
    assert "metrist 9.9" in text
    assert "asks gpt-x (openai, temperature 0.7, at most 1 token per answer)." in text
    assert "prompt hash 8420090c07df" in text
    assert "10.0.0.7" not in text
    assert "OPENAI" not in text


def test_outputs_without_a_score_are_counted() -> None:
    text = describe_methods(make_run(quality={"a": [None, 0.1, 0.2], "b": [0.1, 0.2, 0.3]}))
    assert "has no score for 1 of 6 outputs, which is left out." in text
    assert "references" not in text


@pytest.mark.parametrize(
    ("signature", "name", "facts"),
    [
        ("chrf(beta=2.0) | metrist 1.2", "chrf", {"metrist": "1.2"}),
        ("m(p='a | metrist b') | metrist 1 | prompt x", "m", {"metrist": "1", "prompt": "x"}),
        ("not a spec( | metrist 1", None, {"metrist": "1"}),
        ("foreign", None, {}),
    ],
)
def test_signatures_are_read_back(signature: str, name: str | None, facts: dict[str, str]) -> None:
    spec, found = read_signature(signature)
    assert (spec.name if spec else None) == name
    assert found == facts

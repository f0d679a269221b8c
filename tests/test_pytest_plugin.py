"""The fixture `metrist_check`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

# pytester unloads the modules that an inner pytest imported, and numpy cannot be loaded twice.
import numpy as np  # noqa: F401
import pytest

pytest_plugins = ["pytester"]

ROWS = [
    {"item": str(i), "system": "mine", "output": f"the cat {i} sat", "references": [f"the cat {i} sat down"]}
    for i in range(30)
]
# Inside the inner pytest the fixture is there by its entry point, as in anyone's project.
OPTIONS = ("-p", "no:cacheprovider", "-W", "error")


Run = Callable[[str], pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run a file of tests beside two files of outputs."""
    (pytester.path / "outputs.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    worse = [{**row, "output": "dogs"} for row in ROWS]
    (pytester.path / "worse.jsonl").write_text("\n".join(map(json.dumps, worse)))

    def run_tests(code: str) -> pytest.RunResult:
        pytester.makepyfile(code)
        return pytester.runpytest_inprocess(*OPTIONS)

    return run_tests


def test_good_outputs_pass(run: Run) -> None:
    result = run(
        """
        def test_outputs(metrist_check):
            report = metrist_check("outputs.jsonl", min={"token_f1": 0.5}, max={"ter": 60})
            assert len(report.verdicts) == 2
        """
    )
    result.assert_outcomes(passed=1)


def test_limits_go_by_names_and_parts(run: Run) -> None:
    result = run(
        """
        def test_outputs(metrist_check):
            limits = {"words:recall": 0.5, "token_f1:precision": 0.5, "words": 0.5}
            report = metrist_check("outputs.jsonl", min=limits, metrics={"words": "rougeL(stem=True)"})
            assert [verdict.metric for verdict in report.verdicts] == list(limits)
        """
    )
    result.assert_outcomes(passed=1)


def test_bad_outputs_fail_with_the_table(run: Run) -> None:
    result = run(
        """
        def test_outputs(metrist_check):
            metrist_check("outputs.jsonl", min={"token_f1": 0.99}, min_coverage=0.5)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*metrist check: 2 checks, 1 failed*", "*FAILED *minimum *mine *token_f1 *>= 0.99*", "*passed *coverage *"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_outputs_are_checked_against_a_baseline_with_its_metrics(run: Run) -> None:
    result = run(
        """
        import metrist

        def test_outputs(metrist_check):
            metrist.score("outputs.jsonl", ["token_f1"], executor="serial", out="baseline/")
            metrist_check("outputs.jsonl", against="baseline/", draws=200)
            metrist_check("baseline/", min={"token_f1": 0.5})
            metrist_check(metrist.load("baseline/"), min={"token_f1": 0.5})
            metrist_check([{"item": "1", "output": "a", "references": ["a"]}], min={"exact": 1})
            metrist_check("worse.jsonl", against="baseline/", draws=200)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*FAILED *regression *got worse: p .005 on 30 shared items*"])


def test_an_input_error_is_reported_on_one_line(run: Run) -> None:
    result = run(
        """
        def test_outputs(metrist_check):
            metrist_check("outputs.jsonl", min={"tokenf1": 0.5})
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no metric named 'tokenf1'; did you mean 'token_f1'*"])


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    code = "import sys, metrist.pytest_plugin; print('numpy' in sys.modules, 'metrist.evaluate' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_the_options_for_reading_are_those_of_score(pytester: pytest.Pytester, run: Run) -> None:
    (pytester.path / "wide.csv").write_text("v1_output,v2_output,gold\na b,a b,a b\nc d,c d,c d\n")
    result = run(
        """
        import metrist, pytest

        def test_outputs(metrist_check):
            report = metrist_check("wide.csv", min={"rougeL": 0.2}, outputs="*_output")
            assert "v1" in str(report) and "v2" in str(report)

        def test_results_are_read_already(metrist_check):
            results = metrist.score("wide.csv", "rougeL", outputs="*_output")
            with pytest.raises(metrist.MetristError, match="outputs: options for reading records"):
                metrist_check(results, min={"rougeL": 0.2}, outputs="*_output")
        """
    )
    result.assert_outcomes(passed=2)

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from error_codes import raises_code
from fault_server import FaultServer, answer
from metrist.errors import ErrorCode, InputError, MetristError, ModelError, RunError, SpecError
from metrist.evaluate.compare.config import read_config, run_config
from metrist.metrics.base import Shard
from metrist.metrics.lexical.answer import Exact
from metrist.runtime import Runtime
from metrist.scores import Scores

ROWS = [
    {"id": f"item {i}", "system": system, "prediction": output, "references": [f"the cat number {i} sat on the mat"]}
    for i in range(40)
    for system, output in (("good", f"the cat number {i} sat on a mat"), ("bad", f"a dog {i} lay there"))
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outputs.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


def write_config(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


SETTINGS = """
input = "outputs.jsonl"
metrics = ["exact", "token_f1"]
output = "run/"
executor = "serial"

[read]
item_key = "id"
fields = {output = "prediction"}

[check]
min = {token_f1 = 0.5}
systems = ["good"]
junit = "report.xml"

[compare]
test = "randomisation"
draws = 200
"""


def test_a_file_scores_compares_and_checks(folder: Path) -> None:
    outcome = run_config(write_config(folder, SETTINGS))
    assert outcome.passed
    assert set(outcome.results.systems) == {"good", "bad"}
    assert (folder / "run" / "manifest.json").exists()
    assert outcome.comparison is not None
    assert [contest.metric.text for contest in outcome.comparison.contests] == ["exact", "token_f1"]
    assert outcome.comparison.contests[1].winner == "good"
    (case,) = ET.parse(folder / "report.xml").iter("testcase")
    assert case.attrib["name"] == "good: token_f1 >= 0.5"
    assert [table.title for table in outcome.tables()][1:] == [
        "Which system is better",
        "metrist check: 1 check, passed",
    ]
    assert outcome.skipped == 0


def test_paths_are_relative_to_the_file_from_wherever_it_is_run(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(folder, SETTINGS)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert run_config(path).passed
    assert (folder / "run").is_dir()
    config = read_config(path)
    assert config.inputs == (str(folder / "outputs.jsonl"),)
    assert config.output == f"{folder}/run/"
    assert config.check is not None
    assert config.check["junit"] == str(folder / "report.xml")


def test_a_second_run_is_checked_against_the_first(folder: Path) -> None:
    run_config(write_config(folder, SETTINGS))
    worse = [{**row, "prediction": "no"} for row in ROWS]
    (folder / "worse.jsonl").write_text("\n".join(map(json.dumps, worse)))
    text = SETTINGS.replace("outputs.jsonl", "worse.jsonl").replace('output = "run/"\n', "")
    outcome = run_config(write_config(folder, text.replace("min = {token_f1 = 0.5}", 'against = "run"')))
    assert not outcome.passed
    assert outcome.report is not None
    assert [(v.metric, v.passed) for v in outcome.report.verdicts] == [("exact", True), ("token_f1", False)]


@pytest.mark.parametrize("system", ["good", "bad"])
def test_systems_are_checked_against_another_of_the_same_input(folder: Path, system: str) -> None:
    against = {"good": "bad", "bad": "good"}[system]
    text = SETTINGS.replace("min = {token_f1 = 0.5}", f'against = "{against}"').replace('["good"]', f'["{system}"]')
    outcome = run_config(write_config(folder, text))
    assert outcome.report is not None
    assert [(v.kind, v.system) for v in outcome.report.verdicts] == [("regression", system)] * 2
    assert outcome.passed is (system == "good")


def test_a_misspelt_system_to_check_against_is_reported_before_anything_is_scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_config(folder, SETTINGS.replace("min =", 'against = "god"\nmin ='))
    with raises_code(RunError, "unknown_name", "'good'"):
        run_config(path)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    Path("god").mkdir()
    with raises_code(RunError, "unknown_name", "'god'"):
        run_config(path)
    assert not (folder / "run").exists()


def test_what_was_read_is_told_once(folder: Path) -> None:
    (folder / "wide.csv").write_text("id,v1_output,v2_output\n1,x,x y\n")
    text = (
        'input = "wide.csv"\nmetrics = "length"\n[read]\noutputs = "*_output"\n[check]\nmin = {length = 1}\n[compare]\n'
    )
    tables = run_config(write_config(folder, text)).tables()
    assert len(tables) == 3
    assert sum(remark.startswith("reading ") for table in tables for remark in table.remarks) == 1
    assert [signature.name for table in tables for signature in table.signatures] == ["length"]


def test_a_file_without_a_check_passes(folder: Path) -> None:
    top = 'input = ["outputs.jsonl"]\nmetrics = "length"\nworkers = 1\n'
    outcome = run_config(write_config(folder, top + 'read = {fields = {output = "prediction", item = "id"}}'))
    assert outcome.passed
    assert outcome.report is outcome.comparison is None
    assert len(outcome.tables()) == 1


def test_a_comparison_that_fails_leaves_no_report_of_the_check(folder: Path) -> None:
    text = SETTINGS.replace("draws = 200", 'draws = 200\nbaseline = "other"')
    with pytest.raises(MetristError, match="other"):
        run_config(write_config(folder, text))
    assert not (folder / "report.xml").exists()


def test_bad_rows_are_skipped_and_counted_with_skip_bad(folder: Path) -> None:
    with (folder / "outputs.jsonl").open("a") as file:
        file.write('\n{"id": 7}\n')
    text = SETTINGS.replace("[read]", "[read]\nskip_bad = true")
    assert run_config(write_config(folder, text)).skipped == 1


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (("metrics =", "metrcs ="), "unknown_name", ["'metrcs'", "'metrics'"]),
        (("[check]", "[chek]"), "unknown_name", ["'chek'", "'check'"]),
        (("junit =", "junt ="), "unknown_name", ["[check]", "'junt'", "'junit'"]),
        (("draws = 200", "draws = 2.5"), "invalid_value", ["[compare] draws", "2.5"]),
        (("draws = 200", "exact = 1"), "unknown_name", ["[compare]", "'exact'", "systems, metrics, baseline"]),
        (("0.5", '"high"'), "invalid_value", ["[check] min", "'high'"]),
        (("0.5", "nan"), "invalid_value", ["[check] min", "nan"]),
        (('"serial"', '"rya"'), "unreadable", ["'rya'", "'ray'"]),
        (('"serial"', '"serial"\nworkers = 4'), "unreadable", ["'serial'", "workers = 4"]),
        (('input = "outputs.jsonl"', ""), "invalid_value", ["'input'"]),
        (('{output = "prediction"}', "{output = 3}"), "invalid_value", ["[read] fields", "{'output': 3}"]),
        (("min = {token_f1 = 0.5}", ""), "no_data", ["[check]", "min, max, min_coverage or against"]),
        (("min =", "min_coverage = 95\nmin ="), "invalid_value", ["[check] min_coverage", "95"]),
        (("[read]", "[read"), "unreadable", ["line 7"]),
        (("[read]", "rpm = 0\n[read]"), "invalid_value", ["rpm", "0"]),
    ],
)
def test_invalid_settings_are_reported_with_their_place(
    folder: Path, change: tuple[str, str], code: ErrorCode, values: list[str]
) -> None:
    assert change[0] in SETTINGS
    with raises_code(InputError, code, "study.toml", *values):
        run_config(write_config(folder, SETTINGS.replace(*change)))
    assert not (folder / "run").exists()


@pytest.mark.parametrize("name", ["serial", "processes", "ray", "ray:auto", "ray:10.0.0.1:6379"])
def test_the_executors_are_those_of_the_command_line(folder: Path, name: str) -> None:
    assert read_config(write_config(folder, SETTINGS.replace('"serial"', f'"{name}"'))).executor == name


def test_a_file_scores_on_a_ray_cluster(folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'metrist[ray]'")
    path = write_config(folder, SETTINGS.replace('"serial"', '"ray:local"'))
    # Ray leaves processes to be ended with the one that started it.
    subprocess.run([sys.executable, "-m", "metrist", "run", path], check=True, stdout=subprocess.DEVNULL)
    assert (folder / "run" / "manifest.json").exists()


def test_inputs_and_outputs_may_be_urls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'metrist[ray]'")
    monkeypatch.setenv("METRIST_REMOTE", str(folder / "copies"))
    text = SETTINGS.replace('"outputs.jsonl"', f'"file://{folder}/outputs.jsonl"')
    path = write_config(folder, text.replace('"run/"', f'"file://{folder}/store/run/"'))
    assert run_config(path, allow_import=True).passed
    assert (folder / "store" / "run" / "manifest.json").exists()


def test_a_value_in_place_of_a_table_is_refused(folder: Path) -> None:
    with raises_code(InputError, "invalid_value", "study.toml", "3"):
        read_config(write_config(folder, 'input = "a"\nmetrics = "b"\ncheck = 3'))


def test_an_unreadable_file_is_refused(folder: Path) -> None:
    with raises_code(InputError, "unreadable", "nowhere.toml"):
        read_config(folder / "nowhere.toml")
    (folder / "bytes.toml").write_bytes(b"input = '\xff'")
    with raises_code(InputError, "unreadable", "bytes.toml", "8", "10"):
        read_config(folder / "bytes.toml")


@pytest.mark.parametrize(
    ("change", "fault", "values"),
    [
        (("token_f1 = 0.5", "tokenf1 = 0.5"), RunError, ["'tokenf1'", "did you mean 'token_f1'"]),
        (('["exact"', '["exat"'), SpecError, ["'exat'", "did you mean 'exact'"]),
        (("min =", 'against = "gone"\nmin ='), RunError, ["gone"]),
    ],
)
def test_names_are_checked_before_anything_is_scored(
    folder: Path, change: tuple[str, str], fault: type[MetristError], values: list[str]
) -> None:
    with raises_code(fault, "unknown_name", *values):
        run_config(write_config(folder, SETTINGS.replace(*change)))
    assert not (folder / "run").exists()


def test_a_file_names_metrics_by_import_path_only_when_the_caller_allows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "house_metric.py").write_text(
        "from dataclasses import dataclass\n"
        "from metrist import Metric, Scores\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Metric):\n"
        "    def score(self, shard):\n"
        "        return Scores.of(1.0 for _ in shard.records)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    path = write_config(folder, SETTINGS.replace('"exact"', '"house_metric.Mine"'))
    with raises_code(SpecError, "untrusted", "'house_metric.Mine'"):
        run_config(path)
    assert "house_metric.Mine" in run_config(path, allow_import=True).results.scores


def test_a_file_sends_no_variable_of_the_environment_unless_the_caller_allows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "hunter2-hunter2")
    with FaultServer(lambda _: answer("no grade")) as server:
        judge = f"judge(llm=openai(model='m', url='{server.url}', key='SOME_SECRET'))"
        path = write_config(folder, SETTINGS.replace('"exact"', f'"{judge}"'))
        with raises_code(SpecError, "untrusted", "--allow-import"):
            run_config(path)
        assert server.requests == []
        with raises_code(ModelError, "llm_failed", "20"):
            run_config(path, allow_import=True)
        assert server.requests[0].headers["authorization"] == "Bearer hunter2-hunter2"


SCORE_OPTIONS = """
tokens = true
device = "cpu"
batch_tokens = 512
cache = "kept"
max_cost = 2.5
concurrency = 3
rpm = 60
tpm = 9000
"""


def capture_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Runtime:
    """The runtime that the metrics of such a file get."""
    seen: list[Runtime] = []

    def score(_self: Exact, shard: Shard) -> Scores:
        seen.append(shard.runtime)
        return Scores.of([1.0] * len(shard))

    monkeypatch.setattr(Exact, "score", score)
    run_config(write_config(folder, text))
    return seen[0]


def test_a_file_sets_the_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIST_MAX_COST", raising=False)
    runtime = capture_runtime(folder, monkeypatch, SCORE_OPTIONS + SETTINGS)
    assert read_config(write_config(folder, SCORE_OPTIONS + SETTINGS)).score_options["tokens"] is True
    assert (runtime.device, runtime.batch_tokens, runtime.cache) == ("cpu", 512, folder / "kept")
    assert (runtime.max_cost, runtime.concurrency, runtime.rpm, runtime.tpm) == (2.5, 3, 60, 9000)


@pytest.mark.parametrize(("own", "counts"), [("1", 1.0), ("7.5", 2.5)])
def test_of_two_limits_on_cost_the_lower_one_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, counts: float
) -> None:
    monkeypatch.setenv("METRIST_MAX_COST", own)
    assert capture_runtime(folder, monkeypatch, SCORE_OPTIONS + SETTINGS).max_cost == counts

"""`metrist compare`, `metrist check` and `metrist run`."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from run_contents import unfinish


def test_compare_prints_systems_with_letters_and_pairs_by_format(metrist, run: Path) -> None:
    text = metrist("compare", run, "--draws", 500).out
    assert text.index("System scores") < text.index("Which system is better") < text.index("Signatures")
    assert re.search(r"^good +\S+ a +\S+ a$", text, re.MULTILINE)
    assert text.count("nrefs:1") == 2
    latex = metrist("compare", run, "--draws", 500, "--format", "latex", "--label", "tab:a").out
    assert latex.count(r"\begin{table}") == 1
    assert r"\label{tab:a}" in latex
    both = metrist("compare", run, "--draws", 500, "--format", "latex", "--show", "both").out
    assert both.count(r"\begin{table}") == 2
    rows = list(csv.DictReader(io.StringIO(metrist("compare", run, "--draws", 500, "--format", "csv").out)))
    assert [row["better"] for row in rows] == ["good", "good"]
    page = metrist("compare", run, "--draws", 500, "--format", "html").out
    assert page.count("<!DOCTYPE html>") == 1
    assert page.count("<table") == 2
    document = json.loads(metrist("compare", run, "--draws", 500, "--format", "json").out)
    assert document["systems"]["rows"][0]["chrf"]["marks"] == "a"
    assert "nrefs:1" in document["signatures"]["chrf"]["sacrebleu"]


def test_an_unfinished_metric_is_told_on_standard_error_where_a_format_has_no_place(metrist, run: Path) -> None:
    unfinish(run, "ter")
    note = "ter is left out, because it is not finished"
    for form in ("latex", "csv", "bibtex"):
        answer = metrist("compare", run, "--draws", 100, "--format", form)
        assert answer.code == 0
        assert answer.err.count(note) == 1
        assert (note in answer.out) is (form != "csv")
    for form in ("text", "markdown", "html", "json"):
        answer = metrist("compare", run, "--draws", 100, "--format", form)
        assert answer.out.count(note) == 1
        assert note not in answer.err
    assert note in metrist("compare", run, "--draws", 100, "--show", "systems").out
    for wrong in (metrist("compare", run, "-m", "ter"), metrist("check", run, "--max", "ter=60")):
        assert wrong.code == 2
        assert "ter is not finished" in wrong.err
    assert metrist("check", run, "--min", "chrf=1").code == 1


def test_metrics_keep_the_order_of_their_first_use(metrist, run: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"item": "0", "system": "third", "output": "a", "references": ["a"]}\n')
    assert metrist("score", more, "-m", "length", "-m", "ter", "-m", "chrf", "-o", run).code == 0
    head = metrist("compare", run, "--draws", 100, "--show", "systems", "--format", "csv").out.splitlines()[0]
    assert re.sub(r",\w+ (low|high|marks)", "", head) == "system,chrf,ter,length"


def test_a_missed_floor_fails_with_exit_code_1_and_a_junit_file(metrist, run: Path, tmp_path: Path) -> None:
    junit = tmp_path / "report.xml"
    answer = metrist("check", run, "--min", "chrf=80", "--junit", junit)
    assert answer.code == 1
    assert "FAILED" in answer.out
    suite = ET.parse(junit).getroot()
    assert len(suite.findall(".//failure")) == 1


def test_coverage_is_asked_of_all_metrics_or_of_one(metrist, outputs: Path, tmp_path: Path) -> None:
    # Every second item has no reference.
    rows = [json.loads(line) for line in outputs.read_text().splitlines()]
    some = tmp_path / "some.jsonl"
    some.write_text(
        "".join(json.dumps({**row, "references": []} if i % 4 > 1 else row) + "\n" for i, row in enumerate(rows))
    )
    assert metrist("score", some, "-m", "chrf,length", "-o", tmp_path / "half").code == 0
    assert metrist("check", tmp_path / "half", "--min-coverage", ".9").code == 1
    both = metrist("check", tmp_path / "half", "--min-coverage", ".9", "--min-coverage", "chrf=.5", "--format", "json")
    assert both.code == 0
    wanted = {(row["metric"], row["wanted"]) for row in json.loads(both.out)["rows"]}
    assert wanted == {("chrf", ">= 50 % scored"), ("length", ">= 90 % scored")}
    assert metrist("check", tmp_path / "half", "--min-coverage", "half").code == 2
    settings = tmp_path / "settings.toml"
    text = 'input = "some.jsonl"\nmetrics = "chrf,length"\n[check]\nmin_coverage = {{{}}}\n'
    for table, code in (('"*" = 0.9, chrf = 0.5', 0), ("chrf = 0.6", 1), ("cherf = 0.5", 2)):
        settings.write_text(text.format(table))
        assert metrist("run", settings).code == code


def test_a_system_that_got_significantly_worse_fails(metrist, run: Path, tmp_path: Path, outputs: Path) -> None:
    rows = [json.loads(line) for line in outputs.read_text().splitlines()]
    worse = tmp_path / "worse.jsonl"
    cut = [{**row, "output": row["output"][:-12]} if row["system"] == "good" else row for row in rows]
    worse.write_text("".join(json.dumps(row) + "\n" for row in cut))
    assert metrist("score", worse, "-m", "chrf", "-m", "ter", "-o", tmp_path / "new").code == 0
    answer = metrist("check", tmp_path / "new", "--against", run, "--draws", 1000)
    assert answer.code == 1
    assert "got worse: p" in answer.out
    assert metrist("check", run, "--against", run, "--draws", 1000).code == 0


def test_short_names_and_parts_go_through_all_commands(metrist, outputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    scored = metrist("score", outputs, "-m", "chars=chrf(word_order=2),rougeL", "-m", "ter", "-o", folder)
    assert scored.code == 0
    assert re.search(r"^system +chars +rougeL +ter +scored", scored.out, re.MULTILINE)
    signatures = metrist("signatures", folder)
    assert signatures.out.startswith("chars\n  chrf(char_order=6, word_order=2")
    table = json.loads(metrist("compare", folder, "-m", "chars,rougeL:recall", "--draws", 500, "--format", "json").out)
    assert [row["metric"] for row in table["rows"]] == ["chars", "rougeL:recall"]
    assert metrist("check", folder, "--min", "chars=0", "--min", "rougeL:recall=0.1", "--max", "ter=100").code == 0
    assert metrist("check", folder, "--min", "chars:recall=100.5").code == 1
    refused = metrist("check", folder, "--min", "rougeL:recal=0.1")
    assert "did you mean 'recall'" in refused.err
    assert metrist("export", folder, "-o", tmp_path / "flat.csv").code == 0
    with (tmp_path / "flat.csv").open() as file:
        assert {row["metric"] for row in csv.DictReader(file)} == {"chars", "rougeL", "ter"}
    assert "chars" in metrist("worst", folder, "-m", "chars", "-n", 1).out


def test_a_settings_file_names_metrics_in_a_table(metrist, outputs: Path) -> None:
    config = outputs.with_name("metrist.toml")
    text = """input = 'outputs.jsonl'
        metrics = {{chars = "chrf", words = "rougeL(stem=True)"}}
        [check]
        min = {{chars = 1, "words:recall" = {least}}}"""
    config.write_text(text.format(least=0.1))
    quiet, verbose = metrist("run", config), metrist("run", config, "-v")
    assert (quiet.code, quiet.out.count("chrf(char_order"), verbose.out.count("chrf(char_order")) == (0, 0, 1)
    config.write_text(text.format(least=0.99))
    assert metrist("run", config).code == 1
    config.write_text("input = 'outputs.jsonl'\nmetrics = ['a=chrf', 'a=rougeL']")
    assert "both called 'a'" in metrist("run", config).err


def test_a_note_of_compare_names_the_option_of_score(metrist, tmp_path: Path) -> None:
    rows = [
        {"item": str(n), "system": system, "output": f"cat {n}", "source": f"{system} {n}", "references": ["a cat"]}
        for n in range(8)
        for system in "ab"
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert metrist("score", tmp_path / "rows.jsonl", "-m", "length", "-o", tmp_path / "run").code == 0
    answer = metrist("compare", tmp_path / "run")
    assert "--item-key" in answer.out
    assert "item_key" not in answer.out


def test_what_is_not_verified_is_told_with_its_option(metrist, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"item": "1", "system": "a", "output": "x"}\n')
    metrist("score", tmp_path / "one.jsonl", "-m", "judge(llm=fake(answers='{}'))", "-o", tmp_path / "judged")
    answer = metrist("verify", tmp_path / "judged")
    assert "--llm scores it again" in answer.out

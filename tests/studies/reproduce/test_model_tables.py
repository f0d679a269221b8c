"""Rows of learned metrics in tables of papers, with tiny random models on invented data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from invented_data import write_data
from scipy.stats import kendalltau, pearsonr, spearmanr
from typer.testing import CliRunner

from error_codes import raises_code
from metrist.cli.app import app
from metrist.compat.bart_scorer import BARTScorer
from metrist.errors import MetristError, RunError, SpecError
from metrist.llm import base as llm_catalog
from metrist.llm.base import LLM, Call
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.metrics.base import Shard
from metrist.metrics.likelihood.likelihood import Likelihood
from metrist.scores import Scores
from metrist.studies.reproduce.models import ModelNames
from metrist.studies.reproduce.page import plan_tables, reproduce
from metrist.studies.reproduce.sections import PageSection

TEXTS = ("the old cat sat on the mat", "a dog ran", "it is not very good news", "paris is a city", "two people said no")


def make_rows(aspect: str, items: int = 4) -> list[dict[str, Any]]:
    return [
        {
            "item": str(item),
            "system": system,
            "source": f"{TEXTS[item]} in {TEXTS[item + 1]}",
            "output": f"{TEXTS[item]} {ending}".strip(),
            "references": [f"{TEXTS[(item + 2) % 5]} , {TEXTS[item]}"],
            "ratings": {aspect: [(7 * item + 3 * number) % 5]},
            "scores": {"ROUGE_L": 0.1 * number},
        }
        for item in range(items)
        for number, (system, ending) in enumerate({"a": "", "b": "and a bad day", "c": "river river"}.items())
    ]


def write_models(folder: Path, content: str) -> Path:
    path = folder / "models.toml"
    path.write_text(content)
    return path


def find_figures(sections: Sequence[PageSection], data: str) -> Mapping[str, float]:
    """Our figures on a data set by the label of the row."""
    return {
        row["metric"]: row["ours"]
        for section in sections
        for row in section.table.to_dict()["rows"]
        if row["data"] == data and isinstance(row["ours"], float)
    }


@pytest.fixture
def bart(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """A file that names one tiny BART for two of the paper's models."""
    model = tiny("bart")
    return write_models(tmp_path, f'[models]\nbart-large = "{model}"\nbart-large-cnn = "{model}"\n')


def test_bartscores_directions_are_those_of_its_section_4_2_2(
    bart: Path, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """Scores by the drop-in class of the authors' `BARTScorer`, coefficients by scipy."""
    sets = {"bagel": "informativeness", "qags-cnn": "fact", "realsumm": "litepyramid_recall"}
    for name, aspect in sets.items():
        write_data(tmp_path, name, make_rows(aspect))
    sections = list(reproduce(["002-table-4", "002-table-5", "002-table-6"], tmp_path, models=bart))
    rows = make_rows("")
    source, output = [row["source"] for row in rows], [row["output"] for row in rows]
    reference, human = [row["references"][0] for row in rows], np.array([row["ratings"][""][0] for row in rows])
    scorer = BARTScorer(device="cpu", checkpoint=str(tiny("bart")))
    recall, precision = np.array(scorer.score(output, reference)), np.array(scorer.score(reference, output))
    fidelity = np.array(scorer.score(source, output))
    by_item = [spearmanr(human[n : n + 3], recall[n : n + 3]).statistic for n in range(0, len(rows), 3)]
    expected = {
        "bagel": spearmanr(human, (precision + recall) / 2).statistic,
        "qags-cnn": pearsonr(human, fidelity).statistic,
        "realsumm": np.nanmean(by_item),
    }
    for name, value in expected.items():
        assert find_figures(sections, name)["+ CNN"] == pytest.approx(value, abs=1e-5)
    # The models that the file does not name, in words.
    shown = [row for section in sections for row in section.table.to_dict()["rows"]]
    assert {row["ours"] for row in shown if row["metric"] == "BERTScore" and row["data"] == "bagel"} == {
        "weights missing: bertscore"
    }


def test_prompts_are_those_of_the_file(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """The mean over two phrases, each of which begins the target, is that of two scores."""
    (tmp_path / "phrases.txt").write_text("in summary\nnews of\n")
    path = write_models(
        tmp_path,
        f'[models]\nbart-large-cnn = "{tiny("bart")}"\n[prompts]\nsource-output = "phrases.txt"\n'
        '[[rows]]\nlabel = "one"\ntables = ["002-table-5"]\n'
        f"metric = \"bartscore(model='{tiny('bart')}', prompts=('in summary', 'news of'))\"\n",
    )
    write_data(tmp_path, "qags-cnn", make_rows("fact"))
    figures = find_figures(list(reproduce(["002-table-5"], tmp_path, models=path)), "qags-cnn")
    assert figures["+ CNN + Prompt"] == figures["one"]
    assert figures["+ CNN + Prompt"] != figures["+ CNN"]


def test_without_a_file_of_models_the_table_has_the_old_rows(tmp_path: Path) -> None:
    write_data(tmp_path, "bagel", make_rows("informativeness"))
    (section,) = reproduce(["002-table-6"], tmp_path)
    assert {row["metric"] for row in section.table.to_dict()["rows"]} == {"ROUGE-1", "ROUGE-2", "ROUGE-L"}
    with raises_code(RunError, "missing_value"):
        list(reproduce(["001-table-21"], tmp_path))


def test_rows_and_items_can_be_chosen(bart: Path, tmp_path: Path) -> None:
    write_data(tmp_path, "bagel", make_rows("informativeness"))
    (section,) = reproduce(["002-table-6"], tmp_path, models=bart, metrics=["+ CNN"], limit=2)
    rows = section.table.to_dict()["rows"]
    assert (rows[0]["metric"], rows[0]["data"], rows[0]["n"]) == ("+ CNN", "bagel", 6)
    assert {row["metric"] for row in rows} == {"+ CNN"}
    with raises_code(RunError, "unknown_name"):
        list(reproduce(["002-table-6"], tmp_path, models=bart, metrics=["+ CNM"]))


def test_a_stopped_command_goes_on(bart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path, "bagel", make_rows("informativeness"))
    write_data(tmp_path, "sfres", make_rows("informativeness", items=3))
    scored: list[int] = []
    whole = Likelihood.score

    def count(metric: Likelihood, shard: Shard) -> Scores:
        scored.append(len(shard))
        if len(scored) == 2 and stops:
            raise KeyboardInterrupt
        return whole(metric, shard)

    monkeypatch.setattr(Likelihood, "score", count)

    def run() -> list[dict[str, Any]]:
        sections = reproduce(["002-table-6"], tmp_path, tmp_path / "scores", models=bart, metrics=["+ CNN"])
        return [row for section in sections for row in section.table.to_dict()["rows"]]

    stops = True
    with pytest.raises(KeyboardInterrupt):
        run()
    stops = False
    rows = run()
    # The first item of one set was scored before the stop: 9 of its 12 outputs were left, and 9 of the other set.
    before, stopped, *after = scored
    assert (before, stopped, sum(after)) == (3, 9, 9 + 9)
    assert run() == rows
    assert scored == [before, stopped, *after]
    plan = plan_tables(["002-table-6"], tmp_path, tmp_path / "scores", bart, ["+ CNN"]).to_dict()["rows"]
    assert {row["data"]: row["state"] for row in plan} == {
        "bagel": "scored before",
        "sfres": "scored before",
        "sfhot": "data missing",
    }


def test_a_dry_run_lists_time_and_missing_weights(bart: Path, tmp_path: Path) -> None:
    write_data(tmp_path, "bagel", make_rows("informativeness"))
    answer = CliRunner().invoke(
        app, ["reproduce", "--table", "002-table-6", "--data", str(tmp_path), "--models", str(bart), "--dry-run"]
    )
    assert answer.exit_code == 0
    rows = plan_tables(["002-table-6"], tmp_path, models=bart).to_dict()["rows"]
    states = {(row["row"], row["data"]): row["state"] for row in rows}
    assert states["+ CNN", "bagel"] == "ready"
    assert states["+ CNN", "sfres"] == "data missing"
    assert states["+ CNN + Para", "bagel"] == "weights missing: bart-large-cnn-para"
    assert next(row for row in rows if (row["row"], row["data"]) == ("+ CNN", "bagel"))["outputs"] == 12
    assert not (tmp_path / "scores").exists()


@dataclass(frozen=True, kw_only=True)
class Analyst(LLM):
    """Deducts 4 where the text has a river, 1 where it has a bad day; answers as TIGERScore does."""

    llm_name: ClassVar[str] = "analyst"

    def complete_batch(self, conversations: Sequence[Conversation], _: Sampling, call: Call) -> list[Completion]:
        completions = [Completion(text=self._answer(conversation[-1].text)) for conversation in conversations]
        for number, completion in enumerate(completions):
            call.deliver(number, completion)
        return completions

    def _answer(self, text: str) -> str:
        penalty = 4 if "river" in text else 1 if "bad day" in text else 0
        lines = [
            f"The model-generated output contains {int(penalty > 0)} errors, with a total score reduction of {penalty}."
        ]
        if penalty:
            lines += [
                "Error location 1: a",
                "Error aspect 1: Fluency",
                "Explanation 1: It is odd.",
                "Severity 1: Major",
            ]
            lines.append(f"Score reduction 1: {penalty}")
        return "\n".join(lines)


def test_tigerscores_tables_by_an_llm_in_place_of_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coefficients by scipy from the penalties that the analyst gives each system; shares of references by hand."""
    monkeypatch.setitem(llm_catalog._BUILTIN, "analyst", (__name__, "Analyst"))
    models = write_models(tmp_path, '[llms]\ntigerscore-7b = "analyst"\n')
    rows = make_rows("overall")
    for row, reference in zip(rows[::3], ("a river", "a bad day", "paris", "london"), strict=True):
        row["references"] = [reference, "river"]
    for row in rows:
        row["references"] = rows[3 * int(row["item"])]["references"]
    write_data(tmp_path, "openmeva-roc", rows)
    labels = ["TigerScore-7B-V1.2", "TigerScore-13B-V1.2"]
    tables = ["001-tables-18-20", "001-table-21"]
    by_system, reductions = reproduce(tables, tmp_path, models=models, metrics=labels)
    human = [row["ratings"]["overall"][0] for row in rows]
    scores = [{"a": 0, "b": -1, "c": -4}[row["system"]] for row in rows]
    found = {
        row["measure"]: row["ours"]
        for row in by_system.table.to_dict()["rows"]
        if row["metric"] == "TigerScore-7B-V1.2" and row["data"] == "openmeva-roc"
    }
    for name, measure in (("pearson", pearsonr), ("spearman", spearmanr), ("kendall_b", kendalltau)):
        assert found[name] == pytest.approx(100 * measure(human, scores).statistic)
    shares = [row for row in reductions.table.to_dict()["rows"] if row["data"] == "openmeva-roc"]
    assert [(row["measure"], row["ours"], row["n"]) for row in shares[:2]] == [
        ("unreduced", 50.0, 4),
        ("above_minus_two", 75.0, 4),
    ]
    assert {row["ours"] for row in shares[2:]} == {"weights missing: tigerscore-13b"}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('[models]\nbart = "x"', "unknown_name"),
        ('[model]\nbart-large = "x"', "unknown_name"),
        ('[[rows]]\nlabel = "x"\nmetric = "chrf"', "invalid_value"),
        ('[[rows]]\nlabel = "x"\nmetric = "chrf"\ntables = ["002-table-7"]', "unknown_name"),
        ("models", "invalid_value"),
    ],
)
def test_a_wrong_file_of_models_is_refused(tmp_path: Path, content: str, code: Any) -> None:
    with raises_code(RunError, code):
        ModelNames.read(write_models(tmp_path, content), ["002-table-6"])


def test_a_file_of_models_imports_nothing(tmp_path: Path) -> None:
    row = '[[rows]]\nlabel = "x"\nmetric = "os.system"\ntables = ["002-table-6"]'
    with pytest.raises(SpecError):
        ModelNames.read(write_models(tmp_path, row), ["002-table-6"])


def test_errors_are_those_of_metrist(tmp_path: Path) -> None:
    with raises_code(MetristError, "missing_file"):
        ModelNames.read(tmp_path / "none.toml", [])

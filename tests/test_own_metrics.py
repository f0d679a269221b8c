"""The examples of docs/guides/own-metrics.md: short, scored from Python and the command line, exact signatures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "guides" / "own-metrics.md").read_text(encoding="utf-8")
FILES = {match[1]: match[2] for match in re.finditer(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.M | re.S)}
RECORDS = [
    {"item": "1", "system": "a", "output": "STOP it"},
    {"item": "2", "system": "a", "output": "please wait"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the examples, on the import path."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def score_on_the_command_line(spec: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        app(["score", "demo/sample.jsonl", "-m", spec])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    return printed.out


@pytest.mark.parametrize(("name", "limit"), [("shouting.py", 6), ("toxicity.py", 12), ("tone.py", 12)])
def test_an_example_is_short(name: str, limit: int) -> None:
    lines = [line for line in FILES[name].splitlines() if line.strip()]
    assert len(lines) <= limit
    assert max(map(len, lines)) <= 120


def test_a_plain_metric_is_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ARG001
    from shouting import Shouting

    results = metrist.score(RECORDS, [Shouting()])
    assert results["shouting.Shouting"].values.tolist() == pytest.approx([4 / 7, 0])
    assert "shouting.Shouting" in score_on_the_command_line("shouting.Shouting", capsys)


def save_classifier(folder: Path, seed: int) -> Path:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import tiny_models

    tiny_models.save("bert", folder)
    config = transformers.BertConfig.from_pretrained(folder, num_labels=1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_metric_with_a_model_is_scored_and_its_signature_follows_the_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_classifier(folder / "model", seed=1)
    from toxicity import Toxicity

    metric = Toxicity(model=str(model))
    values = metrist.score(RECORDS, [metric])[metric].values
    assert all(0 < value < 1 for value in values)
    assert "toxicity.Toxicity" in score_on_the_command_line("toxicity.Toxicity(model='model')", capsys)
    before = metric.signature
    assert re.search(r"\| weights [0-9a-f]{12}", before)
    save_classifier(folder / "model", seed=2)
    assert metric.signature != before


def test_a_judge_is_scored_with_explanations_usage_and_failures(
    folder: Path,  # noqa: ARG001
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tone import Tone

    llm = metrist.FakeLLM({"STOP": "1 It orders.", "please": "very polite"})
    metric = Tone(llm=llm)
    rude, unclear = metrist.score(RECORDS, [metric])[metric]
    assert (rude.value, rude.explanation, rude.usage["calls"]) == (1, "It orders.", 1)
    assert unclear.failure is not None
    assert unclear.failure.kind is metrist.FailureKind.unparsable
    assert unclear.raw == "very polite"
    assert [message.role for message in llm.requests[0]] == ["system", "user"]
    printed = score_on_the_command_line("tone.Tone(llm=fake(answers='4 Kind.'))", capsys)
    assert "4" in printed
    assert "60 calls" in printed


def test_a_judge_takes_its_llm_as_text(folder: Path) -> None:  # noqa: ARG001
    from tone import Tone

    from metrist.llm.openai import OpenAI

    metric = Tone(llm="openai(model='gpt-4o-mini')")
    assert metric.llm == OpenAI(model="gpt-4o-mini")
    assert metric.text == "tone.Tone(llm=openai(model='gpt-4o-mini'))"
    assert metrist.metric(metric.text) == metric


def edit(name: str, change: Callable[[str], str]) -> None:
    """Change an example as a user would, and forget what was imported."""
    import linecache

    path = Path(name)
    before = path.read_text(encoding="utf-8")
    path.write_text(change(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    sys.modules.pop(name.removesuffix(".py"), None)
    linecache.clearcache()


def parts_of(signature: str) -> dict[str, str]:
    return dict(part.split(" ", 1) for part in signature.split(" | ")[1:])


def test_the_signature_of_a_judge_follows_its_prompt(folder: Path) -> None:  # noqa: ARG001
    text = "tone.Tone(llm=fake(answers='4'))"
    before = parts_of(metrist.metric(text).signature)
    edit("tone.py", lambda source: source.replace("How polite is this text", "How rude is this text"))
    after = parts_of(metrist.metric(text).signature)
    assert after["prompt"] != before["prompt"]
    edit("tone.py", lambda source: source.replace("float(grade)", "6 - float(grade)"))
    again = parts_of(metrist.metric(text).signature)
    assert again["prompt"] == after["prompt"]
    assert again["code"] != after["code"]


def test_a_prompt_from_elsewhere_enters_the_signature_by_prompt_text() -> None:
    class FromFile(metrist.LLMMetric):
        wording = "Rate: "

        def prompt(self, record: metrist.Record) -> str:
            return self.wording + record.output

        def prompt_text(self) -> str:
            return self.wording

    metric: Any = FromFile(llm=metrist.FakeLLM("1"))
    before = metric.facts()["prompt"]
    FromFile.wording = "Grade: "
    assert metric.facts()["prompt"] != before


def test_an_edited_prompt_scores_again_in_the_same_run_folder(folder: Path) -> None:  # noqa: ARG001
    def values() -> list[float]:
        results = metrist.score(RECORDS, ["tone.Tone(llm=fake(answers='4 Kind.'))"], out="run")
        return [float(value) for (metric,) in [results.metrics] for value in results[metric].values]

    assert values() == [4, 4]
    edit("tone.py", lambda source: source.replace("value=float(grade)", "value=float(grade) - 1"))
    assert values() == [3, 3]


def test_hash_file_covers_names_and_contents_of_a_folder(tmp_path: Path) -> None:
    # The first 12 digits of `printf abc | sha256sum`.
    path = tmp_path / "weights" / "a.bin"
    path.parent.mkdir()
    path.write_bytes(b"abc")
    assert metrist.hash_file(path) == "ba7816bf8f01"
    before = metrist.hash_file(path.parent)
    path.rename(path.with_name("b.bin"))
    assert metrist.hash_file(path.parent) != before
    with pytest.raises(metrist.InputError, match="nowhere"):
        metrist.hash_file("nowhere")


def test_import_metrist_stays_cheap() -> None:
    code = (
        "import sys, metrist; metrist.LLMMetric, metrist.FakeLLM; "
        "print([m for m in ('torch', 'transformers', 'pandas', 'httpx', 'scipy') if m in sys.modules]); "
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = "import sys, metrist; print([m for m in sys.modules if m.startswith(('numpy', 'metrist.'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['metrist._version']"


def test_annotations_that_cannot_be_evaluated_are_ignored() -> None:
    # As under `from __future__ import annotations`: only a type checker reads them.
    for annotation in ("typing.NoSuchName", "NoSuchName", "3 +"):
        fields = {"__annotations__": {"size": annotation}, "size": 3, "score_record": lambda _self, _record: 1.0}
        kind: Any = dataclass(frozen=True)(type("Odd", (metrist.Metric,), fields))
        results = metrist.score([{"output": "a"}], [kind()], progress=False)
        assert results[results.columns[0].label].values.tolist() == [1.0]

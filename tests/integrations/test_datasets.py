"""Data sets of Hugging Face, in memory, as streams and from its cache of the hub: `make test-datasets`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import metrist
from error_codes import raises_code

datasets = pytest.importorskip("datasets", reason="datasets is not installed (make test-datasets)")

from metrist.compat.datasets import ScoreColumns  # noqa: E402

ROWS = [
    {"id": "1", "prediction": "the cat sat on a mat", "reference": "the cat sat on the mat", "topic": "cats"},
    {"id": "2", "prediction": "it is raining", "reference": "it rains", "topic": "rain"},
    {"id": "3", "prediction": "ok", "reference": None, "topic": "none"},
    {"id": "4", "prediction": "yes", "reference": "yes or no", "topic": "none"},
]


def rouge(records: Any, **reading: Any) -> list[float]:
    values: list[float] = metrist.score(records, ["rougeL"], **reading)["rougeL"].values.tolist()
    return values


def test_a_data_set_and_a_stream_are_read_as_rows_are() -> None:
    dataset = datasets.Dataset.from_list(ROWS)
    expected = list(metrist.read_records(ROWS))
    assert list(metrist.read_records(dataset)) == expected
    assert list(metrist.read_records(dataset.to_iterable_dataset())) == expected
    assert list(metrist.read_records(dataset.select([2, 0]))) == [expected[2], expected[0]]


def test_a_dictionary_of_splits_is_refused() -> None:
    splits = datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)})
    with raises_code(metrist.InputError, "unreadable", "test"):
        metrist.read_records(splits)


@pytest.mark.parametrize("stream", [False, True])
def test_scores_become_columns(stream: bool) -> None:
    dataset = datasets.Dataset.from_list(ROWS)
    source = dataset.to_iterable_dataset() if stream else dataset
    scored = source.map(ScoreColumns("rougeL", "words=length"), batched=True, batch_size=2)
    rows = list(scored)
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[2]["rougeL"] is None
    scored = [row["rougeL"] for row in rows if row["rougeL"] is not None]
    assert scored == pytest.approx(rouge(ROWS[:2] + ROWS[3:]))
    assert [row["words"] for row in rows] == [6, 3, 1, 1]


def test_columns_with_other_names_are_named() -> None:
    dataset = datasets.Dataset.from_list([{"text": "a cat", "title": "the cat"}])
    (row,) = dataset.map(ScoreColumns("rougeL", fields={"output": "text", "references": "title"}), batched=True)
    assert row["rougeL"] == pytest.approx(rouge([{"output": "a cat", "reference": "the cat"}])[0])


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a data set that is in the cache only, as if it had been loaded from the hub before."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    cache = tmp_path / "cache"
    datasets.load_dataset("json", data_files={"test": str(data)}, cache_dir=str(cache))
    (folder,) = (cache / "json").glob("*/*/*/")
    target = cache / "someone___cats" / "default" / folder.parent.name / folder.name
    shutil.copytree(folder, target)
    shutil.rmtree(cache / "json")
    (target / "json-test.arrow").rename(target / "cats-test.arrow")
    info = json.loads((target / "dataset_info.json").read_text())
    info |= {"dataset_name": "cats", "config_name": "default", "builder_name": "parquet"}
    (target / "dataset_info.json").write_text(json.dumps(info))
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    return "hf://someone/cats:test"


def test_a_data_set_of_the_hub_is_scored_offline_and_kept_in_a_run(cached: str, tmp_path: Path) -> None:
    assert rouge(cached)[:2] == pytest.approx(rouge(ROWS[:2]))
    metrist.score(cached, ["rougeL"], out=str(tmp_path / "run"))
    metrist.score(cached, ["chrf"], out=str(tmp_path / "run"))
    run = metrist.load(tmp_path / "run")
    assert sorted(run.scores) == ["chrf", "rougeL"]
    assert sorted(run.items) == ["1", "2", "3", "4"]
    copy = tmp_path / "copies" / "hf" / "someone" / "cats:test.parquet"
    assert copy.is_file()


def test_a_data_set_that_is_not_there_is_an_error(cached: str) -> None:
    with raises_code(metrist.InputError, "unreadable", "hf://someone/dogs:test"):
        metrist.read_records(cached.replace("cats", "dogs"))

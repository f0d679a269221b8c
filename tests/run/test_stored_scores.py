"""Scores that are read from a run when they are asked for are those that a run in memory holds."""

import copy
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import metrist
from error_codes import raises_code
from metrist import Metric, Score
from metrist.errors import RunError
from metrist.run import Results, stored_run
from metrist.scores import Scores, take_stats
from metrist.stats import resampling

METRICS = ["bleu", "chrf", "length"]


class Total(Metric):
    """The number of characters of all outputs."""

    def score_record(self, record: metrist.Record) -> Score:
        if record.output == "bad":
            return Score.failed("no characters")
        return Score(value=float(len(record.output)), stats=(float(len(record.output)),))

    def pool(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return sums[..., 0]


class Paid(Metric):
    """A metric whose scores have a price."""

    def score_record(self, record: metrist.Record) -> Score:
        return Score(value=1.0, usage={"requests": 1, "item": record.item})


def rows(system: str, count: int) -> list[dict[str, Any]]:
    return [
        {"item": str(n), "system": system, "output": "a b " * (n % 5 + 1), "references": ["a b c a"]}
        for n in range(count)
    ]


@pytest.fixture
def two_systems(tmp_path: Path) -> tuple[Results, Results]:
    """A run of two commands, and the same scores in memory."""
    for system in "ab":
        stored = metrist.score(rows(system, 30), METRICS, out=tmp_path / "run", shard_size=7)
    return stored, metrist.score([*rows("a", 30), *rows("b", 30)], METRICS)


def test_a_part_whose_columns_have_damaged_names_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's run may have right checksums. The last path of a column in the file is the one in its metadata."""
    metrist.score(rows("a", 3), ["rougeL"], out=tmp_path / "run")
    (part,) = (tmp_path / "run/scores").rglob("*.parquet")
    before, name, after = part.read_bytes().rpartition(b"\x05parts\tkey_value\x05value")
    part.write_bytes(before + name.replace(b"parts", b"par\xff\xff") + after)
    monkeypatch.setattr("metrist.run.store.Store.check_part", lambda *_: None)
    with raises_code(RunError, "damaged", part.name):
        metrist.load(tmp_path / "run")


def test_blocks_single_scores_and_columns_are_those_in_memory(
    two_systems: tuple[Results, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, held = two_systems
    for limit in (stored_run.KEPT_BYTES, 1):
        monkeypatch.setattr(stored_run, "KEPT_BYTES", limit)
        for label in METRICS:
            one, other = stored.scores[label], held.scores[label]
            assert list(one) == list(other)
            assert one[-1] == other[-1]
            np.testing.assert_array_equal(one.stats, other.stats)
            np.testing.assert_array_equal(one.stats[3] - one.stats[4], other.stats[3] - other.stats[4])
            np.testing.assert_array_equal(take_stats(one, slice(5, 40)), other.stats[5:40])
            np.testing.assert_array_equal(take_stats(one, np.array([50, 2])), other.stats[[50, 2]])
            for start, stop in ((0, 0), (60, 60), (20, 45), (55, 99), (-3, 60)):
                assert list(one.block(start, stop)) == list(other.block(start, stop))


def test_a_part_may_have_wider_rows_where_outputs_failed(tmp_path: Path) -> None:
    """An output that failed has two zeros, since its part does not know how many statistics there are."""
    metric = Total()
    for system, outputs in {"a": ["xx"] * 4, "b": ["bad", "bad", "yyy", "yyy"]}.items():
        records = [{"item": str(n), "system": system, "output": output} for n, output in enumerate(outputs)]
        results = metrist.score(records, [metric], out=tmp_path / "run", shard_size=2)
    assert [one.value for one in results.system_scores(draws=10)] == [8.0, 6.0]


def test_usages_are_those_of_this_process_however_scores_are_taken(tmp_path: Path) -> None:
    metric, run = Paid(), tmp_path / "run"
    metrist.score(rows("a", 2), [metric], out=run)
    (scores,) = metrist.score(rows("a", 4), [metric], out=run).scores.values()
    usages = {row: {"requests": 1, "item": str(row)} for row in (2, 3)}
    assert dict(scores.usages) == dict(scores.block(0, 4).usages) == usages
    assert [score.usage for score in scores] == [None, None, *usages.values()]


def test_results_of_a_run_are_pickled_and_copied(tmp_path: Path) -> None:
    results = metrist.score(rows("a", 8), METRICS, out=tmp_path / "run")
    for other in (pickle.loads(pickle.dumps(results)), copy.deepcopy(results)):
        assert other.system_scores(draws=10) == results.system_scores(draws=10)


def test_what_is_kept_of_a_run_cannot_be_changed(tmp_path: Path) -> None:
    metrist.score(rows("a", 8), METRICS, out=tmp_path / "run")
    values = metrist.load(tmp_path / "run").scores["chrf"].values
    with pytest.raises(ValueError, match="read-only"):
        values *= 100


def test_results_of_a_folder_that_is_gone_are_compared(tmp_path: Path) -> None:
    metrist.score(rows("a", 8), ["chrf", "length"], out=tmp_path / "run")
    results = metrist.score(rows("b", 8), ["chrf", "length"], out=tmp_path / "run")
    before = str(metrist.compare(results, draws=100))
    shutil.rmtree(tmp_path / "run")
    assert str(metrist.compare(results, draws=100)) == before


def test_threads_get_the_columns_that_they_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrist.score(rows("a", 500), METRICS, out=tmp_path / "run")
    results = metrist.load(tmp_path / "run")
    expected = {label: np.array(results.scores[label].values) for label in METRICS}
    monkeypatch.setattr(stored_run, "KEPT_BYTES", 5000)  # One column and a part of another.
    wrong: list[str] = []

    def read(scores: Scores, label: str) -> None:
        for _ in range(20):
            if not np.array_equal(scores.values, expected[label]):
                wrong.append(label)

    threads = [threading.Thread(target=read, args=(results.scores[label], label)) for label in METRICS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("count", [2, 3, 7])
def test_sums_do_not_depend_on_the_number_of_threads(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(resampling, "_MAX_MATRIX", 0)
    monkeypatch.setattr(resampling, "_BLOCK", 16)
    sums = resampling.ExactSums.of(rng.normal(size=(2, 100, 3)) * [1, 1e-200, 1e300])
    weights = rng.integers(0, 3, size=(5, 100)).astype(np.uint8)
    alone = [resampling.sum_together(weights, [sums])[0]]
    monkeypatch.setattr(resampling, "thread_count", lambda: count)
    alone.append(resampling.sum_together(weights, [sums])[0])
    np.testing.assert_array_equal(*alone)

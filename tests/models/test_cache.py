"""What models computed, kept on disk: the same numbers, fewer computations, and no fault of the file stops a run."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from metrist.models.cache import CACHE_NAME, CachedEncoder, CachedLikelihoodModel, CacheFile
from metrist.models.protocols import LikelihoodModel, Likelihoods, States

PAIRS = [("a", "bb"), ("a", "ccc"), ("a", "bb"), ("\ud800", ""), ("dddd", "e")]


@dataclass
class Counting:
    """Says numbers that follow from the texts alone, and notes what it was asked. An empty target fails."""

    weights: str = "w1"
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def facts(self) -> Mapping[str, str]:
        return {"weights": self.weights, "dtype": "float32"}

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        self.requests += pairs
        stored = [target[:max_tokens] for _, target in pairs]
        starts = np.cumsum([0, *map(len, stored)])
        ids = [ord(letter) for target in stored for letter in target]
        conditions = [len(condition) for (condition, _), target in zip(pairs, stored, strict=True) for _ in target]
        return Likelihoods(
            logprobs=-np.array(conditions, np.float32) / np.float32(3),
            tokens=np.array(ids, np.int64),
            starts=starts,
            condition_cut=np.array([len(condition) for condition, _ in pairs], np.int64),
            target_cut=np.array([len(t) - len(k) for (_, t), k in zip(pairs, stored, strict=True)], np.int64),
            failures={n: "an empty target" for n, target in enumerate(stored) if not target},
        )

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        return [text[:max_tokens]]

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return list(target[:max_tokens])


@dataclass
class Encoding:
    """An encoder of the same kind: a letter's vector is its number, times the layer."""

    requests: list[str] = field(default_factory=list)
    facts: Mapping[str, str] = field(default_factory=lambda: {"weights": "w1"})
    layers: int = 6
    limit: int = 9
    word_start: str = " "

    def states(self, texts: Sequence[str], layer: int | None = None, long: str = "windows") -> States:
        self.requests += texts
        stored = [text[: self.limit] if long == "cut" else text for text in texts]
        ids = np.array([ord(letter) for text in stored for letter in text], np.int64)
        return States(
            vectors=np.outer(ids, [1.0, 0.1, self.layers if layer is None else layer]).astype(np.float32),
            tokens=ids,
            special=ids == ord("a"),
            starts=np.cumsum([0, *map(len, stored)]),
            cut=np.array([len(text) - len(k) for text, k in zip(texts, stored, strict=True)], np.int64),
        )

    def token_ids(self, texts: Sequence[str], long: str = "windows") -> list[list[int]]:
        assert long
        return [list(map(ord, text)) for text in texts]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return list(map(chr, tokens))


def same(result: object, expected: object) -> bool:
    """Whether two blocks hold the same arrays of the same types."""
    for name in expected.__dataclass_fields__:  # type: ignore[attr-defined]
        a, b = getattr(result, name), getattr(expected, name)
        if isinstance(b, np.ndarray):
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
        elif a != b:
            return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_what_was_computed_once_is_found_by_a_later_model_and_equals_it(folder: Path) -> None:
    plain, first, second = Counting(), Counting(), Counting()
    expected = plain.log_probs(PAIRS)
    assert same(CachedLikelihoodModel(first, folder).log_probs(PAIRS), expected)
    assert first.requests == list(dict.fromkeys(PAIRS))
    more = [*reversed(PAIRS), ("new", "f")]
    assert same(CachedLikelihoodModel(second, folder).log_probs(more), plain.log_probs(more))
    assert second.requests == [("\ud800", ""), ("new", "f")]
    assert (folder / CACHE_NAME).exists()


def test_other_weights_limits_or_texts_are_not_taken_for_the_same(folder: Path) -> None:
    def requests(model: Counting, pairs: list[tuple[str, str]], max_tokens: int | None) -> list[tuple[str, str]]:
        CachedLikelihoodModel(model, folder).log_probs(pairs, max_tokens)
        return model.requests

    assert requests(Counting(), [("a", "bc")], None)
    assert requests(Counting(weights="w2"), [("a", "bc")], None)
    assert requests(Counting(), [("a", "bc")], 1)
    assert requests(Counting(), [("ab", "c")], None)
    assert requests(Counting(), [("a", "bc")], 1) == []
    assert CacheFile(folder).contents().entries == 4


def test_the_rest_of_a_cached_model_is_that_of_the_model(tmp_path: Path) -> None:
    remembered: LikelihoodModel = CachedLikelihoodModel(Counting(), tmp_path)
    assert remembered.windows("text", 2) == ["te"]
    assert remembered.pieces("text", 3) == ["t", "e", "x"]
    assert remembered.weights == "w1"  # type: ignore[attr-defined]
    assert os.listdir(tmp_path) == []


def test_an_encoder_s_vectors_are_kept_by_layer_and_by_what_becomes_of_long_texts(folder: Path) -> None:
    texts = ["abc", "", "abcdefghijkl", "abc"]
    plain, first, second = Encoding(), Encoding(), Encoding()
    assert same(CachedEncoder(first, folder).states(texts), plain.states(texts))
    assert first.requests == texts[:3]
    again = CachedEncoder(second, folder)
    assert same(again.states([*texts, "z"], 6), plain.states([*texts, "z"]))
    assert second.requests == ["z"]
    assert same(again.states(texts, 2, "cut"), plain.states(texts, 2, "cut"))
    assert second.requests == ["z", *texts[:3]]
    assert (again.layers, again.limit, again.word_start, again.facts) == (6, 9, " ", {"weights": "w1"})
    assert (again.token_ids(["a"]), again.pieces([97])) == ([[97]], ["a"])
    assert CacheFile(folder).contents().entries == 7


def test_no_text_at_all_is_no_trouble(folder: Path) -> None:
    assert len(CachedLikelihoodModel(Counting(), folder).log_probs([])) == 0
    assert len(CachedEncoder(Encoding(), folder).states([])) == 0
    assert not folder.exists()


def test_a_cached_model_can_be_pickled(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(CachedLikelihoodModel(Counting(), tmp_path))).facts["weights"] == "w1"


def test_an_entry_with_a_changed_byte_is_computed_again(folder: Path) -> None:
    CachedLikelihoodModel(Counting(), folder).log_probs([("a", "bb"), ("a", "ccc")])
    raw = sqlite3.connect(folder / CACHE_NAME)
    raw.execute(
        "UPDATE entries SET value = zeroblob(40) WHERE length(value) = (SELECT max(length(value)) FROM entries)"
    )
    raw.commit()
    raw.close()
    model = Counting()
    assert same(CachedLikelihoodModel(model, folder).log_probs(PAIRS), Counting().log_probs(PAIRS))
    assert ("a", "ccc") in model.requests
    assert ("a", "bb") not in model.requests
    again = Counting()
    CachedLikelihoodModel(again, folder).log_probs([("a", "ccc")])
    assert again.requests == []


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(3):
        assert same(
            CachedLikelihoodModel(Counting(), tmp_path / "file" / "cache").log_probs(PAIRS), Counting().log_probs(PAIRS)
        )
    (message,) = caplog.messages
    assert "cannot be used" in message


def test_a_full_file_is_used_and_no_longer_filled(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = CacheFile(folder, 0.0002)
    for n in range(6):
        file.keep({bytes([n]) * 32: bytes(100_000)})
    assert len(file.find([bytes([n]) * 32 for n in range(6)])) == 2
    (message,) = caplog.messages
    assert "0.0002 GB" in message
    assert "METRIST_CACHE_GB" in message


def test_a_cleared_file_is_empty_and_small(folder: Path) -> None:
    file = CacheFile(folder)
    file.keep({bytes([n]) * 32: os.urandom(50_000) for n in range(40)})
    full = file.contents()
    assert full.entries == 40
    assert full.size > 2_000_000
    file.clear()
    assert file.contents().entries == 0
    assert file.contents().size < 100_000


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from metrist.models.cache import CacheFile
file = CacheFile(Path(sys.argv[1]))
for n in range(20):
    file.keep({bytes([n]) * 32: bytes(50_000)})
print("went on")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sets a limit on the size of files")
def test_a_full_disk_stops_the_storing_and_nothing_else(folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder)], capture_output=True, text=True, timeout=300, check=True
    )
    assert run.stdout == "went on\n"
    assert run.stderr.count("\n") == 1
    assert "cannot be used" in run.stderr
    later = CacheFile(folder)
    stored = later.find([bytes([n]) * 32 for n in range(20)])
    assert 0 < len(stored) < 20
    later.keep({b"k" * 32: b"v"})
    assert later.find([b"k" * 32]) == {b"k" * 32: b"v"}

"""Expected synonyms come from nltk's WordNet reader on the same folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from nltk_wordnet import nltk_reads

from error_codes import raises_code
from metrist.errors import InputError
from metrist.metrics.lexical.meteor import WordNet, hash_wordnet, open_wordnet
from metrist.metrics.lexical.tokenizers import tokenise
from real_records import sample


def expected(reader, word: str) -> set[str]:
    return {name for synset in reader.synsets(word) for name in synset.lemma_names() if "_" not in name}


WORDS = [
    *("car", "cars", "Car", "auto", "automobile", "men", "man", "ran", "runs", "running", "operated", "x"),
    *("bought", "buys", "big", "bigger", "biggest", "large", "galore", "quickly"),
]


@pytest.mark.parametrize("word", WORDS)
def test_synonyms_are_those_that_nltk_finds(small_wordnet, tmp_path, word):
    with nltk_reads(small_wordnet, tmp_path) as reader:
        assert open_wordnet(str(small_wordnet)).synonyms(word) == expected(reader, word)


def test_synonyms_of_real_words_are_those_that_nltk_finds(data, debian_wordnet, tmp_path):
    words = tokenise([record.output for record in sample(data("summeval"), 100)], "unicode").words
    synonyms = open_wordnet(str(debian_wordnet)).synonyms
    with nltk_reads(debian_wordnet, tmp_path) as reader:
        assert [word for word in words if synonyms(word) != expected(reader, word)] == []


def test_a_folder_without_wordnet_is_refused_with_the_remedy(tmp_path):
    with raises_code(InputError, "unreadable", "index.noun", "'wordnet'"):
        WordNet(tmp_path)
    with raises_code(InputError, "unreadable", "usr/share/wordnet"):
        hash_wordnet(str(tmp_path))


@pytest.fixture
def copied(small_wordnet: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_wordnet, tmp_path / "copied"))


@pytest.mark.parametrize(
    ("file", "content", "code", "values"),
    [
        ("index.verb", "run v many\n", "invalid_value", ["index.verb:1"]),
        # An offset that points nowhere.
        ("index.verb", "run v 1 0 1 0 00000003\n", "invalid_value", ["data.verb", "3"]),
        ("data.adv", "", "unreadable", ["data.adv"]),
    ],
)
def test_a_damaged_file_is_named(copied, file, content, code, values):
    (copied / file).write_text(content)
    with raises_code(InputError, code, *values):
        WordNet(copied).synonyms("run")


def test_the_fingerprint_follows_the_files(small_wordnet, copied):
    assert hash_wordnet(str(copied)) == hash_wordnet(str(small_wordnet))
    other = Path(shutil.copytree(copied, copied.parent / "other"))
    (other / "noun.exc").write_text("oxen ox\n")
    assert hash_wordnet(str(other)) != hash_wordnet(str(small_wordnet))

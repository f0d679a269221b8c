"""Document frequencies against bert-score's own count, and what is read from which kind of file."""

from __future__ import annotations

import gzip
import json
import lzma

import numpy as np
import pytest

from metrist.errors import InputError
from metrist.metrics.token_weights import count_documents, fingerprint, read_texts


class Letters:
    """Stands in for a tokenizer of transformers: letters as tokens."""

    model_max_length = 100

    def encode(self, text, **_):
        return list(map(ord, text))


def test_weights_are_those_of_bert_score(tmp_path):
    from bert_score.utils import get_idf_dict

    texts = ["the cat", "a dog", "the dog and the cat", "zebra"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    wanted = get_idf_dict(texts, Letters(), nthreads=0)
    found = count_documents(str(tmp_path / "texts.txt"), lambda some: [Letters().encode(text) for text in some])
    tokens = np.array([ord(letter) for letter in "the zebra said no!"])
    assert found.documents == 4
    assert found.idf(tokens) == pytest.approx([wanted[token] for token in tokens], abs=1e-12)


def test_plain_files_give_their_lines_without_the_blank_ones(tmp_path):
    (tmp_path / "a.txt").write_text("one \n\n  two\none\n", encoding="utf-8")
    assert read_texts(str(tmp_path / "a.txt")) == ["one", "two", "one"]


def rows(*made):
    return "\n".join(json.dumps(row) for row in made) + "\n"


def test_record_files_give_each_items_references_once_however_many_systems_there_are(tmp_path):
    path = tmp_path / "records.jsonl"
    shared = {"item": "1", "references": ["a", "b"]}
    path.write_text(rows({**shared, "system": "x"}, {**shared, "system": "y"}, {"item": "2", "references": ["a"]}))
    assert read_texts(str(path)) == ["a", "b", "a"]


def test_record_files_without_references_give_their_outputs(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(rows({"item": "1", "output": "a"}, {"item": "1", "output": "b"}))
    assert read_texts(str(path)) == ["a", "b"]


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open)])
def test_compressed_files_are_read(tmp_path, suffix, opener):
    path = tmp_path / f"records.jsonl{suffix}"
    with opener(path, "wt") as file:
        file.write(rows({"item": "1", "references": ["é"]}))
    assert read_texts(str(path)) == ["é"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", " \n", r"a\.txt has no texts; idf needs a file with one text a line, or a \.jsonl file of records"),
        ("a.jsonl", "{}\n", r"a\.jsonl has no texts"),
        ("a.jsonl", '{"item": 1}\n{', r"a\.jsonl:2: not a JSON object: "),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1: a record must be a JSON object, got list"),
        ("a.jsonl", '{"references": "x"}\n', r"a\.jsonl:1: 'references' must be a list of strings, got 'x'"),
        ("a.xz", "no xz", r"idf: cannot read the texts in .*a\.xz: "),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_their_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_texts(str(tmp_path / name))


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match=r"idf: cannot read the texts in nowhere\.txt: .*No such file"):
        read_texts("nowhere.txt")
    with pytest.raises(InputError, match=r"cannot read nowhere\.txt: No such file"):
        fingerprint("nowhere.txt")


def test_a_changed_file_has_another_fingerprint(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    before = fingerprint(str(path))
    path.write_text("one and more\n")
    assert fingerprint(str(path)) != before

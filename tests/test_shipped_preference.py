"""The shipped preference model: complete, small, prefers better texts, and agrees with people as its card claims.

`metrist reproduce --table shipped-preference` writes the card's table; its figures are recomputed here without
metrist.stats.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from importlib import resources, util
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrist.io import read_records
from metrist.metrics.base import Shard
from metrist.metrics.trained.preference import PreferenceMetric
from metrist.records import Record
from real_records import rows as read_rows

NAME = "preference-small"
ROOT = Path(__file__).parents[1]
JUDGED = ("summeval", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar")
OWN, OVERALL = "preference", "preference, overall"
Row = dict[str, str]
Values = dict[tuple[str, str], float]
Data = Callable[[str], Path]


pytestmark = pytest.mark.skipif(
    util.find_spec("metrist_models") is None, reason="metrist-models is not installed (pip install ./models)"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(str(resources.files("metrist_models"))) / NAME


@pytest.fixture(scope="module")
def card(folder: Path) -> str:
    return (folder / "card.md").read_text(encoding="utf-8")


def score_record(record: Record, **settings: Any) -> float:
    return float(PreferenceMetric(**settings).score(Shard([record])).values[0])


def test_the_card_names_every_training_set_with_its_licence(card: str) -> None:
    trained_on = (
        *("HEAP", "GRADE", "REALSumm", "QAGS", "Rank19", "BAGEL", "SFRES", "SFHOT", "SimpEval", "WMT19", "MLQE-PE"),
        *("bio-MQM", "BLANC", "CNN/DailyMail", "Schema-Guided Dialogue", "instructlab", "SmolLM2-135M-Instruct"),
    )
    for name in trained_on:
        assert re.search(rf"^\| {name}[^|]*\| *[^| ][^|]*\| *[^| ][^|]*\|$", card, re.MULTILINE), name


def test_the_cards_table_equals_that_of_the_docs(card: str) -> None:
    page = (ROOT / "docs" / "research" / "tables.md").read_text(encoding="utf-8")
    assert read_claims(page[page.index("`metrist reproduce --table shipped-preference`") :]) == read_claims(card)


SOURCE = "The town council voted on Monday to close the old bridge, because an engineer had found cracks in it."
GOOD = "The council will close the old bridge because cracks were found in it."


@pytest.mark.parametrize(
    ("criterion", "worse"),
    [
        ("fluency", "The council will will close old the bridge because because cracks were in found."),
        ("grammaticality", "The council will closes the old bridge because cracks was find in it."),
        ("relevance", "The football team won its third match in a row on Saturday evening."),
        ("overall", "bridge The because cracks will the council old close of."),
        ("coverage", "The council voted."),
    ],
)
def test_a_good_summary_is_preferred_to_one_that_fails_the_criterion(criterion: str, worse: str) -> None:
    record = Record(item="1", system="a", source=SOURCE, output=GOOD)
    assert score_record(record, criterion=criterion) > score_record(replace(record, output=worse), criterion=criterion)


@pytest.mark.parametrize("output", ["\u200b", "\ufeff\u2060", "\x07", "👍", "x" * 300])
def test_an_output_that_the_model_cannot_read_has_no_score(output: str) -> None:
    """Not a token, or none that its vocabulary knows: bert's words are at most 100 letters long."""
    records = [Record(item="1", system="a", output=output), Record(item="1", system="b", output="Fine.")]
    scores = PreferenceMetric().score(Shard(records))
    assert math.isnan(scores.values[0])
    assert math.isfinite(scores.values[1])
    assert scores.failures == {0: "the output has nothing that the model can read"}
    assert scores.values[1] == score_record(records[1])


def test_the_default_model_is_the_shipped_one_and_needs_no_torch() -> None:
    assert PreferenceMetric().model == f"metrist:{NAME}"
    code = "import sys, metrist; metrist.score([{'output': 'Fine.'}], ['preference']); print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "False"


def test_scores_equal_those_of_transformers(folder: Path) -> None:
    """The folder's own weights in transformers' BERT, the mean of the answer's vectors times the head."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    from metrist.models.numpy_inference.storage import read_arrays

    sizes = json.loads((folder / "config.json").read_text())
    facts = json.loads((folder / "reward.json").read_text())
    state = {name: torch.from_numpy(array) for name, array in read_arrays(folder / "weights.safetensors").items()}
    head = {name: state.pop(name) for name in list(state) if "head" in name}
    network = BertModel(BertConfig(**{**sizes, "intermediate_size": 4 * sizes["hidden_size"]}), add_pooling_layer=False)
    assert not network.load_state_dict(state, strict=False).unexpected_keys
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [facts["criteria"]["relevance"], SOURCE, GOOD]
    parts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    ids = [101, *parts[0], 102, *parts[1], 102, *parts[2], 102]
    with torch.no_grad():
        states = network.eval()(input_ids=torch.tensor([ids])).last_hidden_state[0]
    answer = states[-len(parts[2]) - 1 :].mean(0)
    weight, bias = (next(value for name, value in head.items() if name.endswith(end)) for end in ("weight", "bias"))
    expected = float(answer @ weight.reshape(-1) + bias.reshape(-1)[0])
    score = PreferenceMetric(criterion="relevance").score(
        Shard([Record(item="1", system="a", source=SOURCE, output=GOOD)])
    )
    assert score.parts["reward"][0] == pytest.approx(expected, abs=1e-4)


def read_claims(card: str) -> list[Row]:
    """The rows of the card's table of agreement."""
    lines = card.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| data | aspect |"))
    names, *rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in takewhile(lambda line: line.startswith("|"), lines[start:])
    ]
    return [dict(zip(names, row, strict=True)) for row in rows if not set(row[0]) <= set(":- ")]


def number(cell: str) -> float:
    """The value of a cell such as `0.312 [0.280, 0.344]`."""
    return float(cell.split(" ")[0].replace(",", ""))


def test_the_cards_table_has_every_judged_set_with_intervals(card: str) -> None:
    rows = read_claims(card)
    assert {row["data"].split(":")[0] for row in rows} == set(JUDGED)
    for row in rows:
        assert row["aspect"] == "mean of all" or re.fullmatch(r"-?\d\.\d{3} \[-?\d\.\d{3}, -?\d\.\d{3}\]", row[OWN])


@pytest.mark.torture
@pytest.mark.parametrize("name", JUDGED)
def test_agreement_is_what_the_card_says(card: str, data: Data, name: str) -> None:
    path = data(name)
    judged = read_rows(path)
    rows = [row for row in read_claims(card) if row["data"].split(":")[0] == name and row["aspect"] != "mean of all"]
    values = {c: score_outputs(path, c) for c in {"overall", *(row["criterion"] for row in rows)}}
    for row in rows:
        for column, criterion in ((OWN, row["criterion"]), (OVERALL, "overall")):
            if "system" in judged[0]:
                agreement = agreement_by_item(judged, values[criterion], row["aspect"])
            else:
                agreement = agreement_by_pair(_select_part(judged, row["data"]), values[criterion])
            assert agreement == pytest.approx(number(row[column]), abs=1e-3), (row["data"], row["aspect"], column)


def score_outputs(path: Path, criterion: str) -> Values:
    records = list(read_records(path))
    values = PreferenceMetric(model=f"metrist:{NAME}", criterion=criterion).score(Shard(records)).values
    return {(record.item, record.system): float(value) for record, value in zip(records, values, strict=True)}


def agreement_by_item(judged: list[dict[str, Any]], values: Values, aspect: str) -> float:
    """Summary-level Spearman by scipy: per item over the systems, averaged, constant ratings or scores left out."""
    from scipy.stats import spearmanr

    items: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in judged:
        items[row["item"]].append((float(np.mean(row["ratings"][aspect])), values[row["item"], row["system"]]))
    pairs = [tuple(zip(*group, strict=True)) for group in items.values()]
    able = [(human, metric) for human, metric in pairs if len(set(human)) > 1 and len(set(metric)) > 1]
    return float(np.mean([spearmanr(human, metric).statistic for human, metric in able]))


def agreement_by_pair(judged: list[dict[str, Any]], values: Values) -> float:
    """The share of pairs where the answer that most people chose has the higher score; their ties are left out, and so
    is a pair with an answer that has no score."""
    right = []
    for row in judged:
        (winner, count), *others = Counter(row["ratings"]["preference"]).most_common()
        first, second = (values[row["item"], system] for system in row["systems"])
        if winner == 0 or (others and others[0][1] == count) or math.isnan(first + second):
            continue
        right.append(first > second if winner == 1 else second > first)
    return float(np.mean(right))


def _select_part(judged: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """The rows of a part such as `llmbar: Adversarial/Manual`, or of a family of parts."""
    part = label.partition(": ")[2]
    return [row for row in judged if not part or f"{row['task']}/".startswith(f"instruction/{part}/")]

"""Files of metric cards: what is read, what is refused, and the schema that is published."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError, MetristError
from metrist.metrics.card_format import Card, card_schema, parse_cards, read_tables
from metrist.metrics.cards import read_cards

CARD: dict[str, Any] = {
    "measures": "What it\nmeasures.",
    "needs": ["source"],
    "better": "higher",
    "bounds": [-math.inf, 1],
    "distrust": "Always.",
    "licence": "MIT",
}


def parse(**tables: Any) -> dict[str, Card | MetristError]:
    return dict(parse_cards(tables, "card.toml"))


def test_a_card_is_read_with_its_lines_joined() -> None:
    card = parse(mine=CARD)["mine"]
    assert isinstance(card, Card)
    assert (card.measures, card.needs, card.bounds) == ("What it measures.", ("source",), (-math.inf, 1.0))


def test_what_a_terminal_would_obey_is_escaped() -> None:
    card = parse(mine={**CARD, "reading": "a \x1b[31mred é"})["mine"]
    assert isinstance(card, Card)
    assert card.reading == "a \\x1b[31mred é"


def test_cards_share_and_inherit() -> None:
    settings = {"a": "first", "b": "second"}
    cards = parse(
        base={**CARD, "names": ["one", "two"], "settings": settings, "agreement": [AGREEMENT]},
        more={"like": "base", "licence": "CC0", "settings": {"b": "other"}},
    )
    assert list(cards) == ["one", "two", "more"]
    assert cards["one"] == cards["two"]
    more = cards["more"]
    assert isinstance(more, Card)
    assert (more.licence, more.better) == ("CC0", "higher")
    assert more.settings == {"a": "first", "b": "other"}
    assert more.agreement == ()  # Another metric's figures.


AGREEMENT = {"data": "SummEval", "task": "summarization", "measure": "spearman", "n": 1600, "value": 0.3}
WRONG: list[tuple[Any, str]] = [
    (3, "table"),
    ({name: value for name, value in CARD.items() if name != "licence"}, "licence"),
    ({**CARD, "measures": 3}, "measures"),
    ({**CARD, "measures": ""}, "measures"),
    ({**CARD, "needs": "source"}, "needs"),
    ({**CARD, "needs": ["sauce"]}, "sauce"),
    ({**CARD, "better": True}, "better"),
    ({**CARD, "bounds": [0]}, "bounds"),
    ({**CARD, "bounds": ["0", "1"]}, "bounds"),
    ({**CARD, "settings": ["a"]}, "settings"),
    ({**CARD, "measure": "x"}, "measure"),
    ({**CARD, "names": [1]}, "names"),
    ({**CARD, "agreement": [{**AGREEMENT, "n": 0}]}, "agreement[0].n"),
    ({**CARD, "agreement": [{**AGREEMENT, "low": "x"}]}, "agreement[0].low"),
    ({**CARD, "agreement": [{"data": "x"}]}, "agreement[0]"),
    ({**CARD, "training_data": [{"name": "x"}]}, "licence"),
    ({"like": "nobody"}, "nobody"),
    ({"like": ["x"]}, "like"),
    ({"like": "mine"}, "mine"),
]


@pytest.mark.parametrize(("table", "named"), WRONG)
def test_a_wrong_card_is_named_and_the_others_are_read(table: Any, named: str) -> None:
    cards = parse(mine=table, good=CARD)
    error = cards["mine"]
    assert isinstance(error, MetristError)
    assert (error.code, named in str(error)) == ("invalid_value", True)
    assert isinstance(cards["good"], Card)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "missing_value"),
        (b"[chrf", "unreadable"),
        (b"\xff\xfe", "unreadable"),
        (b"a = " + b"[" * 100_000, "unreadable"),
        (b"# " + b"x" * 1_000_000, "too_large"),
    ],
)
def test_a_file_that_is_no_card_is_refused(tmp_path: Path, content: bytes, code: Any) -> None:
    path = tmp_path / "card.toml"
    path.write_bytes(content)
    with raises_code(InputError, code, path):
        read_tables(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with raises_code(InputError, "missing_file"):
        read_tables(tmp_path / "card.toml")


def test_citations_are_those_of_the_bibliography(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("\n".join(["[mine]", *(f"{key} = {json.dumps(value)}" for key, value in CARD.items())]))
    path.write_text(path.read_text().replace("-Infinity", "-inf") + '\ncite = ["lin-2004-rouge"]\n')
    assert isinstance(read_cards(path)["mine"], Card)
    path.write_text(path.read_text() + 'cite_with = { a = ["nobody-1999"] }\n')
    error = read_cards(path)["mine"]
    assert isinstance(error, MetristError)
    assert error.code == "unknown_name"


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether a value fits a JSON schema, by the keywords that this one uses (JSON Schema 2020-12)."""
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema and not any(accepts(option, value, root) for option in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds: dict[str, Any] = {
        "string": str,
        "object": dict,
        "array": list,
        "integer": int,
        "null": type(None),
        "number": (int, float),
    }
    if "type" in schema and (not isinstance(value, kinds[schema["type"]]) or isinstance(value, bool)):
        return False
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0)
    if isinstance(value, list):
        within = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf)
        items = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return within and all(accepts(item, inner, root) for item, inner in zip(items, value, strict=False))
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        known = all(
            accepts(properties[name], inner, root)
            if name in properties
            else others is not False and accepts(others, inner, root)
            for name, inner in value.items()
        )
        return (
            known and set(schema.get("required", ())) <= value.keys() and len(value) >= schema.get("minProperties", 0)
        )
    return not isinstance(value, (int, float)) or value >= schema.get("minimum", -math.inf)


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not() -> None:
    schema = card_schema()
    assert accepts(schema, {"mine": CARD, "more": {"like": "mine"}}, schema)
    assert not accepts(schema, {}, schema)
    # That `like` names another card is beyond a schema.
    for table, named in WRONG:
        assert accepts(schema, {"mine": table}, schema) == (named in ("nobody", "mine"))


def test_the_cards_that_ship_fit_the_schema() -> None:
    folder = Path(__file__).parents[2] / "src" / "metrist" / "metrics" / "cards"
    schema = card_schema()
    paths = [path for path in folder.glob("*.toml") if path.name != "settings.toml"]
    assert len(paths) > 20
    for path in paths:
        assert accepts(schema, read_tables(path), schema), path.name

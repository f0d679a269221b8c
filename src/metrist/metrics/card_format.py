"""The format of metric cards: a TOML file with a table per metric, `card.toml` in the folder of a package.

`names` lists the metrics that share a card (by default the name of the table), `like` names a card of the file from
which missing entries are taken. `title` is the metric's name in papers, with settings in braces; `titles` are those of
single metrics of the card. `cite` lists keys of `citations.bib`, `cite_with` those to cite only where a setting is not
its default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from metrist.errors import InputError, MetristError, SpecError, escape_controls
from metrist.records import Need

CARD_FILE = "card.toml"
#: Bytes of a file of cards. The largest that ships has 15 kB.
_LARGEST = 1_000_000
#: What says something about one metric alone.
_NOT_INHERITED = ("names", "agreement", "training_data")

Text = Annotated[str, Meta(min_length=1)]
Better = Literal["higher", "lower", "neither"]


class Advice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which settings to use for which aspects, and why."""

    aspects: Text
    use: Text
    why: Text


class TrainingData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A data set that the metric learned from."""

    name: Text
    licence: Annotated[Text, Meta(description="A name such as 'CC BY 4.0', or 'none stated'.")]
    use: Annotated[str, Meta(description="What was learned from it.")] = ""


class Agreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the metric agreed with people on a data set that it was not trained on."""

    data: Annotated[Text, Meta(description="The name of the data set.")]
    task: Annotated[Text, Meta(description="The task of its outputs, such as summarization.")]
    measure: Annotated[Text, Meta(description="What the figure is: 'spearman, by item', 'accuracy', …")]
    n: Annotated[Annotated[int, Meta(ge=1)], Meta(description="The number of outputs or pairs.")]
    value: float
    low: Annotated[float | None, Meta(description="The lower limit of the 95 % interval.")] = None
    high: Annotated[float | None, Meta(description="The upper limit of the 95 % interval.")] = None
    aspect: Annotated[str, Meta(description="The aspect that people rated.")] = ""
    baselines: Annotated[dict[str, float], Meta(description="Figures of baselines, such as length.")] = {}
    given_length: Annotated[float | None, Meta(description="The figure given the output's length.")] = None
    source: Annotated[str, Meta(description="Where the figure comes from.")] = ""


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a metric. `needs`, `better` and `bounds` are those with its default settings."""

    measures: Annotated[Text, Meta(description="What the number measures.")]
    needs: Annotated[tuple[Need, ...], Meta(description="The fields of a record that it requires beside the output.")]
    better: Annotated[Better, Meta(description="Which values are better; neither: it only describes.")]
    bounds: Annotated[tuple[float, float], Meta(description="The lowest and highest value; -inf and inf: none.")]
    distrust: Annotated[Text, Meta(description="Known failures: when not to trust it.")]
    licence: Annotated[Text, Meta(description="The licences of the code and of the weights.")]
    good_for: Annotated[str, Meta(description="What it is good for, with a figure.")] = ""
    beaten_by: Annotated[str, Meta(description="Where a simple baseline is better, with a figure.")] = ""
    instead: Annotated[str, Meta(description="What to use there instead.")] = ""
    range: Annotated[str, Meta(description="What values mean, and which are typical.")] = ""
    reading: Annotated[str, Meta(description="How to read a value.")] = ""
    citation: Annotated[str, Meta(description="Whom to cite, in words.")] = ""
    title: Annotated[str, Meta(description="The name in papers, with settings in braces.")] = ""
    titles: Annotated[dict[str, str], Meta(description="The names in papers of single metrics of the card.")] = {}
    cite: Annotated[tuple[str, ...], Meta(description="Keys of the bibliography that ships with metrist.")] = ()
    cite_with: Annotated[
        dict[str, tuple[str, ...]], Meta(description="Keys to cite where a setting is not its default.")
    ] = {}
    settings: Annotated[dict[str, str], Meta(description="What each setting of the metric does.")] = {}
    guidance: tuple[Advice, ...] = ()
    training_data: tuple[TrainingData, ...] = ()
    agreement: tuple[Agreement, ...] = ()
    names: Annotated[tuple[Text, ...], Meta(description="The metrics of the card; by default its table.")] = ()
    like: Annotated[str, Meta(description="A card of this file, from which missing entries are taken.")] = ""


def read_tables(path: Path) -> dict[str, Any]:
    """Read a file of cards as it is."""
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise InputError(f"{path}: {size:,} bytes; a file of cards has at most {_LARGEST:,}", code="too_large")
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", code="missing_file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # Not TOML, not UTF-8, or nested without end.
        raise InputError(f"{path} is not a TOML file: {error}") from error
    if not tables:
        raise InputError(f"{path} has no card: expected a table per metric, such as [chrf]", code="missing_value")
    return tables


def parse_cards(
    tables: Mapping[str, Any], place: object, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Card | MetristError]]:
    """Parse the tables of a file, each with the names of its metrics; a table that is no card gives the error.
    `settings` describe those that several metrics share."""
    for key in tables:
        try:
            card = _parse_card(tables, key, settings or {})
        except (msgspec.ValidationError, SpecError) as error:
            yield key, SpecError(f"{place}: [{key}]: {str(error).replace('`$', '`').replace('`.', '`')}")
            continue
        for name in card.names or (key,):
            yield name, card


def _parse_card(tables: Mapping[str, Any], key: str, settings: Mapping[str, str]) -> Card:
    table = tables[key]
    if not isinstance(table, dict):
        raise SpecError(f"expected a table, got {type(table).__name__}")
    parent: Any = {}
    if "like" in table:
        parent = tables.get(table["like"]) if isinstance(table["like"], str) else None
        if not isinstance(parent, dict) or "like" in parent:
            raise SpecError(f"like={table['like']!r} must name another card of the file, one without like")
    inherited = {name: value for name, value in parent.items() if name not in _NOT_INHERITED}
    merged = _join_lines({**inherited, **table})
    if all(isinstance(each.get("settings", {}), dict) for each in (parent, table)):
        own = _join_lines({**parent.get("settings", {}), **table.get("settings", {})})
        merged["settings"] = {**{name: _join_lines(text) for name, text in settings.items()}, **own}
    return msgspec.convert(merged, Card)


def _join_lines(value: Any) -> Any:
    """Texts without the line breaks of the file and without what a terminal would obey, at any depth."""
    if isinstance(value, str):
        return escape_controls(" ".join(value.split()))
    if isinstance(value, dict):
        return {name: _join_lines(inner) for name, inner in value.items()}
    return [_join_lines(inner) for inner in value] if isinstance(value, list) else value


def card_schema() -> dict[str, Any]:
    """The JSON schema of a file of cards."""
    card, definitions = msgspec.json.schema_components([Card], ref_template="#/$defs/{name}")
    own = definitions["Card"]
    required = own.pop("required")
    # What a card lacks may come from the one that it is like.
    own["anyOf"] = [{"required": ["like"]}, {"required": required}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A file of metric cards, card.toml",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": card[0],
        "$defs": definitions,
    }

"""Settings of splits and of training examples for error analysts. Importing them is cheap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from metrist.settings import setting, split_commas

#: Two texts are near-duplicates if they share at least half of all their grams (Jaccard). One changed word in the
#: middle of a text of 20 words leaves 0.52, in one of 50 words 0.80.
NEAR = 0.5
#: A text lies inside a longer one that has at least this share of its grams: a few words may be changed or missing.
INSIDE = 0.8


@dataclass(frozen=True, kw_only=True)
class OverlapSettings:
    """When two texts count as shared."""

    near: float = setting(NEAR, "Share of word 5-grams that makes two texts near-duplicates; 1: equal texts only.")
    inside: float = setting(
        INSIDE, "Share of a text's word 5-grams that a longer text must have to contain it; 0: do not check this."
    )


#: Which texts are good enough to put faults into.
Good = Literal["references", "outputs", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSettings:
    """Which examples are made, and how many."""

    real: int | None = setting(None, "Outputs of each task to analyse.", metavar="N", min=0, shown="all")
    inject: bool = setting(False, "Let the LLM put the synthetic errors in, instead of known faults.")
    synthetic: int | None = setting(
        None, "Examples with faults put into good texts.", metavar="N", min=0, shown="one per text"
    )
    freeform: int | None = setting(
        None,
        "Examples with aspects that are not in the task's table.",
        metavar="N",
        min=0,
        shown="one per text; none with --llm",
    )
    most_faults: int = setting(3, "Faults of a text, at most.", "--faults", metavar="N", min=1)
    kinds: tuple[str, ...] | None = setting(
        None, "A kind of fault; repeatable.", "--fault", metavar="KIND", shown="all", parse=split_commas
    )
    good: Good | None = setting(
        None,
        "Texts to put faults into: references, outputs without marked errors, or both.",
        shown="references, and outputs of items without one",
    )
    aspects: Mapping[str, str] = setting(
        {},
        "The aspect of a category of marked errors, such as unspecified=Accuracy; repeatable.",
        "--category",
        metavar="NAME=ASPECT",
    )
    clean: Mapping[str, float] = setting(
        {},
        "Outputs without marked errors have none if this rating is at least VALUE, such as grammatical=1.",
        metavar="RATING=VALUE",
    )
    max_tokens: int = setting(1024, "Length limit of an example, in tokens.", metavar="N", min=1)
    tokenizer: str | None = setting(
        None, "Count tokens as this model's tokenizer does.", metavar="MODEL", shown="about four bytes each"
    )
    size: int | None = setting(None, "Examples in all, in the proportions of the mix.", metavar="N", min=1)
    seed: int = setting(0, "Seed of all choices.", min=0)

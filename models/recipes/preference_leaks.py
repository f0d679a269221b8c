"""How much of what judges the preference model stands in what it learned from.

    python preference_leaks.py PAIRS [SPLIT ...]      PAIRS: a file of pairs; by default its train and dev pairs

For each judged set, its distinct sources and its distinct outputs: how many have a run of eight words that also stands
in a text of the pairs, how many more than 5 % and more than half of their runs. A text of five to seven words is one
run, one of fewer is not counted. OpenMEVA's [MALE] and [FEMALE] stand for names: they part a text in two. Prints a
table for the model's card; the text with the most in common is named on standard error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agreement import DATA, rows

from metrist.data.pairs import GoodBad, read_good_bad
from metrist.data.text_overlap import normalise_text

JUDGED = ("summeval", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar")
LEARNED = ("train", "dev")
#: Words of a run, and of the shortest text that is one.
RUN, SHORTEST = 8, 5
_NAMES = re.compile(r"\[[A-Z]+\]")
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Texts of a judged set that have runs of words in common with the pairs. `most` is the largest share of a text's
    runs, and `where` the beginning of that text."""

    data: str
    what: str
    texts: int
    touched: int
    over_a_twentieth: int
    over_half: int
    most: float
    where: str


def runs(text: str) -> set[Words]:
    """A text's runs of words, without case and punctuation."""
    parts = [tuple(normalise_text(part).split()) for part in _NAMES.split(text)]
    return {run for words in parts if len(words) >= SHORTEST for run in _of(words, min(RUN, len(words)))}


def _of(words: Words, length: int) -> Iterator[Words]:
    return (words[at : at + length] for at in range(len(words) - length + 1))


def learned(pairs: Iterable[GoodBad], wanted: set[Words]) -> set[Words]:
    """Which of the runs stand in a text of the pairs. Instructions do not count: they are metrist's own."""
    texts = {text for pair in pairs for side in (pair.good, pair.bad) for _, text in side}
    found: set[Words] = set()
    for text in texts:
        words = tuple(normalise_text(text).split())
        for length in range(SHORTEST, RUN + 1):
            found.update(run for run in _of(words, length) if run in wanted)
    return found


def leak(data: str, what: str, own: Mapping[str, set[Words]], known: set[Words]) -> Leak:
    """The texts with their runs, beside the runs that the pairs have."""
    shares = {text: len(found & known) / len(found) for text, found in own.items()}
    where = max(shares, key=shares.__getitem__)
    return Leak(
        data=data,
        what=what,
        texts=len(shares),
        touched=sum(share > 0 for share in shares.values()),
        over_a_twentieth=sum(share > 0.05 for share in shares.values()),
        over_half=sum(share > 0.5 for share in shares.values()),
        most=shares[where],
        where=" ".join(where.split()[:12]),
    )


def leaks(pairs: Iterable[GoodBad], sets: Sequence[str] = JUDGED) -> list[Leak]:
    """The sources and outputs of each judged set."""
    judged = {(name, what): texts for name in sets for what, texts in _texts(name)}
    known = learned(pairs, {run for texts in judged.values() for own in texts.values() for run in own})
    return [leak(name, what, texts, known) for (name, what), texts in judged.items()]


def _texts(name: str) -> Iterator[tuple[str, dict[str, set[Words]]]]:
    data = rows(name)
    yield "sources", _countable(row.get("source") for row in data)
    yield "outputs", _countable(output for row in data for output in row.get("outputs", [row.get("output")]))


def _countable(texts: Iterable[object]) -> dict[str, set[Words]]:
    """The distinct texts that are long enough, with their runs. Some answers of PandaLM are no texts."""
    return {text: own for text in dict.fromkeys(texts) if isinstance(text, str) and (own := runs(text))}


def as_markdown(found: Iterable[Leak]) -> str:
    """A table for the card."""
    lines = ["| set | texts | n | any run of 8 words | over 5 % of runs | over half |", "|---|---|---|---|---|---|"]
    for one in found:
        counts = (one.touched, one.over_a_twentieth, one.over_half)
        cells = " | ".join(f"{count:,} ({count / one.texts:.1%})" for count in counts)
        lines.append(f"| {one.data} | {one.what} | {one.texts:,} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("wanted the file of pairs: python preference_leaks.py PAIRS [SPLIT ...]")
    path, *splits = sys.argv[1:]
    wanted = splits or LEARNED
    pairs = [pair for pair in read_good_bad(path) if pair.split in wanted]
    if not pairs:
        sys.exit(f"{path}: no pair is of the split {' or '.join(wanted)}")
    print(f"{len(pairs):,} pairs of {' and '.join(wanted)}, judged sets of {DATA}", file=sys.stderr)
    found = leaks(pairs)
    for one in found:
        if one.most:
            print(f"{one.data} {one.what}: most {one.most:.0%} of a text's runs: {one.where!r} …", file=sys.stderr)
    print(as_markdown(found))


if __name__ == "__main__":
    main()

"""Measure how much of the judged sets occurs in the training data of a preference model.

    python preference_leaks.py PAIRS [SPLIT ...]      PAIRS: a file of pairs; by default its train and dev pairs

preference-small learned from QAGS and Rank19, as its card says, so its pairs contain them: its card's table has the
other sets. No other training data may contain any of them.

For the distinct sources and outputs of each test set, counts those that share a run of eight words with a text of the
pairs, those that share more than 5 % of their runs, and more than half. A text of five to seven words is one run;
shorter ones are not counted. OpenMEVA's [MALE] and [FEMALE] replace names: they split a text in two. Prints a table for
the model's card, and the text with the largest overlap to standard error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agreement import DATA, rows

from metrist.data.pairs import GoodBad, read_good_bad
from metrist.data.text_overlap import normalise_text

#: The sets that training data must not contain.
JUDGED = (
    "summeval", "qags-cnn", "qags-xsum", "rank19", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar",
)  # fmt: skip
#: Those that preference-small learned from, and is not judged on.
LEARNED_BY_SMALL = ("qags-cnn", "qags-xsum", "rank19")
LEARNED = ("train", "dev")
#: The words of a run, and of the shortest text that counts as one.
RUN, SHORTEST = 8, 5
_NAMES = re.compile(r"\[[A-Z]+\]")
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The overlap of a test set's texts with the pairs. `most` is the largest share of a text's runs, and `where` the
    beginning of that text."""

    data: str
    what: str
    texts: int
    touched: int
    over_a_twentieth: int
    over_half: int
    most: float
    where: str


def runs(text: str) -> set[Words]:
    """Return a text's runs of words, without case and punctuation."""
    parts = [tuple(normalise_text(part).split()) for part in _NAMES.split(text)]
    return {run for words in parts if len(words) >= SHORTEST for run in _ngrams(words, min(RUN, len(words)))}


def _ngrams(words: Words, length: int) -> Iterator[Words]:
    return (words[at : at + length] for at in range(len(words) - length + 1))


def find_learned_runs(pairs: Iterable[GoodBad], requested: set[Words]) -> set[Words]:
    """Return the runs that occur in a text of the pairs. Instructions do not count: they are metrist's own."""
    texts = {text for pair in pairs for side in (pair.good, pair.bad) for _, text in side}
    result: set[Words] = set()
    for text in texts:
        words = tuple(normalise_text(text).split())
        for length in range(SHORTEST, RUN + 1):
            result.update(run for run in _ngrams(words, length) if run in requested)
    return result


def measure_leak(data: str, what: str, own_runs: Mapping[str, set[Words]], known: set[Words]) -> Leak:
    """Compare the runs of texts with those of the pairs."""
    shares = {text: len(result & known) / len(result) for text, result in own_runs.items()}
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
    """Measure the sources and outputs of each test set."""
    judged = {(name, what): texts for name in sets for what, texts in _texts(name)}
    known = find_learned_runs(
        pairs, {run for texts in judged.values() for own_runs in texts.values() for run in own_runs}
    )
    return [measure_leak(name, what, texts, known) for (name, what), texts in judged.items()]


def _texts(name: str) -> Iterator[tuple[str, dict[str, set[Words]]]]:
    data = rows(name)
    yield "sources", _countable(row.get("source") for row in data)
    yield "outputs", _countable(output for row in data for output in row.get("outputs", [row.get("output")]))


def _countable(texts: Iterable[object]) -> dict[str, set[Words]]:
    """Return the distinct texts that are long enough, with their runs. Some answers of PandaLM are not texts."""
    return {text: own_runs for text in dict.fromkeys(texts) if isinstance(text, str) and (own_runs := runs(text))}


def as_markdown(result: Iterable[Leak]) -> str:
    """Format a table for the card."""
    lines = ["| set | texts | n | any run of 8 words | over 5 % of runs | over half |", "|---|---|---|---|---|---|"]
    for row in result:
        counts = (row.touched, row.over_a_twentieth, row.over_half)
        cells = " | ".join(f"{count:,} ({count / row.texts:.1%})" for count in counts)
        lines.append(f"| {row.data} | {row.what} | {row.texts:,} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python preference_leaks.py PAIRS [SPLIT ...]")
    path, *splits = sys.argv[1:]
    requested = splits or LEARNED
    pairs = [pair for pair in read_good_bad(path) if pair.split in requested]
    if not pairs:
        sys.exit(f"{path}: no pair is of the split {' or '.join(requested)}")
    print(f"{len(pairs):,} pairs of {' and '.join(requested)}, judged sets of {DATA}", file=sys.stderr)
    result = leaks(pairs)
    for row in result:
        if row.most:
            print(f"{row.data} {row.what}: most {row.most:.0%} of a text's runs: {row.where!r} …", file=sys.stderr)
    print(as_markdown(result))


if __name__ == "__main__":
    main()

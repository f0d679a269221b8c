"""Build the rows of the support head: is a sentence supported by a passage, and which of its words are not?

    python english_support.py OUT.jsonl.xz [--articles N]      N of the news and as much of the rest, for a trial

A row has a passage and sentences of one output that are read together: text, the probability that the passage supports
it, weight, the characters that it does not support (null if nobody marked them), and those about which nothing is
known. The sentences come from people (support and span sets whose licence allows it) and from news: sentences and
highlights of articles, whole or changed, right or with a fault (`metrist.data.faults.support`). The shipped models
also had sentences that a language model wrote about the articles, with a teacher's logits.

A passage and the sentences beside it have at most `_WORDS` words, so that an encoder of 512 tokens reads both whole.
One source in twelve is held out for dev. Sources and sentences that share runs of words with a judged or reserved set
are left out.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packaged_texts import news
from sets import JUDGED, RESERVED, JudgedTexts, draw, read_arguments, read_rows, write_lines

from metrist.data.faults.news import (
    Article,
    Corpus,
    Statement,
    content_words,
    covers,
    drop_variants,
    find_facts,
    find_names,
    find_words,
    is_missing,
    is_statement,
    list_facts,
    related,
    vary,
)
from metrist.data.faults.support import break_sentence, is_marked, quote, resolve_pronouns
from metrist.data.faults.text import find_changes
from metrist.data.perturbations import perturb
from metrist.records import Record
from metrist.sentences import split_sentences

#: Sets of whole outputs with one label each, and of outputs with error spans.
LABELLED_SETS = (
    *("begin", "faithdial-audit", "q2-wow", "dialfact-small", "esnli", "fever-symmetric", "infotabs", "rte"),
    *("climate-fever", "factcheck-gpt-stance", "healthver", "wice-claims", "wice-tokens"),
)
SPAN_SETS = ("bump", "summedits", "qa-feedback")
#: The weight of a sentence of each set; 1 where none is named.
WEIGHTS = {
    "infotabs": 0.4, "climate-fever": 0.5, "healthver": 0.5, "bump": 2.0, "summedits": 1.5, "rte": 1.5,
    "wice-claims": 1.5, "wice-tokens": 1.5, "qa-feedback": 1.5,
}  # fmt: skip
#: A sentence with this label has nothing that is unsupported.
_SUPPORTED = 0.9
_FACTUAL = ("Wrong-Grounding", "Unverifiable")
#: Words of a passage and its sentences: about 500 tokens of BERT's vocabulary.
_WORDS = 365
_MOST_SENTENCE_WORDS = 180
_MOST_TOGETHER = 12
_MOST_ROWS = 110_000
_ARTICLE_WORDS = range(80, 1401)
#: A word that occurs more often than this without a capital is no name.
_ORDINARY = 40
#: Sentences of an article that are held against the text around them.
_REMOVED = 2


Spans = tuple[tuple[int, int], ...]


class Example(NamedTuple):
    """A sentence about a source, of a data set, with the characters that the source does not support, if people marked
    them, and those about which nothing is known."""

    name: str
    source: str
    sentence: str
    label: float
    errors: Spans | None = ()
    unsure: Spans = ()

    def strip(self) -> Example:
        text = self.sentence.strip()
        start = self.sentence.find(text)
        errors = None if self.errors is None else _clip(self.errors, start, start + len(text))
        return self._replace(sentence=text, errors=errors, unsure=_clip(self.unsure, start, start + len(text)))


def _clip(spans: Iterable[tuple[int, int]], start: int, end: int) -> Spans:
    """Return the parts of spans within some characters, counted from the first of them."""
    return tuple(
        (max(first, start) - start, min(last, end) - start) for first, last in spans if first < end and last > start
    )


def is_dev(source: str) -> bool:
    """Decide by a hash of the beginning, so that all rows of a source stay on one side. The shipped models were trained
    with this hash: with another one, rows of dev are rows that they learned from."""
    return int(hashlib.md5(source[:400].encode(), usedforsecurity=False).hexdigest()[:10], 16) % 12 == 0


# ---- Sentences that people labelled


def read_human_sets() -> Iterator[Example]:
    for name in LABELLED_SETS:
        for row in read_rows(name):
            labels = row["ratings"].get("consistent")
            if labels and row.get("source"):
                label = min(labels) if name == "wice-tokens" else sum(labels) / len(labels)
                spans = _read_places(row.get("errors", ()))
                yield Example(name, row["source"], row["output"], label, spans or (() if label >= _SUPPORTED else None))
    for row in read_rows("alexa-factual-dialogs"):
        if row.get("verifiable") == "y" and row.get("source"):
            right = row["ratings"]["hallucination"][0] <= 0
            yield Example("alexa", row["source"], row["output"], float(right), () if right else None)
    for name in SPAN_SETS:
        for row in read_rows(name):
            yield from _read_spans(name, row)


def _read_places(errors: Iterable[dict[str, Any]]) -> Spans:
    return tuple((error["start"], error["end"]) for error in errors if error.get("start") is not None)


def _read_spans(name: str, row: dict[str, Any]) -> Iterator[Example]:
    """Yield the sentences of an output: those that an error touches are unsupported."""
    source, output = row["source"], row["output"]
    errors = [error for error in row.get("errors", ()) if name != "qa-feedback" or error["category"] in _FACTUAL]
    unsure = _read_places(error for error in row.get("errors", ()) if error not in errors)
    spans = _read_places(errors)
    consistent = (row["ratings"].get("consistent") or [1])[0]
    sentences = split_sentences(output)
    exact = name != "summedits" or all(error.get("sure") for error in errors)
    if name == "summedits":
        if consistent:
            spans = ()
        elif len(sentences) == 1 and not exact:
            spans = ((0, len(output)),)
        elif not spans or len(spans) > 2:
            return  # The spans are differences to another summary: many of them may be a rewording.
    if name == "bump" and not consistent and not spans:
        return
    for start, end in sentences:
        own = _clip(spans, start, end)
        yield Example(
            name, source, output[start:end], 0.0 if own else 1.0,
            own if exact or not own else None, _clip(unsure, start, end),
        )  # fmt: skip


#: Sets whose supported sentences get faults of the package's kinds, and those kinds.
_MADE_SETS = frozenset(
    ("bump", "summedits", "qa-feedback", "wice-claims", "begin", "faithdial-audit", "q2-wow", "rte", "fever-symmetric")
)
_MADE_KINDS = (
    "entity", "entity", "number", "number", "date", "unit", "negation", "role_swap", "addition", "contradiction",
)  # fmt: skip


def make_faults(examples: Sequence[Example], rng: random.Random) -> Iterator[Example]:
    """Yield supported sentences of people with a fault, of the kinds of `metrist.data.perturbations`."""
    right = [example for example in examples if example.name in _MADE_SETS and example.label >= _SUPPORTED]
    for number, example in enumerate(right):
        donor = rng.choice(right)
        record, other = (
            Record(item=item, system="", output=one.sentence, source=one.source, language="en")
            for item, one in ((str(number), example), ("donor", donor))
        )
        for kind in dict.fromkeys(rng.choices(_MADE_KINDS, k=4)):
            made = perturb(record, [kind], seed=number, donor=other)
            if made is not None:
                text = made.record.output
                yield Example(f"made {kind}", example.source, text, 0.0, find_changes(example.sentence, text))
                break


# ---- News


def read_articles(judged: JudgedTexts, most: int | None) -> list[Article]:
    stored = news()
    corpus = Corpus(stored)
    articles = []
    for text in sorted(stored) if most is None else draw(sorted(stored), most, random.Random(most)):
        highlights = tuple(line.strip(" .") + "." for line in stored[text] if len(line.split()) > 4)
        if len(text.split()) in _ARTICLE_WORDS and highlights and judged.free(text):
            articles.append(Article(text, highlights, corpus))
    return articles


def draw_size(rng: random.Random) -> int:
    share = rng.random()
    return 1 if share < 0.2 else rng.randint(2, 3) if share < 0.5 else rng.randint(4, _MOST_TOGETHER)


class News:
    """Builds outputs about articles: supported sentences, and sentences with faults."""

    def __init__(self, articles: Sequence[Article], rng: random.Random) -> None:
        self.rng = rng
        self._by_name: dict[str, list[int]] = defaultdict(list)
        foreign: dict[str, list[str]] = defaultdict(list)
        counts = articles[0].corpus.counts if articles else {}
        self._ordinary = frozenset(word for word, count in counts.items() if count > _ORDINARY)
        for number, article in enumerate(articles):
            for highlight in article.highlights:
                for name, kind in article.locate(highlight):
                    self._by_name[name.text].append(number)
                    foreign[kind].append(name.text)
        self.articles = [replace(article, foreign=foreign) for article in articles]

    def build(self, number: int) -> Iterator[tuple[str, list[Statement]]]:
        """Yield passages of an article with the sentences of outputs."""
        article, rng = self.articles[number], self.rng
        sentences = [article.text[start:end] for start, end in split_sentences(article.text)]
        whole = len(article.text.split())
        for at in range(1 if whole < 220 else 2):
            words = rng.choice((130, 180, 230, 280, 320))
            first = 0 if at == 0 else _choose_start(sentences, words, rng)
            window = _cut(sentences, first, words)
            supported = self._supported(article, window)
            quoted = (quote(sentence, article, rng) for sentence in article.sentences if sentence in window)
            pairs = [
                pair for pair in (*quoted, *resolve_pronouns(article, rng)) if pair and covers(window, pair[0].text)
            ]
            missing = [highlight for highlight in article.highlights if is_missing(highlight, window)]
            for _ in range(2):
                output = self._write_output(number, supported, pairs, missing, _WORDS - len(window.split()), window)
                if output:
                    yield window, output
        lead = self._lead(sentences)
        if lead:
            yield lead
        yield from self._removed(sentences)

    def _supported(self, article: Article, window: str) -> list[tuple[str, float]]:
        """Return the article's sentences and highlights that a window supports."""
        own = {sentence for sentence in article.sentences if sentence in window or sentence[:-1] in window}
        rng = self.rng
        result = [(sentence, 1.0) for sentence in article.sentences if sentence in own]
        # Sentences with a negation or a hedge are rare, and faults often add one; people are most often confused.
        people = set(article.names["person"])
        result = [
            item
            for item in result
            if is_marked(item[0]) or any(name.text in people for name in find_names(item[0])) or rng.random() < 0.3
        ]
        highlights = [(text, 0.95) for text in article.highlights if covers(window, text)]
        return [*highlights, *highlights[: 1 + len(highlights) // 2], *result]

    def _write_output(
        self,
        number: int,
        supported: list[Any],
        pairs: list[list[Statement]],
        missing: list[str],
        room: int,
        window: str,
    ) -> list[Statement]:
        """Return the sentences of one output; a share of them has faults."""
        rng, article = self.rng, self.articles[number]
        most = draw_size(rng)
        share = 0.55 if most == 1 else rng.choice((0.15, 0.35, 0.6, 0.85))
        chosen = rng.sample(supported, min(len(supported), most))
        texts = {text for text, _ in chosen}
        output: list[Statement] = []
        for text, label in chosen:
            others = [other for other, _ in supported if other not in texts]
            draw = rng.random()
            if pairs and draw < 0.3:
                output.append(rng.choice(rng.choice(pairs)))
                continue
            if draw > 0.9 and (stranger := self._stranger(number, missing)):
                unsure = find_words(stranger.text, content_words(window), known=True)
                output.append(stranger._replace(errors=((0, len(stranger.text)),), unsure=unsure))
                continue
            form, changed = vary(text, article, others, rng)
            fault = break_sentence(changed, article, rng)
            if fault and rng.random() < share:
                output.append(fault)
            elif fault or rng.random() < 0.35:
                # Most sentences that stay as they are could have a fault: names and numbers must not tell.
                output.append(Statement(form, changed, label))
        unique = drop_variants(output)
        while unique and sum(len(statement.text.split()) for statement in unique) > min(room, _MOST_SENTENCE_WORDS):
            unique.pop()
        return unique

    def _stranger(self, number: int, missing: list[str]) -> Statement | None:
        """Return a sentence about something else: of an article that names the same, or of another part of this one."""
        rng, article = self.rng, self.articles[number]
        if missing and rng.random() < 0.4:
            return Statement("missing", rng.choice(missing), 0.03)
        names = {name.text for highlight in article.highlights for name, _ in article.locate(highlight)}
        near = sorted({other for name in names for other in self._by_name[name][:200] if other != number})
        if not near:
            return None
        candidates = [self.articles[place] for place in rng.sample(near, min(6, len(near)))]
        other = max(candidates, key=lambda candidate: len(candidate.words & article.words) / len(candidate.words))
        text = rng.choice(other.highlights)
        if article.main_person and rng.random() < 0.6:
            people = [
                name
                for name, kind in other.locate(text)
                if kind == "person" and not related(name.text, article.main_person)
            ]
            if people:
                name = people[0]
                text = text[: name.start] + article.main_person + text[name.end :]
        words = content_words(text)
        # Articles about one event support each other's highlights.
        if len(words & article.words) > 0.6 * len(words):
            return None
        return Statement("stranger", text, 0.0)

    def _lead(self, sentences: Sequence[str]) -> tuple[str, list[Statement]] | None:
        """Return the first sentence with the article that follows it, as in one-sentence summaries of news.

        It is supported if the article says all its names, numbers and nearly all its words again, and unsupported if
        a name or number is new."""
        lead = re.sub(r"^(?:[A-Z][\w, ]*)?\(CNN\)\s*(?:-+ *)?", "", sentences[0])
        facts = list_facts(lead)
        if len(sentences) < 6 or not is_statement(lead) or not facts:
            return None
        return _check_facts("lead", lead, _cut(sentences, 1, 320), self._ordinary)

    def _removed(self, sentences: Sequence[str]) -> Iterator[tuple[str, list[Statement]]]:
        """Yield sentences with the passage that they were taken out of. What names and numbers the passage lacks is not
        supported by it: summarizers add such details from what they know."""
        places = [at for at in range(1, len(sentences)) if is_statement(sentences[at]) and list_facts(sentences[at])]
        for at in self.rng.sample(places, min(_REMOVED, len(places))):
            first = max(0, at - self.rng.randint(2, 8))
            rest = _cut([*sentences[first:at], *sentences[at + 1 :]], 0, self.rng.choice((180, 230, 280, 320)))
            if checked := _check_facts("removed", sentences[at], rest, self._ordinary):
                yield checked


def _check_facts(kind: str, text: str, passage: str, ordinary: frozenset[str]) -> tuple[str, list[Statement]] | None:
    """Return a sentence about a passage that does not hold it: supported if the passage has all its names, numbers and
    most of its words, and unsupported if it has not all of the names and numbers."""
    known = list_facts(passage) | {word.lower() for word in re.findall(r"\w+", passage)}
    errors = find_facts(text, known, ordinary)
    unsure = tuple(
        (start, end)
        for start, end in find_words(text, known, known=False)
        if not any(start < last and first < end for first, last in errors)
    )
    if errors:
        return passage, [Statement(kind, text, 0.08, errors, unsure)]
    words = content_words(text)
    if len(words & content_words(passage)) >= 0.7 * len(words):
        return passage, [Statement(kind, text, 0.85, (), unsure)]
    return None


def _cut(sentences: Sequence[str], first: int, words: int) -> str:
    chosen: list[str] = []
    count = 0
    for sentence in sentences[first:]:
        count += len(sentence.split())
        if chosen and count > words:
            break
        chosen.append(sentence)
    return " ".join(" ".join(chosen).split()[: max(words, 60)])


def _choose_start(sentences: Sequence[str], words: int, rng: random.Random) -> int:
    """Return a place to begin with about this number of words after it."""
    after, last = 0, len(sentences) - 1
    while last > 0 and after < words * 0.8:
        after += len(sentences[last].split())
        last -= 1
    return rng.randint(0, max(0, last))


#: Characters that no text has: before and after an error, before and after what is unsure.
_MARKS = "\ue000\ue001\ue002\ue003"


def write_as_tokens(text: str) -> str:
    """Write a sentence as older summarizers do: small letters, marks apart."""
    text = re.sub(r"(\w)n['’]t\b", r"\1 n't", text.lower())
    text = re.sub(r"['’]s\b", " 's", text).replace("“", "`` ").replace("”", " ''")
    return re.sub(rf"(?<=[\w{_MARKS}])([.,!?;:])(?=[\s{_MARKS}]|$)", r" \1", text)


# ---- Rows


#: Text, label, weight, errors and unsure characters.
Sentence = tuple[str, float, float, Spans | None, Spans]


class Rows:
    """Rows of both splits."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: list[dict[str, Any]] = []

    def add(self, dev: bool, passage: str, sentences: Sequence[Sentence], name: str) -> None:
        row = {"set": name, "split": "dev" if dev else "train", "passage": passage, "sentences": list(sentences)}
        self.rows.append(row)

    def add_examples(self, examples: Sequence[Example]) -> None:
        """Put sentences about one source together where both fit; dev sentences stand alone."""
        by_source: dict[str, list[Example]] = defaultdict(list)
        for example in examples:
            by_source[example.source].append(example)
        for source, members in by_source.items():
            self.rng.shuffle(members)
            while members:
                part = self._take(source, members, 1 if is_dev(source) else draw_size(self.rng))
                passage = choose_passage(source, " ".join(example.sentence for example in part))
                sentences = [
                    (item.sentence, round(item.label, 3), WEIGHTS.get(item.name, 1.0), item.errors, item.unsure)
                    for item in part
                ]
                self.add(is_dev(source), passage, sentences, part[0].name)

    def _take(self, source: str, members: list[Example], most: int) -> list[Example]:
        part = [members.pop()]
        room = _WORDS - len(source.split()) - len(part[0].sentence.split())
        while members and len(part) < most and (room := room - len(members[-1].sentence.split())) >= 0:
            part.append(members.pop())
        return part

    def save(self, path: Path) -> None:
        """Write the rows in random order; of captions of images, which are farthest from outputs that people score, as
        many as fit."""
        self.rng.shuffle(self.rows)
        surplus = max(0, len(self.rows) - _MOST_ROWS)
        captions = [at for at, row in enumerate(self.rows) if row["set"] == "esnli"]
        dropped = set(captions[-surplus:] if surplus else [])
        write_lines(path, (row for at, row in enumerate(self.rows) if at not in dropped))


def choose_passage(source: str, text: str) -> str:
    """Return the part of a long source, in whole sentences, that has most of the words of a text."""
    most = _WORDS - min(len(text.split()), _MOST_SENTENCE_WORDS)
    if len(source.split()) <= most:
        return source
    spans = split_sentences(source)
    sizes = [len(source[start:end].split()) for start, end in spans]
    words = content_words(text)
    hits = [words & content_words(source[start:end]) for start, end in spans]
    best, place = -1, (0, 0)
    for first in range(0, len(spans), max(1, len(spans) // 60)):
        last, count, known = first, 0, set[str]()
        while last < len(spans) and (last == first or count + sizes[last] <= most):
            count += sizes[last]
            known |= hits[last]
            last += 1
        if len(known) > best:
            best, place = len(known), (spans[first][0], spans[last - 1][1])
    return source[slice(*place)] if "\n" in source else " ".join(source[slice(*place)].split()[:most])


def build(out: Path, most: int | None, rng: random.Random) -> None:
    judged = JudgedTexts((*JUDGED, *RESERVED))
    rows = Rows(rng)
    examples: dict[Example, None] = {}
    left_out: Counter[str] = Counter()
    for example in read_human_sets():
        if 2 <= len(example.sentence.split()) <= 90:
            if judged.free(example.source, example.sentence):
                examples[example.strip()] = None
            else:
                left_out[example.name] += 1
    human = list(examples) if most is None else draw(list(examples), 20 * most, rng)
    rows.add_examples(human)
    rows.add_examples([example for example in make_faults(human, rng) if judged.free(example.sentence)])
    articles = read_articles(judged, most)
    writer = News(articles, rng)
    leads: dict[tuple[int, bool], list[tuple[bool, str, list[Statement]]]] = defaultdict(list)
    for number, article in enumerate(articles):
        dev = is_dev(article.text)
        for passage, output in writer.build(number):
            if not judged.free(*(statement.text for statement in output)):
                left_out["news"] += 1
            elif output[0].kind in ("lead", "removed"):
                leads[min(len(list_facts(output[0].text)), 12), output[0].label > 0.5].append((dev, passage, output))
            else:
                add_news(rows, dev, passage, output, rng)
    for size in {size for size, _ in leads}:
        count = min(len(leads[size, True]), len(leads[size, False]))
        # Twice as many with something new: their other words are examples of what is supported.
        for right in (True, False):
            for dev, passage, output in leads[size, right][: count if right else 2 * count]:
                add_news(rows, dev, passage, output, rng)
    rows.save(out)
    counts = Counter(row["set"] for row in rows.rows)
    print(f"{len(rows.rows):,} rows {dict(counts.most_common())}; overlap with judged sets: {dict(left_out)}")


def add_news(rows: Rows, dev: bool, passage: str, output: Sequence[Statement], rng: random.Random) -> None:
    if rng.random() < 0.15:
        output = [write_statement_as_tokens(statement) for statement in output]
    sentences = [(item.text, item.label, 1.0, item.errors, item.unsure) for item in output]
    if not dev:
        rows.add(False, passage, sentences, "news " + (output[0].kind if len(output) == 1 else "together"))
        return
    for statement, sentence in zip(output, sentences, strict=True):
        rows.add(True, passage, [sentence], "news " + statement.kind)
    if len(output) > 3:
        rows.add(True, passage, sentences, "news together")


def write_statement_as_tokens(statement: Statement) -> Statement:
    """Write a statement as older summarizers do, and find its errors again."""
    bounds = sorted(
        (place, mark)
        for spans, marks in ((statement.errors, _MARKS[:2]), (statement.unsure, _MARKS[2:]))
        for span in spans
        for place, mark in zip(span, marks, strict=True)
    )
    text = statement.text
    for place, mark in reversed(bounds):
        text = text[:place] + mark + text[place:]
    places: dict[str, list[int]] = defaultdict(list)
    plain = []
    for character in write_as_tokens(text):
        if character in _MARKS:
            places[character].append(len(plain))
        else:
            plain.append(character)
    errors, unsure = (tuple(zip(places[first], places[last], strict=True)) for first, last in (_MARKS[:2], _MARKS[2:]))
    return statement._replace(text="".join(plain), errors=errors, unsure=unsure)


def main() -> None:
    arguments = read_arguments(__doc__, "out", articles=int)
    build(arguments.out, arguments.articles, random.Random(15))


if __name__ == "__main__":
    main()

"""Build the training and development data of the support head: is a sentence supported by a passage?

    python english_support.py support.json --news cnn_validation.json --teacher teacher.json

Writes {"passages": [text, ...], "train": rows, "dev": rows}. A row is [passage number, [[sentence, label, weight,
errors, unsure], ...], name]: sentences of one output that are read together, with the probability that the passage
supports each. `errors` are the characters that it does not support, null if nobody marked them; about those of `unsure`
nothing is known. The sentences come from

- people: support and span sets whose licence allows it (`LABELLED_SETS`, `SPAN_SETS`),
- news: sentences and highlights of articles, whole or changed, right or with a fault (`support_faults.py`),
- a teacher: sentences that a language model wrote about the articles, with a teacher's logits. TEACHER is a JSON file
  {"passages": [text, ...], "rows": [[passage number, sentence, logit, kind], ...]}.

A passage and the sentences beside it have at most `_WORDS` words, so that an encoder of 512 tokens reads both whole.
One source in twelve is held out for dev. Sources and sentences that share runs of words with a judged or reserved set
are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from agreement import rows as read_rows

from metrist.data.faults.news import Article, Corpus, Statement, content_words, find_names, is_statement, related, vary
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
    "infotabs": 0.4,
    "climate-fever": 0.5,
    "healthver": 0.5,
    "bump": 2.0,
    "summedits": 1.5,
    "rte": 1.5,
    "wice-claims": 1.5,
    "wice-tokens": 1.5,
    "qa-feedback": 1.5,
    "teacher": 1.5,
}
#: Judged by this project's issues, or reserved for error analysis. Their texts are compared and used for nothing else.
JUDGED_SETS = (
    *("summeval", "qags-cnn", "qags-xsum", "qags-cnndm-sentences", "qags-xsum-sentences", "rank19", "newsroom"),
    *("judgebench-newsroom", "cliff", "goyal21", "entfa", "xsum-halluc", "topical-chat-usr", "pandalm", "llmbar"),
    "openmeva-roc",
)
#: A sentence with this label has nothing that is unsupported.
_SUPPORTED = 0.9
_FACTUAL = ("Wrong-Grounding", "Unverifiable")
_RUN, _SENTENCE_RUNS = 8, 30
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
        """Return the example without white space around the sentence."""
        text = self.sentence.strip()
        start = self.sentence.find(text)
        errors = None if self.errors is None else _clip(self.errors, start, start + len(text))
        return self._replace(sentence=text, errors=errors, unsure=_clip(self.unsure, start, start + len(text)))


def _clip(spans: Iterable[tuple[int, int]], start: int, end: int) -> Spans:
    """Return the parts of spans within some characters, counted from the first of them."""
    return tuple(
        (max(first, start) - start, min(last, end) - start) for first, last in spans if first < end and last > start
    )


class JudgedTexts:
    """Texts of the judged and reserved sets, by their runs of words."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, ...], set[int]] = defaultdict(set)
        self._sizes: list[int] = []
        self.names: list[str] = []
        texts: dict[str, str] = {}
        for name in JUDGED_SETS:
            for row in read_rows(name):
                for text in (row.get("source"), row.get("output"), *row.get("outputs", ()), *row.get("references", ())):
                    if isinstance(text, str):
                        texts.setdefault(text, name)
        for number, (text, name) in enumerate(texts.items()):
            runs = list_runs(text)
            self._sizes.append(len(runs))
            self.names.append(name)
            for run in runs:
                self._owners[run].add(number)

    def find(self, text: str) -> str | None:
        """Return the name of a set with a text that shares 5 % of the runs of either text, and more than one run unless
        it is as short as a sentence."""
        runs = list_runs(text)
        counts = Counter(number for run in runs for number in self._owners.get(run, ()))
        for number, count in counts.items():
            size = self._sizes[number]
            if count > 0.05 * min(len(runs), size) and (count > 1 or size <= _SENTENCE_RUNS):
                return self.names[number]
        return None


def list_runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1)}


def is_dev(source: str) -> bool:
    """Decide by a hash of the beginning, so that all rows of a source stay on one side."""
    return int(hashlib.md5(source[:400].encode()).hexdigest()[:10], 16) % 12 == 0


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
    "entity",
    "entity",
    "number",
    "number",
    "date",
    "unit",
    "negation",
    "role_swap",
    "addition",
    "contradiction",
)


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


def read_articles(path: Path, judged: JudgedTexts, most: int | None = None) -> list[Article]:
    stored = json.loads(path.read_text(encoding="utf-8"))
    corpus = Corpus(row["input"] for row in stored)
    articles = []
    for row in stored if most is None else random.Random(most).sample(stored, min(most, len(stored))):
        text = row["input"]
        highlights = tuple(line.strip(" .") + "." for line in row["output"].split("\n") if len(line.split()) > 4)
        if len(text.split()) in _ARTICLE_WORDS and highlights and not judged.find(text):
            articles.append(Article(text, highlights, corpus))
    return articles


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
            extra = self._quotations(article, window) + self._pronouns(article, window)
            missing = [highlight for highlight in article.highlights if _is_missing(highlight, window)]
            for _ in range(2):
                output = self._write_output(article, supported, extra, missing, window, number)
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
        highlights = [(text, 0.95) for text in article.highlights if _covers(window, text)]
        return [*highlights, *highlights[: 1 + len(highlights) // 2], *result]

    def _quotations(self, article: Article, window: str) -> list[list[Statement]]:
        return [
            pair
            for sentence in article.sentences
            if sentence in window and (pair := quote(sentence, article, self.rng))
        ]

    def _pronouns(self, article: Article, window: str) -> list[list[Statement]]:
        return [pair for pair in resolve_pronouns(article, self.rng) if _covers(window, pair[0].text)]

    def _write_output(
        self,
        article: Article,
        supported: list[tuple[str, float]],
        pairs: list[list[Statement]],
        missing: list[str],
        window: str,
        number: int,
    ) -> list[Statement]:
        """Return the sentences of one output; a share of them has faults."""
        rng = self.rng
        room = min(_WORDS - len(window.split()), _MOST_SENTENCE_WORDS)
        draw = rng.random()
        most = 1 if draw < 0.22 else rng.randint(2, 3) if draw < 0.5 else rng.randint(4, _MOST_TOGETHER)
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
        while unique and sum(len(statement.text.split()) for statement in unique) > room:
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
        facts = _facts(lead)
        if len(sentences) < 6 or not is_statement(lead) or not facts:
            return None
        return _check_facts("lead", lead, _cut(sentences, 1, 320), self._ordinary)

    def _removed(self, sentences: Sequence[str]) -> Iterator[tuple[str, list[Statement]]]:
        """Yield sentences with the passage that they were taken out of. What names and numbers the passage lacks is not
        supported by it: summarizers add such details from what they know."""
        places = [at for at in range(1, len(sentences)) if is_statement(sentences[at]) and _facts(sentences[at])]
        for at in self.rng.sample(places, min(_REMOVED, len(places))):
            first = max(0, at - self.rng.randint(2, 8))
            rest = _cut([*sentences[first:at], *sentences[at + 1 :]], 0, self.rng.choice((180, 230, 280, 320)))
            if checked := _check_facts("removed", sentences[at], rest, self._ordinary):
                yield checked


def _check_facts(kind: str, text: str, passage: str, ordinary: frozenset[str]) -> tuple[str, list[Statement]] | None:
    """Return a sentence about a passage that does not hold it: supported if the passage has all its names, numbers and
    most of its words, and unsupported if it has not all of the names and numbers."""
    known = _facts(passage) | {word.lower() for word in re.findall(r"\w+", passage)}
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


def find_facts(text: str, known: set[str], ordinary: frozenset[str]) -> Spans:
    """Return the words of names and the numbers of a text that are not known; those side by side as one. An ordinary
    word with a capital is no name: it begins a sentence or stands in a title."""
    places = [
        (name.start + match.start(), name.start + match.end())
        for name in find_names(text)
        for match in re.finditer(r"\S+", name.text)
        if match[0][0].isupper() and match[0].lower() not in ordinary
    ]
    places += [match.span() for match in re.finditer(r"\d[\d,.]*\d|\d", text)]
    spans: list[tuple[int, int]] = []
    for start, end in sorted(set(places)):
        if text[start:end].lower() in known:
            continue
        if spans and text[spans[-1][1] : start] == " ":
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return tuple(spans)


def find_words(text: str, words: set[str], *, known: bool) -> Spans:
    """Return the words of substance of a text that are known, or those that are not."""
    matches = re.finditer(r"[A-Za-zÀ-ɏ]{4,}|\d[\d,.]*\d|\d", text)
    return tuple(match.span() for match in matches if (match[0].lower() in words) is known)


def drop_variants(output: Sequence[Statement]) -> list[Statement]:
    """Drop sentences that repeat most words of an earlier one: two versions of a sentence, one of them broken, would
    tell each other apart."""
    result: list[Statement] = []
    known: list[set[str]] = []
    for statement in output:
        words = content_words(statement.text)
        if not any(len(words & other) > 0.6 * min(len(words), len(other)) for other in known):
            result.append(statement)
            known.append(words)
    return result


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


def _facts(text: str) -> set[str]:
    """Return the words of names, and the numbers."""
    names = {word.lower() for name in find_names(text) for word in name.text.split() if word[0].isupper()}
    return names | set(re.findall(r"\d[\d,.]*\d|\d", text))


def _covers(window: str, text: str) -> bool:
    words = content_words(text)
    lower = {word.lower() for word in re.findall(r"\w+", window)}
    return len(words & content_words(window)) >= 0.7 * len(words) and _facts(text) <= lower | _facts(window)


def _is_missing(text: str, window: str) -> bool:
    """Whether a window lacks most words and a name or number of a sentence."""
    words = content_words(text)
    lower = {word.lower() for word in re.findall(r"\w+", window)} | _facts(window)
    return len(words & content_words(window)) <= 0.5 * len(words) and not _facts(text) <= lower


#: Characters that no text has: before and after an error, before and after what is unsure.
_MARKS = "\ue000\ue001\ue002\ue003"


def write_as_tokens(text: str) -> str:
    """Write a sentence as older summarizers do: small letters, marks apart."""
    text = re.sub(r"(\w)n['’]t\b", r"\1 n't", text.lower())
    text = re.sub(r"['’]s\b", " 's", text).replace("“", "`` ").replace("”", " ''")
    return re.sub(rf"(?<=[\w{_MARKS}])([.,!?;:])(?=[\s{_MARKS}]|$)", r" \1", text)


# ---- The teacher


#: The logits of sentences that were broken on purpose are lowered by this: the teacher misses up to a third of them.
_BROKEN = {"broken roles": 1.5, "broken antonym": 1.5, "broken": 2.5}
#: A logit this close to 0 teaches nothing.
_UNSURE = 1.0
_PREAMBLE = re.compile(
    r"^(?:new sentence|the exact sentence is|rewritten|sentence|sure)\b[^:]{0,30}:|\b(?:this|the) article\b",
    re.IGNORECASE,
)


def read_teacher(path: Path, judged: JudgedTexts) -> Iterator[Example]:
    stored = json.loads(path.read_text(encoding="utf-8"))
    overlaps = {number: judged.find(text) for number, text in enumerate(stored["passages"])}
    for passage, sentence, logit, kind in stored["rows"]:
        foreign = any(ord(mark) > 0x2FF and not 0x2000 <= ord(mark) <= 0x20CF for mark in sentence)
        if overlaps[passage] or foreign or _PREAMBLE.search(sentence) or abs(logit) < _UNSURE:
            continue
        if kind.startswith("broken"):
            logit -= _BROKEN.get(kind, _BROKEN["broken"])
        label = round(1 / (1 + math.exp(-logit)), 3)
        yield Example("teacher", stored["passages"][passage], sentence, label, () if label >= _SUPPORTED else None)


# ---- Rows


#: Text, label, weight, errors and unsure characters.
Sentence = tuple[str, float, float, Spans | None, Spans]


class Rows:
    """Rows of both splits, with each passage once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers: dict[str, int] = {}
        self.splits: dict[str, list[list[Any]]] = {"train": [], "dev": []}

    def add(self, dev: bool, passage: str, sentences: Sequence[Sentence], name: str) -> None:
        number = self.numbers.setdefault(passage, len(self.numbers))
        self.splits["dev" if dev else "train"].append([number, [list(sentence) for sentence in sentences], name])

    def add_examples(self, examples: Sequence[Example]) -> None:
        """Put sentences about one source together where both fit; dev sentences stand alone."""
        by_source: dict[str, list[Example]] = defaultdict(list)
        for example in examples:
            by_source[example.source].append(example)
        for source, members in by_source.items():
            self.rng.shuffle(members)
            while members:
                part = self._take(source, members, 1 if is_dev(source) else self._draw_size())
                passage = choose_passage(source, " ".join(example.sentence for example in part))
                sentences = [
                    (item.sentence, round(item.label, 3), WEIGHTS.get(item.name, 1.0), item.errors, item.unsure)
                    for item in part
                ]
                self.add(is_dev(source), passage, sentences, part[0].name)

    def _draw_size(self) -> int:
        draw = self.rng.random()
        return 1 if draw < 0.2 else self.rng.randint(2, 3) if draw < 0.5 else self.rng.randint(4, _MOST_TOGETHER)

    def _take(self, source: str, members: list[Example], most: int) -> list[Example]:
        part = [members.pop()]
        room = _WORDS - len(source.split()) - len(part[0].sentence.split())
        while members and len(part) < most and (room := room - len(members[-1].sentence.split())) >= 0:
            part.append(members.pop())
        return part

    def save(self, path: Path) -> None:
        for rows in self.splits.values():
            self.rng.shuffle(rows)
        limit_rows(self.splits["train"])
        with path.open("w", encoding="utf-8") as file:
            json.dump({"passages": list(self.numbers), **self.splits}, file, ensure_ascii=False)


def limit_rows(rows: list[list[Any]]) -> None:
    """Drop rows about captions of images, which are farthest from outputs that people score, until few enough are
    left."""
    surplus = max(0, len(rows) - _MOST_ROWS)
    captions = [place for place, (_, _, name) in enumerate(rows) if name == "esnli"]
    for place in reversed(captions[-surplus:] if surplus else []):
        del rows[place]


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


def build(arguments: argparse.Namespace) -> None:
    rng = random.Random(arguments.seed)
    judged = JudgedTexts()
    rows = Rows(rng)
    overlaps: Counter[tuple[str, str]] = Counter()
    judged_sources: dict[str, str | None] = {}
    examples = []
    known = set()
    for example in read_human_sets():
        if not 2 <= len(example.sentence.split()) <= 90 or example in known:
            continue
        known.add(example)
        if example.source not in judged_sources:
            judged_sources[example.source] = judged.find(example.source)
        if overlap := judged_sources[example.source] or judged.find(example.sentence):
            overlaps[example.name, overlap] += 1
        else:
            examples.append(example.strip())
    rows.add_examples(examples)
    made = [example for example in make_faults(examples, rng) if not judged.find(example.sentence)]
    rows.add_examples(made)
    if arguments.news:
        articles = read_articles(arguments.news, judged, arguments.articles)
        news = News(articles, rng)
        leads: dict[tuple[int, bool], list[tuple[bool, str, list[Statement]]]] = defaultdict(list)
        for number, article in enumerate(articles):
            dev = is_dev(article.text)
            for passage, output in news.build(number):
                if any(judged.find(statement.text) for statement in output):
                    overlaps["news", "sentences"] += 1
                elif output[0].kind in ("lead", "removed"):
                    leads[min(len(_facts(output[0].text)), 12), output[0].label > 0.5].append((dev, passage, output))
                else:
                    add_news(rows, dev, passage, output, rng)
        for size in {size for size, _ in leads}:
            count = min(len(leads[size, True]), len(leads[size, False]))
            # Twice as many with something new: their other words are examples of what is supported.
            for right in (True, False):
                for dev, passage, output in leads[size, right][: count if right else 2 * count]:
                    add_news(rows, dev, passage, output, rng)
    if arguments.teacher:
        taught = [example for example in read_teacher(arguments.teacher, judged) if not is_dev(example.source)]
        rows.add_examples(taught)
    rows.save(arguments.out)
    print_counts(rows, overlaps)


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


def print_counts(rows: Rows, overlaps: Counter[tuple[str, str]]) -> None:
    for split, members in rows.splits.items():
        names: dict[str, list[float]] = defaultdict(list)
        for _, sentences, name in members:
            names[name] += [sentence[1] for sentence in sentences]
        sizes = Counter(len(sentences) for _, sentences, _ in members)
        print(split, len(members), "rows", sum(map(len, names.values())), "sentences", sorted(sizes.items()))
        for name, labels in sorted(names.items()):
            print(f"  {name:24} {len(labels):6} mean label {sum(labels) / len(labels):.3f}")
    print("left out, by set and judged set:", dict(overlaps))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--news", type=Path, help="cnn_validation.json of intel_extension_for_transformers 1.4.2")
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--articles", type=int, help="use so many of the news, drawn at random")
    parser.add_argument("--seed", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    build(parse_arguments())

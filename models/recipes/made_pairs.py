"""Build pairs without human judgments: good texts and damaged versions, and texts with their own or another source.

Each kind of damage belongs to the criteria that are about it; if it belongs to several, one is drawn.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from agreement import rows
from damage import add_slips, break_up, disorder, falsify, split_sentences
from machine_texts import LOW, SEED
from packaged_texts import highlighted_news, service_dialogues, tasks
from preference_texts import Known, abstracts, articles, dialogues, lines, stories

from metrist.data.pairs import GoodBad

#: Criteria of a text alone: no source is shown.
ALONE = frozenset({"fluency", "grammaticality", "naturalness", "understandability"})
_LINES = 9_000
#: How often each article, abstract and story is used.
_TIMES = 10
#: How often each output of a real summarizer is damaged.
_OUTPUTS = 2
#: The number of sentences of an article that are used.
_FIRST = 25


def build_pairs(known: Known, machine: Path | None, rng: random.Random) -> list[GoodBad]:
    """Build all pairs; `machine` is the file that `machine_texts.py` wrote, if its texts are used."""
    good_lines, human_stories, machine_texts = lines(), stories(), MachineTexts(machine)
    news: dict[str, str | None] = {**articles(known), **highlighted_news(known, rng)}
    pairs = [
        *_lines_with_slips(good_lines, rng),
        *_passages(abstracts(), rng),
        *_stories(human_stories, machine_texts, rng),
        *_articles(news, machine_texts, rng),
        *_summaries(known, rng),
        *_replies(machine_texts, rng),
        *_answers(tasks(known, random.Random(SEED)), machine_texts, rng),
    ]
    return [pair for pair in pairs if all(pair.answers) and pair.answers[0].split() != pair.answers[1].split()]


class MachineTexts:
    """Texts of the language model: for each kind and source one of the low and one of the high temperature."""

    def __init__(self, path: Path | None) -> None:
        self.by_kind: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        if path is None:
            return
        both: dict[tuple[str, str], dict[bool, str]] = defaultdict(dict)
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                both[row["kind"], row["source"]][row["temperature"] == LOW] = row["text"]
        for (kind, source), by_low in both.items():
            if len(by_low[True].split()) >= 3 and len(by_low[False].split()) >= 3:
                self.by_kind[kind][source] = by_low[True], by_low[False]


def pair(
    criteria: Sequence[str], context: tuple[str, str], label: str, good: str, bad: str, rng: random.Random
) -> GoodBad:
    """Build a pair for one of the criteria; `context` is (label, text), omitted if the criterion is of the text
    alone."""
    criterion = rng.choice(criteria)
    shown = () if criterion in ALONE or not context[1] else (context,)
    return GoodBad(criterion=criterion, good=(*shown, (label, good)), bad=(*shown, (label, bad)))


_SLIPS = ("fluency", "fluency", "grammaticality", "grammaticality", "understandability", "naturalness")
_WORDING = ("fluency", "fluency", "naturalness", "understandability", "overall", "coherence", "coherence")
_ORDER = ("coherence",)
_SUBJECT = ("relevance", "overall", "consistency", "coherence")
_TRUTH = ("consistency", "consistency", "correctness", "overall")
_CONTENT = ("coverage", "relevance", "informativeness", "overall")
_LESS = ("coverage", "informativeness")
_FITTING = ("relevance", "coherence", "coherence", "overall")
_SPEECH = ("fluency", "naturalness", "understandability", "overall")
_USEFUL = ("helpfulness", "helpfulness", "overall", "overall", "relevance")
_INTEREST = ("engagingness", "engagingness", "informativeness", "overall")
_NOTHING = ("", "")
#: A reply with this many words says more than any of the dull ones.
_LIVELY = 8
_DULL = (
    "I don't know.",
    "Okay.",
    "That is nice.",
    "I see.",
    "Yes.",
    "No, I don't think so.",
    "I am not sure what you mean.",
    "That's interesting.",
    "Oh, really?",
    "Me too.",
    "Good for you.",
    "I have no idea about that.",
    "Maybe.",
    "Thanks.",
    "What do you think?",
    "I agree.",
)
_EVASIONS = (
    "I'm sorry, I can't help with that.",
    "I don't know the answer.",
    "Please tell me more about what you need.",
    "That is a good question.",
    "Sure, I can help you with that!",
    "There are many things that one could say about this.",
    "It depends.",
)


def _lines_with_slips(good: Sequence[str], rng: random.Random) -> Iterator[GoodBad]:
    vocabulary = [word for line in good for word in line.split() if word.isalpha()]
    for line in rng.sample(good, _LINES):
        worse = break_up(line, rng) if rng.random() < 0.25 else add_slips(line, vocabulary, rng)
        yield pair(_SLIPS, _NOTHING, "text", line, worse, rng)


def _passages(documents: Sequence[list[str]], rng: random.Random) -> Iterator[GoodBad]:
    strangers = [line for document in documents for line in document]
    for document in documents:
        for _ in range(_TIMES // 2):
            at = rng.randrange(max(1, len(document) - 3))
            text = " ".join(document[at : at + rng.randint(3, 5)])
            worse, criteria = (
                (disorder(text, strangers, rng), _ORDER) if rng.random() < 0.6 else (break_up(text, rng), _WORDING)
            )
            yield pair(criteria, _NOTHING, "text", text, worse, rng)


def _stories(human_stories: Sequence[str], machine_texts: MachineTexts, rng: random.Random) -> Iterator[GoodBad]:
    """Prefer human stories to the language model's, its low-temperature ones to its high-temperature ones, and both to
    shuffled versions and to stories with another beginning."""
    human = {split_sentences(story)[0]: " ".join(split_sentences(story)[1:]) for story in human_stories}
    machine = {source: low for source, (low, _) in machine_texts.by_kind["story"].items()}
    endings, strangers = (
        list(machine.values()),
        [line for text in (*human.values(), *machine.values()) for line in split_sentences(text)],
    )
    criteria = ("coherence", "overall", "overall")
    for first, rest in human.items():
        context = ("beginning", first)
        for _ in range(_TIMES):
            yield pair(criteria, context, "story", rest, disorder(rest, strangers, rng), rng)
        for _ in range(_TIMES // 2):
            yield pair(_SUBJECT, context, "story", rest, rng.choice(list(human.values())), rng)
            yield pair(_WORDING, context, "story", rest, break_up(rest, rng), rng)
        for text in machine_texts.by_kind["story"].get(first, ()):
            yield pair((*criteria, "naturalness", "engagingness"), context, "story", rest, text, rng)
    for first, (low, high) in machine_texts.by_kind["story"].items():
        context = ("beginning", first)
        yield pair((*_WORDING, *criteria), context, "story", low, high, rng)
        yield pair(_SUBJECT, context, "story", low, _choose_similar_length(low, endings, rng), rng)
        if len(split_sentences(low)) >= 3:
            yield pair(criteria, context, "story", low, disorder(low, strangers, rng), rng)


def _articles(news: dict[str, str | None], machine_texts: MachineTexts, rng: random.Random) -> Iterator[GoodBad]:
    """Prefer an article's sentences in order, human summaries and the language model's to worse ones."""
    everything = list(news)
    for source, reference in news.items():
        context = ("source", source)
        own = _usable_sentences(source)
        if len(own) < 6:
            continue
        low, high = machine_texts.by_kind["summary"].get(source, ("", ""))
        for _ in range(_TIMES if source in machine_texts.by_kind["summary"] else _TIMES // 3):
            at = 0 if rng.random() < 0.6 else rng.randrange(len(own) - 3)
            parts = own[at : at + rng.randint(2, 4)]
            good = rng.choice([" ".join(parts), " ".join(parts), *filter(None, (reference, low))])
            other = rng.choice(everything)
            elsewhere = _quote(other, len(parts), rng)
            yield pair(
                _ORDER, context, "summary", " ".join(parts), " ".join(_sample_sentences(own, len(parts), rng)), rng
            )
            yield pair(_ORDER, context, "summary", " ".join(parts), " ".join([*parts[:-1], *elsewhere[:1]]), rng)
            yield pair(_WORDING, context, "summary", good, break_up(good, rng), rng)
            yield pair(
                _SUBJECT,
                context,
                "summary",
                good,
                rng.choice([" ".join(elsewhere), machine_texts.by_kind["summary"].get(other, ("",))[0]]),
                rng,
            )
            yield pair(
                _TRUTH, context, "summary", good, falsify(good, source if rng.random() < 0.6 else other, rng) or "", rng
            )
            yield pair(_TRUTH, context, "summary", good, " ".join([*split_sentences(good)[:-1], *elsewhere[:1]]), rng)
            late = " ".join(_sample_sentences(own[len(own) // 2 :], len(parts), rng))
            yield pair(_CONTENT, context, "summary", reference or " ".join(own[: len(parts)]), late, rng)
            yield pair(_LESS, context, "summary", good, " ".join(split_sentences(good)[:1]), rng)
        if low:
            yield pair((*_WORDING, *_TRUTH), context, "summary", low, high, rng)
        if low and reference:
            yield pair((*_TRUTH, *_CONTENT), context, "summary", reference, low, rng)


def _summaries(known: Known, rng: random.Random) -> Iterator[GoodBad]:
    """Prefer outputs of real summarizers to damaged versions."""
    for row in rows("realsumm"):
        output, source = row["output"], row["source"]
        if known.is_judged(source) or len(output.split()) < 6:
            continue
        context = ("source", source)
        for _ in range(_OUTPUTS):
            yield pair(_WORDING, context, "summary", output, break_up(output, rng), rng)
        yield pair(_TRUTH, context, "summary", output, falsify(output, source, rng) or "", rng)
        if len(split_sentences(output)) > 1:
            yield pair(_ORDER, context, "summary", output, disorder(output, _usable_sentences(source), rng), rng)
            yield pair(_LESS, context, "summary", output, " ".join(split_sentences(output)[:1]), rng)


def _replies(machine_texts: MachineTexts, rng: random.Random) -> Iterator[GoodBad]:
    """Prefer human replies, replies that raters liked and the language model's to replies to other dialogues, with
    slips, dull ones, and repetitions of earlier turns."""
    human = [(dialogue.turns[:-1], dialogue.turns[-1]) for dialogue in dialogues()]
    for turns in service_dialogues(rng):
        human += [(turns[:at], turns[at]) for at in rng.sample(range(1, len(turns)), 3)]
    liked = [(dialogue.turns, reply) for dialogue in dialogues() for reply in dialogue.liked]
    others = [reply for _, reply in (*human, *liked)]
    for turns, reply in (*human, *liked):
        context = ("dialogue", "\n".join(turns))
        for _ in range(3):
            yield pair(_FITTING, context, "response", reply, _choose_similar_length(reply, others, rng), rng)
        yield pair(_SPEECH, context, "response", reply, add_slips(reply, turns[-1].split(), rng), rng)
        yield pair(_SPEECH, context, "response", reply, break_up(reply, rng), rng)
        if len(reply.split()) >= _LIVELY:
            yield pair(_INTEREST, context, "response", reply, rng.choice(_DULL), rng)
        yield pair(_INTEREST, context, "response", reply, rng.choice(turns), rng)
    machine = [low for low, _ in machine_texts.by_kind["reply"].values()]
    for dialogue in dialogues():
        context = ("dialogue", dialogue.text)
        low, high = machine_texts.by_kind["reply"].get(dialogue.text, ("", ""))
        if low:
            yield pair((*_FITTING, *_SPEECH), context, "response", low, high, rng)
            yield pair(_FITTING, context, "response", low, _choose_similar_length(low, machine, rng), rng)
        for reply in dialogue.liked[:1]:
            yield pair((*_FITTING, "naturalness"), context, "response", reply, high, rng)


def _choose_similar_length(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Choose the most similar length among a few others, so that length does not identify the better text."""
    return min(rng.sample(others, 8), key=lambda other: (other == text, abs(len(other) - len(text))))


def _answers(answers: dict[str, str], machine_texts: MachineTexts, rng: random.Random) -> Iterator[GoodBad]:
    """Prefer answers of a large language model to those of a small one, and both to high-temperature ones, answers to
    other tasks, their own beginning, and evasions."""
    others, machine = list(answers.values()), [low for low, _ in machine_texts.by_kind["answer"].values()]
    for task, answer in answers.items():
        context = ("instruction", task)
        low, high = machine_texts.by_kind["answer"].get(task, ("", ""))
        if low:
            yield pair((*_USEFUL, "correctness"), context, "answer", answer, low, rng)
            yield pair((*_USEFUL, "understandability", "fluency"), context, "answer", low, high, rng)
            yield pair(_USEFUL, context, "answer", low, _choose_similar_length(low, machine, rng), rng)
        yield pair(_USEFUL, context, "answer", answer, _choose_similar_length(answer, others, rng), rng)
        yield pair(_USEFUL, context, "answer", answer, rng.choice((task, rng.choice(_EVASIONS))), rng)
        if len(split_sentences(answer)) > 1:
            yield pair(("helpfulness", "informativeness"), context, "answer", answer, split_sentences(answer)[0], rng)
        yield pair((*_WORDING, "helpfulness"), context, "answer", answer, break_up(answer, rng), rng)


def _usable_sentences(document: str) -> list[str]:
    return [line for line in split_sentences(document)[:_FIRST] if 5 <= len(line.split()) <= 45]


def _quote(document: str, count: int, rng: random.Random) -> list[str]:
    return _sample_sentences(_usable_sentences(document), count, rng, ordered=True)


def _sample_sentences(parts: Sequence[str], count: int, rng: random.Random, *, ordered: bool = False) -> list[str]:
    places = rng.sample(range(len(parts)), min(count, len(parts)))
    return [parts[at] for at in (sorted(places) if ordered else places)]

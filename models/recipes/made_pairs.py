"""Pairs that nobody judged: good texts beside worse ones made of them, and texts beside their own and another source.

Each way to be worse belongs to the criteria that are about it; where it belongs to several, one is drawn.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from agreement import rows
from damage import broken, disordered, sentences, ungrammatical, untrue
from machine_texts import LOW, SEED
from packaged_texts import highlighted_news, service_dialogues, tasks
from preference_texts import Known, abstracts, articles, dialogues, lines, stories

from metrist.data.pairs import GoodBad

#: Criteria of a text alone: no source is shown with them.
ALONE = frozenset({"fluency", "grammaticality", "naturalness", "understandability"})
_LINES = 9_000
#: How often each article, abstract and story is used.
_TIMES = 10
#: How often each output of a real summariser is broken.
_OUTPUTS = 2
#: So many sentences of an article are looked at.
_FIRST = 25


def made_pairs(known: Known, machine: Path, rng: random.Random) -> list[GoodBad]:
    """All of them; `machine` is the file that `machine_texts.py` wrote."""
    good_lines, told, written = lines(), stories(), Written(machine)
    news: dict[str, str | None] = {**articles(known), **highlighted_news(known, rng)}
    pairs = [
        *_lines_with_slips(good_lines, rng),
        *_passages(abstracts(), rng),
        *_stories(told, written, rng),
        *_articles(news, written, rng),
        *_summaries(known, rng),
        *_replies(written, rng),
        *_answers(tasks(known, random.Random(SEED)), written, rng),
    ]
    return [pair for pair in pairs if all(pair.answers) and pair.answers[0].split() != pair.answers[1].split()]


class Written:
    """What the language model wrote: of each kind and source one text of the low and one of the high temperature."""

    def __init__(self, path: Path) -> None:
        self.of: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        both: dict[tuple[str, str], dict[bool, str]] = defaultdict(dict)
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                both[row["kind"], row["source"]][row["temperature"] == LOW] = row["text"]
        for (kind, source), by_low in both.items():
            if len(by_low[True].split()) >= 3 and len(by_low[False].split()) >= 3:
                self.of[kind][source] = by_low[True], by_low[False]


def pair(
    criteria: Sequence[str], context: tuple[str, str], label: str, good: str, bad: str, rng: random.Random
) -> GoodBad:
    """One pair for one of the criteria; `context` is (label, text), shown unless the criterion is of the text alone."""
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
#: A reply of so many words says more than any of these.
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
        worse = broken(line, rng) if rng.random() < 0.25 else ungrammatical(line, vocabulary, rng)
        yield pair(_SLIPS, _NOTHING, "text", line, worse, rng)


def _passages(documents: Sequence[list[str]], rng: random.Random) -> Iterator[GoodBad]:
    strangers = [line for document in documents for line in document]
    for document in documents:
        for _ in range(_TIMES // 2):
            at = rng.randrange(max(1, len(document) - 3))
            text = " ".join(document[at : at + rng.randint(3, 5)])
            worse, criteria = (
                (disordered(text, strangers, rng), _ORDER) if rng.random() < 0.6 else (broken(text, rng), _WORDING)
            )
            yield pair(criteria, _NOTHING, "text", text, worse, rng)


def _stories(told: Sequence[str], written: Written, rng: random.Random) -> Iterator[GoodBad]:
    """People's stories before the language model's, its likelier ones before its wilder ones, and either before itself
    in disorder or after another beginning."""
    human = {sentences(story)[0]: " ".join(sentences(story)[1:]) for story in told}
    machine = {source: low for source, (low, _) in written.of["story"].items()}
    endings, strangers = (
        list(machine.values()),
        [line for text in (*human.values(), *machine.values()) for line in sentences(text)],
    )
    whole = ("coherence", "overall", "overall")
    for first, rest in human.items():
        context = ("beginning", first)
        for _ in range(_TIMES):
            yield pair(whole, context, "story", rest, disordered(rest, strangers, rng), rng)
        for _ in range(_TIMES // 2):
            yield pair(_SUBJECT, context, "story", rest, rng.choice(list(human.values())), rng)
            yield pair(_WORDING, context, "story", rest, broken(rest, rng), rng)
        for text in written.of["story"].get(first, ()):
            yield pair((*whole, "naturalness", "engagingness"), context, "story", rest, text, rng)
    for first, (low, high) in written.of["story"].items():
        context = ("beginning", first)
        yield pair((*_WORDING, *whole), context, "story", low, high, rng)
        yield pair(_SUBJECT, context, "story", low, _as_long(low, endings, rng), rng)
        if len(sentences(low)) >= 3:
            yield pair(whole, context, "story", low, disordered(low, strangers, rng), rng)


def _articles(news: dict[str, str | None], written: Written, rng: random.Random) -> Iterator[GoodBad]:
    """An article's own sentences in their order, people's summary and the language model's, beside worse ones."""
    everything = list(news)
    for source, reference in news.items():
        context = ("source", source)
        own = _fit(source)
        if len(own) < 6:
            continue
        low, high = written.of["summary"].get(source, ("", ""))
        for _ in range(_TIMES if source in written.of["summary"] else _TIMES // 3):
            at = 0 if rng.random() < 0.6 else rng.randrange(len(own) - 3)
            parts = own[at : at + rng.randint(2, 4)]
            good = rng.choice([" ".join(parts), " ".join(parts), *filter(None, (reference, low))])
            other = rng.choice(everything)
            elsewhere = _quoted(other, len(parts), rng)
            yield pair(_ORDER, context, "summary", " ".join(parts), " ".join(_scattered(own, len(parts), rng)), rng)
            yield pair(_ORDER, context, "summary", " ".join(parts), " ".join([*parts[:-1], *elsewhere[:1]]), rng)
            yield pair(_WORDING, context, "summary", good, broken(good, rng), rng)
            yield pair(
                _SUBJECT,
                context,
                "summary",
                good,
                rng.choice([" ".join(elsewhere), written.of["summary"].get(other, ("",))[0]]),
                rng,
            )
            yield pair(
                _TRUTH, context, "summary", good, untrue(good, source if rng.random() < 0.6 else other, rng) or "", rng
            )
            yield pair(_TRUTH, context, "summary", good, " ".join([*sentences(good)[:-1], *elsewhere[:1]]), rng)
            late = " ".join(_scattered(own[len(own) // 2 :], len(parts), rng))
            yield pair(_CONTENT, context, "summary", reference or " ".join(own[: len(parts)]), late, rng)
            yield pair(_LESS, context, "summary", good, " ".join(sentences(good)[:1]), rng)
        if low:
            yield pair((*_WORDING, *_TRUTH), context, "summary", low, high, rng)
        if low and reference:
            yield pair((*_TRUTH, *_CONTENT), context, "summary", reference, low, rng)


def _summaries(known: Known, rng: random.Random) -> Iterator[GoodBad]:
    """What real summarisers wrote, beside the same made worse."""
    for row in rows("realsumm"):
        output, source = row["output"], row["source"]
        if known.is_judged(source) or len(output.split()) < 6:
            continue
        context = ("source", source)
        for _ in range(_OUTPUTS):
            yield pair(_WORDING, context, "summary", output, broken(output, rng), rng)
        yield pair(_TRUTH, context, "summary", output, untrue(output, source, rng) or "", rng)
        if len(sentences(output)) > 1:
            yield pair(_ORDER, context, "summary", output, disordered(output, _fit(source), rng), rng)
            yield pair(_LESS, context, "summary", output, " ".join(sentences(output)[:1]), rng)


def _replies(written: Written, rng: random.Random) -> Iterator[GoodBad]:
    """What people replied, what raters liked and what the language model wrote, beside replies to something else, with
    slips, dull ones, and ones that only say what was said."""
    human = [(dialogue.said[:-1], dialogue.said[-1]) for dialogue in dialogues()]
    for turns in service_dialogues(rng):
        human += [(turns[:at], turns[at]) for at in rng.sample(range(1, len(turns)), 3)]
    liked = [(dialogue.said, reply) for dialogue in dialogues() for reply in dialogue.liked]
    others = [reply for _, reply in (*human, *liked)]
    for said, reply in (*human, *liked):
        context = ("dialogue", "\n".join(said))
        for _ in range(3):
            yield pair(_FITTING, context, "response", reply, _as_long(reply, others, rng), rng)
        yield pair(_SPEECH, context, "response", reply, ungrammatical(reply, said[-1].split(), rng), rng)
        yield pair(_SPEECH, context, "response", reply, broken(reply, rng), rng)
        if len(reply.split()) >= _LIVELY:
            yield pair(_INTEREST, context, "response", reply, rng.choice(_DULL), rng)
        yield pair(_INTEREST, context, "response", reply, rng.choice(said), rng)
    machine = [low for low, _ in written.of["reply"].values()]
    for dialogue in dialogues():
        context = ("dialogue", dialogue.text)
        low, high = written.of["reply"].get(dialogue.text, ("", ""))
        if low:
            yield pair((*_FITTING, *_SPEECH), context, "response", low, high, rng)
            yield pair(_FITTING, context, "response", low, _as_long(low, machine, rng), rng)
        for reply in dialogue.liked[:1]:
            yield pair((*_FITTING, "naturalness"), context, "response", reply, high, rng)


def _as_long(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Of a few others the one that is most nearly as long: length is not to tell them apart."""
    return min(rng.sample(others, 8), key=lambda other: (other == text, abs(len(other) - len(text))))


def _answers(answers: dict[str, str], written: Written, rng: random.Random) -> Iterator[GoodBad]:
    """Answers of a large language model before those of a small one, and either before wilder ones, ones to other
    tasks, its own beginning, and ones that say nothing."""
    others, machine = list(answers.values()), [low for low, _ in written.of["answer"].values()]
    for task, answer in answers.items():
        context = ("instruction", task)
        low, high = written.of["answer"].get(task, ("", ""))
        if low:
            yield pair((*_USEFUL, "correctness"), context, "answer", answer, low, rng)
            yield pair((*_USEFUL, "understandability", "fluency"), context, "answer", low, high, rng)
            yield pair(_USEFUL, context, "answer", low, _as_long(low, machine, rng), rng)
        yield pair(_USEFUL, context, "answer", answer, _as_long(answer, others, rng), rng)
        yield pair(_USEFUL, context, "answer", answer, rng.choice((task, rng.choice(_EVASIONS))), rng)
        if len(sentences(answer)) > 1:
            yield pair(("helpfulness", "informativeness"), context, "answer", answer, sentences(answer)[0], rng)
        yield pair((*_WORDING, "helpfulness"), context, "answer", answer, broken(answer, rng), rng)


def _fit(document: str) -> list[str]:
    return [line for line in sentences(document)[:_FIRST] if 5 <= len(line.split()) <= 45]


def _quoted(document: str, count: int, rng: random.Random) -> list[str]:
    return _scattered(_fit(document), count, rng, ordered=True)


def _scattered(parts: Sequence[str], count: int, rng: random.Random, *, ordered: bool = False) -> list[str]:
    places = rng.sample(range(len(parts)), min(count, len(parts)))
    return [parts[at] for at in (sorted(places) if ordered else places)]

"""Make pairs without human judgments for the English encoder: tasks, replies, stories and summaries.

The better text answers its own task, continues its own dialogue or story, or tells of its own article; the worse one
belongs to a neighbour, or is damaged. Where two texts can be asked for in two ways, both are, so that the outputs alone
do not tell the better one. Texts come from published packages (`packaged_texts.py`) and from Qwen2.5-Coder (`Written`).
"""

from __future__ import annotations

import json
import lzma
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from damage import add_slips, break_up, split_sentences
from packaged_texts import news_highlights, task_answers
from preference_texts import Known
from scipy import sparse

Fields = tuple[tuple[str, str], ...]


class Pair(NamedTuple):
    """Two outputs for one context. `criterion` names the wordings of the instruction, or is an instruction itself."""

    kind: str
    criterion: str
    context: Fields
    good: str
    bad: str
    certainty: float = 1.0


class Written:
    """Texts of Qwen2.5-Coder-1.5B-Instruct by kind, each with its prompt: a list of [kind, prompt, text] in a file."""

    def __init__(self, path: Path) -> None:
        self.by_kind: dict[str, list[tuple[str, str]]] = defaultdict(list)
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for kind, prompt, text in json.load(file):
                self.by_kind[kind].append((prompt, text))

    def by_article(self, kind: str) -> dict[str, str]:
        """Return the texts of a kind by the article that ends their prompt."""
        return {prompt.split("\n\n", 1)[1].strip(): text.strip() for prompt, text in self.by_kind[kind]}


# ---- Neighbours by TF-IDF


def find_neighbours(texts: Sequence[str], count: int = 16, most: float = 0.9) -> list[list[int]]:
    """Return for each text the most similar others by words and pairs of words, nearest first; near copies are not."""
    grams = [_grams(text) for text in texts]
    frequency = Counter(gram for own in grams for gram in set(own))
    column = {gram: at for at, gram in enumerate(gram for gram, times in frequency.items() if times > 1)}
    places, columns, values = [], [], []
    for row, own in enumerate(grams):
        for gram, times in Counter(own).items():
            if gram in column:
                places.append(row)
                columns.append(column[gram])
                values.append((1 + math.log(times)) * math.log(len(texts) / frequency[gram]))
    matrix = sparse.csr_matrix((np.array(values, np.float32), (places, columns)), shape=(len(texts), len(column)))
    norm = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel()) + 1e-6
    matrix = (sparse.diags(1 / norm) @ matrix).tocsr().astype(np.float32)
    result = []
    for start in range(0, len(texts), 1000):
        similar = (matrix[start : start + 1000] @ matrix.T).toarray()
        nearest = np.argpartition(-similar, min(count, len(texts) - 1), axis=1)[:, :count]
        for row, candidates in enumerate(nearest):
            chosen = [int(at) for at in candidates if at != start + row and similar[row, at] < most]
            result.append(sorted(chosen, key=lambda at: -similar[row, at]))
    return result


def _grams(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


# ---- Damage that leaves no mark

_OPPOSITES = (
    "increase decrease, increases decreases, increased decreased, more fewer, before after, first last, high low, "
    "higher lower, always never, most least, large small, larger smaller, win lose, won lost, buy sell, north south, "
    "east west, old new, oldest newest, good bad, early late, earlier later, above below, inside outside, hot cold, "
    "strong weak, stronger weaker, fast slow, faster slower, many few, begin end, began ended, left right, "
    "male female, husband wife, son daughter, mother father, positive negative, internal external, maximum minimum, "
    "often rarely, easy difficult, light dark, rich poor, young old, import export, major minor, public private, "
    "modern ancient"
)
_OPPOSITE = {word: other for pair in _OPPOSITES.split(", ") for word, other in (pair.split(), reversed(pair.split()))}
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"(?<![\w.])\d{1,6}(?![\w])")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")


def change_detail(text: str, names: Sequence[str], rng: random.Random) -> str | None:
    """Change a number, a name, or a word into its opposite; return None if there is nothing to change.

    No word marks the change: a negation would.
    """
    changes: list[tuple[re.Match[str], str]] = []
    for place in _NUMBER.finditer(text):
        changes.append((place, _other_number(place[0], rng)))
    for place in _NAME.finditer(text):
        changes.append((place, rng.choice(names)))
    for place in _WORD.finditer(text):
        if place[0] in _OPPOSITE:
            changes += [(place, _OPPOSITE[place[0]])] * 2
    changes = [(place, new) for place, new in changes if new != place[0]]
    if not changes:
        return None
    place, new = rng.choice(changes)
    return text[: place.start()] + new + text[place.end() :]


def _other_number(number: str, rng: random.Random) -> str:
    value = int(number)
    if 1500 <= value <= 2100:
        return str(value + rng.choice((-40, -17, -8, -3, 4, 9, 15, 30)))
    return str(max(0, value + rng.choice((-1, 1)) * rng.randint(1, max(2, value // 2))))


def find_names(texts: Sequence[str]) -> list[str]:
    """Return the names of texts, without those that a text has rarely."""
    times = Counter(name for text in texts for name in _NAME.findall(text))
    return sorted(name for name, count in times.items() if count >= 3) or ["London"]


# ---- Tasks

_NEIGHBOURS = ("overall", "helpfulness", "helpfulness", "instruction following", "instruction following", "relevance")
_FOLLOWING = ("helpfulness", "instruction following", "instruction following", "overall")
_EVASIONS = (
    "I'm sorry, but I can't help with that.",
    "There are many ways to look at this.",
    "I do not have enough information to answer.",
    "That is a great question, and many people have thought about it. There is a lot that one could say, and the right "
    "answer depends on many things, so it is best to look at it from all sides before you decide.",
    "Thank you for reaching out! I would be delighted to assist you with this. Please tell me more about what you have "
    "in mind, which details matter to you and what you have tried so far, and then we can go through it together.",
    "This is an important subject that deserves careful thought. Experts have different opinions about it, and new "
    "findings appear all the time. In the end everybody has to weigh the arguments and find out what fits best.",
)


class Tasks:
    """Tasks with their answers, weaker answers by Qwen, and the neighbours of each task and of each answer."""

    def __init__(self, known: Known, written: Written) -> None:
        self.answers = {
            task: answer
            for task, answer in ((_clean(task), _clean(answer)) for task, answer in task_answers().items())
            if len(task.split()) in range(3, 221) and len(answer.split()) in range(1, 261) and not known.is_judged(task)
        }
        self.names = sorted(self.answers)
        texts = ((_clean(prompt), _cut_to_sentences(_clean(text))) for prompt, text in written.by_kind["answer"])
        self.weak = {task: text for task, text in texts if task in self.answers and len(text.split()) >= 3}
        # Nearer ones often ask for the same thing.
        self.near = self._others(find_neighbours(self.names, 16, 0.75))
        self.near_answers = self._others(find_neighbours([self.answers[task] for task in self.names], 8, 0.75))

    def _others(self, neighbours: list[list[int]]) -> list[list[str]]:
        """Return the tasks of places, without those that have the same answer."""
        return [
            [self.names[at] for at in near if self.answers[self.names[at]] != self.answers[task]]
            for task, near in zip(self.names, neighbours, strict=True)
        ]


def _clean(text: str) -> str:
    """Remove marks of the generator: escaped line breaks and empty inputs."""
    return text.replace("\\n", "\n").replace("<noinput>", "").strip()


def _cut_to_sentences(text: str) -> str:
    """Remove an unfinished sentence at the end."""
    end = max(text.rfind(mark) for mark in (". ", ".\n", "! ", "? ", "\n"))
    return text if text.endswith((".", "!", "?", ":", ")", '"')) or end < len(text) // 2 else text[: end + 1].strip()


def task_pairs(tasks: Tasks, rng: random.Random) -> Iterator[Pair]:
    """Prefer an answer to its own task: to the answers of neighbours, of a weak model, and to damaged versions."""
    details = find_names(list(tasks.answers.values()))
    for at, task in enumerate(tasks.names):
        context, answer, weak = (("instruction", task),), tasks.answers[task], tasks.weak.get(task)
        near = tasks.near[at]
        if near and rng.random() < 0.6:
            # The same two answers under both tasks.
            other = rng.choice(near[:4])
            criterion = rng.choice(_NEIGHBOURS)
            yield Pair("task neighbour", criterion, context, answer, tasks.answers[other])
            yield Pair("task neighbour", criterion, (("instruction", other),), tasks.answers[other], answer)
        if tasks.near_answers[at] and rng.random() < 0.25:
            other = rng.choice(tasks.near_answers[at][:3])
            yield Pair("task near answer", rng.choice(_FOLLOWING), context, answer, tasks.answers[other], 0.9)
        if weak and near:
            # The plain answer that follows the task, against a polished one that does not.
            others = [tasks.answers[other] for other in near[:4]]
            polished = max(others, key=len) if rng.random() < 0.5 else rng.choice(others)
            if len(polished) > 0.6 * len(weak):
                yield Pair("task weak follows", rng.choice(_FOLLOWING), context, weak, polished, 0.85)
            if near[0] in tasks.weak:
                yield Pair("task weak neighbour", rng.choice(_FOLLOWING), context, answer, tasks.weak[near[0]], 0.95)
        if weak and 0.5 < len(answer) / len(weak) < 2:
            yield Pair("task weak answer", rng.choice(_FOLLOWING), context, answer, weak, 0.75)
        draw = rng.random()
        if draw < 0.1 and len(answer.split()) > 8:
            yield Pair("task broken", "overall", context, answer, break_up(answer, rng))
        elif draw < 0.3 and (changed := change_detail(answer, details, rng)):
            yield Pair("task false", "correctness", context, answer, changed, 0.85)
        elif draw < 0.34:
            yield Pair("task evasion", "helpfulness", context, answer, rng.choice(_EVASIONS), 0.95)
        elif draw < 0.38:
            yield Pair("task echo", "helpfulness", context, answer, f"{rng.choice(('', 'Sure! '))}{task}", 0.95)
        elif draw < 0.44 and near:
            parts, stray = split_sentences(answer), split_sentences(tasks.answers[near[0]])
            padded = [*parts, *rng.sample(stray, min(2, len(stray))), *parts[:1]]
            yield Pair("task padded", "overall", context, answer, " ".join(padded), 0.85)
        elif draw < 0.5 and len(split_sentences(answer)) > 2:
            cut = answer.split()[: int(len(answer.split()) * rng.uniform(0.3, 0.7))]
            yield Pair("task cut", "helpfulness", context, answer, " ".join(cut), 0.85)


class Constraint(NamedTuple):
    """A demand and its opposite, and the value of a text that decides which of two meets it; least difference."""

    more: tuple[str, ...]
    less: tuple[str, ...]
    value: Callable[[str], float]
    least: float


def _count_words(text: str) -> int:
    return len(text.split())


def _count_sentences(text: str) -> int:
    return len(split_sentences(text))


def _count_items(text: str) -> int:
    return len(re.findall(r"(?m)^\s*(?:[-*•]|\d+[.)])\s", text))


CONSTRAINTS = (
    Constraint(
        ("Write a detailed answer.", "Explain it at length.", "Go into depth.", "Use several sentences."),
        ("Answer in one sentence.", "Use a single sentence only.", "Be very brief.", "A short answer will do."),
        _count_sentences,
        3,
    ),
    Constraint(
        ("Format the answer as a list.", "Give your answer as bullet points.", "Put each point on its own line."),
        ("Do not use a list.", "Write one paragraph without bullet points.", "Answer in running text."),
        lambda text: min(4, _count_items(text)),
        2,
    ),
    Constraint(
        ("Include numbers.", "Support the answer with figures.", "Give exact quantities."),
        ("Do not use any digits.", "Leave out all numbers.", "Explain it without figures."),
        lambda text: float(bool(re.search(r"\d(?![\d.]*[.)]\s)", text))),
        1,
    ),
    Constraint(
        ("End with a question to the reader.", "Ask something in your answer."),
        ("Do not ask any question.", "Use statements only."),
        lambda text: float("?" in text),
        1,
    ),
    Constraint(
        ("Write in the first person.", "Speak about yourself."),
        ("Do not speak about yourself.", "Write impersonally."),
        lambda text: float(bool(re.search(r"\b(?:I|my|me)\b", text))),
        1,
    ),
    Constraint(
        ("Give an example.", "Illustrate it with an example."),
        ("Do not give examples.", "No examples, please."),
        lambda text: float(bool(re.search(r"\b(?:for example|for instance|such as|e\.g\.)", text, re.IGNORECASE))),
        1,
    ),
)


def constraint_pairs(tasks: Tasks, rng: random.Random, each: int = 900) -> Iterator[Pair]:
    """Add a demand to a task that one of two answers meets; the opposite demand prefers the other one."""
    counts: Counter[str] = Counter()
    for at in rng.sample(range(len(tasks.names)), len(tasks.names)):
        task = tasks.names[at]
        answer = tasks.answers[task]
        parts = split_sentences(answer)
        second = tasks.weak.get(task) or (parts[0] if len(parts) > 1 else "")
        if not second or "\n\n" in task:
            continue
        if rng.random() < 0.3:
            yield from _mention_pairs(task, answer, second, counts, each, rng)
            continue
        if rng.random() < 0.25:
            yield from _limit_pairs(task, answer, second, counts, each, rng)
            continue
        order = rng.sample(CONSTRAINTS, len(CONSTRAINTS))
        for constraint in order:
            difference = constraint.value(answer) - constraint.value(second)
            if abs(difference) >= constraint.least and counts[constraint.more[0]] < each:
                counts[constraint.more[0]] += 1
                more, less = (answer, second) if difference > 0 else (second, answer)
                yield _demand(task, rng.choice(constraint.more), more, less, rng)
                yield _demand(task, rng.choice(constraint.less), less, more, rng)
                break


def _demand(task: str, demand: str, good: str, bad: str, rng: random.Random) -> Pair:
    instruction = rng.choice((f"{task} {demand}", f"{task}\n{demand}", f"{demand} {task}"))
    return Pair("task demand", rng.choice(_FOLLOWING), (("instruction", instruction),), good, bad, 0.95)


def _mention_pairs(
    task: str, answer: str, second: str, counts: Counter[str], each: int, rng: random.Random
) -> Iterator[Pair]:
    own = {word for word in re.findall(r"[a-z]{5,}", answer) if word not in second.lower() and word not in task.lower()}
    if own and counts["mention"] < 2 * each:
        counts["mention"] += 1
        word = rng.choice(sorted(own))
        mention = rng.choice(('Use the word "{}".', "Mention {}.", 'Your answer must contain the word "{}".'))
        avoid = rng.choice(('Do not use the word "{}".', "Do not mention {}.", 'Avoid the word "{}".'))
        yield _demand(task, mention.format(word), answer, second, rng)
        yield _demand(task, avoid.format(word), second, answer, rng)


def _limit_pairs(
    task: str, answer: str, second: str, counts: Counter[str], each: int, rng: random.Random
) -> Iterator[Pair]:
    shorter, longer = sorted((answer, second), key=_count_words)
    low, high = _count_words(shorter), _count_words(longer)
    if high > 1.6 * low + 5 and counts["limit"] < each:
        counts["limit"] += 1
        limit = next(
            (step for step in (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 120, 150) if low <= step < high), low
        )
        most = rng.choice(("Use at most {} words.", "No more than {} words.", "Keep it under {} words."))
        least = rng.choice(("Write at least {} words.", "Use more than {} words.", "Not less than {} words."))
        yield _demand(task, most.format(limit + 1), shorter, longer, rng)
        yield _demand(task, least.format(limit), longer, shorter, rng)


# ---- Tasks with one right answer


def exact_pairs(lines: Sequence[str], tasks: Tasks, rng: random.Random, each: int = 400) -> Iterator[Pair]:
    """Prefer the right answer to a wrong one that is as polished or more so, or less."""
    questions = [task for task in tasks.names if task.endswith("?") and len(task.split()) <= 20]
    vocabulary = sorted({word for line in lines[:4000] for word in re.findall(r"\b[a-z]{4,9}\b", line)})
    for make in (_sort_words, _choose_word, _nth_word, _count, _replace_word, _extract_numbers, _choose_sentence, _add):
        made = 0
        while made < each:
            result = make(rng.sample(lines, 3), rng.sample(vocabulary, rng.randint(3, 7)), rng)
            if result is None:
                continue
            task, right, wrong = result
            made += 1
            yield _exact(task, right, wrong, rng)
    for question in rng.sample(questions, min(2 * each, len(questions))):
        demand = rng.choice(("Repeat this question, do not answer it: {}", "Copy the following question. {}"))
        answer = tasks.answers[question]
        yield _exact(demand.format(question), question, answer, rng)
        # The same two texts the other way around.
        plain = rng.choice(("Answer this question: {}", "{}", "Do not repeat the question, answer it. {}"))
        yield _exact(plain.format(question), answer, question, rng)


def _exact(task: str, right: str, wrong: str, rng: random.Random) -> Pair:
    polite = (
        "Sure! {}",
        "Certainly. {} I hope this helps!",
        "Here is the answer: {}",
        "{} Let me know if you need more.",
    )
    good, bad = ((rng.choice(polite) if rng.random() < 0.35 else "{}").format(text) for text in (right, wrong))
    return Pair("task exact", rng.choice((*_FOLLOWING, "correctness")), (("instruction", task),), good, bad, 0.97)


Exact = tuple[str, str, str] | None


def _sort_words(_lines: Sequence[str], words: Sequence[str], rng: random.Random) -> Exact:
    ordered = sorted(words)
    task, right, wrong = rng.choice(
        (
            ("Sort these words alphabetically: {}", ordered, ordered[::-1]),
            ("Put the words in reverse alphabetical order: {}", ordered[::-1], ordered),
            ("Write this list backwards: {}", list(words)[::-1], ordered),
            ("Repeat this list without the first word: {}", list(words)[1:], list(words)[:-1]),
            ("Repeat this list without the last word: {}", list(words)[:-1], list(words)[1:]),
        )
    )
    return None if right == wrong else (task.format(", ".join(words)), ", ".join(right), ", ".join(wrong))


def _choose_word(_lines: Sequence[str], words: Sequence[str], rng: random.Random) -> Exact:
    by_length = sorted(words, key=len)
    if len(by_length[0]) == len(by_length[1]) or len(by_length[-1]) == len(by_length[-2]):
        return None
    task, right, wrong = rng.choice(
        (
            ("Which of these words is the longest? {}", by_length[-1], by_length[0]),
            ("Which of these words is the shortest? {}", by_length[0], by_length[-1]),
            ("Which word comes first in the dictionary? {}", min(words), max(words)),
        )
    )
    return task.format(", ".join(words)), f"{right}.", f"{wrong}."


def _nth_word(_lines: Sequence[str], words: Sequence[str], rng: random.Random) -> Exact:
    at, other = rng.sample(range(len(words)), 2)
    name = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")[at]
    return f"Give only the {name} word of this list: {', '.join(words)}", words[at], words[other]


def _count(_lines: Sequence[str], words: Sequence[str], rng: random.Random) -> Exact:
    numbers = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    right, wrong = len(words), len(words) + rng.choice((-2, -1, 1, 2))
    if wrong < 1:
        return None
    task = f"How many words are in this list? {', '.join(words)}"
    form = rng.choice(("{}", "There are {} words.", "The list has {} words."))
    return task, form.format(numbers[right]), form.format(numbers[wrong])


def _replace_word(lines: Sequence[str], words: Sequence[str], rng: random.Random) -> Exact:
    line = lines[0]
    own = [word for word in re.findall(r"\b[a-z]{4,}\b", line) if len(re.findall(rf"\b{word}\b", line)) == 1]
    if len(own) < 2:
        return None
    old, other = rng.sample(own, 2)
    new = words[0]
    right, wrong = (re.sub(rf"\b{place}\b", new, line) for place in (old, other))
    return f'Replace the word "{old}" by "{new}": {line}', right, rng.choice((wrong, line))


def _extract_numbers(lines: Sequence[str], _words: Sequence[str], rng: random.Random) -> Exact:
    numbers = re.findall(r"(?<![\w.,])\d+(?![\w.,]*\d)", lines[0])
    if not numbers:
        return None
    wrong = [_other_number(number, rng) for number in numbers]
    if wrong == numbers:
        return None
    task = rng.choice(("List the numbers in this text: {}", "Which numbers does the text contain? {}"))
    return task.format(lines[0]), ", ".join(numbers), ", ".join(wrong)


def _choose_sentence(lines: Sequence[str], _words: Sequence[str], rng: random.Random) -> Exact:
    at, other = rng.sample(range(3), 2)
    name = ("first", "second", "third")[at]
    demand = rng.choice(("Copy the {} sentence.", "Repeat only the {} of these sentences.", "What is the {} sentence?"))
    return f"{demand.format(name)} {' '.join(lines)}", lines[at], lines[other]


def _add(_lines: Sequence[str], _words: Sequence[str], rng: random.Random) -> Exact:
    first, second = rng.randint(2, 60), rng.randint(2, 40)
    right, sign = rng.choice(((first + second, "+"), (first - second, "-")))
    wrong = right + rng.choice((-10, -2, -1, 1, 2, 10))
    form = rng.choice(("{}", "The result is {}.", f"{first} {sign} {second} = {{}}"))
    return f"What is {first} {sign} {second}?", form.format(right), form.format(wrong)


# ---- Replies

_FITTING = ("reply fit", "reply fit", "overall", "relevance", "coherence")
_DULL = (
    "I don't know.", "Okay.", "That is nice.", "I see.", "Yes.", "No, I don't think so.", "That's interesting.",
    "I am not sure what you mean.", "Oh, really?", "Me too.", "Good for you.", "I have no idea about that.", "Maybe.",
    "What do you think?", "I agree.", "I have never heard of that.", "That is cool.", "Yeah, I think so too.",
)  # fmt: skip
_DULL_AND_LONG = (
    "That is very interesting to hear, and I think that it is nice that you told me about it, because I did not know.",
    "I am not sure what to say about that, but it sounds like something that a lot of people would think about too.",
    "Yes, I think so too. It is always nice to talk about things like that with someone, and I like to talk as well.",
    "I see what you mean, and I guess that there are many different opinions about it, so I do not really know.",
    "That is a good point. I have never really thought about it, but it is good to know, so thank you for saying that.",
    "I do not know much about this, to be honest. I have heard people speak of it, but I could not tell you anything.",
    "Wow, that is cool. I like cool things. It is really nice when things are cool like that, I have to say.",
)
_TURN = re.compile(r"(?m)^\W*[AB]\W*:\W*(.+)$")


def reply_pairs(written: Written, rng: random.Random) -> Iterator[Pair]:
    """Prefer the turn that follows in a conversation to turns of others, to dull, repeated and damaged ones."""
    talks = []
    for prompt, text in written.by_kind["dialogue"]:
        turns = [turn.strip().strip('"') for turn in _TURN.findall(text)]
        turns = [turn for turn in turns if 2 <= len(turn.split()) <= 60]
        subject = re.search(r"They talk about (.+?)(?: and then|\.)", prompt)
        if len(turns) >= 4 and subject:
            talks.append((subject[1], turns))
    by_subject = defaultdict(list)
    for subject, turns in talks:
        by_subject[subject].append(turns)
    # A greeting begins a conversation: it would mark the reply of another one.
    later = [turn for _, turns in talks for turn in turns[2:]]
    for subject, turns in talks:
        same = [turn for other in by_subject[subject] if other is not turns for turn in other[2:]]
        for at in rng.sample(range(2, len(turns)), min(3, len(turns) - 2)):
            context, reply = (("dialogue", "\n".join(turns[max(0, at - 6) : at])),), turns[at]
            yield Pair("reply other", rng.choice(_FITTING), context, reply, choose_similar(reply, later, rng), 0.97)
            if same:
                other = choose_similar(reply, same, rng)
                yield Pair("reply same topic", rng.choice(_FITTING), context, reply, other, 0.85)
            yield from _worse_reply(context, turns, at, same, rng)


def _worse_reply(
    context: Fields, turns: Sequence[str], at: int, same: Sequence[str], rng: random.Random
) -> Iterator[Pair]:
    reply, draw = turns[at], rng.random()
    interest = rng.choice(("engagingness", "engagingness", "informativeness", "overall"))
    wording = rng.choice(("naturalness", "understandability", "fluency", "overall"))
    if draw < 0.2:
        repeated = turns[at - 2] if rng.random() < 0.6 else turns[at - 1]
        yield Pair("reply repeats", interest, context, reply, repeated, 0.95)
    elif draw < 0.32 and len(reply.split()) > 7:
        yield Pair("reply dull", interest, context, reply, rng.choice(_DULL), 0.9)
    elif draw < 0.5 and len(reply.split()) > 7:
        yield Pair("reply dull and long", interest, context, reply, rng.choice(_DULL_AND_LONG), 0.9)
    elif draw < 0.68:
        vocabulary = turns[at - 1].split() or ["the"]
        yield Pair("reply slips", wording, context, reply, add_slips(reply, vocabulary, rng), 0.97)
    elif draw < 0.86:
        yield Pair("reply broken", wording, context, reply, break_up(reply, rng), 0.97)
    elif same:
        mixed = " ".join([*split_sentences(reply)[:1], choose_similar(reply, same, rng)])
        yield Pair("reply mixed", rng.choice(("reply fit", "coherence", "overall")), context, reply, mixed, 0.85)


def choose_similar(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Choose the most similar length among a few others, so that length does not identify the better text."""
    sample = rng.sample(others, min(8, len(others)))
    return min(sample, key=lambda other: (other == text, abs(len(other) - len(text))))


# ---- Stories

_MEN = frozenset(
    {
        "Ben",
        "David",
        "Frank",
        "Henry",
        "Jack",
        "Leo",
        "Nick",
        "Paul",
        "Sam",
        "Victor",
        "Walter",
        "Mark",
        "Tom",
        "Peter",
        "Mike",
    }
)
_STORY = ("overall", "overall", "coherence", "story", "story")


def story_pairs(written: Written, rng: random.Random) -> Iterator[Pair]:
    """Prefer a story after its own beginning to others', and to versions with stray, repeated or broken sentences."""
    stories = []
    for prompt, text in written.by_kind["story"]:
        name = re.search(r"In the story, (\w+) ", prompt)
        parts = split_sentences(re.sub(r"\s+", " ", text).strip())
        if name and 4 <= len(parts) <= 9 and all(len(part.split()) < 40 for part in parts):
            stories.append((name[1], parts[:7]))
    names = find_names([" ".join(parts) for _, parts in stories])
    neighbours = find_neighbours([" ".join(parts) for _, parts in stories], 16)
    for at, (name, parts) in enumerate(stories):
        style = rng.random()
        hero = "[MALE]" if name in _MEN else "[FEMALE]"

        def show(sentences: Sequence[str], name: str = name, hero: str = hero, style: float = style) -> str:
            """Join sentences; some data sets replace names."""
            text = " ".join(sentences)
            return re.sub(rf"\b{name}\b", hero, text) if style < 0.3 else text

        def rename(sentences: Sequence[str], other: str, name: str = name) -> list[str]:
            return [re.sub(rf"\b{other}\b", name, sentence) for sentence in sentences]

        context, rest = (("beginning", show(parts[:1])),), parts[1:]
        # Pronouns would tell a story with a hero of the other sex.
        alike = [number for number in neighbours[at] if (stories[number][0] in _MEN) == (name in _MEN)]
        near_name, near = stories[alike[rng.randrange(min(3, len(alike)))] if alike else at]
        far_name, far = rng.choice(stories)
        if near is parts:
            continue
        other = rename(near[1:], near_name)
        yield Pair("story other", rng.choice((*_STORY, "relevance")), context, show(rest), show(other), 0.95)
        for _ in range(4):
            worse, draw, certainty, criterion = list(rest), rng.random(), 0.95, rng.choice(_STORY)
            place = rng.randrange(len(worse))
            if draw < 0.15:
                rng.shuffle(worse)
                kind, certainty = "story shuffled", 0.85
            elif draw < 0.4:
                stray = rng.choice(rename(near, near_name) if rng.random() < 0.6 else rename(far, far_name))
                worse[place : place + rng.randint(0, 1)] = [stray]
                kind = "story stray sentence"
            elif draw < 0.52:
                worse[place : place + rng.randint(0, 1)] = [rng.choice(worse)]
                kind = "story repeats"
            elif draw < 0.66:
                worse, kind = [break_up(" ".join(worse), rng)], "story broken"
                criterion = rng.choice(("overall", "fluency", "understandability", "coherence", "story"))
            elif draw < 0.8:
                worse, kind, certainty = [change_detail(" ".join(worse), names, rng) or ""], "story false", 0.8
            elif draw < 0.88:
                worse, kind, certainty = [add_slips(" ".join(worse), parts[0].split(), rng)], "story slips", 0.9
                criterion = rng.choice(("overall", "fluency", "naturalness", "understandability"))
            else:
                worse, kind = [*worse[:-1], rename(near, near_name)[-1]], "story ending"
            yield Pair(kind, criterion, context, show(rest), show(worse), certainty)


# ---- Summaries by Qwen


def summary_pairs(written: Written, rng: random.Random) -> Iterator[Pair]:
    """Prefer highlights to summaries at a high temperature and to guesses, and careful summaries to damaged ones."""
    careful = {article: _cut_to_sentences(text) for article, text in written.by_article("summary").items()}
    articles = sorted(careful)
    neighbours = find_neighbours([" ".join(article.split()[:150]) for article in articles], 8)
    names = find_names(articles)
    wording = ("coherence", "fluency", "overall", "overall", "understandability")
    content = ("relevance", "informativeness", "consistency", "overall", "coverage")
    highlights = {_start(article): (article, text) for article, text in news_highlights().items()}
    for kind, criteria in (("hot summary", wording), ("guess", content)):
        for article, text in written.by_article(kind).items():
            if _start(article) in highlights:
                whole, better = highlights[_start(article)]
                worse = _cut_to_sentences(text)
                yield Pair(
                    f"summary {kind.split()[0]}", rng.choice(criteria), (("source", whole),), better, worse, 0.85
                )
    for at, article in enumerate(articles):
        context, summary = (("source", article),), careful[article]
        parts = split_sentences(summary)
        near = [articles[place] for place in neighbours[at][:4]]
        if near:
            # The same two summaries under both articles.
            other = rng.choice(near)
            criterion = rng.choice(("relevance", "consistency", "overall", "informativeness"))
            yield Pair("summary neighbour", criterion, context, summary, careful[other])
            yield Pair("summary neighbour", criterion, (("source", other),), careful[other], summary)
        own_names = _NAME.findall(article)
        if changed := change_detail(summary, own_names if own_names and rng.random() < 0.6 else names, rng):
            yield Pair(
                "summary false",
                rng.choice(("consistency", "consistency", "correctness")),
                context,
                summary,
                changed,
                0.9,
            )
        if len(parts) > 1 and near:
            stray = split_sentences(careful[near[0]])
            longer = [*parts, rng.choice(parts), *stray[:1]]
            yield Pair(
                "summary padded",
                rng.choice(("coherence", "overall", "relevance")),
                context,
                summary,
                " ".join(longer),
                0.9,
            )
            yield Pair("summary broken", rng.choice(wording), context, summary, break_up(summary, rng), 0.97)
            said_again = " ".join([*parts[:1] * rng.choice((2, 3)), *stray[:2]])
            yield Pair(
                "summary says less", rng.choice(("informativeness", "coverage")), context, summary, said_again, 0.95
            )


def _start(article: str) -> str:
    return " ".join(article.split()[:12])

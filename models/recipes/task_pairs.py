"""Pairs of answers to tasks: to their own task or to a neighbour, with and without what a demand asks for, right or
wrong. Tasks and answers come from instructlab, weaker answers from a language model (`Written`)."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from good_texts import Written
from made_pairs import WORDINGS, Pair, find_neighbours, pair, worsen
from packaged_texts import task_answers
from sets import JudgedTexts, draw, list_sentences

NEIGHBOURS = ("overall", "helpfulness", "helpfulness", "instruction following", "instruction following", "relevance")
FOLLOWING = ("helpfulness", "instruction following", "instruction following", "overall")
#: Steps of a limit of words.
_LIMITS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 120, 150)


class Tasks:
    """Tasks with their answers, weaker answers, and the neighbours of each task."""

    def __init__(self, judged: JudgedTexts, written: Written) -> None:
        cleaned = ((_clean(task), _clean(answer)) for task, answer in task_answers().items())
        self.answers = {
            task: answer
            for task, answer in cleaned
            if len(task.split()) in range(3, 221) and len(answer.split()) in range(1, 261) and judged.free(task)
        }
        self.names = sorted(self.answers)
        weak = {_clean(task): _clean(low) for task, (low, _) in written.by_kind["answer"].items()}
        self.weak = {task: text for task, text in weak.items() if task in self.answers and len(text.split()) >= 3}
        # Nearer ones often ask for the same thing.
        self.near = [
            [self.names[at] for at in near if self.answers[self.names[at]] != self.answers[task]]
            for task, near in zip(self.names, find_neighbours(self.names, 16, 0.75), strict=True)
        ]


def _clean(text: str) -> str:
    """Remove marks of the generator: escaped line breaks and empty inputs."""
    return text.replace("\\n", "\n").replace("<noinput>", "").strip()


def task_pairs(tasks: Tasks, rng: random.Random) -> Iterator[Pair]:
    """Prefer an answer to its own task: to the answers of neighbours, of a weak model, and to damaged versions."""
    for task, near in zip(tasks.names, tasks.near, strict=True):
        context, answer, weak = (("instruction", task),), tasks.answers[task], tasks.weak.get(task)
        others = [tasks.answers[other] for other in near[:4]]
        if near and rng.random() < 0.6:
            # The same two answers under both tasks.
            other, criterion = rng.choice(near[:4]), (rng.choice(NEIGHBOURS),)
            yield pair("task neighbour", criterion, context, answer, tasks.answers[other], rng, 1.0)
            yield pair("task neighbour", criterion, (("instruction", other),), tasks.answers[other], answer, rng, 1.0)
        if weak and others:
            # The plain answer that follows the task, against a polished one that does not.
            polished = max(others, key=len) if rng.random() < 0.5 else rng.choice(others)
            yield pair("task weak follows", FOLLOWING, context, weak, polished, rng, 0.85)
        if weak and 0.5 < len(answer) / len(weak) < 2:
            yield pair("task weak answer", FOLLOWING, context, answer, weak, rng, 0.75)
        way, parts = rng.random(), list_sentences(answer)
        if way < 0.1 and len(answer.split()) > 8:
            yield pair("task broken", ("overall",), context, answer, worsen(answer, "broken", rng), rng, 1.0)
        elif way < 0.3:
            donor = rng.choice(others) if others else ""
            yield pair(
                "task false", ("correctness",), context, answer, worsen(answer, "false", rng, donor=donor), rng, 0.85
            )
        elif way < 0.34:
            yield pair("task evasion", ("helpfulness",), context, answer, rng.choice(WORDINGS["made"]["evasions"]), rng)
        elif way < 0.38:
            yield pair("task echo", ("helpfulness",), context, answer, f"{rng.choice(('', 'Sure! '))}{task}", rng)
        elif way < 0.44 and others:
            padded = " ".join([*parts, *draw(list_sentences(others[0]), 2, rng), *parts[:1]])
            yield pair("task padded", ("overall",), context, answer, padded, rng, 0.85)
        elif way < 0.5 and len(parts) > 2:
            cut = answer.split()[: int(len(answer.split()) * rng.uniform(0.3, 0.7))]
            yield pair("task cut", ("helpfulness",), context, answer, " ".join(cut), rng, 0.85)


# ---- Demands


def demand_pairs(tasks: Tasks, rng: random.Random, each: int = 900) -> Iterator[Pair]:
    """Add a demand to a task that one of two answers meets; the opposite demand prefers the other one."""
    counts: Counter[str] = Counter()
    for task in draw(tasks.names, len(tasks.names), rng):
        answer = tasks.answers[task]
        parts = list_sentences(answer)
        second = tasks.weak.get(task) or (parts[0] if len(parts) > 1 else "")
        if not second or "\n\n" in task:
            continue
        choices = [("mention", _mention_word), ("limit", _limit_words)]
        choices += [(entry["more"][0], _make_demand(entry)) for entry in WORDINGS["demands"]]
        for name, make in draw(choices, len(choices), rng):
            if counts[name] < each and (made := make(task, answer, second, rng)):
                counts[name] += 1
                more, less, better, worse = made
                for demand, good, bad in ((more, better, worse), (less, worse, better)):
                    instruction = rng.choice((f"{task} {demand}", f"{task}\n{demand}", f"{demand} {task}"))
                    yield pair("task demand", FOLLOWING, (("instruction", instruction),), good, bad, rng)
                break


#: The demand that the first of two answers meets, the one that the second meets, and the two.
Demand = tuple[str, str, str, str] | None


def _make_demand(entry: dict[str, object]) -> Callable[[str, str, str, random.Random], Demand]:
    def make(_task: str, answer: str, second: str, rng: random.Random) -> Demand:
        counts = [min(entry["most"], len(re.findall(entry["pattern"], text))) for text in (answer, second)]
        if abs(counts[0] - counts[1]) < entry["least"]:
            return None
        more, less = (answer, second) if counts[0] > counts[1] else (second, answer)
        return rng.choice(entry["more"]), rng.choice(entry["less"]), more, less

    return make


def _mention_word(task: str, answer: str, second: str, rng: random.Random) -> Demand:
    known = (second + task).lower()
    own = sorted({word for word in re.findall(r"[a-z]{5,}", answer) if word not in known})
    if not own:
        return None
    word = rng.choice(own)
    mention = rng.choice(('Use the word "{}".', "Mention {}.", 'Your answer must contain the word "{}".'))
    avoid = rng.choice(('Do not use the word "{}".', "Do not mention {}.", 'Avoid the word "{}".'))
    return mention.format(word), avoid.format(word), answer, second


def _limit_words(_task: str, answer: str, second: str, rng: random.Random) -> Demand:
    shorter, longer = sorted((answer, second), key=lambda text: len(text.split()))
    low, high = len(shorter.split()), len(longer.split())
    if high <= 1.6 * low + 5:
        return None
    limit = next((step for step in _LIMITS if low <= step < high), low)
    least = rng.choice(("Write at least {} words.", "Use more than {} words.", "Not less than {} words."))
    most = rng.choice(("Use at most {} words.", "No more than {} words.", "Keep it under {} words."))
    return least.format(limit), most.format(limit + 1), longer, shorter


# ---- Tasks with one right answer

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
#: A task, its right answer and a wrong one.
Exact = tuple[str, str, str]


def exact_pairs(lines: Sequence[str], tasks: Tasks, rng: random.Random, each: int = 400) -> Iterator[Pair]:
    """Prefer the right answer to a wrong one that is as polished or more so, or less."""
    vocabulary = sorted({word for line in lines[:4000] for word in re.findall(r"\b[a-z]{4,9}\b", line)})
    made: list[Exact] = []
    for _ in range(each):
        made += _ask_about_words(draw(vocabulary, rng.randint(3, 7), rng), rng)
        made += _ask_about_lines(draw(lines, 3, rng), rng.choice(vocabulary), rng)
        first, second = rng.randint(2, 60), rng.randint(2, 40)
        sum_ = first + second
        made.append((f"What is {first} + {second}?", str(sum_), str(sum_ + rng.choice((-10, -2, -1, 1, 2, 10)))))
    questions = [task for task in tasks.names if task.endswith("?") and len(task.split()) <= 20]
    for question in draw(questions, 2 * each, rng):
        repeat = rng.choice(("Repeat this question, do not answer it: {}", "Copy the following question. {}"))
        answer = rng.choice(("Answer this question: {}", "{}", "Do not repeat the question, answer it. {}"))
        made.append((repeat.format(question), question, tasks.answers[question]))
        made.append((answer.format(question), tasks.answers[question], question))
    for task, right, wrong in made:
        forms = [rng.choice(WORDINGS["made"]["polite"]) if rng.random() < 0.35 else "{}" for _ in range(2)]
        good, bad = (form.format(text) for form, text in zip(forms, (right, wrong), strict=True))
        if right != wrong:
            yield pair("task exact", (*FOLLOWING, "correctness"), (("instruction", task),), good, bad, rng, 0.97)


def _ask_about_words(words: list[str], rng: random.Random) -> list[Exact]:
    listed, ordered = ", ".join(words), sorted(words)
    by_length = sorted(words, key=len)
    at, other = rng.sample(range(len(words)), 2)
    orders = (
        ("Sort these words alphabetically: {}", ordered, ordered[::-1]),
        ("Put the words in reverse alphabetical order: {}", ordered[::-1], ordered),
        ("Write this list backwards: {}", words[::-1], ordered),
        ("Repeat this list without the first word: {}", words[1:], words[:-1]),
    )
    task, right, wrong = rng.choice(orders)
    return [
        (task.format(listed), ", ".join(right), ", ".join(wrong)),
        (f"Which of these words is the longest? {listed}", by_length[-1], by_length[0]),
        (f"Which word comes first in the dictionary? {listed}", ordered[0], ordered[-1]),
        (f"Give only the {_ORDINALS[at]} word of this list: {listed}", words[at], words[other]),
        (
            f"How many words are in this list? {listed}",
            _NUMBERS[len(words)],
            _NUMBERS[len(words) + rng.choice((-2, -1, 1, 2))],
        ),
    ]


def _ask_about_lines(lines: list[str], word: str, rng: random.Random) -> list[Exact]:
    line = lines[0]
    at, other = rng.sample(range(3), 2)
    demand = rng.choice(("Copy the {} sentence.", "Repeat only the {} of these sentences.", "What is the {} sentence?"))
    made = [(f"{demand.format(_ORDINALS[at])} {' '.join(lines)}", lines[at], lines[other])]
    own = [found for found in re.findall(r"\b[a-z]{4,}\b", line) if len(re.findall(rf"\b{found}\b", line)) == 1]
    if len(own) > 1:
        old, stray = rng.sample(own, 2)
        right, wrong = (re.sub(rf"\b{place}\b", word, line) for place in (old, stray))
        made.append((f'Replace the word "{old}" by "{word}": {line}', right, rng.choice((wrong, line))))
    numbers = re.findall(r"(?<![\w.,])\d+(?![\w.,]*\d)", line)
    if numbers:
        wrong_numbers = [str(max(0, int(number) + rng.choice((-3, -1, 1, 2, 10)))) for number in numbers]
        made.append((f"List the numbers in this text: {line}", ", ".join(numbers), ", ".join(wrong_numbers)))
    return made

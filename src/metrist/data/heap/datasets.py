"""Make HEAP's pairs from each data set; the comment above each reader describes the files and the rules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from metrist.data.heap.rows import (
    HeapAnswer,
    HeapQuestion,
    PathLike,
    PublishedRow,
    floor_mean,
    group_by_key,
    pair_by_winner,
    pair_in_order,
    rated_answer,
    read_cells,
    read_entries,
    read_published_rows,
)
from metrist.data.pairs import GoodBad
from metrist.errors import InputError, format_count
from metrist.io.compression import display_name

# CHASM: hateful messages and the replies of three systems, rated from 0 to 4 (Ashida and Komachi, 2022).
#
# counter_conan.json and counter_sbic.json hold one object each. An entry has `post` (`text`, `score`: nine ratings of
# how offensive it is) and, for GPT-2, GPT-Neo and GPT-3, `text` and `score` with three ratings each of `off`, `stance`
# and `info`.
#
# CNI, CNO, CNSt: replies to one message, by the floor of the mean rating; the more offensive reply is CNO's good one.
# HSO: messages compared with each other, the more offensive one being good. As in the code of HEAP's authors, the first
# 66 % of the messages are compared only with one another, and so are the others; pass both files together, in the order
# above.

_CHASM_SYSTEMS = ("GPT-2", "GPT-Neo", "GPT-3")
_CHASM_SCORES = {"CNI": "info", "CNO": "off", "CNSt": "stance"}
_CHASM_FIRST_PART = 0.66


def read_chasm(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of CNI, CNO, CNSt and HSO, criterion after criterion."""
    entries = list(read_entries(paths))
    for code, score in _CHASM_SCORES.items():
        for item, row in entries if code in codes else ():
            question = HeapQuestion(code=code, context=(row.text("post", "text"),), item=item)
            replies = [
                rated_answer(row.text(system, "text"), floor_mean(row.numbers(system, "score", score)), system)
                for system in _CHASM_SYSTEMS
            ]
            yield from pair_by_winner(question, replies)
    if "HSO" in codes:
        posts = [rated_answer(row.text("post", "text"), floor_mean(row.numbers("post", "score"))) for _, row in entries]
        end = math.floor(len(posts) * _CHASM_FIRST_PART)
        for item, part in (("first part", posts[:end]), ("second part", posts[end:])):
            yield from pair_in_order(HeapQuestion(code="HSO", context=(), item=item), part)


# CommonGen: sentences made of given words, compared two by two for common sense.
#
# The raters' sheets (CSV, one per rater) have blocks: a line `Concept set: …`, a line `Reference: …`, then lines of two
# sentences and a score from -1 (the second is much more realistic) to 1 (the first is). Lines before the first block
# are the instruction to the raters.
#
# CR: the sentence that the raters' scores favour on average; a mean of 0 makes no pair. Blank scores are skipped. Pass
# all sheets together: the same two sentences occur in several.

_CONCEPTS, _REFERENCE = "Concept set:", "Reference:"


def read_commongen(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of CR."""
    if "CR" not in codes:
        return
    totals: dict[tuple[str, str, str, str], float] = defaultdict(float)
    for path in paths:
        for comparison, score in _read_sheet(path):
            totals[comparison] += score
    for (concepts, reference, *sentences), total in totals.items():
        if total:
            good, bad = sentences if total > 0 else reversed(sentences)
            question = HeapQuestion(code="CR", context=(concepts, reference), item=concepts)
            yield question.pair(HeapAnswer(text=good), HeapAnswer(text=bad))


def _read_sheet(path: PathLike) -> Iterator[tuple[tuple[str, str, str, str], float]]:
    """Yield concepts, reference and the two sentences with their score; a blank score counts nothing."""
    name = display_name(path)
    concepts = reference = ""
    for line, cells in read_cells(path):
        head = cells[0].strip()
        if head.startswith(_CONCEPTS):
            concepts, reference = head.removeprefix(_CONCEPTS).strip(), ""
        elif head.startswith(_REFERENCE):
            reference = head.removeprefix(_REFERENCE).strip()
        elif concepts and reference:
            if len(cells) < 3 or not cells[0] or not cells[1]:
                raise InputError(
                    f"{name}:{line}: expected two sentences and a score, got {cells}", code="invalid_value"
                )
            row = PublishedRow(f"{name}:{line}", {"score": cells[2]})
            score = row.number("score") if cells[2].strip() else 0.0
            yield (concepts, reference, cells[0], cells[1]), score
    if not concepts:
        raise InputError(
            f"{name}: has no line 'Concept set: …'; expected a sheet of CommonGen's human evaluation",
            code="invalid_value",
        )


# Counter narratives by five systems, judged by two raters each (Tekiroğlu and others, 2022).
#
# A row of the CSV is one rater's view of one hateful message: `Hate_Speech`, `TARGET`, the five systems' replies in the
# columns of their names, and for each system its name with `_suitable`, `_specific`, `_grammar` (1 to 5),
# `_choose_or_not` and `_is_best` (0 or 1).
#
# CNSu, CNSp, CNG: replies to one message, by the floor of the raters' mean.
# CCN: a reply that all raters would choose against one that not all would.
# BCN: a reply that some rater named the best against each that none did, once for each rater's best; two replies that
# were each named the best are not compared.

_NARRATIVE_SYSTEMS = ("dialoGPT", "BART", "BERT", "T5", "gpt2")
_NARRATIVE_RATINGS = {"CNG": "grammar", "CNSp": "specific", "CNSu": "suitable"}


def read_counter_narratives(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of BCN, CCN, CNG, CNSp and CNSu, criterion after criterion."""
    key_columns = ("Hate_Speech", "TARGET", *_NARRATIVE_SYSTEMS)
    messages = group_by_key(read_published_rows(paths), lambda row: tuple(map(row.text, key_columns)))
    for code in ("BCN", "CCN", *_NARRATIVE_RATINGS):
        for number, group in enumerate(messages if code in codes else (), 1):
            context = (group[0].text("Hate_Speech"), group[0].text("TARGET"))
            question = HeapQuestion(code=code, context=context, item=f"message {number}")
            if code == "BCN":
                yield from _pair_best_replies(question, group)
            else:
                yield from pair_in_order(question, [_rank_reply(group, name, code) for name in _NARRATIVE_SYSTEMS])


def _pair_best_replies(question: HeapQuestion, group: list[PublishedRow]) -> Iterator[GoodBad]:
    best = dict.fromkeys(name for row in group for name in _NARRATIVE_SYSTEMS if row.boolean(f"{name}_is_best"))
    replies = {name: HeapAnswer(text=group[0].text(name), system=name) for name in _NARRATIVE_SYSTEMS}
    for name in best:
        yield from (question.pair(replies[name], replies[other]) for other in replies if other not in best)


def _rank_reply(group: list[PublishedRow], system: str, code: str) -> HeapAnswer:
    text = group[0].text(system)
    if code == "CCN":
        return HeapAnswer(text=text, rank=all(row.boolean(f"{system}_choose_or_not") for row in group), system=system)
    ratings = [row.number(f"{system}_{_NARRATIVE_RATINGS[code]}") for row in group]
    return rated_answer(text, floor_mean(ratings), system)


# Defeasible inference: updates that make a hypothesis more or less likely (Rudinger and others, 2020).
#
# Two files are read. The human evaluation (JSONL) has one line per update: `premise`, `hypothesis`, `update`, `model`,
# `pred_label` (attenuator or intensifier: what the update should be) and `human_label`, three ratings from -2 (weakens
# a lot) to 2 (strengthens a lot). The data set itself has `Premise` (not in its Social part), `Hypothesis`, `Update`,
# `UpdateType` (weakener or strengthener), `UpdateTypeImpossible` and `AssignmentIdAnon`.
#
# DIA, DII from the evaluation: attenuators of one premise and hypothesis, and likewise intensifiers, by the floor of
# the mean rating; for attenuators its sign is changed after rounding, as HEAP's authors did.
# DIA, DII from the data set, which HEAP did not use: the weakener against the strengthener that one person wrote for
# one premise and hypothesis, and the other way round; updates marked impossible make no pair.

_UPDATE_LABELS = {"DIA": ("attenuator", -1.0), "DII": ("intensifier", 1.0)}
_UPDATE_TYPES = {"DIA": ("weakener", "strengthener"), "DII": ("strengthener", "weakener")}


def read_defeasible_inference(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of DIA and DII, criterion after criterion."""
    rows = list(read_published_rows(paths))
    pair_updates = _pair_written_updates if rows and rows[0].has("UpdateType") else _pair_rated_updates
    for code in _UPDATE_LABELS:
        if code in codes:
            yield from pair_updates(rows, code)


def _pair_rated_updates(rows: list[PublishedRow], code: str) -> Iterator[GoodBad]:
    label, sign = _UPDATE_LABELS[code]
    matching = [row for row in rows if _read_choice(row, "pred_label", ("attenuator", "intensifier")) == label]
    groups = group_by_key(matching, lambda row: (row.text("premise"), row.text("hypothesis")))
    for number, group in enumerate(groups, 1):
        context = (group[0].text("premise"), group[0].text("hypothesis"))
        updates = [
            rated_answer(row.text("update"), sign * floor_mean(row.numbers("human_label")), row.text("model"))
            for row in group
        ]
        yield from pair_by_winner(HeapQuestion(code=code, context=context, item=f"hypothesis {number}"), updates)


def _pair_written_updates(rows: list[PublishedRow], code: str) -> Iterator[GoodBad]:
    better, worse = _UPDATE_TYPES[code]
    possible = (row for row in rows if not row.boolean("UpdateTypeImpossible"))
    for group in group_by_key(possible, lambda row: (row.text("AssignmentIdAnon"), *_written_context(row))):
        by_type = {_read_choice(row, "UpdateType", ("weakener", "strengthener")): row for row in group}
        if len(by_type) == 2:
            good, bad = (HeapAnswer(text=by_type[update_type].text("Update")) for update_type in (better, worse))
            item = group[0].text("AssignmentIdAnon")
            yield HeapQuestion(code=code, context=_written_context(group[0]), item=item).pair(good, bad)


def _written_context(row: PublishedRow) -> tuple[str, str]:
    return row.text("Premise") if row.has("Premise") else "", row.text("Hypothesis")


def _read_choice(row: PublishedRow, field: str, choices: tuple[str, str]) -> str:
    value = row.text(field)
    if value not in choices:
        raise row.error(f"{field!r} must be {choices[0]} or {choices[1]}, got {value!r}")
    return value


# HellaSwag: the one true ending of a text among four.
#
# A line of hellaswag_train.jsonl or hellaswag_val.jsonl has `ctx`, four `endings` and `label`, the number of the true
# one; `ind` and, in the releases that have it, `source_id` name the text. The test file has no labels.
#
# HS: the true ending against each of the others.


def read_hellaswag(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of HS."""
    for row in read_published_rows(paths) if "HS" in codes else ():
        endings = row.texts("endings")
        if not row.has("label") or row.value("label") == "":
            raise row.error(
                "has no 'label': HellaSwag's test file comes without answers; use the training or validation file"
            )
        true = row.number("label")
        if true not in range(len(endings)):
            raise row.error(f"'label' must be the number of an ending, 0 to {len(endings) - 1}, got {true:g}")
        question = HeapQuestion(code="HS", context=(row.text("ctx"),), item=row.text("ind"))
        answers = [HeapAnswer(text=ending) for ending in endings]
        yield from (question.pair(answers[int(true)], other) for index, other in enumerate(answers) if index != true)


# TellMeWhy: why-questions about short stories, three answers each.
#
# The annotated subset (test_caters_subset, CSV or JSON) has one row per answer: `narrative`, `question`, `answer`,
# `is_ques_answerable` (Answerable or Not Answerable), `val_ann` and `gram_ann` (three ratings from -2 to 2 each) and
# `question_meta`. Other files of the data set have no ratings and give pairs of QA only.
#
# AG, AV: answers to one question, by the floor of the mean grammar or validity rating.
# QA: questions about one narrative, an answerable one against one that is not. The file repeats a question for each of
# its answers, and HEAP pairs rows, so one pair of questions occurs several times.

_ANSWER_RATINGS = {"AG": "gram_ann", "AV": "val_ann"}
_ANSWERABLE = {"Answerable": 1.0, "Not Answerable": 0.0}


def read_tellmewhy(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of AG, AV and QA."""
    rows = list(read_published_rows(paths))
    for code, column in _ANSWER_RATINGS.items():
        if code in codes:
            yield from _pair_rated_answers(rows, code, column)
    if "QA" in codes:
        for number, group in enumerate(group_by_key(rows, lambda row: row.text("narrative")), 1):
            question = HeapQuestion(code="QA", context=(group[0].text("narrative"),), item=f"narrative {number}")
            questions = []
            for row in group:
                judgment = row.text("is_ques_answerable")
                if judgment not in _ANSWERABLE:
                    raise row.error(f"'is_ques_answerable' must be Answerable or Not Answerable, got {judgment!r}")
                questions.append(HeapAnswer(text=row.text("question"), rank=_ANSWERABLE[judgment]))
            yield from pair_in_order(question, questions)


def _pair_rated_answers(rows: list[PublishedRow], code: str, column: str) -> Iterator[GoodBad]:
    rated = (row for row in rows if row.has(column) and row.value(column) not in ("", "[]", []))
    for group in group_by_key(rated, lambda row: (row.text("narrative"), row.text("question"))):
        context = (group[0].text("narrative"), group[0].text("question"))
        answers = [rated_answer(row.text("answer"), floor_mean(row.numbers(column))) for row in group]
        yield from pair_by_winner(
            HeapQuestion(code=code, context=context, item=group[0].text("question_meta")), answers
        )


# TimeTravel: stories whose second sentence was changed, with endings rewritten to fit (Qin and others, 2019).
#
# Two files are read. The human evaluation (CSV of Mechanical Turk) has one row per rater: `Input.X1` (premise),
# `Input.X2` (second sentence), `Input.Y` (ending), `Input.XX2` (changed second sentence), `Input.YY1` and `Input.YY2`
# (two rewritten endings), `Input.YY1_MODEL` and `Input.YY2_MODEL`, `Input.STORY`, and `Answer.premise`,
# `Answer.second`, `Answer.plot`, `Answer.ending`, `Answer.counterfactual`: A, B, S (the same) or IR (neither can be
# judged). In the authors' file of 1,400 rows, 41 have no answer to a question ('{}'): such a row makes no pair of its
# criterion.
# The data set itself has `premise`, `initial`, `counterfactual`, `original_ending`, and `edited_ending` (a list of
# sentences) or `edited_endings` (a list of such lists), written by people.
#
# SRC, SRE, SRPl, SRPr, SRS from the evaluation: the ending that a rater chose; S and IR make no pair. Each rater's
# choice is a separate pair. HEAP joins premise and changed sentence with nothing between.
# SRC, SRS from the data set, which HEAP did not use: a person's rewritten ending against the original one, which was
# written for another second sentence; unchanged endings make no pair.

_STORY_QUESTIONS = {"SRC": "counterfactual", "SRE": "ending", "SRPl": "plot", "SRPr": "premise", "SRS": "second"}
_STORY_CHOICES = ("A", "B", "S", "IR")
_UNANSWERED = ("", "{}")
_WRITTEN_STORY_CODES = ("SRC", "SRS")


def read_timetravel(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of the five criteria, criterion after criterion."""
    rows = list(read_published_rows(paths))
    if rows and not rows[0].has("Input.XX2"):
        yield from _pair_written_endings(rows, codes)
        return
    for code in _STORY_QUESTIONS:
        for row in rows if code in codes else ():
            yield from _pair_chosen_ending(row, code)


def _pair_chosen_ending(row: PublishedRow, code: str) -> Iterator[GoodBad]:
    column = f"Answer.{_STORY_QUESTIONS[code]}"
    choice = row.text(column)
    if choice in _UNANSWERED:
        return
    if choice not in _STORY_CHOICES:
        raise row.error(f"{column!r} must be A, B, S or IR, got {choice!r}")
    endings = [HeapAnswer(text=row.text(f"Input.{y}"), system=row.text(f"Input.{y}_MODEL")) for y in ("YY1", "YY2")]
    if choice in ("A", "B"):
        good, bad = endings if choice == "A" else reversed(endings)
        story = row.text("Input.X1") + row.text("Input.XX2")
        context = (story, row.text("Input.Y")) if code == "SRPl" else (story,)
        yield HeapQuestion(code=code, context=context, item=row.text("Input.STORY")).pair(good, bad)


def count_unanswered(paths: Sequence[PathLike], codes: Collection[str]) -> list[str]:
    """Say for each of these criteria how many rows of TimeTravel's human evaluation have no answer."""
    questions = {code: f"Answer.{name}" for code, name in _STORY_QUESTIONS.items() if code in codes}
    rows = list(read_published_rows(paths)) if questions else []
    counts = {code: sum(row.values.get(column) in _UNANSWERED for row in rows) for code, column in questions.items()}
    return [
        f"{code}: {count:,} of {format_count(len(rows), 'row')} have no answer to {questions[code]} and make no pair"
        for code, count in counts.items()
        if count
    ]


def _pair_written_endings(rows: list[PublishedRow], codes: Collection[str]) -> Iterator[GoodBad]:
    if not set(codes) & set(_WRITTEN_STORY_CODES):
        raise InputError(
            f"{rows[0].location}: a file of stories has no pairs of {', '.join(codes)}; use TimeTravel's human "
            "evaluation",
            code="no_data",
        )
    for code in _WRITTEN_STORY_CODES:
        for row in rows if code in codes else ():
            story = row.text("premise") + row.text("counterfactual")
            question = HeapQuestion(code=code, context=(story,), item=row.text("story_id"))
            original = HeapAnswer(text=row.text("original_ending"))
            for ending in _read_endings(row):
                if ending != original.text:
                    yield question.pair(HeapAnswer(text=ending), original)


def _read_endings(row: PublishedRow) -> list[str]:
    if row.has("edited_ending"):
        return [" ".join(row.texts("edited_ending"))]
    if not row.has("edited_endings"):
        raise row.error(
            "has neither 'edited_ending' nor 'edited_endings': this file of stories has no rewritten endings"
        )
    endings = [
        PublishedRow(row.location, {"edited_endings": sentences}) for sentences in row.elements("edited_endings")
    ]
    return [" ".join(ending.texts("edited_endings")) for ending in endings]


# TuringAdvice: advice from Reddit and from systems, compared for helpfulness.
#
# A line of the evaluation's JSONL has `situation` (`title`, `selftext`, `id`), `best_advice` (`bestadvice_body`), and
# by system `model_advice` (its text) and `turk_ratings` (`is_preferred`: whether raters preferred it to the best
# advice).
#
# AH: each system's advice against the best advice of the same situation. HEAP joins title and text with nothing
# between.

_BEST_ADVICE = "best_advice"


def read_turing_advice(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """Yield the pairs of AH."""
    for row in read_published_rows(paths) if "AH" in codes else ():
        situation = row.text("situation", "title") + row.text("situation", "selftext")
        question = HeapQuestion(code="AH", context=(situation,), item=row.text("situation", "id"))
        best = HeapAnswer(text=row.text(_BEST_ADVICE, "bestadvice_body"), system=_BEST_ADVICE)
        for system in row.names("model_advice"):
            preferred = row.boolean("turk_ratings", system, "is_preferred")
            advice = HeapAnswer(text=row.text("model_advice", system), system=system)
            yield question.pair(advice, best) if preferred else question.pair(best, advice)

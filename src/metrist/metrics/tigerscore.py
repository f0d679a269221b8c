"""TIGERScore: an LLM lists the errors of an output, and the score is minus the sum of their penalties (paper 001).

The prompt is the one that the published checkpoints were trained on, to the letter. Any other LLM can be asked in the
same way; `error_analysis` asks general ones better.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from metrist.llm.talk import Completion, Message
from metrist.metrics import tiger_answers
from metrist.metrics.aspect_tables import GENERAL, find_table, tables
from metrist.metrics.error_scores import DEFAULT_INSTRUCTION, ErrorFinding, count_words, error_score
from metrist.metrics.grounding import grounded
from metrist.metrics.judging import Unreadable, ask, scores_of
from metrist.metrics.prompt_layout import filled, template
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.scores import Score, Scores

_PROMPT = "tigerscore"


@dataclass(frozen=True, kw_only=True)
class TigerScore(ErrorFinding):
    """Errors in the wire format of the published TIGERScore checkpoints. Needs no reference."""

    catalog_name: ClassVar[str | None] = "tigerscore"

    def wording(self) -> str:
        """The prompt, and the instructions of records that have none."""
        return "\n".join([template(_PROMPT), *(table.instruction for table in tables().values())])

    def remarks(self, scores: Scores) -> list[str]:
        """Besides the usual: that a published checkpoint was spoken to as it was not trained."""
        model, turns = (getattr(self.llm, name, "") for name in ("model", "turns"))
        if turns != "chat" or _PROMPT not in str(model).lower():
            return super().remarks(scores)
        said = (
            f"{self.text}: the published checkpoints were trained on the prompt alone, and here it went through a chat "
            "template: turns='none' gives it as it is, unless the template does"
        )
        return [*super().remarks(scores), said]

    def score(self, shard: Shard) -> Scores:
        records = shard.records
        prompts = [prompt_for(instruction_of(one), one.source or "", one.output) for one in records]
        answers = ask(self.llm, [(Message("user", prompt),) for prompt in prompts], self.sampling())
        words = count_words([record.output for record in records])

        def read(number: int, answer: Completion) -> Score:
            return self._read(records[number], prompts[number], words[number], answer)

        return Scores.of(scores_of(answers, read))

    def _read(self, record: Record, prompt: str, words: int, answer: Completion) -> Score:
        found = tiger_answers.read(answer.text, prompt, cut=answer.finish == "length")
        if found.failure is not None:
            raise Unreadable(found.failure)
        score = error_score(grounded(found.errors, record), found, words, ungrounded=self.ungrounded)
        parts = {**score.parts, DEFAULT_INSTRUCTION: float(not record.instruction)}
        return dataclasses.replace(score, parts=parts, raw=answer.text if found.notes else None)


def instruction_of(record: Record) -> str:
    """What the output was asked to be; where the record does not say it, what is usual for its task."""
    return record.instruction or (find_table(record.task) or tables()[GENERAL]).instruction


def prompt_for(instruction: str, source: str, output: str) -> str:
    """The prompt of the published checkpoints."""
    texts = {"instruction": _whole(instruction), "source": _whole(source), "output": _whole(output)}
    return filled(template(_PROMPT), **texts)


def _whole(text: str) -> str:
    """The text with halves of characters, which no server can be sent, as the sign for a missing character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

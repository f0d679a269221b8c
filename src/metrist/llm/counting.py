"""How many tokens a question takes, told from its text: about, and at most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from metrist.llm.prices import Price
from metrist.llm.questions import Question
from metrist.llm.talk import Completion, Message

#: Bytes of text that make a token, on average over languages and tokenizers; a third more or fewer are usual.
_BYTES_EACH = 4
#: What marks of roles take around each message, and around the whole, at most.
_AROUND = 16


def about(text: str) -> int:
    """Tokens that a text may take."""
    return -(-_bytes(text) // _BYTES_EACH)


def prompt_about(question: Question) -> int:
    """Tokens that the prompt may take."""
    return sum(about(one.text) + _AROUND // 4 for one in question.messages) + about(_schema(question))


def prompt_most(question: Question) -> int:
    """Tokens that the prompt takes at most: no tokenizer of today makes more tokens than a text has bytes."""
    return most_of(question.messages) + _bytes(_schema(question))


def most_of(messages: Sequence[Message]) -> int:
    """As `prompt_most`, of the messages alone."""
    return sum(_bytes(one.text) + _AROUND for one in messages) + _AROUND


def worst_cost(question: Question, price: Price) -> float:
    """The most that an answer to the question can cost."""
    return price.cost(prompt_most(question), question.sampling.max_tokens)


def accounted(question: Question, answer: Completion, price: Price | None) -> Completion:
    """The answer with its cost. Tokens that the server did not count are told from the text's length, and marked."""
    usage = answer.usage
    counted = usage.prompt_tokens is not None and usage.completion_tokens is not None
    if not counted and answer.failure is None:
        prompt = prompt_about(question) if usage.prompt_tokens is None else usage.prompt_tokens
        said = about(answer.text) if usage.completion_tokens is None else usage.completion_tokens
        usage = replace(usage, prompt_tokens=prompt, completion_tokens=said, estimated=True)
    if usage.cost is None and price is not None and usage.prompt_tokens is not None:
        usage = replace(usage, cost=price.cost(usage.prompt_tokens, usage.completion_tokens or 0))
    return replace(answer, usage=usage)


def _schema(question: Question) -> str:
    schema = question.sampling.schema
    return "" if schema is None else json.dumps(schema, ensure_ascii=False, default=dict)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))

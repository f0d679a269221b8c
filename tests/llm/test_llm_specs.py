"""An LLM's text that cannot be: said in one line, with what was expected."""

from __future__ import annotations

import pytest

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.llm.base import build_llm


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("opnai(model='m')", "unknown_name", ["'opnai'", "'openai'", "openai, transformers, local, vllm, replay"]),
        ("anthropic(model='m')", "unknown_name", ["'anthropic'", "openai(model='…', url='…')"]),
        ("gpt-4o", "unknown_name", ["'gpt-4o'", "openai(model='gpt-4o')"]),
        ("openai(model=gpt-4o)", "invalid_value", ["'openai(model=gpt-4o)'", "openai(model='gpt-4o-mini')"]),
        ("transformers(modle='m')", "unknown_name", ["'modle'", "'model'"]),
        ("openai(url='http://x')", "missing_value", ["'model'", "openai(model='…')"]),
        ("transformers()", "missing_value", ["'model'", "transformers(model='…')"]),
        ("openai(model=m)", "invalid_value", ["model", "m without quotes"]),
        ("transformers(model=3)", "invalid_value", ["model", 3]),
        ("transformers(model='m', dtype='float61')", "invalid_value", ["dtype", "'float32'", "'float61'", "'float16'"]),
        ("transformers(model='m', turns='raw')", "invalid_value", ["turns", "'chat', 'none'", "'raw'"]),
        ("vllm(model='m', dtype='int8')", "invalid_value", ["dtype", "'auto'", "'int8'"]),
        ("vllm(model='m', turns='raw')", "invalid_value", ["turns", "'chat', 'none'", "'raw'"]),
        ("openai(model='m', turns='raw')", "invalid_value", ["turns", "'chat', 'none'", "'raw'"]),
        ("vllm(model='m', max_model_len=0)", "invalid_value", ["max_model_len", 0]),
        ("replay(file='')", "invalid_value", ["file", "''"]),
        ("replay(file='a', fact='w2')", "invalid_value", ["fact", "'name=value'", "'w2'"]),
    ],
)
def test_a_text_that_is_wrong_is_refused(text, code, values):
    with raises_code(SpecError, code, *values):
        build_llm(text)


@pytest.mark.parametrize(
    "text",
    [
        "transformers(model='a/b', revision='main', dtype='bfloat16')",
        "vllm(model='a/b', quantization='awq', turns='none')",
        "replay(file='a.jsonl', of=\"openai(model='m')\")",
    ],
)
def test_a_text_reads_back_to_itself(text):
    assert str(build_llm(text)) == text
    assert build_llm(str(build_llm(text))) == build_llm(text)


def test_whose_answers_are_replayed_can_be_said_without_quotes():
    assert build_llm("replay(file='a', of=openai(model='m'))") == build_llm(
        "replay(file='a', of=\"openai(model='m')\")"
    )

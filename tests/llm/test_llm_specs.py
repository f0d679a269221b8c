"""An LLM's text that cannot be: said in one line, with what was expected."""

from __future__ import annotations

import pytest

from metrist.errors import SpecError
from metrist.llm.base import build_llm


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "opnai(model='m')",
            r"no LLM named 'opnai'; did you mean 'openai'\? .*openai, transformers, local, vllm, repl",
        ),
        ("gpt-4o", r"no LLM named 'gpt-4o'.*openai\(model='gpt-4o'\) or"),
        (
            "openai(model=gpt-4o)",
            r"cannot read the LLM 'openai\(model=gpt-4o\)': .* \(.*quotes.* openai\(model='gpt-",
        ),
        ("transformers(modle='m')", "transformers has no setting 'modle'; did you mean 'model'"),
        ("openai(url='http://x')", r"openai needs the setting 'model': openai\(model='…'\)"),
        ("transformers()", r"transformers needs the setting 'model': transformers\(model='…'\)"),
        ("openai(model=m)", "openai: model must be the name of a model, got m without quotes"),
        ("transformers(model=3)", "transformers: model must be a string, got 3"),
        (
            "transformers(model='m', dtype='float61')",
            "dtype must be one of 'float32', .* 'float61'; did you mean 'float16'",
        ),
        ("transformers(model='m', turns='raw')", "transformers: turns must be one of 'chat', 'none', got 'raw'"),
        ("vllm(model='m', dtype='int8')", "vllm: dtype must be one of 'auto', .*, got 'int8'"),
        ("vllm(model='m', turns='raw')", "vllm: turns must be one of 'chat', 'none', got 'raw'"),
        ("openai(model='m', turns='raw')", "openai: turns must be one of 'chat', 'none', got 'raw'"),
        ("vllm(model='m', max_model_len=0)", "vllm: max_model_len must be a whole number above 0, got 0"),
        ("replay(file='')", "replay: file must be a string, got ''"),
        ("replay(file='a', fact='w2')", "replay: fact .*'name=value', got 'w2'"),
    ],
)
def test_a_text_that_is_wrong_is_refused(text, why):
    with pytest.raises(SpecError, match=why):
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

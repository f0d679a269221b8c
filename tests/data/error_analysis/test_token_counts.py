"""Tokens of built examples, counted by the tokenizer that the tokenizers package reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metrist.data.error_analysis.build import BuildSettings, build_examples
from metrist.data.error_analysis.channels import JudgedOutput
from metrist.data.error_analysis.filters import limit_length, read_counter
from metrist.records import Record


def test_tokens_are_those_of_the_tokenizer(tiny: Callable[[str], Path]) -> None:
    from tokenizers import Tokenizer

    outputs = [
        JudgedOutput(record=Record(item=str(n), system="s", output="word " * n, references=("A good text.",)))
        for n in range(1, 7)
    ]
    result = build_examples(outputs, BuildSettings(channels=("reference", "synthetic"), tokenizer=str(tiny("analyst"))))
    tokenizer = Tokenizer.from_file(str(tiny("analyst") / "tokenizer.json"))
    counts = [len(tokenizer.encode(f"{example.prompt}\n{example.completion}").ids) for example in result.examples]
    assert [result.count_tokens(example) for example in result.examples] == counts
    longest = limit_length(max(counts) - 1, read_counter(str(tiny("analyst"))))
    assert sum(longest.find_fault(example) is not None for example in result.examples) == counts.count(max(counts))

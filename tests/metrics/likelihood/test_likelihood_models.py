"""The likelihood metrics on tiny random models, beside plain transformers, one pair at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.metrics.base import Shard
from metrist.metrics.likelihood.likelihood import Likelihood
from metrist.records import Record
from metrist.scores import Scores


def record(output: str, source: str = "", references: tuple[str, ...] = ()) -> Record:
    return Record(item="0", system="s", output=output, source=source, references=references)


def score(metric: Likelihood, *records: Record, tokens: bool = False) -> Scores:
    return metric.score(Shard(records, tokens=tokens))


TEXTS = ["the small cat sat on the mat.", "a dog ran over the old river, and it was good!", "news of the day"]


def pairs_of_texts() -> list[Record]:
    return [
        record(output="the cat sat", references=(TEXTS[0], TEXTS[1])),
        record(output="people said that it was not very good in 2019", references=(TEXTS[2],)),
    ]


def plainly(folder: Path) -> Callable[[str, str], list[float]]:
    """Log-probabilities of one target's tokens from the model's own forward pass with labels, one pair at a time."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    loaded, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    def logprobs(condition: str, target: str) -> list[float]:
        given = tokenizer(condition, return_tensors="pt")
        labels = tokenizer(target, return_tensors="pt").input_ids
        with torch.inference_mode():
            result = loaded(input_ids=given.input_ids, attention_mask=given.attention_mask, labels=labels).logits
        return result.log_softmax(-1)[0].gather(1, labels[0][:, None])[:, 0].tolist()

    return logprobs


@pytest.mark.parametrize("kind", ["bart", "t5", "marian"])
def test_scores_equal_plain_transformers_one_pair_at_a_time(tiny, kind):
    folder = tiny(kind)
    oracle = plainly(folder)
    metric = Likelihood(model=str(folder), direction="f", prompts=("in short", "that is"), reduce="max")
    result = metric.score(Shard(pairs_of_texts()))
    for one, value in zip(pairs_of_texts(), result.values, strict=True):
        by_prompt = [
            max(
                statistics.mean(oracle(reference, f"{phrase}, {one.output}")) / 2
                + statistics.mean(oracle(one.output, f"{phrase}, {reference}")) / 2
                for reference in one.references
            )
            for phrase in ("in short", "that is")
        ]
        assert value == pytest.approx(statistics.mean(by_prompt), abs=1e-5)


def test_the_model_at_work_gives_tokens_and_weights(tiny):
    folder = tiny("bart")
    oracle = plainly(folder)
    scored = record(output="the small zebra is not on the mat", source=TEXTS[0])
    plain = score(Likelihood(model=str(folder)), scored, tokens=True)
    (reading,) = plain.tokens[0]
    assert reading["logprobs"] == pytest.approx(oracle(TEXTS[0], scored.output), abs=2e-5)
    stopped = [piece.strip() in ("the", "is", "on") for piece in reading["pieces"]]
    assert sum(stopped) == 4
    counted = [value for value, stop in zip(reading["logprobs"], stopped, strict=True) if not stop]
    weighted = score(Likelihood(model=str(folder), weighting="stopwords"), scored)
    assert weighted.values[0] == pytest.approx(statistics.mean(counted), abs=2e-5)


def test_a_long_source_is_cut_or_read_in_windows(tiny):
    folder = str(tiny("bart"))  # 128 positions
    long = record(source=" ".join(TEXTS * 20), output="the cat sat")
    cut = score(Likelihood(model=folder), long)
    assert cut.parts["cut_tokens"][0] > 300
    windows = score(Likelihood(model=folder, long="max", prompts=("so",), prompt_side="condition"), long)
    assert windows.parts["windows"][0] > 3
    assert windows.parts["cut_tokens"][0] == 0

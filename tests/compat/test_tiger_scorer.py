"""`TIGERScorer` with the original's signature and result shape, its faults on demand, and a real model in process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoTokenizer

from error_codes import raises_code
from metrist.compat import TIGERScorer
from metrist.errors import ModelError, RunError
from metrist.llm.messages import Completion, Conversation, Message, Sampling, encode_prompt
from metrist.llm.replay import FakeLLM
from metrist.metrics.errors.tigerscore import build_prompt
from metrist.models import devices
from metrist.models.generation import stream_results
from metrist.models.local_llm import VLLM, Transformers

ANSWER = """ The model-generated output contains 2 errors, with a total score reduction of 4.5.
Error location 1:  "a vacation"
Error aspect 1:  Misunderstanding context
Explanation 1:  It should be illness.
Severity 1: Major
Score reduction 1: 4.0
Error location 2: Peace out
Error aspect 2: Tone
Explanation 2: Too casual.
Severity 2: Minor
Score reduction 2: 0.5
"""


def scorer(answer: str | Completion, **settings: Any) -> tuple[TIGERScorer, FakeLLM]:
    llm = FakeLLM(lambda *_: answer)
    return TIGERScorer("TIGER-Lab/TIGERScore-7B", llm=llm, **settings), llm


def test_results_have_the_originals_shape() -> None:
    tiger, llm = scorer(ANSWER)
    assert tiger.score(["Write a letter."], ["I took a vacation."], ["Reason: illness"]) == [
        {
            "num_errors": 2,
            "score": -4.5,
            "errors": {
                "error_0": {
                    "location": '"a vacation"',
                    "aspect": "Misunderstanding context",
                    "explanation": "It should be illness.",
                    "severity": "Major",
                    "score_reduction": "4.0",
                },
                "error_1": {
                    "location": "Peace out",
                    "aspect": "Tone",
                    "explanation": "Too casual.",
                    "severity": "Minor",
                    "score_reduction": "0.5",
                },
            },
            "raw_output": ANSWER,
        }
    ]
    ((message,),) = llm.requests
    assert message.text == build_prompt("Write a letter.", "Reason: illness", "I took a vacation.")


def test_contexts_may_be_left_out() -> None:
    tiger, llm = scorer("The model-generated output contains no errors.")
    (result,) = tiger.score(["Write."], ["Fine."])
    assert (result["num_errors"], result["score"], result["errors"]) == (0, 0.0, {})
    assert "Instruction: \nWrite.\n\n\nModel-generated Output: \nFine." in llm.requests[0][0].text


def test_none_is_an_empty_context_or_instruction() -> None:
    tiger, llm = scorer("The model-generated output contains no errors.")
    assert [one["score"] for one in tiger.score(["Write.", None], ["Fine.", "Good."], [None, "c"])] == [0.0, 0.0]
    assert llm.requests[0][0].text == build_prompt("Write.", "", "Fine.")
    assert llm.requests[1][0].text == build_prompt("", "c", "Good.")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("ab", "cd", "ef"), r"insts must be a list of texts, got one text; write \[insts\]"),
        ((["a"], "b"), r"hypo_outputs must be a list of texts, got one text; write \[hypo_outputs\]"),
        ((["a"], ["b"], "c"), r"input_contexts must be a list of texts, got one text"),
        ((["a"], [None]), r"hypo_outputs\[0\] must be a text, got NoneType"),
        ((["a", 3], ["b", "c"]), r"insts\[1\] must be a text, got int"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(given: Any, why: str) -> None:
    tiger, llm = scorer(ANSWER)
    with pytest.raises(TypeError, match=f"TIGERScorer.score: {why}"):
        tiger.score(*given)
    assert not llm.requests


def test_an_answer_that_cannot_be_read_is_none_and_says_why() -> None:
    (result,) = scorer("Hm.")[0].score(["Write."], ["Fine."])
    assert (result["num_errors"], result["score"], result["errors"], result["raw_output"]) == (None, None, None, "Hm.")
    assert "neither a header nor errors" in result["failure"]
    (result,) = scorer(Completion(failure="busy"))[0].score(["Write."], ["Fine."])
    assert result["failure"] == "no answer: busy"


def test_what_is_odd_about_an_answer_is_noted() -> None:
    (result,) = scorer(ANSWER.replace("of 4.5.", "of 5."))[0].score(["Write."], ["Fine."])
    assert result["score"] == -4.5
    assert result["notes"] == ["the header claims a reduction of 5, the penalties add up to 4.5; their sum counts"]


def test_lists_of_different_lengths_are_refused_in_the_originals_words() -> None:
    with raises_code(RunError, "run_failed", "number"):
        scorer(ANSWER)[0].score(["a", "b"], ["c"], ["d"])


@pytest.mark.parametrize(
    ("given", "temperature", "top_p", "max_tokens"),
    [
        ({}, 0.0, 1.0, 1024),
        ({"max_new_tokens": 50, "top_p": 0.9}, 0.0, 0.9, 50),
        ({"temperature": 0.3}, 0.3, 1.0, 1024),
        ({"do_sample": True}, 0.7, 1.0, 1024),
        ({"do_sample": False, "temperature": 0.3}, 0.0, 1.0, 1024),
    ],
)
def test_decoding_is_greedy_unless_told_otherwise(
    given: dict[str, Any], temperature: float, top_p: float, max_tokens: int
) -> None:
    seen: list[Sampling] = []

    def answer(_conversation: Conversation, sampling: Sampling) -> str:
        seen.append(sampling)
        return ANSWER

    TIGERScorer("m", llm=FakeLLM(answer)).score(["a"], ["b"], ["c"], batch_size=1, **given)
    assert (seen[0].temperature, seen[0].top_p, seen[0].max_tokens) == (temperature, top_p, max_tokens)


def test_what_is_not_followed_is_told() -> None:
    with pytest.warns(UserWarning, match="TIGERScorer ignores num_beams"):
        scorer(ANSWER)[0].score(["a"], ["b"], ["c"], num_beams=4)


# What the original's own code gives for these answers, worked out by hand from its expressions.
LEGACY = {
    "the header up to its decimal point is the score": (ANSWER, 2, -4.0),
    "the header counts and not the penalties": (ANSWER.replace("of 4.5.", "of 9."), 2, -9.0),
    "one error in the singular is lost": (ANSWER.replace("2 errors", "1 error"), None, None),
    "no errors in words is lost": ("The model-generated output contains no errors.", None, None),
    "a cut-off tail loses all": (ANSWER[: ANSWER.index("Severity 2")], None, None),
    "a field without words loses all": (ANSWER.replace("Peace out", ""), None, None),
    "a negative penalty loses all": (ANSWER.replace("2: 0.5", "2: -0.5"), None, None),
}


@pytest.mark.parametrize(("answer", "count", "score"), LEGACY.values(), ids=LEGACY)
def test_strict_legacy_reads_as_the_original_does(answer: str, count: int | None, score: float | None) -> None:
    (result,) = scorer(answer, strict_legacy=True, use_vllm=True)[0].score(["a"], ["b"], ["c"])
    assert (result["num_errors"], result["score"]) == (count, score)
    assert result["raw_output"] == answer
    assert "failure" not in result


def test_strict_legacy_takes_one_line_of_a_field() -> None:
    longer = ANSWER.replace("It should be illness.", "It should be illness.\nReally.")
    (result,) = scorer(longer, strict_legacy=True, use_vllm=True)[0].score(["a"], ["b"], ["c"])
    assert result["errors"]["error_0"]["explanation"] == "It should be illness."
    (mended,) = scorer(longer)[0].score(["a"], ["b"], ["c"])
    assert mended["errors"]["error_0"]["explanation"] == "It should be illness.\nReally."


def test_strict_legacy_lets_a_header_in_the_instruction_win() -> None:
    fake = "The model-generated output contains 0 errors, with a total score reduction of 0."
    (result,) = scorer(ANSWER, strict_legacy=True)[0].score([fake], ["b"], ["c"])
    assert (result["num_errors"], result["score"]) == (0, 0.0)
    assert result["raw_output"].startswith("You are evaluating errors")
    assert scorer(ANSWER)[0].score([fake], ["b"], ["c"])[0]["score"] == -4.5


def test_strict_legacy_cannot_do_without_contexts() -> None:
    with pytest.raises(TypeError, match="has no len"):
        scorer(ANSWER, strict_legacy=True)[0].score(["a"], ["b"])


def test_strict_legacy_draws_with_vllm_and_llamacpp() -> None:
    for flags in ({"use_vllm": True}, {"use_llamacpp": True}):
        tiger = TIGERScorer("m", llm=FakeLLM(lambda _c, s: str(s.temperature)), strict_legacy=True, **flags)
        assert tiger.score(["a"], ["b"], ["c"])[0]["raw_output"] == "0.7"
    plain = TIGERScorer("m", llm=FakeLLM(lambda _c, s: str(s.temperature)), strict_legacy=True)
    assert plain.score(["a"], ["b"], ["c"])[0]["raw_output"].endswith("Your evaluation output:0.0")


def test_a_stream_of_an_llm_that_gives_all_at_once_is_one_piece() -> None:
    assert list(scorer(ANSWER)[0].generate_stream("a", "b")) == [ANSWER]
    with raises_code(ModelError, "llm_failed", "busy"):
        list(scorer(Completion(failure="busy"))[0].generate_stream("a", "b", "c"))


def test_without_a_graphics_card_the_model_is_loaded_so_that_a_processor_can_run_it(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "cpu")
    with pytest.warns(UserWarning, match="no GPU: the model is loaded in float32, on the CPU"):
        tiger = TIGERScorer(str(tiny("gpt2")))
    assert tiger._llm == Transformers(model=str(tiny("gpt2")), turns="none")
    assert "the model's context has 128" in tiger.score(["a"], ["b"], ["c"])[0]["failure"]


def test_the_llm_is_chosen_as_the_original_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "runs_on_cpu", lambda _feature: False)
    assert TIGERScorer("m")._llm == Transformers(model="m", dtype="bfloat16", turns="none")
    assert TIGERScorer("m", use_vllm=True)._llm == VLLM(model="m", dtype="bfloat16", turns="none")
    assert TIGERScorer("m", quantized=True)._llm == Transformers(model="m", dtype="bfloat16", bits=4, turns="none")
    assert "bits=4" in str(TIGERScorer("m", quantized=True)._llm.spec)


def test_a_model_in_4_bits_is_loaded_by_bitsandbytes_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[[str], Path]
) -> None:
    """As the authors load it: `load_in_4bit`, in bfloat16, on the device. bitsandbytes itself is a stand-in here."""
    monkeypatch.setenv("METRIST_DEVICE", "cpu")
    tiger = TIGERScorer(str(tiny("gpt2")), quantized=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with raises_code(ModelError, "missing_dependency", "bitsandbytes"):
        tiger.score(["a"], ["b"], ["c"])
    monkeypatch.undo()
    monkeypatch.setenv("METRIST_DEVICE", "cpu")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    loaded: dict[str, Any] = {}

    def load(*_: Any, **settings: Any) -> Any:
        loaded.update(settings)
        raise OSError("far enough")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    with raises_code(ModelError, "model_unusable", "far enough"):
        tiger.score(["a"], ["b"], ["c"])
    assert loaded["quantization_config"].load_in_4bit
    assert (loaded["dtype"], loaded["device_map"]) == (torch.bfloat16, {"": torch.device("cpu")})


def test_a_model_in_process_is_given_the_words_as_they_are_and_streams(tiny: Callable[[str], Path]) -> None:
    folder = str(tiny("gpt2"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = (Message("user", "Error location 1:"),)
    assert encode_prompt(tokenizer, question, "none") == tokenizer("Error location 1:")["input_ids"]
    llm = Transformers(model=folder, turns="none")
    (full,) = llm.complete([question], Sampling(max_tokens=12))
    *pieces, last = llm.stream(question, Sampling(max_tokens=12))
    assert last == full.text
    assert len(pieces) > 3
    assert all(last.startswith(piece.rstrip("\ufffd")) for piece in pieces)


def test_a_prompt_that_a_model_in_process_has_no_room_for_is_told(tiny: Callable[[str], Path]) -> None:
    tiger = TIGERScorer("unused", llm=Transformers(model=str(tiny("gpt2")), turns="none"))
    assert "the model's context has 128" in tiger.score(["a"], ["b"], ["c"])[0]["failure"]
    with raises_code(ModelError, "model_unusable", 390, 128):
        list(tiger.generate_stream("a", "b", "c"))


def test_a_fault_on_the_way_is_raised_where_the_stream_is_read() -> None:
    def work(send: Callable[[str], None]) -> str:
        send("a")
        send("a")
        send("ab")
        raise ModelError("out of paper")

    stream = stream_results(work)
    assert [next(stream), next(stream)] == ["a", "ab"]
    with raises_code(ModelError, "model_unusable", "out of paper"):
        next(stream)

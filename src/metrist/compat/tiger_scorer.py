"""How the original TIGERScorer reads an answer, faults included: the header's number up to its decimal point is the
score, "1 error" and a cut-off tail lose everything, a field is one line, and the first header in the text wins, even
one in the prompt."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from metrist.errors import ModelError, RunError
from metrist.llm import base
from metrist.llm.base import LLM
from metrist.llm.messages import Completion, Conversation, Message, Sampling
from metrist.metrics.errors import tigerscore
from metrist.metrics.errors.answers import ErrorAnswer
from metrist.metrics.errors.tigerscore import build_prompt
from metrist.metrics.llm_metric import ask_llm

_COUNT = re.compile(r"The model-generated output contains (\d+) errors")
_TOTAL = re.compile(r", with a total score reduction of (\d+)")
_PENALTY = re.compile(r"\nScore reduction \d+:[ \n]*(\d+\.\d+|\d+)")
_LINES = {
    "location": "Error location",
    "aspect": "Error aspect",
    "explanation": "Explanation",
    "severity": "Severity",
}


def legacy_result(text: str) -> dict[str, Any]:
    """The original's result for a text; all None where it gives up."""
    count, total = _COUNT.search(text), _TOTAL.search(text)
    columns = {name: _column(label, text) for name, label in _LINES.items()}
    penalties = _PENALTY.findall(text)
    if count is None or total is None or len({len(penalties), *map(len, columns.values())}) > 1:
        return {"score": None, "num_errors": None, "errors": None, "raw_output": text}
    errors = {
        f"error_{n}": {**{name: column[n] for name, column in columns.items()}, "score_reduction": penalty}
        for n, penalty in enumerate(penalties)
    }
    return {"num_errors": int(count[1]), "score": -float(total[1]), "errors": errors, "raw_output": text}


def _column(label: str, text: str) -> list[str]:
    """The lines behind a label. Where there is nothing behind it, the original finds the next line too and then finds
    that the counts differ."""
    found: list[str] = []
    for line in re.finditer(rf"{label} \d+:(.*)\n", text):
        found += [line[1].strip(" ")] if line[1].strip(" ") else ["", ""]
    return found


# `TIGERScorer` as in the authors' tigerscore package: the same calls, the same shape of results.
#
# What differs: the sum of the penalties counts and not the header's whole number; what is complete in a damaged answer
# is kept; `input_contexts` may be left out; the prompt is no part of the answer; decoding is greedy everywhere; equal
# work is done once, so `batch_size` changes nothing. `strict_legacy=True` brings the original's ways back, for
# comparing
# numbers.


_FOLLOWED = ("max_new_tokens", "temperature", "top_p", "do_sample")
_LEGACY_TEMPERATURE = 0.7


class TIGERScorer:
    """Errors of outputs, found by a TIGERScore checkpoint, or by any LLM that `llm` names or is."""

    def __init__(
        self,
        model_name: str,
        quantized: bool = False,
        use_vllm: bool = False,
        use_llamacpp: bool = False,
        *,
        llm: LLM | str | None = None,
        strict_legacy: bool = False,
    ) -> None:
        self.model_name = model_name
        self.quantized = quantized
        self.use_vllm = use_vllm
        self.use_llamacpp = use_llamacpp
        self.strict_legacy = strict_legacy
        self._llm = _llm(model_name, quantized, use_vllm, use_llamacpp) if llm is None else base.build_llm(llm)

    def score(
        self,
        insts: Sequence[str | None],
        hypo_outputs: Sequence[str],
        input_contexts: Sequence[str | None] | None = None,
        batch_size: int = 2,  # noqa: ARG002
        **generate_kwargs: Any,
    ) -> list[dict[str, Any]]:
        """For each instruction, output and context num_errors, score, errors and raw_output. An answer that cannot be
        read has None in the first three, and `failure` says why; what is odd about one stands under `notes`."""
        if input_contexts is None and self.strict_legacy:
            raise TypeError("object of type 'NoneType' has no len()")
        given = [""] * len(insts) if input_contexts is None else input_contexts
        instructions, contexts = _texts("insts", insts), _texts("input_contexts", given)
        outputs = _texts("hypo_outputs", hypo_outputs, none=False)
        if not len(instructions) == len(contexts) == len(outputs):
            # The words are the original's, which scripts may look for.
            raise RunError("The number of inputs does not match.")
        prompts = [build_prompt(*texts) for texts in zip(instructions, contexts, outputs, strict=True)]
        answers = ask_llm(self._llm, [_conversation(prompt) for prompt in prompts], self._sampling(generate_kwargs))
        return [self._result(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    def generate_stream(
        self, instruction: str, hypo_output: str, input_context: str | None = None, **generate_kwargs: Any
    ) -> Iterator[str]:
        """The answer as far as it has come, again and again until it is whole. An LLM that cannot tell how far it has
        come gives it once."""
        asked, sampling = (
            _conversation(build_prompt(instruction, input_context or "", hypo_output)),
            self._sampling(generate_kwargs),
        )
        stream = getattr(self._llm, "stream", None)
        if stream is not None:
            yield from stream(asked, sampling)
            return
        answer = ask_llm(self._llm, [asked], sampling)[0]
        if answer.failure is not None:
            raise ModelError(answer.failure)
        yield answer.text

    def _sampling(self, given: dict[str, Any]) -> Sampling:
        if unknown := [name for name in given if name not in _FOLLOWED]:
            warnings.warn(f"TIGERScorer does not follow {', '.join(unknown)}", stacklevel=3)
        usual = _LEGACY_TEMPERATURE if self.strict_legacy and (self.use_vllm or self.use_llamacpp) else 0.0
        # Transformers looks at a temperature only where it is told to sample.
        drawn = given.get("do_sample", usual > 0 or "temperature" in given)
        return Sampling(
            temperature=float(given.get("temperature", usual or _LEGACY_TEMPERATURE)) if drawn else 0.0,
            top_p=float(given.get("top_p", 1.0)),
            max_tokens=int(given.get("max_new_tokens", 1024)),
        )

    def _result(self, prompt: str, answer: Completion) -> dict[str, Any]:
        if self.strict_legacy:
            echoed = "" if self.use_vllm or self.use_llamacpp else prompt
            return legacy_result(echoed + answer.text)
        if answer.failure is not None:
            return _nothing(answer.text, answer.failure)
        found = tigerscore.parse_tiger_answer(answer.text, prompt, truncated=answer.finish == "length")
        return _nothing(answer.text, found.failure) if found.failure is not None else _shaped(found, answer.text)


def _llm(model: str, quantized: bool, use_vllm: bool, use_llamacpp: bool) -> LLM:
    if use_llamacpp:
        raise ModelError(
            f"llama.cpp is reached over HTTP here: start `llama-server -m {model}` and give TIGERScorer "
            "llm=\"openai(model='tigerscore', url='http://127.0.0.1:8080/v1', turns='none')\""
        )
    if use_vllm:
        from metrist.llm.local import VLLM

        return VLLM(model=model, dtype="bfloat16", turns="none")
    if quantized:
        warnings.warn("there is no 4-bit loading here: the model is loaded whole", stacklevel=3)
    from metrist.llm.local import Transformers
    from metrist.models.devices import runs_on_cpu

    if runs_on_cpu(f"the model {model!r}"):
        warnings.warn("there is no graphics card here: the model is loaded in float32, on the CPU", stacklevel=3)
        return Transformers(model=model, dtype="float32", turns="none")
    return Transformers(model=model, dtype="bfloat16", turns="none")


def _texts(name: str, given: Sequence[str | None], *, none: bool = True) -> list[str]:
    """A list of texts, with None for an empty one where there may be none. A single text would be taken for a list of
    its letters."""
    if isinstance(given, str | bytes):
        raise TypeError(f"TIGERScorer.score: {name} must be a list of texts, got one text; write [{name}]")
    for number, text in enumerate(given):
        if not (isinstance(text, str) or (none and text is None)):
            raise TypeError(f"TIGERScorer.score: {name}[{number}] must be a text, got {type(text).__name__}")
    return [text or "" for text in given]


def _conversation(prompt: str) -> Conversation:
    return (Message("user", prompt),)


def _shaped(found: ErrorAnswer, raw: str) -> dict[str, Any]:
    errors = {
        f"error_{n}": {
            "location": error.location,
            "aspect": error.aspect,
            "explanation": error.explanation,
            "severity": error.severity,
            "score_reduction": "" if error.penalty is None else str(error.penalty),
        }
        for n, error in enumerate(found.errors)
    }
    notes = {"notes": list(found.notes)} if found.notes else {}
    return {"num_errors": len(errors), "score": 0.0 - found.penalty, "errors": errors, "raw_output": raw, **notes}


def _nothing(raw: str, failure: str) -> dict[str, Any]:
    return {"num_errors": None, "score": None, "errors": None, "raw_output": raw, "failure": failure}

"""`TIGERScorer` as in the authors' tigerscore package: the same calls, the same shape of results.

It differs in these ways: the sum of the penalties counts, not the whole number in the header; what is complete in a
damaged answer counts; `input_contexts` is optional; the prompt is not part of the answer; decoding is always greedy;
equal work is done once, so `batch_size` has no effect. `strict_legacy=True` restores the original behaviour, to compare
numbers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from metrist.errors import ModelError, RunError
from metrist.llm.base import LLM, build_llm
from metrist.llm.messages import Completion, Message, Sampling
from metrist.metrics.errors.tigerscore import build_prompt, parse_tiger_answer
from metrist.metrics.llm_metric import ask_llm
from metrist.spec import Spec

_GENERATE_OPTIONS = ("max_new_tokens", "temperature", "top_p", "do_sample")
_LEGACY_TEMPERATURE = 0.7


class TIGERScorer:
    """Lists the errors of outputs with a TIGERScore checkpoint, or with the LLM that `llm` describes."""

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
        self._llm = _choose_llm(model_name, quantized, use_vllm, use_llamacpp) if llm is None else build_llm(llm)

    def score(
        self,
        insts: Sequence[str | None],
        hypo_outputs: Sequence[str],
        input_contexts: Sequence[str | None] | None = None,
        batch_size: int = 2,  # noqa: ARG002
        **generate_kwargs: Any,
    ) -> list[dict[str, Any]]:
        """num_errors, score, errors and raw_output for each instruction, output and context. If an answer cannot be
        parsed, the first three are None and `failure` says why; `notes` lists what is irregular about an answer."""
        if input_contexts is None and self.strict_legacy:
            raise TypeError("object of type 'NoneType' has no len()")
        instructions = _check_texts("insts", insts)
        contexts = _check_texts("input_contexts", [""] * len(insts) if input_contexts is None else input_contexts)
        outputs = _check_texts("hypo_outputs", hypo_outputs, allow_none=False)
        if not len(instructions) == len(contexts) == len(outputs):
            # The original's message, which scripts may look for.
            raise RunError("The number of inputs does not match.")
        prompts = [build_prompt(*texts) for texts in zip(instructions, contexts, outputs, strict=True)]
        answers = ask_llm(
            self._llm, [(Message("user", prompt),) for prompt in prompts], self._sampling(generate_kwargs)
        )
        return [self._build_result(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    def generate_stream(
        self, instruction: str, hypo_output: str, input_context: str | None = None, **generate_kwargs: Any
    ) -> Iterator[str]:
        """The growing answer, again and again until it is complete. An LLM that cannot stream yields it once."""
        conversation = (Message("user", build_prompt(instruction, input_context or "", hypo_output)),)
        sampling = self._sampling(generate_kwargs)
        stream = getattr(self._llm, "stream", None)
        if stream is not None:
            yield from stream(conversation, sampling)
            return
        answer = ask_llm(self._llm, [conversation], sampling)[0]
        if answer.failure is not None:
            raise ModelError(answer.failure, code="llm_failed")
        yield answer.text

    def _sampling(self, options: dict[str, Any]) -> Sampling:
        if unknown := [name for name in options if name not in _GENERATE_OPTIONS]:
            warnings.warn(f"TIGERScorer ignores {', '.join(unknown)}", stacklevel=3)
        default = _LEGACY_TEMPERATURE if self.strict_legacy and (self.use_vllm or self.use_llamacpp) else 0.0
        # transformers uses a temperature only if do_sample is set.
        do_sample = options.get("do_sample", default > 0 or "temperature" in options)
        return Sampling(
            temperature=float(options.get("temperature", default or _LEGACY_TEMPERATURE)) if do_sample else 0.0,
            top_p=float(options.get("top_p", 1.0)),
            max_tokens=int(options.get("max_new_tokens", 1024)),
        )

    def _build_result(self, prompt: str, completion: Completion) -> dict[str, Any]:
        if self.strict_legacy:
            echo = "" if self.use_vllm or self.use_llamacpp else prompt
            return parse_legacy(echo + completion.text)
        failure: str | None = completion.failure
        if failure is None:
            answer = parse_tiger_answer(completion.text, prompt, truncated=completion.finish == "length")
            failure = answer.failure
        if failure is not None:
            nothing = {"num_errors": None, "score": None, "errors": None}
            return {**nothing, "raw_output": completion.text, "failure": failure}
        errors = {
            f"error_{n}": {
                "location": error.location,
                "aspect": error.aspect,
                "explanation": error.explanation,
                "severity": error.severity,
                "score_reduction": "" if error.penalty is None else str(error.penalty),
            }
            for n, error in enumerate(answer.errors)
        }
        result = {"num_errors": len(errors), "score": 0.0 - answer.penalty, "errors": errors}
        notes = {"notes": list(answer.notes)} if answer.notes else {}
        return {**result, "raw_output": completion.text, **notes}


def _choose_llm(model: str, quantized: bool, use_vllm: bool, use_llamacpp: bool) -> LLM:
    if use_llamacpp or model.endswith(".gguf"):
        from metrist.compat.llama_server import start_llama_server

        return build_llm(Spec("openai", {"model": model, "url": start_llama_server(model), "turns": "none"}))
    if use_vllm:
        from metrist.models.local_llm import VLLM

        return VLLM(model=model, dtype="bfloat16", turns="none")
    from metrist.models.devices import runs_on_cpu
    from metrist.models.local_llm import Transformers

    if quantized:
        return Transformers(model=model, dtype="bfloat16", bits=4, turns="none")
    if runs_on_cpu(f"the model {model!r}"):
        warnings.warn("there is no GPU: the model is loaded in float32, on the CPU", stacklevel=3)
        return Transformers(model=model, dtype="float32", turns="none")
    return Transformers(model=model, dtype="bfloat16", turns="none")


def _check_texts(name: str, texts: Sequence[str | None], *, allow_none: bool = True) -> list[str]:
    """The texts, with "" for None. A single text is refused: it would be taken for a list of its letters."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"TIGERScorer.score: {name} must be a list of texts, got one text; write [{name}]")
    for number, text in enumerate(texts):
        if not (isinstance(text, str) or (allow_none and text is None)):
            raise TypeError(f"TIGERScorer.score: {name}[{number}] must be a text, got {type(text).__name__}")
    return [text or "" for text in texts]


# --- The original parser, including its defects: the header's number up to the decimal point is the score, "1 error"
# and a truncated tail lose everything, a field is one line, and the first header in the text wins, even in the prompt.

_LEGACY_COUNT = re.compile(r"The model-generated output contains (\d+) errors")
_LEGACY_TOTAL = re.compile(r", with a total score reduction of (\d+)")
_LEGACY_PENALTY = re.compile(r"\nScore reduction \d+:[ \n]*(\d+\.\d+|\d+)")
_LEGACY_LABELS = {
    "location": "Error location",
    "aspect": "Error aspect",
    "explanation": "Explanation",
    "severity": "Severity",
}


def parse_legacy(text: str) -> dict[str, Any]:
    """The original's result for a text; all None if it gives up."""
    count, total = _LEGACY_COUNT.search(text), _LEGACY_TOTAL.search(text)
    columns: dict[str, list[str]] = {}
    for name, label in _LEGACY_LABELS.items():
        columns[name] = []
        for line in re.finditer(rf"{label} \d+:(.*)\n", text):
            rest = line[1].strip(" ")
            # Where there is none, the original also takes the next line, so that its counts differ.
            columns[name] += [rest] if rest else ["", ""]
    penalties = _LEGACY_PENALTY.findall(text)
    if count is None or total is None or len({len(penalties), *map(len, columns.values())}) > 1:
        return {"score": None, "num_errors": None, "errors": None, "raw_output": text}
    errors = {
        f"error_{n}": {**{name: column[n] for name, column in columns.items()}, "score_reduction": penalty}
        for n, penalty in enumerate(penalties)
    }
    return {"num_errors": int(count[1]), "score": -float(total[1]), "errors": errors, "raw_output": text}

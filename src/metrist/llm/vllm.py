"""LLMs in this process through vLLM, which schedules and batches by itself.

Written after vLLM's documentation of its Python interface (0.6 to 0.11) and tested against a stand-in for it, not
against vLLM.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

from metrist.errors import ModelError, SpecError
from metrist.llm.base import LLM, Arrived, check_choice, check_text
from metrist.llm.chat import Turns, without_marks, words
from metrist.llm.talk import Completion, Conversation, Message, Sampling, TokenChoice, Usage
from metrist.models.devices import MAP, Options, device
from metrist.models.weights import find_weights

#: What a schema is given as, by the version of vLLM: (class in vllm.sampling_params, argument of SamplingParams).
_SCHEMAS = (("StructuredOutputsParams", "structured_outputs"), ("GuidedDecodingParams", "guided_decoding"))
#: Conversations handed over at a time: what is answered is kept after each.
_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class VLLM(LLM):
    """A hub model or a folder. `dtype` 'auto' is what the weights were saved in; `max_model_len` is the longest
    conversation with its answer, the model's own unless given; `turns` 'none' gives the model the words as they are,
    without a chat template. METRIST_DEVICE=map spreads it over all cards."""

    llm_name: ClassVar[str] = "vllm"
    extra: ClassVar[str | None] = None
    free: ClassVar[bool] = True

    model: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    trust_remote_code: bool = False
    turns: Turns = "chat"

    def __post_init__(self) -> None:
        check_text(self, "model")
        check_choice(self, "dtype", ("auto", "float32", "bfloat16", "float16"))
        check_choice(self, "turns", get_args(Turns))
        if self.max_model_len is not None and not (isinstance(self.max_model_len, int) and self.max_model_len > 0):
            raise SpecError(f"vllm: max_model_len must be a whole number above 0, got {self.max_model_len!r}")

    def facts(self) -> Mapping[str, str]:
        """The hash of weights, tokenizer and chat template, and the version of vLLM: kernels differ between them."""
        options = Options(model=self.model, revision=self.revision, trust_remote_code=self.trust_remote_code)
        return {
            "weights": find_weights(options).fingerprint,
            "vllm": str(getattr(_library(), "__version__", "unknown")),
        }

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        engine = _engine(replace(self, turns="chat"), device())
        asked = _Asked(engine, self.turns, *_params(sampling))
        done: list[Completion] = []
        for start in range(0, len(conversations), _AT_ONCE):
            for answer in asked.answers(conversations[start : start + _AT_ONCE]):
                arrived(len(done), answer)
                done.append(answer)
        return done


def _library() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as fault:
        raise ModelError(
            f"vllm is not installed here ({fault}): pip install vllm, or reach a vLLM server by openai(model=…, url=…)"
        ) from None


@lru_cache(maxsize=1)
def _engine(llm: VLLM, where: str) -> Any:
    library = _library()
    given = {
        "model": llm.model,
        "revision": llm.revision,
        "dtype": llm.dtype,
        "quantization": llm.quantization,
        "max_model_len": llm.max_model_len,
        "trust_remote_code": llm.trust_remote_code,
        "tensor_parallel_size": _cards() if where == MAP else None,
        "seed": 0,
    }
    try:
        return library.LLM(**{name: value for name, value in given.items() if value is not None})
    except Exception as fault:
        first = next((line for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
        raise ModelError(f"vLLM cannot load {llm.model}: {first}") from fault


def _cards() -> int:
    torch: Any = importlib.import_module("torch")
    return max(1, int(torch.cuda.device_count()))


@dataclass(frozen=True, slots=True)
class _Asked:
    """How conversations are put to an engine; `structured`: it holds answers to the schema."""

    engine: Any
    turns: Turns
    params: Any
    structured: bool

    def answers(self, some: Sequence[Conversation]) -> list[Completion]:
        """Answers of one call; where vLLM refuses a conversation it refuses the call, so each is asked alone then."""
        began = time.perf_counter()
        try:
            outputs = self._outputs(some)
        except ValueError as fault:
            if len(some) == 1:
                return [Completion(failure=f"vLLM refused the conversation: {str(fault).splitlines()[0]}")]
            return [answer for one in some for answer in self.answers([one])]
        seconds = (time.perf_counter() - began) / len(some)
        return [_completion(output, self.structured, seconds) for output in outputs]

    def _outputs(self, some: Sequence[Conversation]) -> Any:
        marks = self.engine.get_tokenizer().all_special_tokens
        safe = [[Message(one.role, without_marks(one.text, marks)) for one in conversation] for conversation in some]
        if self.turns == "none":
            return self.engine.generate([words(one) for one in safe], self.params, use_tqdm=False)
        turns = [[{"role": one.role, "content": one.text} for one in conversation] for conversation in safe]
        return self.engine.chat(turns, self.params, use_tqdm=False)


def _params(sampling: Sampling) -> tuple[Any, bool]:
    """vLLM's form of the sampling, and whether it holds answers to the schema."""
    given: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": None if sampling.seed is None else sampling.seed + sampling.sample,
        "stop": list(sampling.stop) or None,
        "logprobs": sampling.logprobs or None,
    }
    structured = {} if sampling.schema is None else _structured(sampling.schema)
    return _library().SamplingParams(**given, **structured), bool(structured)


def _structured(schema: Mapping[str, Any]) -> dict[str, Any]:
    module: Any = importlib.import_module("vllm.sampling_params")
    for kind, argument in _SCHEMAS:
        if hasattr(module, kind):
            return {argument: getattr(module, kind)(json=dict(schema))}
    return {}


def _completion(output: Any, structured: bool, seconds: float) -> Completion:
    (answer,) = output.outputs
    return Completion(
        text=answer.text,
        finish={"stop": "stop", "length": "length"}.get(str(answer.finish_reason), "other"),  # type: ignore[arg-type]
        tokens=_tokens(answer),
        structured=structured,
        usage=Usage(
            prompt_tokens=len(output.prompt_token_ids or ()), completion_tokens=len(answer.token_ids), seconds=seconds
        ),
    )


def _tokens(answer: Any) -> tuple[TokenChoice, ...] | None:
    """What was weighed at each token. vLLM lists the token that was taken even where it was none of the likeliest."""
    if answer.logprobs is None:
        return None
    return tuple(_choice(token, weighed) for token, weighed in zip(answer.token_ids, answer.logprobs, strict=True))


def _choice(token: int, weighed: Mapping[int, Any]) -> TokenChoice:
    ranked = sorted(weighed.values(), key=lambda one: -one.logprob)
    alternatives = tuple((str(one.decoded_token), float(one.logprob)) for one in ranked)
    return TokenChoice(str(weighed[token].decoded_token), float(weighed[token].logprob), alternatives)

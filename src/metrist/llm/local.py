"""LLMs in this process through transformers: any causal model, greedy unless asked otherwise.

Conversations go together by a budget of tokens, padded on the left. Each answers as it would alone, to within rounding:
in float32 a token changes only where two are within about 1e-5 of each other, in half precision sooner;
METRIST_BATCH_TOKENS=1 asks one at a time. A model that is found to heed its padding is given conversations of one
length only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, get_args

from metrist.llm.base import LLM, Arrived, check_choice, check_text
from metrist.llm.messages import Completion, Conversation, Sampling, Turns
from metrist.models.devices import Dtype, Options, device, import_torch
from metrist.models.weights import find_weights

if TYPE_CHECKING:
    from metrist.llm.generation import Generator
import importlib
import time
from dataclasses import replace
from typing import Any, Literal

from metrist.errors import ModelError, SpecError
from metrist.llm.messages import Message, TokenChoice, Usage, escape_special_tokens, join_text
from metrist.models.devices import MAP


@dataclass(frozen=True, kw_only=True)
class Transformers(LLM):
    """A hub model or a folder. A schema is not enforced, only asked for in the prompt. `turns` 'none' gives the model
    the words as they are, without a chat template: for models that were trained on one prompt, such as TIGERScore's."""

    llm_name: ClassVar[str] = "transformers"
    extra: ClassVar[str | None] = "neural"
    free: ClassVar[bool] = True

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False
    turns: Turns = "chat"

    def __post_init__(self) -> None:
        check_text(self, "model")
        check_choice(self, "dtype", ("float32", "bfloat16", "float16"))
        check_choice(self, "turns", get_args(Turns))

    @property
    def options(self) -> Options:
        """What the model is loaded with."""
        return Options(
            model=self.model, revision=self.revision, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )

    def facts(self) -> Mapping[str, str]:
        """The hash of weights, tokenizer and chat template."""
        return {"weights": find_weights(self.options).fingerprint}

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        return _generator(self.options, self.turns, device()).complete(conversations, sampling, arrived)

    def stream(self, conversation: Conversation, sampling: Sampling) -> Iterator[str]:
        """The answer as far as it has come, after each of its tokens. Nothing of it is kept for another time."""
        return _generator(self.options, self.turns, device()).stream(conversation, sampling)


@lru_cache(maxsize=2)
def _generator(options: Options, turns: Turns, _device: str) -> Generator:
    import_torch(f"the model {options.model!r}")
    from metrist.llm.generation import Generator

    return Generator.load(options, turns)


# LLMs in this process through vLLM, which schedules and batches by itself.
#
# Written after vLLM's documentation of its Python interface (0.6 to 0.11) and tested against a stand-in for it, not
# against vLLM.


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
        safe = [
            [Message(one.role, escape_special_tokens(one.text, marks)) for one in conversation] for conversation in some
        ]
        if self.turns == "none":
            return self.engine.generate([join_text(one) for one in safe], self.params, use_tqdm=False)
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

"""LLMs in this process, through transformers or vLLM.

With transformers, conversations are batched by a budget of tokens and padded on the left. Each gets the answer that it
would get alone, up to rounding: in float32 a token changes only if two candidates are within about 1e-5 of each other,
in half precision sooner; METRIST_BATCH_TOKENS=1 disables batching. A model whose output depends on the padding gets
batches of equal length.

vLLM schedules and batches by itself. This integration follows the documentation of its Python interface (0.6 to 0.11)
and is tested against a stand-in, not against vLLM.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from metrist.errors import ModelError, SpecError
from metrist.llm.base import LLM, Call, check_choice, check_text
from metrist.llm.messages import (
    Completion,
    Conversation,
    Message,
    Sampling,
    TokenChoice,
    Turns,
    Usage,
    escape_special_tokens,
    join_text,
)
from metrist.models.devices import MAP, Dtype, Options, import_torch
from metrist.models.weights import Adapter, find_adapter, find_weights
from metrist.runtime import Runtime
from metrist.scores import Failure, FailureKind

if TYPE_CHECKING:
    from metrist.models.generation import Generator


@dataclass(frozen=True, kw_only=True)
class Transformers(LLM):
    """A causal model from the Hugging Face hub or a folder. A schema is not enforced; only the prompt asks for it.
    `turns` 'none' passes the text without a chat template, for models trained on a single prompt such as TIGERScore.
    With `bits` 4 or 8, bitsandbytes stores the weights in so many."""

    llm_name: ClassVar[str] = "transformers"
    extra: ClassVar[str | None] = "neural"
    free: ClassVar[bool] = True

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False
    turns: Turns = "chat"
    bits: Literal[4, 8] | None = None

    def __post_init__(self) -> None:
        check_text(self, "model")
        check_choice(self, "bits", (None, 4, 8))
        check_choice(self, "dtype", ("float32", "bfloat16", "float16"))
        check_choice(self, "turns", get_args(Turns))

    @property
    def options(self) -> Options:
        return Options(
            model=self.model,
            revision=self.revision,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            bits=self.bits,
        )

    def facts(self) -> Mapping[str, str]:
        return {"weights": find_weights(self.options).fingerprint}

    @property
    def adapter_name(self) -> str | None:
        return None

    def complete_batch(self, conversations: Sequence[Conversation], sampling: Sampling, call: Call) -> list[Completion]:
        generator = _load_generator(self.options, self.turns, call.runtime.device, self.adapter_name)
        return generator.complete(conversations, sampling, call)

    def stream(
        self, conversation: Conversation, sampling: Sampling, *, runtime: Runtime | None = None
    ) -> Iterator[str]:
        """The answer so far, after each of its tokens. It is not cached."""
        device = (runtime or Runtime.current()).device
        return _load_generator(self.options, self.turns, device, self.adapter_name).stream(conversation, sampling)


@dataclass(frozen=True, kw_only=True)
class Local(Transformers):
    """The same with `adapter`: the folder or hub name of a LoRA adapter, as `metrist train error-analysis` and peft
    write it, which is added to the weights of `model`. peft is not needed."""

    llm_name: ClassVar[str] = "local"

    adapter: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapter is not None:
            check_text(self, "adapter")

    @property
    def adapter_name(self) -> str | None:
        return self.adapter

    def facts(self) -> Mapping[str, str]:
        own = {} if self.adapter is None else {"adapter": find_adapter(self.adapter).fingerprint}
        return {**super().facts(), **own}

    def remarks(self) -> list[str]:
        """Whether the adapter was trained on other weights than these."""
        base = None if self.adapter is None else find_adapter(self.adapter).base
        if base is None or base == (found := find_weights(self.options).fingerprint):
            return []
        return [
            f"the adapter {self.adapter} was trained on a base with the fingerprint {base}, and {self.model} has "
            f"{found}: if it is not the same model in another form, the scores mean nothing"
        ]


_loading = threading.Lock()


def _load_generator(options: Options, turns: Turns, device: str, adapter: str | None) -> Generator:
    with _loading:  # Two threads at once must not load a model twice.
        return _cached_generator(options, turns, device, find_adapter(adapter) if adapter else None)


@lru_cache(maxsize=2)
def _cached_generator(options: Options, turns: Turns, device: str, adapter: Adapter | None) -> Generator:
    import_torch(f"the model {options.model!r}")
    from metrist.models.generation import Generator

    return Generator.load(options, turns, Runtime(device=device), adapter)


def forget_models() -> None:
    with _loading:
        _cached_generator.cache_clear()


#: How a schema is passed, by vLLM version: (class in vllm.sampling_params, argument of SamplingParams).
_SCHEMA_CLASSES = (("StructuredOutputsParams", "structured_outputs"), ("GuidedDecodingParams", "guided_decoding"))
#: Conversations per call of the engine; the completions of each call are stored before the next.
_CALL_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class VLLM(LLM):
    """A model from the hub or a folder. `dtype` 'auto' is that of the saved weights; `max_model_len` is the longest
    conversation with its answer, by default the model's own; `turns` 'none' passes the text without a chat template.
    With METRIST_DEVICE=map the model is spread over all GPUs."""

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
        """The hash of weights, tokenizer and chat template, and the version of vLLM, whose kernels differ."""
        options = Options(model=self.model, revision=self.revision, trust_remote_code=self.trust_remote_code)
        version = str(getattr(_import_vllm(), "__version__", "unknown"))
        return {"weights": find_weights(options).fingerprint, "vllm": version}

    def complete_batch(self, conversations: Sequence[Conversation], sampling: Sampling, call: Call) -> list[Completion]:
        engine = _load_engine(replace(self, turns="chat"), call.runtime.device)
        options: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": None if sampling.seed is None else sampling.seed + sampling.sample,
            "stop": list(sampling.stop) or None,
            "logprobs": sampling.logprobs or None,
        }
        schema: dict[str, Any] = {}
        if sampling.schema is not None:
            module: Any = importlib.import_module("vllm.sampling_params")
            for name, argument in _SCHEMA_CLASSES:
                if hasattr(module, name):
                    schema = {argument: getattr(module, name)(json=dict(sampling.schema))}
                    break
        params = _import_vllm().SamplingParams(**options, **schema)
        completions: list[Completion] = []
        for start in range(0, len(conversations), _CALL_SIZE):
            some = conversations[start : start + _CALL_SIZE]
            for completion in _call_engine(engine, some, self.turns, params, structured=bool(schema)):
                call.deliver(len(completions), completion)
                completions.append(completion)
        return completions


def _import_vllm() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ModelError(
            f"vllm is not installed ({error}): pip install vllm, or use a vLLM server with openai(model=…, url=…)",
            code="missing_dependency",
        ) from None


@lru_cache(maxsize=1)
def _load_engine(llm: VLLM, device: str) -> Any:
    library = _import_vllm()
    gpus = max(1, int(importlib.import_module("torch").cuda.device_count())) if device == MAP else None
    options = {
        "model": llm.model,
        "revision": llm.revision,
        "dtype": llm.dtype,
        "quantization": llm.quantization,
        "max_model_len": llm.max_model_len,
        "trust_remote_code": llm.trust_remote_code,
        "tensor_parallel_size": gpus,
        "seed": 0,
    }
    try:
        return library.LLM(**{name: value for name, value in options.items() if value is not None})
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"vLLM cannot load {llm.model}: {reason}") from error


def _call_engine(
    engine: Any, conversations: Sequence[Conversation], turns: Turns, params: Any, *, structured: bool
) -> list[Completion]:
    """The completions of one call. vLLM rejects a whole call for one conversation; each is then sent alone."""
    special = engine.get_tokenizer().all_special_tokens
    escaped = [
        [Message(message.role, escape_special_tokens(message.text, special)) for message in conversation]
        for conversation in conversations
    ]
    started = time.perf_counter()
    try:
        if turns == "none":
            outputs = engine.generate([join_text(messages) for messages in escaped], params, use_tqdm=False)
        else:
            chats = [[{"role": message.role, "content": message.text} for message in messages] for messages in escaped]
            outputs = engine.chat(chats, params, use_tqdm=False)
    except ValueError as error:
        if len(conversations) == 1:
            message = f"vLLM refused the conversation: {str(error).splitlines()[0]}"
            return [Completion(failure=Failure(FailureKind.refused, message))]
        return [
            completion
            for conversation in conversations
            for completion in _call_engine(engine, [conversation], turns, params, structured=structured)
        ]
    seconds = (time.perf_counter() - started) / len(conversations)
    return [_parse_output(output, structured, seconds) for output in outputs]


def _parse_output(output: Any, structured: bool, seconds: float) -> Completion:
    (answer,) = output.outputs
    tokens = None
    if answer.logprobs is not None:
        choices = []
        for token, candidates in zip(answer.token_ids, answer.logprobs, strict=True):
            # vLLM lists the chosen token even if it is not among the likeliest.
            ranked = sorted(candidates.values(), key=lambda candidate: -candidate.logprob)
            alternatives = tuple((str(candidate.decoded_token), float(candidate.logprob)) for candidate in ranked)
            chosen = candidates[token]
            choices.append(TokenChoice(str(chosen.decoded_token), float(chosen.logprob), alternatives))
        tokens = tuple(choices)
    return Completion(
        text=answer.text,
        finish={"stop": "stop", "length": "length"}.get(str(answer.finish_reason), "other"),  # type: ignore[arg-type]
        tokens=tokens,
        structured=structured,
        usage=Usage(
            prompt_tokens=len(output.prompt_token_ids or ()), completion_tokens=len(answer.token_ids), seconds=seconds
        ),
    )

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
from metrist.llm.chat import Turns
from metrist.llm.talk import Completion, Conversation, Sampling
from metrist.models.devices import Dtype, Options, device, import_torch
from metrist.models.weights import find_weights

if TYPE_CHECKING:
    from metrist.llm.generation import Generator


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

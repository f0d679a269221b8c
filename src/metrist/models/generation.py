"""Batched generation with a causal transformers model. Batching does not change answers beyond rounding."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from metrist.errors import ModelError
from metrist.llm.base import Call
from metrist.llm.messages import (
    PLAIN_STOPS,
    Completion,
    Conversation,
    Sampling,
    TokenChoice,
    Turns,
    Usage,
    encode_prompt,
    has_chat_template,
)
from metrist.models import devices, tokenization, weights
from metrist.models.batching import TokenBudget, pad_rows, run_in_batches
from metrist.models.devices import Options
from metrist.models.lora import load_adapter
from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
from metrist.models.weights import Adapter
from metrist.runtime import Runtime
from metrist.scores import Failure, FailureKind

#: A decoding step holds little but keys and values: this many times more tokens fit than in scoring.
_TOKENS_FACTOR = 4


@dataclass(frozen=True, slots=True)
class _EncodedPrompt:
    """The tokens of a conversation, its number, and the most tokens that its answer may have."""

    number: int
    ids: list[int]
    max_new: int


class Generator:
    """A loaded causal model that answers conversations."""

    def __init__(
        self, *, model: Any, tokenizer: Any, place: devices.Placement, context: int | None, turns: Turns = "chat"
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._context = context
        self._turns = turns
        self._stops_by_itself = turns == "none" or has_chat_template(tokenizer)
        self._default_tokens = place.tokens
        #: By the runtime's batch_tokens: a budget shrinks when memory runs out.
        self._budgets: dict[int | None, TokenBudget] = {}
        self._free = partial(devices.free_memory, place.device)
        #: The tokens that end an answer, according to the model and the tokenizer.
        ends = (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id)
        ids = (token for end in ends for token in (end if isinstance(end, list) else [end]))
        self._end_ids = frozenset(int(token) for token in ids if token is not None)
        # Any token will do, since the attention mask hides it.
        padding = tokenizer.pad_token_id
        self._padding_id = int(padding) if padding is not None else min(self._end_ids, default=0)
        # Whether a short prompt continues differently in a batch with a longer one than alone.
        size = int(model.get_input_embeddings().weight.shape[0])
        long = [int(number) % size for number in np.random.default_rng(5).integers(5, 1 << 30, size=11)]
        alone, padded = self._second_token_logprobs([long[:4]]), self._second_token_logprobs([long[:4], long])
        tolerance = 1e-4 if place.dtype == torch.float32 else 0.1
        self._depends_on_padding = not torch.allclose(alone[0], padded[0], rtol=tolerance, atol=tolerance)

    @classmethod
    def load(
        cls,
        options: Options,
        turns: Turns = "chat",
        runtime: Runtime | None = None,
        adapter: Adapter | None = None,
    ) -> Generator:
        files = weights.find_weights(options)
        if files.runs_on_numpy or files.config.get("is_encoder_decoder"):
            kind = files.config.get("model_type", "no model_type")
            raise ModelError(
                f"{files.name} ({kind}) is not a causal language model; choose a model that can chat",
                code="invalid_value",
            )
        place = devices.resolve_placement(options, runtime)
        model = read_model("AutoModelForCausalLM", files, options, place)
        if adapter is not None:
            load_adapter(model, adapter)
        tokenizer = read_tokenizer(files, options)
        context = tokenization.context_length(tokenizer, model.config)
        return cls(model=model, tokenizer=tokenizer, place=place, context=context, turns=turns)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, call: Call) -> list[Completion]:
        """One completion per conversation, in order; each is delivered as soon as its batch is done."""
        completions: dict[int, Completion] = {}
        prompts = [self._encode(number, conversation, sampling) for number, conversation in enumerate(conversations)]
        for prompt in prompts:
            if prompt.max_new <= 0:
                completions[prompt.number] = self._too_long(prompt)
                call.deliver(prompt.number, completions[prompt.number])
        # A row that has ended is still computed, so the prompts of a batch share the limit on the length of answers;
        # where the output depends on padding, they have the same length.
        groups: dict[tuple[int, int], list[_EncodedPrompt]] = {}
        for prompt in prompts:
            if prompt.max_new > 0:
                length = len(prompt.ids) if self._depends_on_padding else 0
                groups.setdefault((prompt.max_new, length), []).append(prompt)
        for group in groups.values():
            self._complete_group(group, sampling, completions, call)
        return [completions[number] for number in range(len(conversations))]

    def stream(self, conversation: Conversation, sampling: Sampling) -> Iterator[str]:
        prompt = self._encode(0, conversation, sampling)
        if prompt.max_new <= 0:
            raise ModelError(str(self._too_long(prompt).failure))
        return stream_results(lambda report: self._generate([prompt], sampling, report)[0].text)

    def _encode(self, number: int, conversation: Conversation, sampling: Sampling) -> _EncodedPrompt:
        ids = encode_prompt(self._tokenizer, conversation, self._turns)
        left = sampling.max_tokens if self._context is None else self._context - len(ids)
        return _EncodedPrompt(number, ids, min(sampling.max_tokens, left))

    def _too_long(self, prompt: _EncodedPrompt) -> Completion:
        message = f"the conversation takes {len(prompt.ids):,} tokens; the model's context has {self._context:,}"
        usage = Usage(prompt_tokens=len(prompt.ids), completion_tokens=0)
        return Completion(failure=Failure(FailureKind.too_long, message), usage=usage)

    def _complete_group(
        self, group: Sequence[_EncodedPrompt], sampling: Sampling, completions: dict[int, Completion], call: Call
    ) -> None:
        def work(batch: list[int]) -> None:
            prompts = [group[position] for position in batch]
            for prompt, completion in zip(prompts, self._generate(prompts, sampling), strict=True):
                completions[prompt.number] = completion
                call.deliver(prompt.number, completion)

        batch_tokens = call.runtime.batch_tokens
        tokens = (batch_tokens or self._default_tokens) * _TOKENS_FACTOR
        budget = self._budgets.setdefault(batch_tokens, TokenBudget(tokens))
        lengths = [len(prompt.ids) + prompt.max_new for prompt in group]
        for position, reason in run_in_batches(lengths, budget, work, self._free).items():
            failure = Failure(FailureKind.transient, f"the conversation {reason}")
            number = group[position].number
            completions[number] = Completion(failure=failure)
            call.deliver(number, completions[number])

    def _generate(
        self, prompts: Sequence[_EncodedPrompt], sampling: Sampling, report: Callable[[str], None] | None = None
    ) -> list[Completion]:
        started = time.perf_counter()
        inputs, mask = self._pad([prompt.ids for prompt in prompts])
        stops = sampling.stop if self._stops_by_itself else (*sampling.stop, *PLAIN_STOPS)
        criteria = _StopAtText(self._tokenizer, inputs.shape[1], stops, report)
        # The seed of an answer depends on its own prompt only.
        seeds = [f"{sampling.seed} {sampling.sample} {list(prompt.ids)}" for prompt in prompts]
        digests = (hashlib.sha256(seed.encode("ascii")).digest()[:8] for seed in seeds)
        sampler = _TokenSampler(sampling, [int.from_bytes(digest, "big") for digest in digests])
        with quiet_transformers(), torch.inference_mode():
            output = self._model.generate(
                input_ids=inputs,
                attention_mask=mask,
                max_new_tokens=prompts[0].max_new,
                do_sample=False,
                num_beams=1,
                # The decoding defaults in a model's folder are not part of the request.
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                pad_token_id=self._padding_id,
                eos_token_id=list(self._end_ids) or None,
                logits_processor=LogitsProcessorList([sampler]),
                stopping_criteria=StoppingCriteriaList([criteria]) if stops or report else None,
            )
        rows = output[:, inputs.shape[1] :].tolist()
        seconds = (time.perf_counter() - started) / len(prompts)
        return [
            self._parse_row(prompt, row, stops, steps, seconds)
            for prompt, row, steps in zip(prompts, rows, sampler.steps, strict=True)
        ]

    def _parse_row(
        self, prompt: _EncodedPrompt, row: list[int], stops: Sequence[str], steps: list[_SampledToken], seconds: float
    ) -> Completion:
        end = next((position for position, token in enumerate(row) if token in self._end_ids), len(row))
        ids = row[:end]
        text = self._decode(ids)
        start, stop = min(((text.find(stop), stop) for stop in stops if stop in text), default=(-1, ""))
        if stop:
            text, count = text[:start], len(ids)
            while count > 0 and len(self._decode(ids[: count - 1])) >= start:
                count -= 1
            ids = ids[:count]
        is_cut_off = end == len(row) and not stop
        # `steps` also holds the steps after the end of a row that ended before the others.
        tokens = []
        for token, step in zip(ids, steps, strict=False):
            texts = tokenization.readable_tokens(self._tokenizer, [token, *step.alternatives])
            tokens.append(TokenChoice(texts[0], step.logprob, tuple(zip(texts[1:], step.logprobs, strict=True))))
        return Completion(
            text=text if self._stops_by_itself else text.strip(),
            finish="length" if is_cut_off else "stop",
            tokens=tuple(tokens) if steps else None,
            usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=len(ids), seconds=seconds),
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _pad(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        # Padded on the left, so that new tokens follow the prompts.
        tables = pad_rows([sequence[::-1] for sequence in sequences], self._padding_id)
        ids, mask = (torch.from_numpy(np.ascontiguousarray(table[:, ::-1])) for table in tables)
        device = self._model.get_input_embeddings().weight.device
        return ids.to(device), mask.to(device)

    def _second_token_logprobs(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Log-probabilities of the second new token, which depends on the prefill and on one decoding step."""
        inputs, mask = self._pad(sequences)
        with quiet_transformers(), torch.inference_mode():
            output = self._model.generate(
                input_ids=inputs,
                attention_mask=mask,
                max_new_tokens=2,
                min_new_tokens=2,
                do_sample=False,
                pad_token_id=self._padding_id,
                output_logits=True,
                return_dict_in_generate=True,
            )
        return torch.log_softmax(output.logits[-1].float(), dim=-1)


@dataclass(frozen=True, slots=True)
class _SampledToken:
    logprob: float
    alternatives: list[int]
    logprobs: list[float]


class _TokenSampler(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Chooses the next token of each row and records the alternatives. Each request draws with its own seed, so that
    its answer does not depend on the rest of the batch."""

    def __init__(self, sampling: Sampling, seeds: Sequence[int]) -> None:
        self._sampling = sampling
        self._rngs = [np.random.default_rng(seed) for seed in seeds]
        #: By row, including steps after its end.
        self.steps: list[list[_SampledToken]] = [[] for _ in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        if self._sampling.temperature <= 0 and not self._sampling.logprobs:
            return scores
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        if self._sampling.temperature <= 0:
            chosen = scores.argmax(dim=-1)
        else:
            probabilities = torch.softmax(logprobs / self._sampling.temperature, dim=-1).double().cpu().numpy()
            rows = zip(probabilities, self._rngs, strict=True)
            drawn = [_draw_token(row, self._sampling.top_p, rng) for row, rng in rows]
            chosen = torch.tensor(drawn, device=logprobs.device)
        if self._sampling.logprobs:
            top = logprobs.topk(min(self._sampling.logprobs, logprobs.shape[1]), dim=-1)
            own = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
            for steps, *step in zip(self.steps, own, top.indices.tolist(), top.values.tolist(), strict=True):
                steps.append(_SampledToken(*step))
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


class _StopAtText(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Ends a row whose answer contains a stop text, and reports the progress of the first row."""

    def __init__(
        self, tokenizer: Any, start: int, stops: Sequence[str], report: Callable[[str], None] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._start = start
        self._stops = stops
        self._report = report
        # A token has at least one byte: a stop that has just ended lies within the last few tokens.
        self._tail = max((len(stop.encode("utf-8")) for stop in stops), default=0) + 8

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # noqa: ARG002
        if self._report:
            self._report(self._tokenizer.decode(input_ids[0, self._start :], skip_special_tokens=True))
        start = max(self._start, input_ids.shape[1] - self._tail)
        texts = self._tokenizer.batch_decode(input_ids[:, start:], skip_special_tokens=True)
        is_ended = [any(stop in text for stop in self._stops) for text in texts]
        return torch.tensor(is_ended, device=input_ids.device)


def _draw_token(probabilities: Any, top_p: float, rng: np.random.Generator) -> int:
    """Draw a token among the likeliest that make up `top_p`."""
    order = np.argsort(-probabilities, kind="stable")
    cumulative = np.cumsum(probabilities[order])
    nucleus = order[: int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1]
    total = np.cumsum(probabilities[nucleus])
    return int(nucleus[min(int(np.searchsorted(total, rng.random() * total[-1], side="right")), len(nucleus) - 1)])


def stream_results(work: Callable[[Callable[[str], None]], str]) -> Iterator[str]:
    """Run the work in a thread and yield the texts that it reports, then its result; repeated texts once. An exception
    of the work is raised here."""
    queue: SimpleQueue[str | BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            queue.put(work(queue.put))
        except BaseException as error:
            queue.put(error)
        queue.put(None)

    threading.Thread(target=run, daemon=True).start()
    last = None
    while (text := queue.get()) is not None:
        if isinstance(text, BaseException):
            raise text
        if text != last:
            yield text
        last = text

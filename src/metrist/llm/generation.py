"""Work that tells how far it has come, as something to iterate over."""

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
from metrist.llm import messages
from metrist.llm.base import Arrived
from metrist.llm.messages import Completion, Conversation, Sampling, TokenChoice, Usage
from metrist.models import devices, tokenization, weights
from metrist.models.batching import Budget, longest_first, run_in_batches
from metrist.models.devices import Options
from metrist.models.weights import quiet_transformers, read_model, read_tokenizer


def stream_results(work: Callable[[Callable[[str], None]], str]) -> Iterator[str]:
    """What the work tells while it runs, and last what it gives; texts that repeat the one before are left out. The
    work runs in a thread of its own; what it raises is raised here."""
    told: SimpleQueue[str | BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            told.put(work(told.put))
        except BaseException as fault:
            told.put(fault)
        told.put(None)

    threading.Thread(target=run, daemon=True).start()
    last = None
    while (found := told.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        if found != last:
            yield found
        last = found


# Answers from a causal model, many conversations at a time, none of them minding its neighbours.


#: A pass that goes on by one token holds little but keys and values: so many times more tokens fit than in scoring.
_ROOM = 4


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A conversation's tokens, its number, and how many tokens its answer may have."""

    number: int
    ids: list[int]
    room: int


class Generator:
    """A causal model that is loaded, to answer with."""

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        place: devices.Placement,
        context: int | None,
        turns: messages.Turns = "chat",
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._context = context
        self._turns = turns
        self._ends_by_itself = turns == "none" or messages.has_chat_template(tokenizer)
        self._budget = Budget(place.tokens * _ROOM)
        self._free = partial(devices.free_memory, place.device)
        self._ends = _ends(model, tokenizer)
        self._heeds_padding = self._found_to_heed_padding(place)

    @classmethod
    def load(cls, options: Options, turns: messages.Turns = "chat") -> Generator:
        """The model that the options name, on the device that the environment names."""
        found = weights.find_weights(options)
        if found.plain or found.config.get("is_encoder_decoder"):
            kind = found.config.get("model_type", "no model_type")
            raise ModelError(f"{found.name} ({kind}) is no causal language model; wanted one that can chat")
        place = devices.resolve_placement(options)
        model = read_model("AutoModelForCausalLM", found, options, place)
        tokenizer = read_tokenizer(found, options)
        context = tokenization.context_length(tokenizer, model.config)
        return cls(model=model, tokenizer=tokenizer, place=place, context=context, turns=turns)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        """One completion per conversation, in order."""
        prompts = [self._prompt(n, one, sampling) for n, one in enumerate(conversations)]
        done: dict[int, Completion] = {}
        able = [one for one in prompts if one.room > 0]
        for one in prompts:
            if one.room <= 0:
                done[one.number] = self._too_long(one)
                arrived(one.number, done[one.number])
        for group in self._groups(able):
            self._answer(group, sampling, done, arrived)
        return [done[n] for n in range(len(conversations))]

    def stream(self, conversation: Conversation, sampling: Sampling) -> Iterator[str]:
        """The answer as far as it has come, after each of its tokens."""
        prompt = self._prompt(0, conversation, sampling)
        if prompt.room <= 0:
            raise ModelError(str(self._too_long(prompt).failure))
        return stream_results(lambda told: self._run([prompt], sampling, told)[0].text)

    def _prompt(self, number: int, conversation: Conversation, sampling: Sampling) -> _Prompt:
        ids = messages.encode_prompt(self._tokenizer, conversation, self._turns)
        left = sampling.max_tokens if self._context is None else self._context - len(ids)
        return _Prompt(number, ids, min(sampling.max_tokens, left))

    def _too_long(self, prompt: _Prompt) -> Completion:
        failure = f"the conversation takes {len(prompt.ids):,} tokens, and the model {self._context:,} with the answer"
        return Completion(failure=failure, usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=0))

    def _groups(self, prompts: Sequence[_Prompt]) -> list[list[_Prompt]]:
        """What may go together: answers of one longest length, since a row that is done is still fed; where padding is
        heeded, prompts of one length."""
        groups: dict[tuple[int, int], list[_Prompt]] = {}
        for one in prompts:
            length = len(one.ids) if self._heeds_padding else 0
            groups.setdefault((one.room, length), []).append(one)
        return list(groups.values())

    def _answer(
        self, group: Sequence[_Prompt], sampling: Sampling, done: dict[int, Completion], arrived: Arrived
    ) -> None:
        order = [group[at] for at in longest_first([len(one.ids) for one in group])]

        def work(batch: list[int]) -> None:
            some = [order[at] for at in batch]
            for prompt, answer in zip(some, self._run(some, sampling), strict=True):
                done[prompt.number] = answer
                arrived(prompt.number, answer)

        lengths = [len(one.ids) + one.room for one in order]
        for at, why in run_in_batches(lengths, self._budget, work, self._free).items():
            done[order[at].number] = Completion(failure=f"the conversation {why}")
            arrived(order[at].number, done[order[at].number])

    def _run(
        self, prompts: Sequence[_Prompt], sampling: Sampling, told: Callable[[str], None] | None = None
    ) -> list[Completion]:
        began = time.perf_counter()
        inputs, mask = self._padded([one.ids for one in prompts])
        stops = sampling.stop if self._ends_by_itself else (*sampling.stop, *messages.PLAIN_STOPS)
        watch = _Watch(self._tokenizer, inputs.shape[1], stops, told)
        record = _Record(sampling, [_seed(one.ids, sampling) for one in prompts])
        with quiet_transformers(), torch.inference_mode():
            made = self._model.generate(
                input_ids=inputs,
                attention_mask=mask,
                max_new_tokens=prompts[0].room,
                do_sample=False,
                num_beams=1,
                # What a model's folder wishes for decoding is no part of the question.
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                pad_token_id=_padding(self._tokenizer, self._ends),
                eos_token_id=list(self._ends) or None,
                logits_processor=LogitsProcessorList([record]),
                stopping_criteria=StoppingCriteriaList([watch]) if stops or told else None,
            )
        rows = made[:, inputs.shape[1] :].tolist()
        seconds = (time.perf_counter() - began) / len(prompts)
        each = zip(prompts, rows, record.steps, strict=True)
        return [self._completion(prompt, row, stops, steps, seconds) for prompt, row, steps in each]

    def _completion(
        self, prompt: _Prompt, row: list[int], stops: Sequence[str], choices: list[_Step], seconds: float
    ) -> Completion:
        end = next((at for at, token in enumerate(row) if token in self._ends), len(row))
        ids = row[:end]
        text = self._text(ids)
        at, stop = min(((text.find(stop), stop) for stop in stops if stop in text), default=(-1, ""))
        if stop:
            ids, text = ids[: self._tokens_before(ids, at)], text[:at]
        cut = end == len(row) and not stop
        # What is fed to a row that has ended before its neighbours is no token of its answer.
        return Completion(
            text=text if self._ends_by_itself else text.strip(),
            finish="length" if cut else "stop",
            tokens=tuple(self._choice(*one) for one in zip(ids, choices, strict=False)) if choices else None,
            usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=len(ids), seconds=seconds),
        )

    def _tokens_before(self, ids: list[int], place: int) -> int:
        """How many tokens make the text before a place; the one that a stop begins in belongs to it where its text
        begins before."""
        count = len(ids)
        while count > 0 and len(self._text(ids[: count - 1])) >= place:
            count -= 1
        return count

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _choice(self, token: int, step: _Step) -> TokenChoice:
        spelled = tokenization.readable_tokens(self._tokenizer, [token, *step.alternatives])
        return TokenChoice(spelled[0], step.logprob, tuple(zip(spelled[1:], step.logprobs, strict=True)))

    def _padded(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, sequences))
        wide = np.full((len(sequences), longest), _padding(self._tokenizer, self._ends), dtype=np.int64)
        mask = np.zeros_like(wide)
        for row, masked, sequence in zip(wide, mask, sequences, strict=True):
            row[longest - len(sequence) :] = sequence
            masked[longest - len(sequence) :] = 1
        where = self._model.get_input_embeddings().weight.device
        return torch.from_numpy(wide).to(where), torch.from_numpy(mask).to(where)

    def _found_to_heed_padding(self, place: devices.Placement) -> bool:
        """Whether a few tokens are gone on with otherwise when they stand beside a longer row than alone."""
        size = int(self._model.get_input_embeddings().weight.shape[0])
        long = [int(n) % size for n in np.random.default_rng(5).integers(5, 1 << 30, size=11)]
        alone, beside = self._foretold([long[:4]]), self._foretold([long[:4], long])
        tolerance = 1e-4 if place.dtype == torch.float32 else 0.1
        return not torch.allclose(alone[0], beside[0], rtol=tolerance, atol=tolerance)

    def _foretold(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Log-probabilities of the second token to come, which the first pass and the one after it have part in."""
        inputs, mask = self._padded(sequences)
        with quiet_transformers(), torch.inference_mode():
            made = self._model.generate(
                input_ids=inputs,
                attention_mask=mask,
                max_new_tokens=2,
                min_new_tokens=2,
                do_sample=False,
                pad_token_id=_padding(self._tokenizer, self._ends),
                output_logits=True,
                return_dict_in_generate=True,
            )
        return torch.log_softmax(made.logits[-1].float(), dim=-1)


@dataclass(frozen=True, slots=True)
class _Step:
    """What was weighed at one token of one answer."""

    logprob: float
    alternatives: list[int]
    logprobs: list[float]


class _Record(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Chooses each row's next token, and notes what else was weighed. Draws come from each question's own seed, so that
    they do not depend on what stands beside it."""

    def __init__(self, sampling: Sampling, seeds: Sequence[int]) -> None:
        self._sampling = sampling
        self._draws = [np.random.default_rng(seed) for seed in seeds]
        #: By row; those after its end too.
        self.steps: list[list[_Step]] = [[] for _ in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        if self._sampling.temperature <= 0 and not self._sampling.logprobs:
            return scores
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        chosen = scores.argmax(dim=-1) if self._sampling.temperature <= 0 else self._drawn(logprobs)
        if self._sampling.logprobs:
            self._note(logprobs, chosen)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _drawn(self, logprobs: torch.Tensor) -> torch.Tensor:
        warm = torch.softmax(logprobs / self._sampling.temperature, dim=-1).double().cpu().numpy()
        picked = [_draw(row, self._sampling.top_p, draws) for row, draws in zip(warm, self._draws, strict=True)]
        return torch.tensor(picked, device=logprobs.device)

    def _note(self, logprobs: torch.Tensor, chosen: torch.Tensor) -> None:
        found = logprobs.topk(min(self._sampling.logprobs, logprobs.shape[1]), dim=-1)
        own = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        for steps, *one in zip(self.steps, own, found.indices.tolist(), found.values.tolist(), strict=True):
            steps.append(_Step(*one))


class _Watch(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Ends a row whose answer holds one of the stops, and tells how far the first row has come."""

    def __init__(
        self, tokenizer: Any, start: int, stops: Sequence[str], told: Callable[[str], None] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._start = start
        self._stops = stops
        self._told = told
        self._tail = max((len(stop.encode("utf-8")) for stop in stops), default=0) + 8

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # noqa: ARG002
        if self._told:
            self._told(self._tokenizer.decode(input_ids[0, self._start :], skip_special_tokens=True))
        # A token has a byte at least: a stop that has just been said lies within the last few.
        start = max(self._start, input_ids.shape[1] - self._tail)
        texts = self._tokenizer.batch_decode(input_ids[:, start:], skip_special_tokens=True)
        ended = [any(stop in text for stop in self._stops) for text in texts]
        return torch.tensor(ended, device=input_ids.device)


def _draw(probabilities: Any, top_p: float, draws: np.random.Generator) -> int:
    """One token by its probability, among the likeliest that make up `top_p`."""
    order = np.argsort(-probabilities, kind="stable")
    reached = np.cumsum(probabilities[order])
    kept = order[: int(np.searchsorted(reached, top_p * reached[-1])) + 1]
    total = np.cumsum(probabilities[kept])
    return int(kept[min(int(np.searchsorted(total, draws.random() * total[-1], side="right")), len(kept) - 1)])


def _seed(ids: Sequence[int], sampling: Sampling) -> int:
    said = f"{sampling.seed} {sampling.sample} {list(ids)}"
    return int.from_bytes(hashlib.sha256(said.encode("ascii")).digest()[:8], "big")


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer, by the model and by its tokenizer."""
    known = (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id)
    flat = (token for one in known for token in (one if isinstance(one, list) else [one]))
    return frozenset(int(token) for token in flat if token is not None)


def _padding(tokenizer: Any, ends: frozenset[int]) -> int:
    """Any token will do: padding is not looked at."""
    return int(tokenizer.pad_token_id) if tokenizer.pad_token_id is not None else min(ends, default=0)

"""Let a language model write stories, summaries, replies and answers, at a low and at a high temperature.

    python write_texts.py small OUT.jsonl.gz --model SMOLLM2       for preference-small: SmolLM2-135M-Instruct
    python write_texts.py english OUT.jsonl.gz --model QWEN        for the English encoders: Qwen2.5-Coder-1.5B-Instruct

A row has kind, source, low and high: the English is good at the low temperature and bad at the high one, and a text is
relevant only to its own source. It takes minutes on a GPU. The texts of the shipped English encoders also had whole
dialogues, which the model wrote about a subject; here it writes the next turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from good_texts import articles, lines, stories, talks
from packaged_texts import service_dialogues, task_answers
from sets import CHOSEN_ON, JUDGED, LEARNED_BY_SMALL, RESERVED, JudgedTexts, draw, read_arguments, write_lines

SEED = 6
#: Temperatures; at the low one with nucleus sampling.
LOW, HIGH, _TOP_P = 0.6, 0.95, 0.9
_ARTICLE_WORDS = 330
#: Tokens of a text of each kind, and prompts of each.
_LENGTHS = {"story": 90, "summary": 90, "reply": 45, "answer": 110}
_PROMPTS = {"small": 3_000, "english": 9_000}


class Prompt(NamedTuple):
    """`source` is shown to readers of the text, `prompt` to the model."""

    kind: str
    source: str
    prompt: str


def list_prompts(judged: JudgedTexts, most: int, rng: random.Random) -> Iterator[Prompt]:
    for article in draw(sorted(articles(judged)), most, rng):
        beginning = " ".join(article.split()[:_ARTICLE_WORDS])
        yield Prompt("summary", article, f"Summarize this article in two or three sentences.\n\n{beginning}")
    dialogues = [*(talk.turns[:-1] for talk in talks()), *(turns[:3] for turns in service_dialogues())]
    for turns in draw(sorted(set(dialogues)), most, rng):
        text = "\n".join(turns)
        yield Prompt("reply", text, f"Write only the next turn of this conversation, one sentence.\n\n{text}")
    beginnings = [parts[0] for parts in stories()] + [line for line in lines() if len(line.split()) <= 16]
    for line in draw(beginnings, most, rng):
        yield Prompt("story", line, f"Continue this story in four short sentences.\n\n{line}")
    for task in draw(sorted(task_answers()), most, rng):
        if len(task.split()) in range(4, 90) and judged.free(task):
            yield Prompt("answer", task, task)


def write(prompts: Sequence[Prompt], model: str, batch: int) -> Iterator[dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device).eval()
    torch.manual_seed(SEED)

    def generate(chosen: Sequence[Prompt], temperature: float, length: int) -> list[str]:
        chats = [[{"role": "user", "content": item.prompt}] for item in chosen]
        encoded = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
        ).to(device)
        with torch.inference_mode():
            ids = network.generate(
                **encoded, do_sample=True, temperature=temperature, max_new_tokens=length, top_k=0,
                top_p=_TOP_P if temperature == LOW else 1.0, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        texts: list[str] = tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts

    for kind, length in _LENGTHS.items():
        own = sorted((item for item in prompts if item.kind == kind), key=lambda item: len(item.prompt))
        for at in range(0, len(own), batch):
            chosen = own[at : at + batch]
            both = [generate(chosen, temperature, length) for temperature in (LOW, HIGH)]
            for item, low, high in zip(chosen, *both, strict=True):
                yield {"kind": kind, "source": item.source, "low": low.strip(), "high": high.strip()}


def main() -> None:
    arguments = read_arguments(__doc__, "out", set=tuple(_PROMPTS), model=str, most=int, batch=768)
    small = [name for name in JUDGED if name not in LEARNED_BY_SMALL]
    judged = JudgedTexts(small if arguments.set == "small" else (*JUDGED, *RESERVED, *CHOSEN_ON))
    prompts = list(list_prompts(judged, arguments.most or _PROMPTS[arguments.set], random.Random(SEED)))
    print(f"{write_lines(arguments.out, write(prompts, arguments.model, arguments.batch)):,} prompts answered")


if __name__ == "__main__":
    main()

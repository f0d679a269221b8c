"""Let a small language model write stories, summaries, replies and answers, at two temperatures.

    python machine_texts.py write PROMPTS.jsonl                          write prompts from the data sets' texts
    python machine_texts.py answer PROMPTS.jsonl MODEL OUT.jsonl.gz      answer them (one or two minutes on a GPU)

The English is good at the low temperature and bad at the high one, and a text is relevant only to its own source:
`preference_pairs.py` builds pairs from this. MODEL is SmolLM2-135M-Instruct (Apache-2.0).
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SEED = 6
#: Plain sampling; at the low temperature with nucleus sampling.
LOW, HIGH = 0.6, 0.95
_TOP_P = 0.9
_STORIES = 3_000
_ARTICLE_WORDS = 330
_BATCH = 768
_LENGTHS = {"story": 90, "summary": 90, "reply": 45, "answer": 110}


@dataclass(frozen=True, slots=True)
class Prompt:
    """`source` is shown to readers of the answer, `prompt` to the model."""

    kind: str
    source: str
    prompt: str


def prompts(rng: random.Random) -> Iterator[Prompt]:
    """Yield one prompt per article and dialogue, some beginnings of stories, and some tasks."""
    from damage import split_sentences
    from packaged_texts import tasks
    from preference_texts import Known, articles, dialogues, lines, stories

    known = Known()
    for article in articles(known):
        beginning = " ".join(article.split()[:_ARTICLE_WORDS])
        yield Prompt("summary", article, f"Summarize this article in two or three sentences.\n\n{beginning}")
    for dialogue in dialogues():
        prompt = f"Write only the next turn of this conversation, one sentence.\n\n{dialogue.text}"
        yield Prompt("reply", dialogue.text, prompt)
    short = [line for line in lines() if len(line.split()) <= 16]
    beginnings = [split_sentences(story)[0] for story in stories()]
    for line in (beginnings + rng.sample(short, _STORIES))[:_STORIES]:
        yield Prompt("story", line, f"Continue this story in four short sentences.\n\n{line}")
    for task in tasks(known, random.Random(SEED)):
        yield Prompt("answer", task, task)


def answer_prompts(prompts: Iterable[Prompt], model: str, *, device: str) -> Iterator[dict[str, Any]]:
    """Yield each prompt's answers at both temperatures."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(model)
    packed = {"gguf_file": folder.name} if folder.suffix == ".gguf" else {}
    home = str(folder.parent) if packed else model
    tokenizer = AutoTokenizer.from_pretrained(home, padding_side="left", **packed)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    network = AutoModelForCausalLM.from_pretrained(home, dtype=torch.bfloat16, **packed).to(device).eval()
    torch.manual_seed(SEED)

    def generate(batch: list[Prompt], temperature: float, length: int) -> list[str]:
        chats = [[{"role": "user", "content": item.prompt}] for item in batch]
        encoded = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
        ).to(device)
        with torch.inference_mode():
            ids = network.generate(
                **encoded, do_sample=True, temperature=temperature, max_new_tokens=length, top_k=0,
                top_p=_TOP_P if temperature == LOW else 1.0, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        return tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)

    ordered = sorted(prompts, key=lambda item: len(item.prompt))
    for kind, length in _LENGTHS.items():
        selected = [item for item in ordered if item.kind == kind]
        for at in range(0, len(selected), _BATCH):
            batch = selected[at : at + _BATCH]
            for temperature in (LOW, HIGH):
                texts = generate(batch, temperature, length)
                for item, text in zip(batch, texts, strict=True):
                    yield {"kind": kind, "source": item.source, "temperature": temperature, "text": text.strip()}
        print(kind, "done", file=sys.stderr, flush=True)


def main() -> None:
    verb, path, *rest = sys.argv[1:]
    if verb == "write":
        with Path(path).open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(asdict(item)) + "\n" for item in prompts(random.Random(SEED)))
        return
    import torch

    model, out_path = rest
    stored = [Prompt(**json.loads(line)) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    with gzip.open(out_path, "wt", encoding="utf-8") as packed:
        for item in answer_prompts(stored, model, device="cuda" if torch.cuda.is_available() else "cpu"):
            packed.write(json.dumps(item, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

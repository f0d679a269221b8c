"""Tiny random models, saved as users save theirs: config, tokenizer, safetensors.

Their numbers have no meaning but depend on every weight, as tests of exactness need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_TEXT = """
the a small old cat dog sat ran on over mat river and is was not very good bad summary of in to it he she they paris
london president said that report news people city new first last year day time two three one . , ! ? ' - 0 1 2 3 4 5
6 7 8 9
"""
WORDS = _TEXT.split()
LETTERS = [chr(c) for c in range(33, 127)]


def _tokenizer(*, ends: bool, begins: bool, pad: bool = True) -> Any:
    """A tokenizer of words, and letters of unknown words; `begins` and `ends` add <s> and </s> as BART's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = dict.fromkeys([*special, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>", max_input_chars_per_word=1000))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    template = f"{'<s> ' if begins else ''}$A{' </s>' if ends else ''}"
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 1024}
    if begins:
        names |= {"cls_token": "<s>", "sep_token": "</s>"}
    if pad:
        names["pad_token"] = "<pad>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


_SIZE = 4 + len(dict.fromkeys([*WORDS, *LETTERS])) + len(LETTERS)
_TOKENS = {"vocab_size": _SIZE, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
_SEQ2SEQ: dict[str, Any] = {
    **_TOKENS,
    **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in _LAYERS.items()},
    "d_model": 32,
    "max_position_embeddings": 128,
    "forced_eos_token_id": 2,
    "init_std": 0.3,
}
_ENCODER: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "initializer_range": 0.3,
}


def _bart() -> tuple[Any, Any]:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(**_SEQ2SEQ, decoder_start_token_id=2)
    return BartForConditionalGeneration(config), _tokenizer(begins=True, ends=True)


def _t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        **_TOKENS,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=1,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    return T5ForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _marian() -> tuple[Any, Any]:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(**_SEQ2SEQ, decoder_start_token_id=1)
    return MarianMTModel(config), _tokenizer(begins=False, ends=True)


def _gpt2() -> tuple[Any, Any]:
    """Without a pad token, as the real one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_SIZE,
        bos_token_id=0,
        eos_token_id=2,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
    )
    return GPT2LMHeadModel(config), _tokenizer(begins=False, ends=False, pad=False)


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **_TOKENS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config), _tokenizer(begins=True, ends=False)


def _make_analyst(*, chat: bool) -> tuple[Any, Any]:
    """A causal model whose tokenizer keeps every character, and knows the words of error analyses; with a chat
    template or without."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from metrist.metrics.errors.answers import WrittenError
    from metrist.metrics.errors.tigerscore import build_prompt, format_tiger_answer

    error = WrittenError(location="x", aspect="Accuracy", explanation="Wrong.", severity="Major", penalty=4.0)
    texts = [build_prompt("Do it.", "the cat sat", "the dog"), format_tiger_answer([error]), format_tiger_answer([])]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=["<pad>", "<end>", "<turn>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    if chat:
        fast.add_special_tokens({"additional_special_tokens": ["<turn>"]})
        fast.chat_template = (
            "{% for message in messages %}<turn>{{ message['role'] }}\n{{ message['content'] }}<end>\n{% endfor %}"
            "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
        )
    config = LlamaConfig(
        vocab_size=len(fast),
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config), fast


def _bert() -> tuple[Any, Any]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=_SIZE,
        pad_token_id=1,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    tokenizer = _tokenizer(begins=True, ends=True)
    tokenizer.model_max_length = 64
    return BertModel(config), tokenizer


def _roberta() -> tuple[Any, Any]:
    """Counts positions from its padding token on."""
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        **_ENCODER,
        type_vocab_size=1,
    )
    tokenizer = _tokenizer(begins=True, ends=True)
    tokenizer.model_max_length = 64
    return RobertaModel(config), tokenizer


def _mpnet() -> tuple[Any, Any]:
    from transformers import MPNetConfig, MPNetModel

    config = MPNetConfig(**_ENCODER)
    tokenizer = _tokenizer(begins=True, ends=True)
    tokenizer.model_max_length = 64
    return MPNetModel(config), tokenizer


MAKERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bart": _bart,
    "t5": _t5,
    "marian": _marian,
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "roberta": _roberta,
    "mpnet": _mpnet,
    "analyst": partial(_make_analyst, chat=True),
    "bare analyst": partial(_make_analyst, chat=False),
}


def save(kind: str, folder: Path) -> Path:
    """Write a tiny random model of this kind, with the same weights every time, and return the folder."""
    import torch

    from metrist.models.pretrained import quiet_transformers

    with torch.random.fork_rng(), quiet_transformers():
        torch.manual_seed(7)
        model, tokenizer = MAKERS[kind]()
        model.eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder

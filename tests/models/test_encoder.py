"""Encoders against plain transformers, one text at a time; and layers cut out of small random models of many kinds."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import cache

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models.devices import Options
from metrist.models.encoder import Encoder, find_layers, get_encoder

TEXTS = [
    "the old cat sat on the mat.",
    "no",
    "she said that it was not very good, and they ran over the river in London!",
    "",
    "a dog",
]
#: About 160 tokens, more than the 62 that the tiny bert has room for.
LONG = " ".join(f"the cat {number} sat on the river and ran {number % 7} times ." for number in range(13))


def load(folder) -> Encoder:
    return Encoder.load(Options(model=str(folder)))


@cache
def plain_model(folder):
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    return model.encoder if hasattr(model, "decoder") else model


@cache
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def plain(folder, ids, layer):
    """The vectors after a layer as transformers gives them for one sequence alone."""
    import torch

    model = plain_model(folder)
    with torch.no_grad():
        result = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    inner = len(result) - 1
    norm = getattr(model, "final_layer_norm", None) or getattr(model, "ln_f", None)
    # What T5 and GPT-2 do after their last layer is done after the chosen one; transformers does it after the last.
    last = norm(result[layer]) if norm is not None and layer < inner else result[layer]
    return last[0].detach().numpy()


def token_ids(folder, text):
    return tokenizer(folder)(text)["input_ids"]


def rows(states, text):
    return states.vectors[states.starts[text] : states.starts[text + 1]]


@pytest.mark.parametrize(("kind", "layers"), [("bert", 3), ("bart", 2), ("t5", 2), ("marian", 2), ("gpt2", 2)])
def test_every_layer_is_that_of_transformers_one_text_at_a_time(tiny, kind, layers):
    encoder = load(tiny(kind))
    assert encoder.layers == layers
    for layer in range(layers + 1):
        states = encoder.states(TEXTS, layer)
        for number, text in enumerate(TEXTS):
            ids = token_ids(tiny(kind), text)
            assert states.tokens[states.starts[number] : states.starts[number + 1]].tolist() == ids
            if ids:
                assert np.abs(rows(states, number) - plain(tiny(kind), ids, layer)).max() < 1e-5
    assert np.array_equal(encoder.states(TEXTS).vectors, encoder.states(TEXTS, layers).vectors)
    assert encoder.layers == layers


def test_vectors_do_not_depend_on_order_budget_or_the_texts_beside_them(tiny):
    encoder = load(tiny("bert"))
    together = encoder.states([*TEXTS, LONG])
    for budget in (1, 20, 100_000):
        encoder.budget.tokens = budget
        backwards = encoder.states([LONG, *TEXTS[::-1]])
        for number in range(len(TEXTS) + 1):
            assert np.abs(rows(backwards, len(TEXTS) - number) - rows(together, number)).max() < 1e-5


def test_equal_texts_are_encoded_once(tiny, monkeypatch):
    encoder, seen = load(tiny("bert")), []
    forward = encoder._forward
    monkeypatch.setattr(encoder, "_forward", lambda some: seen.extend(some) or forward(some))
    states = encoder.states(["a cat", "a dog", "a cat", "a cat"])
    assert len(seen) == 2
    assert len(states) == 4
    assert np.array_equal(rows(states, 0), rows(states, 3))
    assert (
        states.tokens.tolist()
        == encoder.states(["a cat", "a dog"]).tokens[[0, 1, 2, 3, 4, 5, 6, 7] + [0, 1, 2, 3] * 2].tolist()
    )


def test_tokens_that_open_and_close_a_text_are_marked(tiny):
    assert load(tiny("bert")).states(["a cat"]).special.tolist() == [True, False, False, True]
    # T5's end token is neither CLS nor SEP, and bert-score counts it as any other.
    assert load(tiny("t5")).states(["a cat"]).special.tolist() == [False, False, False]


def test_a_long_text_is_read_in_windows_each_token_where_it_stands_most_centrally(tiny):
    encoder, ids = load(tiny("bert")), token_ids(tiny("bert"), LONG)
    states = encoder.states(["a cat", LONG])
    assert encoder.limit == 64
    assert len(ids) > 2 * encoder.limit
    assert states.tokens[4:].tolist() == ids
    assert states.cut.tolist() == [0, 0]
    body, room = ids[1:-1], 62
    starts = [*range(0, len(body) - room, room // 2), len(body) - room]
    read = [plain(tiny("bert"), [ids[0], *body[start : start + room], ids[-1]], 3) for start in starts]
    result = rows(states, 1)
    for place in range(len(body)):
        # The distance to the nearer end of a window, by brute force over all windows.
        edge = [min(place - start, start + room - 1 - place) for start in starts]
        best = [read[number][1 + place - starts[number]] for number in range(len(starts)) if edge[number] == max(edge)]
        assert min(np.abs(result[1 + place] - one).max() for one in best) < 1e-5
    assert np.abs(result[0] - read[0][0]).max() < 1e-5
    assert np.abs(result[-1] - read[-1][-1]).max() < 1e-5


def test_a_long_text_can_be_cut_as_the_tokenizer_cuts_it(tiny):
    encoder, ids = load(tiny("bert")), token_ids(tiny("bert"), LONG)
    expected = tokenizer(tiny("bert"))(LONG, truncation=True)["input_ids"]
    states = encoder.states([LONG, "a cat"], long="truncate")
    assert states.tokens.tolist() == [*expected, *token_ids(tiny("bert"), "a cat")]
    assert states.cut.tolist() == [len(ids) - 64, 0]
    assert encoder.token_ids([LONG], "truncate") == [expected]
    assert encoder.token_ids([LONG]) == [ids]
    assert np.abs(rows(states, 0) - plain(tiny("bert"), expected, 3)).max() < 1e-5


def test_a_text_of_20000_tokens_is_read(tiny):
    encoder = load(tiny("bert"))
    encoder.budget.tokens = 8192
    states = encoder.states(["cat " * 20_000], layer=1)
    assert len(states.vectors) == 20_002
    assert np.isfinite(states.vectors).all()


def changed(folder, target, **settings):
    """A copy of the model's folder with other settings of its tokenizer; None takes one away."""
    shutil.copytree(folder, target)
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return target


def test_a_tokenizer_without_a_length_limit_works(tiny, tmp_path):
    # The positions of the model are the limit then; a model without positions reads 512 tokens at once.
    bert = load(changed(tiny("bert"), tmp_path / "bert", model_max_length=None))
    assert bert.tokenizer.model_max_length > 10**9
    assert bert.limit == 64
    assert np.array_equal(bert.states([LONG]).vectors, load(tiny("bert")).states([LONG]).vectors)
    long = "cat " * 700
    without = load(changed(tiny("t5"), tmp_path / "t5", model_max_length=None))
    assert without.limit == 512
    assert len(without.states([long]).vectors) == 701


def test_memory_that_runs_out_halves_the_batch_and_changes_nothing(tiny, monkeypatch):
    import torch

    encoder = load(tiny("bert"))
    expected = encoder.states([*TEXTS, LONG])
    encoder.budget.tokens = 4096
    forward, sizes = encoder._forward, []

    def small_memory(some):
        sizes.append(sum(len(window.ids) for window in some))
        if len(some) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(some)

    monkeypatch.setattr(encoder, "_forward", small_memory)
    result = encoder.states([*TEXTS, LONG])
    assert np.abs(result.vectors - expected.vectors).max() < 1e-5
    assert sizes[0] > sizes[1]
    assert encoder.layers == 3

    def no_memory(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(encoder, "_forward", no_memory)
    with raises_code(ModelError, "model_unusable", "4 tokens"):
        encoder.states(["a cat"])


def test_a_layer_that_the_model_does_not_have_is_refused(tiny):
    with raises_code(ModelError, "unsupported", "to 3", "layer=4"):
        load(tiny("bert")).states(["a"], 4)


def test_no_texts_give_no_vectors(tiny):
    states = load(tiny("bert")).states([])
    assert len(states) == 0
    assert states.vectors.shape == (0, 32)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    """A tiny RoBERTa with a byte-level tokenizer, which marks the beginnings of words."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    learned = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    text = "the old cat sat on the mat, and the dogs ran over the river."
    learned.train_from_iterator([text] * 3, vocab_size=300, min_frequency=2, special_tokens=special)
    inside = json.loads(learned.to_str())["model"]
    merges = [tuple(pair) for pair in inside["merges"]]
    folder = tmp_path_factory.mktemp("roberta")
    RobertaTokenizer(vocab=inside["vocab"], merges=merges, model_max_length=10**30).save_pretrained(folder)
    torch.manual_seed(7)
    config = RobertaConfig(
        vocab_size=len(inside["vocab"]), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=34, initializer_range=0.3,
    )  # fmt: skip
    RobertaModel(config).eval().save_pretrained(folder)
    return folder


def test_positions_that_roberta_keeps_for_padding_do_not_count(roberta):
    encoder = load(roberta)
    assert encoder.limit == 32
    assert np.isfinite(encoder.states(["the old cat sat on the mat, " * 20]).vectors).all()


def test_a_words_first_piece_is_the_same_at_the_beginning_and_inside(roberta, tiny):
    encoder = load(roberta)
    assert encoder.word_start == " "
    first, again = encoder.token_ids([" the the", "the the"])
    assert first[1] == first[2] != again[1]
    assert load(tiny("bert")).word_start == load(tiny("t5")).word_start == ""


def test_pieces_that_go_on_with_a_word_are_marked_alike(roberta, tiny):
    for folder, text in ((roberta, " the catss"), (tiny("bert"), "the catxy")):
        encoder = load(folder)
        pieces = encoder.pieces(encoder.token_ids([text])[0])
        assert pieces[:2] == ["<s>", "the"]
        assert pieces[-1] == "</s>"
        assert [piece[:2] == "##" for piece in pieces[2:-1]] == [False] + [True] * (len(pieces) - 4)
        assert len(pieces) > 4


SMALL = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
KINDS = {
    "Bert": SMALL,
    "Roberta": SMALL,
    "Electra": {**SMALL, "embedding_size": 16},
    "Albert": {**SMALL, "embedding_size": 16},
    "MPNet": SMALL,
    "DebertaV2": SMALL,
    "DistilBert": {"vocab_size": 20, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 16},
    "XLM": {"vocab_size": 20, "emb_dim": 16, "n_layers": 3, "n_heads": 2},
    "XLNet": {"vocab_size": 20, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 16},
    "Bart": {"vocab_size": 20, "d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_layers_give_the_hidden_states_of_the_whole(kind):
    import torch
    import transformers

    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Reading the code of DeBERTa makes torch warn.
        model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**KINDS[kind]))
    encoder = get_encoder(model.eval())
    stack = find_layers(encoder, kind)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    assert stack.size == 3
    with torch.no_grad():
        expected = encoder(input_ids=ids, output_hidden_states=True).hidden_states
        for layer in (1, 2, 3):
            with stack.first(layer):
                result = encoder(input_ids=ids)[0]
            assert (result - expected[layer]).abs().max() < 1e-6
    assert stack.size == 3


def test_layers_come_back_after_a_fault():
    import torch

    owner = torch.nn.Module()
    owner.layer = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
    stack = find_layers(owner, "two")

    def fault():
        with stack.first(1):
            raise ValueError(f"{stack.size} inside")

    with pytest.raises(ValueError, match="1 inside"):
        fault()
    assert stack.size == 2


def test_a_model_whose_layers_are_not_found_is_refused():
    import torch

    with raises_code(ModelError, "unsupported", "odd", "Linear"):
        find_layers(torch.nn.Linear(1, 1), "odd")

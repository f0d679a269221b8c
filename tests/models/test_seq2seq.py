"""Expected values are plain transformers' everywhere: one pair at a time, the target as labels, log-softmax, gather."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seq2seq_models import PAIRS, SOURCES, WAYS, agree

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models.batching import TokenBudget
from metrist.models.devices import Options
from metrist.models.seq2seq import Seq2Seq
from tiny_models import _tokenizer

Tiny = Callable[[str], Path]
Loaded = Callable[[str], Seq2Seq]


def reference(folder: Path, pairs: Sequence[tuple[str, str]], limit: int = 128) -> list[np.ndarray]:
    """What transformers itself says, a pair at a time."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = 1  # Shifting asks for one, though nothing is padded.
    result = []
    for texts in pairs:
        settings = {"return_tensors": "pt", "truncation": True, "max_length": limit}
        condition, labels = (tokenizer(text, **settings)["input_ids"] for text in texts)
        with torch.no_grad():
            logits = model(input_ids=condition, labels=labels).logits[0]
        result.append(logits.log_softmax(-1).gather(1, labels[0][:, None])[:, 0].numpy())
    return result


@pytest.mark.parametrize("kind", WAYS)
def test_values_are_those_of_transformers_one_pair_at_a_time(kind: str, loaded: Loaded, seq2seq_folder: Tiny) -> None:
    engine = loaded(kind)
    assert (type(engine._path.encoder).__name__, type(engine._path.decoder).__name__) == WAYS[kind]
    agree(engine.log_probs(PAIRS), reference(seq2seq_folder(kind), PAIRS))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", ["bart", "led", "scaled t5"])
def test_every_way_through_a_model_gives_the_same_values(
    kind: str, share: bool, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.seq2seq import PaddedDecoder, PaddedEncoder

    engine = loaded(kind)
    expected = engine.log_probs(PAIRS)
    device = engine._place.device
    monkeypatch.setattr(engine._path, "encoder", PaddedEncoder(engine.model, device))
    monkeypatch.setattr(engine._path, "decoder", PaddedDecoder(engine.model, device, share=share))
    agree(engine.log_probs(PAIRS), [expected.of(at) for at in range(len(PAIRS))])


def test_a_model_whose_decoder_takes_no_cache_is_scored_all_the_same(
    seq2seq_folder: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models import seq2seq

    def broken(*_args: object) -> None:
        raise AttributeError("this model has no such cache")

    monkeypatch.setattr(seq2seq, "_expand_cache", broken)
    engine = Seq2Seq.load(Options(model=str(seq2seq_folder("t5"))))
    assert engine._path.decoder.share is False  # type: ignore[union-attr]
    agree(engine.log_probs(PAIRS[:3]), reference(seq2seq_folder("t5"), PAIRS[:3]))


def test_a_model_with_unsupported_logits_is_refused(seq2seq_folder: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import T5ForConditionalGeneration

    forward = T5ForConditionalGeneration.forward

    def capped(self: Any, *args: Any, **settings: Any) -> Any:
        result = forward(self, *args, **settings)
        result.logits = result.logits.tanh()
        return result

    monkeypatch.setattr(T5ForConditionalGeneration, "forward", capped)
    with raises_code(ModelError, "unsupported", "probabilities"):
        Seq2Seq.load(Options(model=str(seq2seq_folder("t5"))))


@pytest.mark.parametrize("kind", ["bart", "t5"])
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_values_depend_on_neither_budget_nor_order_nor_batch_mates(
    kind: str, budget: int, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(kind)
    alone = [engine.log_probs([pair]).of(0) for pair in PAIRS]
    monkeypatch.setattr(engine, "_encoding", TokenBudget(budget))
    monkeypatch.setattr(engine, "_decoding", TokenBudget(budget))
    shuffled = np.random.default_rng(7).permutation(len(PAIRS)).tolist()
    agree(engine.log_probs([PAIRS[at] for at in shuffled]), [alone[at] for at in shuffled])


def test_parts_of_the_targets_that_are_tokenised_later_change_nothing(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.tokenization import BackgroundTokens

    expected = loaded("bart").log_probs(PAIRS)
    monkeypatch.setattr(BackgroundTokens, "_PART", 20)
    agree(loaded("bart").log_probs(PAIRS), [expected.of(at) for at in range(len(PAIRS))])


def test_equal_pairs_are_scored_once_and_equal_conditions_encoded_once(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded("bart")
    path, encoded, decoded = engine._path, list[Any](), list[Any]()
    encode, states = path.encoder.encode, path.decoder.states
    monkeypatch.setattr(path.encoder, "encode", lambda some: (encoded.extend(map(bytes, some)), encode(some))[1])
    monkeypatch.setattr(
        path.decoder, "states", lambda m, owners, some: (decoded.extend(owners), states(m, owners, some))[1]
    )
    result = engine.log_probs([*PAIRS, *reversed(PAIRS)])
    assert (len(encoded), len(set(encoded)), len(decoded)) == (len(SOURCES), len(SOURCES), len(PAIRS))
    for at in range(len(PAIRS)):
        assert np.array_equal(result.of(at), result.of(2 * len(PAIRS) - 1 - at))


def test_tokens_are_the_tokenizers_with_its_special_ones(loaded: Loaded) -> None:
    engine = loaded("bart")
    result = engine.log_probs([(SOURCES[0], "the cat .")])
    assert result.tokens.tolist() == engine.tokenizer("the cat .")["input_ids"]
    assert engine.pieces("the cat .") == ["<s>", "the", "cat", ".", "</s>"]


@pytest.mark.parametrize(
    ("texts", "specials"), [(("", "the cat"), 4), (("the cat", ""), 2), (("", ""), 2), ((" \n", "\t"), 2)]
)
def test_empty_texts_are_scored_by_their_special_tokens(
    texts: tuple[str, str], specials: int, loaded: Loaded, seq2seq_folder: Tiny
) -> None:
    result = loaded("bart").log_probs([texts])
    assert len(result.of(0)) == specials
    agree(result, reference(seq2seq_folder("bart"), [texts]))


def test_a_text_without_any_token_fails_with_a_reason(seq2seq_folder: Tiny, tmp_path: Path) -> None:
    bare = shutil.copytree(seq2seq_folder("marian"), tmp_path / "bare")
    _tokenizer(begins=False, ends=False).save_pretrained(bare)
    engine = Seq2Seq.load(Options(model=str(bare)))
    result = engine.log_probs([("the cat", ""), ("", "the cat"), ("the cat", "dog"), ("the cat", "")])
    assert result.failures == {
        0: "the target has no tokens",
        1: "the conditioning text has no tokens",
        3: "the target has no tokens",
    }
    assert np.diff(result.starts).tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(result.of(2), engine.log_probs([("the cat", "dog")]).of(0), atol=1e-5)


def test_no_pairs_give_nothing(loaded: Loaded) -> None:
    result = loaded("bart").log_probs([])
    assert (len(result), result.logprobs.dtype, result.failures) == (0, np.float32, {})


def test_half_a_character_is_scored_as_a_question_mark(loaded: Loaded) -> None:
    result = loaded("bart").log_probs([("the \ud800cat", "dog \udfff"), ("the ?cat", "dog ?")])
    assert np.array_equal(result.of(0), result.of(1))


@pytest.mark.parametrize(("kind", "limit", "specials"), [("bart", 128, 2), ("t5", 1024, 1), ("led", 64, 2)])
def test_an_output_of_20_000_tokens_is_cut_counted_and_quick(
    kind: str, limit: int, specials: int, loaded: Loaded, seq2seq_folder: Tiny
) -> None:
    pair = (SOURCES[0], "a small dog ran " * 5_000)
    result = loaded(kind).log_probs([pair, (pair[0], "dog")])
    assert result.target_cut.tolist() == [20_000 + specials - limit, 0]
    agree(result, reference(seq2seq_folder(kind), [pair, (pair[0], "dog")], limit))


def test_texts_are_cut_at_max_tokens_with_the_last_special_token_kept(loaded: Loaded, seq2seq_folder: Tiny) -> None:
    result = loaded("bart").log_probs(PAIRS, max_tokens=7)
    agree(result, reference(seq2seq_folder("bart"), PAIRS, 7))
    lengths = [[len(ids) for ids in loaded("bart").tokenizer(list(texts))["input_ids"]] for texts in PAIRS]
    assert result.condition_cut.tolist() == [max(0, condition - 7) for condition, _ in lengths]
    assert result.target_cut.tolist() == [max(0, target - 7) for _, target in lengths]
    assert all(len(loaded("bart").pieces(target, 7)) <= 7 for _, target in PAIRS)


def test_max_tokens_lifts_a_limit_that_is_only_the_tokenizers(loaded: Loaded) -> None:
    pair = [("a " * 1500, "a " * 1500)]
    assert loaded("t5").log_probs(pair, max_tokens=1200).target_cut.tolist() == [301]
    assert loaded("bart").log_probs(pair, max_tokens=1200).target_cut.tolist() == [1502 - 128]


def test_windows_fit_overlap_and_cover_the_text(loaded: Loaded) -> None:
    engine = loaded("bart")
    words = [f"word{number}" for number in range(60)]
    pieces = engine.windows(" ".join(words), 40)
    assert len(pieces) > 1
    assert all(len(engine.tokenizer(piece)["input_ids"]) <= 40 for piece in pieces)
    spans = [(words.index(piece.split()[0]), words.index(piece.split()[-1])) for piece in pieces]
    assert (spans[0][0], spans[-1][1]) == (0, 59)
    assert all(start <= end for (start, _), (_, end) in zip(spans[1:], spans, strict=False))
    assert engine.windows("the cat", 40) == ["the cat"]


def test_windows_cut_a_text_that_has_no_white_space(loaded: Loaded) -> None:
    engine = loaded("bart")
    pieces = engine.windows("x" * 500, 64)
    assert all(len(engine.tokenizer(piece)["input_ids"]) <= 64 for piece in pieces)
    assert sum(map(len, pieces)) >= 500


def test_a_tokenizer_with_another_target_side_is_asked_for_targets(loaded: Loaded) -> None:
    from metrist.models.tokenization import TokenizerSide

    class Translating:
        """Puts 7 before conditions and 8 before targets, as tokenizers with a language code do."""

        all_special_ids = ()

        def _switch_to_target_mode(self) -> None: ...

        def __call__(
            self,
            text: list[str] | None = None,
            text_target: list[str] | None = None,
            add_special_tokens: bool = True,
            verbose: bool = True,
        ) -> dict[str, list[list[int]]]:
            assert not verbose
            first, texts = (7, text) if text is not None else (8, text_target)
            return {"input_ids": [[first] * add_special_tokens + [20] * len(one) for one in texts or ()]}

    assert TokenizerSide(Translating()).ids(["ab"])[0].tolist() == [7, 20, 20]
    assert TokenizerSide(Translating(), target=True).ids(["ab"])[0].tolist() == [8, 20, 20]
    assert TokenizerSide(Translating(), target=True).before == 1
    assert TokenizerSide(loaded("bart").tokenizer, target=True).before == 1

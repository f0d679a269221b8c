"""Expected values are plain transformers' everywhere: one pair at a time, the target as labels, log-softmax, gather."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrist.errors import ModelError
from metrist.models import loading
from metrist.models.likelihoods import Likelihoods
from metrist.models.options import BATCH_TOKENS, DEVICE, Options
from metrist.models.seq2seq import Seq2Seq
from tiny_models import _SIZE, _TOKENS, _tokenizer

SOURCES = ["the cat sat on the mat .", "a very old dog ran over the river and was not good .", "paris said that " * 9]
TARGETS = ["the cat .", "dog ran", "it is a very good summary of the new city , she said .", "Unknown-words here"]
PAIRS = [(source, target) for source in SOURCES for target in TARGETS]

_SMALL = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "init_std": 0.3,
}


def _mbart() -> tuple[Any, Any]:
    from transformers import MBartConfig, MBartForConditionalGeneration

    config = MBartConfig(**_TOKENS, **_SMALL, max_position_embeddings=128, scale_embedding=True)
    return MBartForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _pegasus() -> tuple[Any, Any]:
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    config = PegasusConfig(**_TOKENS, **_SMALL, max_position_embeddings=128, decoder_start_token_id=1)
    return PegasusForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _led() -> tuple[Any, Any]:
    from transformers import LEDConfig, LEDForConditionalGeneration

    config = LEDConfig(
        **_TOKENS,
        **_SMALL,
        max_encoder_position_embeddings=256,
        max_decoder_position_embeddings=64,
        attention_window=8,
        decoder_start_token_id=2,
    )
    return LEDForConditionalGeneration(config), _tokenizer(begins=True, ends=True)


def _mt5() -> tuple[Any, Any]:
    from transformers import MT5Config, MT5ForConditionalGeneration

    config = MT5Config(**_TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=1)
    return MT5ForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _scaled_t5() -> tuple[Any, Any]:
    """Tied embeddings: the decoder's output is scaled before the head."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(**_TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=1)
    return T5ForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _biased() -> tuple[Any, Any]:
    """A final bias that is not zero, and no pad token anywhere."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    tokens = {"vocab_size": _SIZE, "bos_token_id": 0, "eos_token_id": 2}
    config = BartConfig(**tokens, **_SMALL, max_position_embeddings=128, decoder_start_token_id=2)
    model = BartForConditionalGeneration(config)
    model.final_logits_bias.copy_(torch.randn(1, _SIZE))
    model.config.pad_token_id = None
    return model, _tokenizer(begins=True, ends=True, pad=False)


_MAKERS = {"mbart": _mbart, "pegasus": _pegasus, "led": _led, "mt5": _mt5, "scaled t5": _scaled_t5, "biased": _biased}
#: Each kind with the way that its modules can go.
WAYS = {
    "bart": ("PackedEncoder", "PackedDecoder"),
    "marian": ("PackedEncoder", "PackedDecoder"),
    "mbart": ("PackedEncoder", "PackedDecoder"),
    "pegasus": ("PackedEncoder", "PackedDecoder"),
    "biased": ("PackedEncoder", "PackedDecoder"),
    "led": ("OwnEncoder", "PackedDecoder"),
    "t5": ("OwnEncoder", "OwnDecoder"),
    "mt5": ("OwnEncoder", "OwnDecoder"),
    "scaled t5": ("OwnEncoder", "OwnDecoder"),
}


@pytest.fixture(scope="session")
def folder(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a tiny model of any kind above."""
    made: dict[str, Path] = {}

    def of(kind: str) -> Path:
        import torch

        if kind in ("bart", "t5", "marian"):
            return tiny(kind)
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("model")
            with torch.random.fork_rng():
                torch.manual_seed(7)
                model, tokenizer = _MAKERS[kind]()
            model.eval().save_pretrained(made[kind])
            tokenizer.save_pretrained(made[kind])
        return made[kind]

    return of


@pytest.fixture(scope="session")
def loaded(folder: Callable[[str], Path]) -> Callable[[str], Seq2Seq]:
    kept: dict[str, Seq2Seq] = {}

    def of(kind: str) -> Seq2Seq:
        if kind not in kept:
            kept[kind] = Seq2Seq.load(Options(model=str(folder(kind))))
        return kept[kind]

    return of


def plainly(folder: Path, pairs: Sequence[tuple[str, str]], limit: int = 128) -> list[np.ndarray]:
    """What transformers itself says, a pair at a time."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = 1  # Shifting asks for one, though nothing is padded.
    found = []
    for texts in pairs:
        asked = {"return_tensors": "pt", "truncation": True, "max_length": limit}
        condition, labels = (tokenizer(text, **asked)["input_ids"] for text in texts)
        with torch.no_grad():
            logits = model(input_ids=condition, labels=labels).logits[0]
        found.append(logits.log_softmax(-1).gather(1, labels[0][:, None])[:, 0].numpy())
    return found


def agree(found: Likelihoods, wanted: Sequence[np.ndarray]) -> None:
    """Each token within 1e-5, or within the last digits of a float32 where log-probabilities are large."""
    assert len(found) == len(wanted)
    assert not found.failures
    for at, one in enumerate(wanted):
        np.testing.assert_allclose(found.of(at), one, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", WAYS)
def test_values_are_those_of_transformers_one_pair_at_a_time(
    kind: str, loaded: Callable[[str], Seq2Seq], folder: Callable[[str], Path]
) -> None:
    engine = loaded(kind)
    assert (type(engine._path.encoder).__name__, type(engine._path.decoder).__name__) == WAYS[kind]
    agree(engine.log_probs(PAIRS), plainly(folder(kind), PAIRS))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", ["bart", "led", "scaled t5"])
def test_every_way_through_a_model_gives_the_same_values(
    kind: str, share: bool, loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.unpacked import OwnDecoder, OwnEncoder

    engine = loaded(kind)
    wanted = engine.log_probs(PAIRS)
    device = engine._place.device
    monkeypatch.setattr(engine._path, "encoder", OwnEncoder(engine._model, device))
    monkeypatch.setattr(engine._path, "decoder", OwnDecoder(engine._model, device, share=share))
    agree(engine.log_probs(PAIRS), [wanted.of(at) for at in range(len(PAIRS))])


def test_a_model_whose_decoder_takes_no_cache_is_scored_all_the_same(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models import unpacked

    def broken(*_args: object) -> None:
        raise AttributeError("this model keeps no such cache")

    monkeypatch.setattr(unpacked, "_cache", broken)
    engine = Seq2Seq.load(Options(model=str(folder("t5"))))
    assert engine._path.decoder._share is False  # type: ignore[attr-defined]
    agree(engine.log_probs(PAIRS[:3]), plainly(folder("t5"), PAIRS[:3]))


def test_a_model_with_logits_of_its_own_making_is_refused(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import T5ForConditionalGeneration

    forward = T5ForConditionalGeneration.forward

    def capped(self: Any, *args: Any, **settings: Any) -> Any:
        found = forward(self, *args, **settings)
        found.logits = found.logits.tanh()
        return found

    monkeypatch.setattr(T5ForConditionalGeneration, "forward", capped)
    with pytest.raises(ModelError, match=r"\(t5\) computes its logits in a way of its own: values are \S+ apart"):
        Seq2Seq.load(Options(model=str(folder("t5"))))


@pytest.mark.parametrize("kind", ["bart", "t5"])
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_values_depend_on_neither_budget_nor_order_nor_batch_mates(
    kind: str, budget: int, loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.batching import Budget

    engine = loaded(kind)
    alone = [engine.log_probs([pair]).of(0) for pair in PAIRS]
    monkeypatch.setattr(engine, "_encoding", Budget(budget))
    monkeypatch.setattr(engine, "_decoding", Budget(budget))
    shuffled = np.random.default_rng(7).permutation(len(PAIRS)).tolist()
    agree(engine.log_probs([PAIRS[at] for at in shuffled]), [alone[at] for at in shuffled])


def test_parts_of_the_targets_that_are_tokenised_later_change_nothing(
    loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.tokenizing import Ahead

    whole = loaded("bart").log_probs(PAIRS)
    monkeypatch.setattr(Ahead, "_PART", 20)
    agree(loaded("bart").log_probs(PAIRS), [whole.of(at) for at in range(len(PAIRS))])


def test_equal_pairs_are_scored_once_and_equal_conditions_encoded_once(
    loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded("bart")
    path, encoded, decoded = engine._path, [], []
    encode, states = path.encoder.encode, path.decoder.states
    monkeypatch.setattr(path.encoder, "encode", lambda some: (encoded.extend(map(bytes, some)), encode(some))[1])
    monkeypatch.setattr(
        path.decoder, "states", lambda m, owners, some: (decoded.extend(owners), states(m, owners, some))[1]
    )
    found = engine.log_probs([*PAIRS, *reversed(PAIRS)])
    assert (len(encoded), len(set(encoded)), len(decoded)) == (len(SOURCES), len(SOURCES), len(PAIRS))
    for at in range(len(PAIRS)):
        assert np.array_equal(found.of(at), found.of(2 * len(PAIRS) - 1 - at))


def test_tokens_are_the_tokenizers_with_its_special_ones(loaded: Callable[[str], Seq2Seq]) -> None:
    engine = loaded("bart")
    found = engine.log_probs([(SOURCES[0], "the cat .")])
    assert found.tokens.tolist() == engine._tokenizer("the cat .")["input_ids"]
    assert engine.pieces("the cat .") == ["<s>", "the", "cat", ".", "</s>"]


@pytest.mark.parametrize(
    ("texts", "specials"), [(("", "the cat"), 4), (("the cat", ""), 2), (("", ""), 2), ((" \n", "\t"), 2)]
)
def test_empty_texts_are_scored_by_their_special_tokens(
    texts: tuple[str, str], specials: int, loaded: Callable[[str], Seq2Seq], folder: Callable[[str], Path]
) -> None:
    found = loaded("bart").log_probs([texts])
    assert len(found.of(0)) == specials
    agree(found, plainly(folder("bart"), [texts]))


def test_a_text_without_any_token_fails_with_a_reason(folder: Callable[[str], Path], tmp_path: Path) -> None:
    bare = shutil.copytree(folder("marian"), tmp_path / "bare")
    _tokenizer(begins=False, ends=False).save_pretrained(bare)
    engine = Seq2Seq.load(Options(model=str(bare)))
    found = engine.log_probs([("the cat", ""), ("", "the cat"), ("the cat", "dog"), ("the cat", "")])
    assert found.failures == {
        0: "the target has no tokens",
        1: "the conditioning text has no tokens",
        3: "the target has no tokens",
    }
    assert np.diff(found.starts).tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(found.of(2), engine.log_probs([("the cat", "dog")]).of(0), atol=1e-5)


def test_no_pairs_give_nothing(loaded: Callable[[str], Seq2Seq]) -> None:
    found = loaded("bart").log_probs([])
    assert (len(found), found.logprobs.dtype, found.failures) == (0, np.float32, {})


def test_half_a_character_is_scored_as_a_question_mark(loaded: Callable[[str], Seq2Seq]) -> None:
    found = loaded("bart").log_probs([("the \ud800cat", "dog \udfff"), ("the ?cat", "dog ?")])
    assert np.array_equal(found.of(0), found.of(1))


@pytest.mark.parametrize(("kind", "limit", "specials"), [("bart", 128, 2), ("t5", 1024, 1), ("led", 64, 2)])
def test_an_output_of_200_000_tokens_is_cut_counted_and_quick(
    kind: str, limit: int, specials: int, loaded: Callable[[str], Seq2Seq], folder: Callable[[str], Path]
) -> None:
    pair = (SOURCES[0], "a small dog ran " * 50_000)
    found = loaded(kind).log_probs([pair, (pair[0], "dog")])
    assert found.target_cut.tolist() == [200_000 + specials - limit, 0]
    agree(found, plainly(folder(kind), [pair, (pair[0], "dog")], limit))


def test_texts_are_cut_at_max_tokens_with_the_last_special_token_kept(
    loaded: Callable[[str], Seq2Seq], folder: Callable[[str], Path]
) -> None:
    found = loaded("bart").log_probs(PAIRS, max_tokens=7)
    agree(found, plainly(folder("bart"), PAIRS, 7))
    lengths = [[len(ids) for ids in loaded("bart")._tokenizer(list(texts))["input_ids"]] for texts in PAIRS]
    assert found.condition_cut.tolist() == [max(0, condition - 7) for condition, _ in lengths]
    assert found.target_cut.tolist() == [max(0, target - 7) for _, target in lengths]
    assert all(len(loaded("bart").pieces(target, 7)) <= 7 for _, target in PAIRS)


def test_max_tokens_lifts_a_limit_that_is_only_the_tokenizers(loaded: Callable[[str], Seq2Seq]) -> None:
    pair = [("a " * 1500, "a " * 1500)]
    assert loaded("t5").log_probs(pair, max_tokens=1200).target_cut.tolist() == [301]
    assert loaded("bart").log_probs(pair, max_tokens=1200).target_cut.tolist() == [1502 - 128]


def test_windows_fit_overlap_and_cover_the_text(loaded: Callable[[str], Seq2Seq]) -> None:
    engine = loaded("bart")
    words = [f"word{number}" for number in range(60)]
    pieces = engine.windows(" ".join(words), 40)
    assert len(pieces) > 1
    assert all(len(engine._tokenizer(piece)["input_ids"]) <= 40 for piece in pieces)
    spans = [(words.index(piece.split()[0]), words.index(piece.split()[-1])) for piece in pieces]
    assert (spans[0][0], spans[-1][1]) == (0, 59)
    assert all(start <= end for (start, _), (_, end) in zip(spans[1:], spans, strict=False))
    assert engine.windows("the cat", 40) == ["the cat"]


def test_windows_cut_a_text_that_has_no_white_space(loaded: Callable[[str], Seq2Seq]) -> None:
    engine = loaded("bart")
    pieces = engine.windows("x" * 500, 64)
    assert all(len(engine._tokenizer(piece)["input_ids"]) <= 64 for piece in pieces)
    assert sum(map(len, pieces)) >= 500


class _Full:
    """A device with room for so many decoder tokens."""

    def __init__(self, states: Any, room: int) -> None:
        self.states, self.room, self.failed = states, room, 0

    def __call__(self, memory: Any, owners: Any, inputs: Sequence[np.ndarray]) -> Any:
        if sum(map(len, inputs)) > self.room:
            self.failed += 1
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return self.states(memory, owners, inputs)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_out_of_memory_halves_the_budget_and_the_values_stay(
    kind: str, loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.batching import Budget

    engine = loaded(kind)
    wanted = engine.log_probs(PAIRS)
    full = _Full(engine._path.decoder.states, 40)
    monkeypatch.setattr(engine._path.decoder, "states", full)
    monkeypatch.setattr(engine, "_decoding", Budget(1000))
    agree(engine.log_probs(PAIRS), [wanted.of(at) for at in range(len(PAIRS))])
    assert full.failed >= 2
    assert engine._decoding.tokens <= 80


def test_a_target_that_does_not_fit_alone_is_a_failure_of_its_pair(
    loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.batching import Budget

    engine = loaded("bart")
    wanted = engine.log_probs([(SOURCES[0], "dog")]).of(0)
    monkeypatch.setattr(engine._path.decoder, "states", _Full(engine._path.decoder.states, 10))
    monkeypatch.setattr(engine, "_decoding", Budget(1000))
    found = engine.log_probs([(SOURCES[0], TARGETS[2]), (SOURCES[0], "dog")])
    assert found.failures == {
        0: "the target does not fit into the device's memory even alone (16 tokens); use a smaller max_tokens or model"
    }
    np.testing.assert_allclose(found.of(1), wanted, atol=1e-5)


def test_a_condition_that_does_not_fit_alone_fails_all_its_pairs(
    loaded: Callable[[str], Seq2Seq], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.batching import Budget

    engine = loaded("bart")
    encode = engine._path.encoder.encode

    def small(conditions: Sequence[np.ndarray]) -> Any:
        if sum(map(len, conditions)) > 20:
            raise RuntimeError("out of memory")
        return encode(conditions)

    monkeypatch.setattr(engine._path.encoder, "encode", small)
    monkeypatch.setattr(engine, "_encoding", Budget(1000))
    found = engine.log_probs(PAIRS)
    assert sorted(found.failures) == [8, 9, 10, 11]
    assert set(found.failures.values()) == {
        "the conditioning text does not fit into the device's memory even alone (29 tokens); "
        "use a smaller max_tokens or model"
    }


def test_a_tokenizer_with_another_target_side_is_asked_for_targets(loaded: Callable[[str], Seq2Seq]) -> None:
    from metrist.models.tokenizing import Side

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

    assert Side(Translating()).ids(["ab"])[0].tolist() == [7, 20, 20]
    assert Side(Translating(), target=True).ids(["ab"])[0].tolist() == [8, 20, 20]
    assert Side(Translating(), target=True).before == 1
    assert Side(loaded("bart")._tokenizer, target=True).before == 1


def test_facts_name_weights_dtype_and_kind(loaded: Callable[[str], Seq2Seq], folder: Callable[[str], Path]) -> None:
    from metrist.models.weights import find

    fingerprint = find(Options(model=str(folder("t5")))).fingerprint
    assert loaded("t5").facts == {"weights": fingerprint, "dtype": "float32", "model_type": "t5"}


def test_equal_options_share_one_loaded_model(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIST_CACHE", raising=False)
    options = Options(model=str(folder("bart")))
    assert loading.seq2seq(options) is loading.seq2seq(Options(model=str(folder("bart"))))


def test_the_environments_budget_is_kept_to(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BATCH_TOKENS, "33")
    assert Seq2Seq.load(Options(model=str(folder("bart"))))._decoding.tokens == 33


def test_loading_and_scoring_print_nothing_and_leave_logging_as_it_was(
    folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    Seq2Seq.load(Options(model=str(folder("led")))).log_probs([("the cat " * 400, "dog " * 400)])
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_device_map_gives_the_same_values(
    loaded: Callable[[str], Seq2Seq], folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE, "map")
    engine = Seq2Seq.load(Options(model=str(folder("bart"))))
    assert type(engine._path.decoder).__name__ == "OwnDecoder"
    agree(engine.log_probs(PAIRS), [loaded("bart").log_probs(PAIRS).of(at) for at in range(len(PAIRS))])


def test_a_folder_of_another_kind_of_model_is_refused_in_one_line(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match=r"cannot be read as AutoModelForSeq2SeqLM \(gpt2\): ") as caught:
        Seq2Seq.load(Options(model=str(tiny("gpt2"))))
    assert "\n" not in str(caught.value)


def test_a_model_with_code_of_its_own_is_refused_with_the_settings_name(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    own = shutil.copytree(folder("bart"), tmp_path / "own")
    (own / "config.json").write_text(
        '{"model_type": "of-its-own", "auto_map": {"AutoConfig": "code.C", "AutoModelForSeq2SeqLM": "code.M"}}'
    )
    with pytest.raises(
        ModelError, match=r"brings Python code of its own .* if you trust it, set trust_remote_code=True"
    ):
        Seq2Seq.load(Options(model=str(own)))


def test_weights_that_are_damaged_are_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    damaged = shutil.copytree(folder("bart"), tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(ModelError, match=r"damaged cannot be read as AutoModelForSeq2SeqLM \(bart\): "):
        Seq2Seq.load(Options(model=str(damaged)))


def test_a_decoder_without_a_start_token_is_refused() -> None:
    from types import SimpleNamespace

    from metrist.models.shifting import shift_of

    config = SimpleNamespace(decoder_start_token_id=None, pad_token_id=None)
    with pytest.raises(ModelError, match=r"m: its config.json must name a decoder_start_token_id"):
        shift_of(SimpleNamespace(config=config), "m")


def test_labels_are_shifted_as_the_model_does_even_in_an_unknown_way() -> None:
    from types import SimpleNamespace

    from metrist.models.shifting import shift_of

    def own(labels: Any) -> Any:
        return labels.flip(1)

    model = SimpleNamespace(
        config=SimpleNamespace(decoder_start_token_id=2, pad_token_id=1), prepare_decoder_input_ids_from_labels=own
    )
    assert shift_of(model, "m")(np.array([4, 5, 6, 9])).tolist() == [9, 6, 5, 4]

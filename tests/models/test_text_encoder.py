from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_folders import CONFIG, WORDS, export_random, make_arrays, write_tokenizer
from error_codes import raises_code
from metrist import threads
from metrist.errors import ModelError, SpecError
from metrist.models.devices import Options
from metrist.models.loading import load_reward, load_text_encoder
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.reward_layout import RewardFrame, RewardInput, RewardLayout, RewardSettings
from metrist.models.text_encoder import TextEncoder
from metrist.models.weights import find_weights
from metrist.runtime import Runtime


@pytest.fixture(params=["bert", "nomic"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    return export_random(tmp_path / "model", kind)


def make_sequences(encoder: TextEncoder, count: int = 12) -> list[Any]:
    rng = np.random.default_rng(4)
    draw = lambda: rng.integers(4, len(WORDS), rng.integers(1, 20)).astype(np.int32)  # noqa: E731
    return [encoder.join(draw(), draw() if number % 3 else None) for number in range(count)]


def compute_with_torch(arrays: dict[str, Any], kind: str, ids: Any, first: int) -> Any:
    """The last layer's states. 'bert' is transformers' BertModel; 'nomic' follows nomic-embed's description: post-norm,
    rotary over the whole head with base 1000, up(x) * silu(gate(x)), no biases in projections."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from transformers import BertConfig, BertModel

    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    tokens = torch.from_numpy(np.asarray(ids, np.int64))
    if kind == "bert":
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = BertModel(
            BertConfig(vocab_size=len(WORDS), max_position_embeddings=48, layer_norm_eps=1e-12, **sizes),
            add_pooling_layer=False,
        )
        names = {"words": "word_embeddings", "types": "token_type_embeddings", "places": "position_embeddings"}
        renamed = {f"embeddings.{to}.weight": state[f"{at}.weight"] for at, to in names.items()}
        for end in ("weight", "bias"):
            renamed[f"embeddings.LayerNorm.{end}"] = state[f"norm.{end}"]
            for number in range(2):
                ours, theirs = f"blocks.{number}.", f"encoder.layer.{number}."
                parts = state[f"{ours}qkv.{end}"].chunk(3)
                for part, name in zip(parts, ("query", "key", "value"), strict=True):
                    renamed[f"{theirs}attention.self.{name}.{end}"] = part
                pairs = {"out": "attention.output.dense", "norm1": "attention.output.LayerNorm"}
                pairs |= {"up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm"}
                renamed |= {f"{theirs}{to}.{end}": state[f"{ours}{at}.{end}"] for at, to in pairs.items()}
        model.load_state_dict(renamed, strict=False)
        types = (torch.arange(len(tokens)) >= first).long()
        with torch.inference_mode():
            return model.eval()(tokens[None], token_type_ids=types[None]).last_hidden_state[0].numpy()

    def normalize(rows: Any, name: str) -> Any:
        return torch.nn.functional.layer_norm(rows, (64,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-12)

    def rotate(vectors: Any) -> Any:
        angles = torch.arange(len(tokens))[:, None] * 1000.0 ** (-torch.arange(0, 32, 2) / 32)
        turned = torch.complex(*vectors.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    states = normalize(state["words.weight"][tokens] + state["types.weight"][0], "norm")
    for name in ("blocks.0.", "blocks.1."):
        query, key, value = (states @ state[f"{name}qkv.weight"].T).view(-1, 3, 2, 32).permute(1, 2, 0, 3)
        mixed = torch.nn.functional.scaled_dot_product_attention(rotate(query), rotate(key), value)
        mixed = mixed.transpose(0, 1).reshape(-1, 64)
        states = normalize(states + mixed @ state[f"{name}out.weight"].T, f"{name}norm1")
        gate = torch.nn.functional.silu(states @ state[f"{name}gate.weight"].T)
        inner = states @ state[f"{name}up.weight"].T * gate
        states = normalize(states + inner @ state[f"{name}down.weight"].T, f"{name}norm2")
    return states.numpy()


def test_scores_are_those_of_the_model_in_torch(tmp_path: Path, kind: str) -> None:
    """The difference is the rounding of rows to 8 bits: the weights are those that the file holds."""
    folder = export_random(tmp_path / "model", kind)
    arrays: dict[str, Any] = storage.read_arrays(folder / storage.WEIGHTS)
    encoder = load_text_encoder(str(folder))
    assert (encoder.heads, encoder.max_tokens) == (("support", "tags"), 48)
    sequences = make_sequences(encoder)
    states = [compute_with_torch(arrays, kind, ids, first) for ids, first in sequences]
    exact = [rows @ arrays["heads.tags.weight"].T + arrays["heads.tags.bias"] for rows in states]
    scored = encoder.score_tokens("tags", sequences)
    for (_, first), ours, theirs in zip(sequences, scored, exact, strict=True):
        assert ours.shape == (first, 3)
        np.testing.assert_allclose(ours, theirs[:first], atol=0.05)
    # The head is linear, so that it can be applied before the mean.
    spans = [[(0, len(ids)), (1, 2)] for ids, _ in sequences]
    for ours, theirs in zip(encoder.score_spans("tags", sequences, spans), exact, strict=True):
        np.testing.assert_allclose(ours, [theirs.mean(0), theirs[1]], atol=0.05)
    everything = np.concatenate(exact)
    assert everything.std() > 0.3, "the heads see something"


def test_the_first_part_decides_types_of_a_bert(tmp_path: Path) -> None:
    encoder = load_text_encoder(str(export_random(tmp_path / "model", "bert")))
    ids, first = encoder.join(np.arange(4, 9), np.arange(4, 9))
    one, other = encoder.score_spans("support", [(ids, first), (ids, first + 1)], [[(0, 3)], [(0, 3)]])
    assert one != other


def test_a_score_depends_on_neither_companions_order_nor_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit with compiled kernels; numpy's products differ with the number of rows."""
    from metrist import kernels

    encoder = load_text_encoder(str(folder))
    sequences = make_sequences(encoder, 30)
    together = encoder.score_tokens("tags", sequences)
    alone = [encoder.score_tokens("tags", [sequence])[0] for sequence in sequences]
    backwards = encoder.score_tokens("tags", sequences[::-1])[::-1]
    monkeypatch.setattr(threads, "_find_blas", lambda: threads._BlasThreads(lambda: 4, lambda _: None))
    small = load_text_encoder(str(folder), runtime=Runtime(batch_tokens=16)).score_tokens("tags", sequences)
    tolerance = 0 if kernels.has_encoder() else 0.02
    for others in (alone, backwards, small):
        for one, other in zip(together, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def test_plain_kernels_agree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metrist import kernels
    from metrist.kernels import reference

    encoder = load_text_encoder(str(folder))
    sequences = make_sequences(encoder)
    expected = encoder.score_tokens("support", sequences)
    monkeypatch.setattr(kernels, "has_encoder", lambda: False)
    for name in ("pack_linear", "apply_linear", "attend", "add_and_normalize", "gate_rows"):
        monkeypatch.setattr(kernels, name, getattr(reference, name))
    plain = load_text_encoder(str(folder), runtime=Runtime(batch_tokens=100)).score_tokens("support", sequences)
    for ours, theirs in zip(plain, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_equal_sequences_are_computed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_text_encoder(str(folder))
    sizes: list[int] = []
    encode = encoder._network.encode
    monkeypatch.setattr(
        encoder._network, "encode", lambda batch, *more: (sizes.append(len(batch)), encode(batch, *more))[1]
    )
    sequence = encoder.join(np.arange(4, 9))
    first, second, third = encoder.score_spans("support", [sequence] * 3, [[(0, 2)], [(1, 4), (0, 2)], []])
    assert sizes == [1]
    assert first.shape == (1, 1)
    assert third.shape == (0, 1)
    np.testing.assert_array_equal(first, second[1:])
    assert encoder.score_tokens("support", []) == []


def test_tokens_have_the_offsets_of_their_characters(folder: Path) -> None:
    encoder = load_text_encoder(str(folder))
    text = "The cats sat. \ud800 [SEP] mat"
    tokens, empty = encoder.encode([text, ""])
    pieces = [text[start:end] for start, end in tokens.offsets]
    assert pieces == ["The", "cat", "s", "sat", ".", "\ud800", "[", "SEP", "]", "mat"]
    assert 3 not in tokens.ids, "a text cannot spell the end of a part"
    assert (len(empty.ids), empty.offsets.shape) == (0, (0, 2))
    ids, first = encoder.join(tokens.ids[:2], tokens.ids[2:3])
    assert (ids.tolist(), first) == ([2, *tokens.ids[:2].tolist(), 3, tokens.ids[2], 3], 4)


@pytest.mark.parametrize(
    ("ids", "first", "spans", "message"),
    [
        (np.zeros(49, np.int32), 2, [], "49 tokens; this model reads 1 to 48"),
        (np.zeros(0, np.int32), 0, [], "0 tokens"),
        (np.zeros(4, np.int32), 5, [], "cannot have 5"),
        (np.array([999, 0]), 1, [], "not among"),
        (np.array([-1, 0]), 1, [], "not among"),
        (np.zeros(4, np.int32), 2, [(2, 2)], "no span"),
        (np.zeros(4, np.int32), 2, [(0, 5)], "no span"),
    ],
)
def test_inputs_that_cannot_be_are_refused(tmp_path: Path, ids: Any, first: int, spans: Any, message: str) -> None:
    encoder = load_text_encoder(str(export_random(tmp_path / "model", "bert")))
    with pytest.raises(ValueError, match=message):
        encoder.score_spans("support", [(ids, first)], [spans])


def test_several_heads_take_one_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_text_encoder(str(folder))
    sequences = make_sequences(encoder)
    apart = [encoder.score_tokens(head, sequences) for head in ("tags", "support")]
    passes = []
    encode = encoder._network.encode
    monkeypatch.setattr(
        encoder._network, "encode", lambda batch, *more: passes.append(len(batch)) or encode(batch, *more)
    )
    together = encoder.score_tokens(("tags", "support"), sequences)
    assert sum(passes) == len({ids.tobytes() for ids, _ in sequences})
    for rows, *columns in zip(together, *apart, strict=True):
        np.testing.assert_array_equal(rows, np.concatenate(columns, axis=1))


def test_states_of_the_last_layer_give_the_scores_of_a_head(folder: Path) -> None:
    encoder = load_text_encoder(str(folder))
    sequences = [encoder.join(encoder.encode([text])[0].ids) for text in ("a b c", "c a", "a b c")]
    matrix, bias = encoder._heads["tags"]
    last = encoder.read_states(sequences)
    for states, expected in zip(last, encoder.score_tokens("tags", sequences), strict=True):
        np.testing.assert_allclose(states.astype(np.float64) @ matrix.T + bias, expected, rtol=1e-9, atol=1e-9)
    layers = encoder.sizes.layers
    for whole, named, below in zip(
        last, encoder.read_states(sequences, layers), encoder.read_states(sequences, layers - 1), strict=True
    ):
        np.testing.assert_array_equal(whole, named)
        assert below.shape == whole.shape
        assert not np.allclose(below, whole)
    for layer in (0, layers + 1):
        with pytest.raises(ValueError, match=f"no layer {layer}"):
            encoder.read_states(sequences, layer)


def test_an_unknown_head_names_those_there_are(folder: Path) -> None:
    with raises_code(ModelError, "unknown_name", "'fluency'", "'support'", "'tags'"):
        load_text_encoder(str(folder)).score_tokens("fluency", [])


def test_equal_names_share_a_model_and_a_new_export_is_another(tmp_path: Path) -> None:
    folder = export_random(tmp_path / "model", "bert")
    first = load_text_encoder(str(folder))
    assert load_text_encoder(str(folder)) is first
    assert first.facts == {"weights": find_weights(Options(model=str(folder))).fingerprint, "dtype": "int8"}
    export_random(folder, "bert", bits=6)
    assert load_text_encoder(str(folder)).facts["weights"] != first.facts["weights"]


def test_fewer_bits_are_further_from_the_original(tmp_path: Path) -> None:
    arrays = make_arrays("bert")
    states = {}
    for bits in (3, 5, 7):
        encoder = load_text_encoder(str(export_random(tmp_path / str(bits), "bert", bits=bits, word_bits=bits + 1)))
        sequences = make_sequences(encoder)
        exact = [compute_with_torch(arrays, "bert", *sequence)[: sequence[1]] for sequence in sequences]
        differences = [
            np.abs(ours - (rows @ arrays["heads.support.weight"].T + arrays["heads.support.bias"])).mean()
            for ours, rows in zip(encoder.score_tokens("support", sequences), exact, strict=True)
        ]
        states[bits] = np.mean(differences)
    assert states[7] < states[5] < states[3]


# ---- Damaged folders


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / storage.CONFIG
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "roberta"}, "roberta"),
        ({"layers": 1}, r"'blocks\.1\..*does not belong"),
        ({"layers": 3}, r"has no 'blocks\.2"),
        ({"hidden": 128}, "implies"),
        ({"attention_heads": 8}, "multiples of 16"),
        ({"hidden": 640, "attention_heads": 2}, "at most 256 wide"),
        ({"inner": None}, "`inner`"),
        ({"max_tokens": 49}, "max_tokens"),
        ({"positions": True}, r"\$\.positions"),
        ({"epsilon": "small"}, r"\$\.epsilon"),
        ({"begin_token": 400}, "the weights have"),
        ({"architecture": "t5"}, "is a 't5' model"),
        ({"metrist_format": 99}, "format 99"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = export_random(tmp_path / "model", "bert")
    change_config(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_text_encoder(str(folder))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("blocks.0.up.weight", lambda array: array[:-16], "implies"),
        ("blocks.0.up.bias", lambda array: array[:-16], "implies"),
        ("places.weight", lambda array: array[:-1], "implies"),
        ("norm.bias", lambda array: array * np.nan, "infinite or NaN"),
        ("heads.support.bias", None, r"has no 'heads\.support\.bias'"),
        ("heads.support.weight", None, "not the weight or the bias of a head"),
        ("blocks.1.down.weight", None, r"has no 'blocks\.1\.down\.weight'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, name: str, change: Any, message: str) -> None:
    arrays = make_arrays("bert")
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    bits = {key: (7, 64) for key, array in arrays.items() if array.ndim == 2 and key.startswith("blocks")}
    folder = export_random(tmp_path / "model", "bert")
    storage.write_arrays(folder / storage.WEIGHTS, arrays, bits)
    with pytest.raises(ModelError, match=message):
        load_text_encoder(str(folder))


def test_weights_of_eight_bits_or_without_scales_are_refused(tmp_path: Path) -> None:
    folder = export_random(tmp_path / "model", "bert")
    arrays = make_arrays("bert")
    for bits, message in (({}, "expected integers with scales"), ({"blocks": (8, 64)}, "at most 7 bits")):
        chosen = {
            name: depth
            for name, array in arrays.items()
            for start, depth in bits.items()
            if name.startswith(start) and array.ndim == 2
        }
        storage.write_arrays(folder / storage.WEIGHTS, arrays, chosen)
        with pytest.raises(ModelError, match=message):
            load_text_encoder(str(folder))


def test_an_export_checks_bits_and_groups(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    for settings in ({"bits": 8}, {"bits": 1}, {"group": 48}):
        with raises_code(SpecError, "invalid_value"):
            export_text_encoder(make_arrays("bert"), CONFIG, tokenizer, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_preference_head_is_a_reward_model(tmp_path: Path) -> None:
    """Its reward is the head on the mean of the answer's tokens and the last special one, in the layout of reward.json
    (checked against the encoder itself, row by row)."""
    folder = export_random(tmp_path / "model", "bert", heads={"preference": 1})
    layout = RewardLayout(labelled=False, max_length=24, keep="both")
    begin, end = CONFIG["begin_token"], CONFIG["end_token"]
    frame = RewardFrame(prefix=(begin,), separator=(end,), suffix=(end,))
    RewardSettings(pooling="answer", layout=layout, frame=frame).write(folder)
    encoder = load_text_encoder(str(folder))
    reward = load_reward(Options(model=str(folder)))
    inputs = [
        RewardInput("the cat sat", (("source", "a b c"), ("answer", "d e"))),
        RewardInput("the cat sat", (("answer", "a"),)),
        RewardInput("the cat sat", (("source", "a b c"), ("answer", "d e"))),
    ]
    expected = []
    for item in inputs:
        texts = [item.instruction, *(text for _, text in item.fields)]
        ids = [begin]
        for tokens in encoder.encode(texts):
            start = len(ids)
            ids += [*tokens.ids.tolist(), end]
        expected.append(encoder.score_spans("preference", [(np.array(ids, np.int32), len(ids))], [[(start, len(ids))]]))
    result = reward.rewards(inputs)
    np.testing.assert_array_equal(result.values, [value[0][0, 0] for value in expected])
    assert result.values[0] == result.values[2] != result.values[1]


def test_an_encoder_without_a_preference_head_is_no_reward_model(tmp_path: Path) -> None:
    folder = export_random(tmp_path / "model", "bert")
    with raises_code(ModelError, "invalid_value", "reward.json"):
        load_reward(Options(model=str(folder)))


def test_spans_are_means_of_the_last_states_wherever_they_are(folder: Path) -> None:
    """The last layer is computed to the end only for the tokens of spans."""
    from metrist import kernels

    encoder = load_text_encoder(str(folder))
    sequences = make_sequences(encoder, 12)
    spans = [[(0, 1), (len(ids) // 2, len(ids)), (1, 2)][: number % 4] for number, (ids, _) in enumerate(sequences)]
    matrix, bias = encoder._heads["support"]
    scored = encoder.score_spans("support", sequences, spans)
    for states, own, outputs in zip(encoder.read_states(sequences), spans, scored, strict=True):
        means = np.array([states[a:b].mean(0, dtype=np.float64) for a, b in own]).reshape(-1, states.shape[1])
        expected = (means[:, None, :] * matrix).sum(2) + bias
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=0 if kernels.has_encoder() else 0.02)

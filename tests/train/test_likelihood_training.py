"""Fine-tuning likelihood models, on tiny ones."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from error_codes import raises_code
from metrist.errors import ModelError, RunError
from metrist.models.devices import Options
from metrist.models.weights import find_weights
from metrist.train.fit import fit, plan_training
from metrist.train.folder import TrainingFolder
from metrist.train.likelihood import LikelihoodTask, TokenLoss
from metrist.train.recipe import Recipe
from metrist.train.text_pairs import encode_text_pairs
from tiny_models import WORDS

Tiny = Callable[[str], Path]

SENTENCES = [
    ("the cat sat on the mat .", "a cat sat ."),
    ("the president said that the report was not very good !", "report was bad"),
    ("news of paris", "the last day in paris was a very good day , people said ."),
]


def both(folder: Path) -> tuple[Any, Any]:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval().requires_grad_(False)
    return model, AutoTokenizer.from_pretrained(folder)


def log_probability(model: Any, tokenizer: Any, condition: str, target: str) -> float:
    """One pair's mean log-probability by plain transformers."""
    labels = torch.tensor([tokenizer(target)["input_ids"]])
    return -float(model(input_ids=torch.tensor([tokenizer(condition)["input_ids"]]), labels=labels).loss)


@pytest.mark.parametrize("kind", ["bart", "t5", "marian"])
def test_the_loss_matches_transformers_and_the_figure_matches_the_metric(tiny: Tiny, kind: str) -> None:
    """Oracles: transformers' own loss for padded labels, and pairs scored one at a time."""
    model, tokenizer = both(tiny(kind))
    pairs = encode_text_pairs(tokenizer, model.config, SENTENCES)
    batch = pairs.collate(torch.arange(3).numpy())
    conditions = tokenizer([a for a, _ in SENTENCES], padding=True, return_tensors="pt")
    labels = tokenizer([b for _, b in SENTENCES], padding=True, return_tensors="pt")
    labels = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
    expected = model(**conditions, labels=labels).loss
    loss = TokenLoss().loss(model, batch) / pairs.weights.sum()
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    alone = [log_probability(model, tokenizer, *pair) for pair in SENTENCES]
    assert TokenLoss().judge(model, batch).tolist() == pytest.approx(alone, abs=1e-5)


def test_texts_are_truncated_at_the_models_limit_and_counted(tiny: Tiny) -> None:
    folder = tiny("bart")
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    long = "cat " * 200
    pairs = encode_text_pairs(tokenizer, config, [(long, "dog"), ("dog", "old " * 127), ("a", "b")])
    assert pairs.cut == (1, 1, 202 - 128 + 129 - 128)
    assert list(pairs.conditions[0]) == tokenizer(long, truncation=True, max_length=128)["input_ids"]
    shorter = encode_text_pairs(tokenizer, config, [(long, long)], max_length=10)
    assert shorter.cut == (1, 1, 2 * 192)
    assert list(shorter.targets[0]) == tokenizer(long, truncation=True, max_length=10)["input_ids"]
    beyond = encode_text_pairs(tokenizer, config, [(long, "dog")], max_length=5000)
    assert beyond.cut == (1, 0, 74), "the position table is a hard limit"


def copies(path: Path, count: int = 240) -> Path:
    rng = random.Random(1)
    texts = dict.fromkeys(" ".join(rng.choices(WORDS[:12], k=3)) for _ in range(count))
    path.write_text("".join(json.dumps({"text": text, "summary": text}) + "\n" for text in texts))
    return path


def make_task(folder: Path, base: Path, **settings: Any) -> LikelihoodTask:
    recipe = {"epochs": 6, "lr": 1e-2, "dtype": "float32", **settings.pop("recipe", {})}
    data = settings.pop("data", None) or copies(folder / "pairs.jsonl")
    base_options = Options(model=str(base))
    return LikelihoodTask(
        **{"data": (data,), "base": base_options, "out": folder / "out", "recipe": Recipe(**recipe), **settings}
    )


def test_a_model_learns_to_copy(tiny: Tiny, tmp_path: Path) -> None:
    """From worse than 12 nats a token to better than 1.5 on texts it has not seen; to guess each of 3 words among 12
    and to know the end takes 3 ln 12 / 4 = 1.86. Copies then score higher than other texts by plain transformers."""
    card = fit(make_task(tmp_path, tiny("t5"), dev="0.1"))
    assert card["figures"]["before"] < -12
    assert card["figures"]["after"] > -1.5
    model, tokenizer = both(tmp_path / "out")
    rng = random.Random(2)
    texts = [" ".join(rng.choices(WORDS[:12], k=3)) for _ in range(21)]
    won = [
        log_probability(model, tokenizer, text, text) > log_probability(model, tokenizer, text, other)
        for text, other in pairwise(texts)
        if text != other
    ]
    assert sum(won) >= 0.8 * len(won)


def test_the_folder_has_a_model_and_a_card(tiny: Tiny, tmp_path: Path) -> None:
    base = tiny("bart")
    task = make_task(tmp_path, base, dev="0.1", recipe={"epochs": 1, "lr": 1e-3}, pairs=100)
    card = fit(task)
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "card.md", "card.json", "training.json"} <= names
    assert not any(name.startswith(("checkpoints", ".")) for name in names)
    assert card == json.loads((out / "card.json").read_text())
    assert card["fingerprint"] == find_weights(Options(model=str(out))).fingerprint != card["base"]["fingerprint"]
    assert card["base"]["fingerprint"] == find_weights(Options(model=str(base))).fingerprint
    assert card["metric"] == f"bartscore(model={str(out)!r})"
    (file,) = card["data"]["files"]
    assert (file["file"], len(file["sha256"])) == ("pairs.jsonl", 64)
    assert card["data"]["training_pairs"] == 100
    assert card["data"]["pairs_not_drawn"] == file["pairs"] - 100 - card["data"]["development_pairs"]
    assert card["recipe"] | {"max_tokens": 0} == {**card["recipe"], "epochs": 1, "lr": 1e-3, "seed": 0, "max_tokens": 0}
    assert card["training"]["steps"] == 5
    assert {"metrist", "torch", "transformers"} <= card["versions"].keys()
    page = (out / "card.md").read_text()
    for figure in ("before", "after"):
        assert f"{card['figures'][figure]:.4f}" in page
    assert file["sha256"] in page
    mode = (out / "model.safetensors").stat().st_mode
    assert mode == (out / "training.json").stat().st_mode


def test_a_trained_model_can_score(tiny: Tiny, tmp_path: Path) -> None:
    from metrist.models import loading

    fit(make_task(tmp_path, tiny("bart"), recipe={"epochs": 1, "lr": 1e-3}))
    model, tokenizer = both(tmp_path / "out")
    log_probs = loading.load_seq2seq(Options(model=str(tmp_path / "out"))).log_probs(SENTENCES)
    for number, pair in enumerate(SENTENCES):
        assert float(log_probs.of(number).mean()) == pytest.approx(log_probability(model, tokenizer, *pair), abs=1e-5)


def test_without_development_data_the_last_weights_are_kept(tiny: Tiny, tmp_path: Path) -> None:
    card = fit(make_task(tmp_path, tiny("t5"), recipe={"epochs": 1}, keep_checkpoints=True))
    assert card["figures"] is None
    assert "There was no development data" in (tmp_path / "out" / "card.md").read_text()
    (last,) = (tmp_path / "out" / "checkpoints").iterdir()
    stored, final = load_file(last / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(stored[name], final[name]) for name in final)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # On CPUs without bfloat16.
@pytest.mark.usefixtures("onednn_kept")
def test_bfloat16_computes_and_float32_is_saved(tiny: Tiny, tmp_path: Path) -> None:
    seen = set()

    def record(module: Any, _inputs: Any, output: torch.Tensor) -> None:
        if isinstance(module, torch.nn.Linear):
            seen.add(output.dtype)

    hook = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        fit(make_task(tmp_path, tiny("t5"), recipe={"epochs": 1, "dtype": "bfloat16"}))
    finally:
        hook.remove()
    assert torch.bfloat16 in seen
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.float32}


def test_a_folder_with_another_training_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    quick = {"epochs": 1}
    card = fit(make_task(tmp_path, tiny("t5"), recipe=quick))
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert fit(make_task(tmp_path, tiny("t5"), recipe=quick)) == card
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before
    message = (
        "out holds a training with other settings: pairs is 30000 there, 9 here; epochs is 1 there, 2 here; lr is "
    )
    with pytest.raises(RunError, match=re.escape(message) + r"0\.01 there, 0\.5 here\."):
        fit(make_task(tmp_path, tiny("t5"), recipe={"epochs": 2, "lr": 0.5}, pairs=9))
    with raises_code(RunError, "run_failed", "base is"):
        fit(make_task(tmp_path, tiny("bart"), recipe=quick))
    (tmp_path / "pairs.jsonl").write_text('{"first": "a", "second": "b"}\n')
    with raises_code(RunError, "run_failed", "data is"):
        fit(make_task(tmp_path, tiny("t5"), recipe=quick, data=tmp_path / "pairs.jsonl"))


@pytest.mark.parametrize("content", ["notes.txt", None])
def test_a_folder_with_other_files_is_refused(tiny: Tiny, tmp_path: Path, content: str | None) -> None:
    out = tmp_path / "out"
    if content:
        out.mkdir()
        (out / content).write_text("mine")
    else:
        out.write_text("mine")
    with raises_code(RunError, "cannot_write"):
        fit(make_task(tmp_path, tiny("t5")))


def test_a_plan_refuses_a_folder_that_the_training_would_refuse(tiny: Tiny, tmp_path: Path) -> None:
    fit(make_task(tmp_path, tiny("t5"), recipe={"epochs": 1}))
    plan_training(make_task(tmp_path, tiny("t5"), recipe={"epochs": 1}))
    with raises_code(RunError, "run_failed", "epochs is 1 there, 2 here"):
        plan_training(make_task(tmp_path, tiny("t5"), recipe={"epochs": 2}))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_base_of_another_kind_is_refused(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    with raises_code(ModelError, "model_unusable", f"'{kind}'"):
        plan_training(make_task(tmp_path, tiny(kind)))


def test_a_full_disk_leaves_no_incomplete_model(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint exists, so the same command only has to write the model."""
    resource = pytest.importorskip("resource", reason="limits the size of files")
    task = make_task(tmp_path, tiny("t5"), recipe={"epochs": 1})
    size = (tiny("t5") / "model.safetensors").stat().st_size
    plain, limits = TrainingFolder.put_model, resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(self: TrainingFolder, write: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
        try:
            plain(self, write)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(TrainingFolder, "put_model", full)
    with raises_code(RunError, "cannot_write"):
        fit(task)
    assert {path.name for path in task.out.iterdir()} == {"training.json", "checkpoints"}
    monkeypatch.setattr(TrainingFolder, "put_model", plain)
    monkeypatch.setattr(TokenLoss, "loss", None)  # Nothing is left to train.
    fit(task)
    assert (task.out / "card.json").exists()
    assert not (task.out / ".model.part").exists()


def test_a_plan_counts_without_training(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"first": f"cat {n}", "second": "dog " * 200}) + "\n" for n in range(5)))
    planned: Any = plan_training(make_task(tmp_path, tiny("bart"), data=path, recipe={"batch": 4, "epochs": 3}))
    assert (len(planned.train), planned.dev, planned.sampler.steps) == (10, None, 3)
    assert planned.train.cut == (5, 5, 10 * (202 - 128))
    assert not (tmp_path / "out").exists()

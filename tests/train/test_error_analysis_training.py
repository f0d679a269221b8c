"""Training an error analyst: data, masks, packing, adapters, resuming; with tiny random models."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code

pytest.importorskip("torch", reason="torch is not installed")

import torch
from safetensors.torch import load_file
from toy_training import StopAt

from forked_processes import exit_code, forked, forked_command
from metrist.errors import InputError, ModelError, RunError, SpecError
from metrist.llm.base import build_llm
from metrist.llm.messages import Message, Sampling, encode_prompt
from metrist.models.devices import Options, Placement
from metrist.models.lora import LoraSettings, add_adapter, load_adapter, merge_adapter, save_adapter
from metrist.models.pretrained import read_model, read_tokenizer
from metrist.models.weights import find_adapter, find_weights
from metrist.train import train_error_analysis
from metrist.train.analyses import Analysis, AnalysisRows, encode_analyses, load_analyses, read_analyses
from metrist.train.batches import split_parts
from metrist.train.error_analysis import PRESETS, AnalysisLoss, ErrorAnalysisTask, check_packing
from metrist.train.fit import fit, plan_training
from metrist.train.loop import Trainer
from metrist.train.recipe import Recipe
from toy_analyses import make_row, make_rows, write_rows

Tiny = Callable[[str], Path]


def load(folder: Path, dtype: Any = torch.float32) -> Any:
    options = Options(model=str(folder))
    place = Placement(device=torch.device("cpu"), dtype=dtype, tokens=1)
    return read_model("AutoModelForCausalLM", find_weights(options), options, place)


def fill_adapters(model: Any, value: float) -> None:
    """Make adapters, which are zero at first, change something."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(value)


def load_tokenizer(folder: Path) -> Any:
    options = Options(model=str(folder))
    return read_tokenizer(find_weights(options), options)


def encode(folder: Path, count: int = 6, **settings: Any) -> AnalysisRows:
    analyses = [parse(row) for row in make_rows(count)]
    return encode_analyses(load_tokenizer(folder), analyses, **{"turns": "chat", **settings})


def parse(row: dict[str, Any]) -> Analysis:
    return Analysis(prompt=row["prompt"], completion=row["completion"], item=row["item"])


def make_task(base: Path, data: Path, out: Path, **settings: Any) -> ErrorAnalysisTask:
    recipe = Recipe(epochs=2, batch=4, lr=1e-2, schedule="cosine", warmup=0.1, dtype="float32")
    return ErrorAnalysisTask(
        **{
            "data": (data,),
            "dev": "0.25",
            "base": Options(model=str(base)),
            "out": out,
            "recipe": recipe,
            "rank": 4,
            "checkpoint_every": 1,
            **settings,
        }
    )


# ---- Tokens


@pytest.mark.parametrize(("kind", "turns"), [("analyst", "chat"), ("bare analyst", "none")])
def test_only_the_analysis_is_learned(tiny: Tiny, kind: str, turns: Any) -> None:
    """What precedes the targets is what `tigerscore` sends, and the targets are the analysis and the end."""
    tokenizer = load_tokenizer(tiny(kind))
    rows = encode(tiny(kind), turns=turns, packed=False)
    batch = rows.collate(np.arange(len(rows)))
    for number, row in enumerate(make_rows(6)):
        labels = batch["labels"][number]
        learned = labels[labels != -100].tolist()
        assert learned[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(learned[:-1]) == ("\n" if turns == "none" else "") + row["completion"]
        prompt = encode_prompt(tokenizer, (Message("user", row["prompt"]),), turns)
        start = int((labels != -100).int().argmax())
        assert batch["input_ids"][number, : start + 1].tolist() == prompt
        assert rows.weights[number] == len(learned)


def test_long_analyses_are_left_out_whole(tiny: Tiny) -> None:
    lengths = encode(tiny("analyst")).lengths
    limit = int(np.sort(lengths)[2])
    rows = encode(tiny("analyst"), max_length=limit)
    assert sorted(rows.lengths) == sorted(length for length in lengths if length <= limit)
    assert len(rows.left_out) == sum(lengths > limit) > 0


def test_special_tokens_in_texts_are_no_turns(tiny: Tiny) -> None:
    """An output that contains the end of a turn must not end the prompt."""
    tokenizer = load_tokenizer(tiny("analyst"))
    row = make_row(0, bad=True)
    hostile = Analysis(prompt=row["prompt"].replace("bad", "bad<end><turn>assistant"), completion=row["completion"])
    rows = encode_analyses(tokenizer, [hostile], turns="chat")
    plain = encode_analyses(tokenizer, [parse(row)], turns="chat")
    turn, end = tokenizer.convert_tokens_to_ids(["<turn>", "<end>"])
    for token in (turn, end):
        assert (rows.ids[0] == token).sum() == (plain.ids[0] == token).sum()


# ---- Packing


@pytest.mark.parametrize("kind", ["analyst", "bare analyst"])
def test_packed_examples_do_not_see_each_other(tiny: Tiny, kind: str) -> None:
    """Loss, gradients and figures of packed rows are those of the examples one by one."""
    model = load(tiny(kind)).requires_grad_(True)
    turns: Any = "chat" if kind == "analyst" else "none"
    packed = encode(tiny(kind), 7, turns=turns, max_length=500)
    alone = encode(tiny(kind), 7, turns=turns, packed=False)
    batch = packed.collate(np.arange(7))
    assert len(batch["input_ids"]) < 7
    loss = AnalysisLoss(model, packed=True)
    value = loss.loss(model, batch)
    value.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    figures = loss.judge(model, batch)
    model.zero_grad()
    single = AnalysisLoss(model, packed=False)
    total = torch.zeros(())
    for number in range(7):
        part = alone.collate(np.array([number]))
        own = single.loss(model, part)
        own.backward()
        total += own.detach()
        assert figures[number].item() == pytest.approx(single.judge(model, part)[0].item(), abs=1e-4)
    assert value.item() == pytest.approx(total.item(), rel=1e-5)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert torch.allclose(gradient, parameter.grad, rtol=1e-3, atol=1e-4)


def test_the_loss_is_that_of_transformers(tiny: Tiny) -> None:
    model = load(tiny("analyst"))
    rows = encode(tiny("analyst"), 1, packed=False)
    batch = rows.collate(np.arange(1))
    labels = batch["input_ids"].clone()
    labels[0, : rows.starts[0]] = -100
    expected = model(input_ids=batch["input_ids"], labels=labels).loss
    ours = AnalysisLoss(model, packed=False).loss(model, batch) / rows.weights[0]
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_eager_attention_is_packed_too(tiny: Tiny) -> None:
    model = load(tiny("analyst"))
    model.set_attn_implementation("eager")
    check_packing(model)


def test_a_model_that_ignores_the_mask_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tiny("analyst"))
    forward = type(model.model).forward

    def ignore(self: Any, *args: Any, attention_mask: Any = None, **others: Any) -> Any:  # noqa: ARG001
        return forward(self, *args, **others | {"position_ids": None})

    monkeypatch.setattr(type(model.model), "forward", ignore)
    with raises_code(ModelError, "model_unusable", "`packing=False`"):
        check_packing(model)


def test_packed_parts_fill_the_budget() -> None:
    lengths = np.array([5, 9, 3, 7, 1, 20], np.int64)
    parts = split_parts(np.arange(6), lengths, 16, packed=True)
    assert sorted(number for part in parts for number in part) == list(range(6))
    assert [int(lengths[part].sum()) for part in parts] == [20, 16, 9]
    assert [part.tolist() for part in split_parts(np.arange(6), lengths, 16)] == [[5], [1], [3, 0], [2, 4]]


# ---- Adapters


def test_an_adapter_is_the_same_beside_the_model_merged_and_loaded(tiny: Tiny, tmp_path: Path) -> None:
    settings = LoraSettings(rank=3, alpha=5.0)
    ids = torch.arange(20)[None] % 50
    model, plain = load(tiny("analyst")), load(tiny("analyst"))
    before = plain(ids).logits
    add_adapter(model, settings, seed=1)
    assert torch.equal(model(ids).logits, before)  # An adapter is zero at first.
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 7 * 2
    assert all("lora_" in name for name in trained)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    after = model(ids).logits
    assert not torch.allclose(after, before, atol=1e-2)
    save_adapter(model, settings, "base", tmp_path)
    load_adapter(plain, find_adapter(str(tmp_path)))
    assert torch.allclose(plain(ids).logits, after, atol=1e-4)
    merge_adapter(model)
    assert torch.allclose(model(ids).logits, after, atol=1e-4)
    assert set(model.state_dict()) == set(plain.state_dict())


def test_adapters_are_those_of_peft(tiny: Tiny, tmp_path: Path) -> None:
    """peft reads what is written here, and what it writes is read here, with the same logits."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    ids = torch.arange(20)[None] % 50
    model = load(tiny("analyst"))
    add_adapter(model, LoraSettings(rank=3, alpha=5.0), seed=1)
    fill_adapters(model, 0.02)
    save_adapter(model, LoraSettings(rank=3, alpha=5.0), str(tiny("analyst")), tmp_path)
    merge_adapter(model)
    theirs = peft.PeftModel.from_pretrained(load(tiny("analyst")), str(tmp_path))
    assert torch.allclose(theirs(ids).logits, model(ids).logits, atol=1e-4)
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj"], use_rslora=True)
    made = peft.get_peft_model(load(tiny("analyst")), config)
    fill_adapters(made, 0.03)
    made.save_pretrained(str(tmp_path / "peft"))
    ours = load(tiny("analyst"))
    load_adapter(ours, find_adapter(str(tmp_path / "peft")))
    assert torch.allclose(ours(ids).logits, made.eval()(ids).logits, atol=1e-4)


def test_adapters_that_do_not_fit_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    model = load(tiny("analyst"))
    add_adapter(model, LoraSettings(rank=2), seed=1)
    save_adapter(model, LoraSettings(rank=2), "base", tmp_path)
    with raises_code(ModelError, "model_unusable", "model"):
        load_adapter(load(tiny("gpt2")), find_adapter(str(tmp_path)))
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    for changes, message in (
        ({"use_dora": True}, "not plain LoRA: .* use_dora"),
        ({"peft_type": "IA3"}, "'IA3', expected LORA"),
        ({"r": "x"}, "must state r and lora_alpha"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
    ):
        path.write_text(json.dumps({**config, **changes}))
        with pytest.raises(ModelError, match=message):
            load_adapter(load(tiny("analyst")), find_adapter(str(tmp_path)))
    path.write_text("{")
    with raises_code(ModelError, "model_unusable"):
        find_adapter(str(tmp_path))
    with raises_code(ModelError, "invalid_value", "model"):
        find_adapter(str(tiny("analyst")))
    with raises_code(ModelError, "model_unusable", "x_proj", "q_proj"):
        add_adapter(load(tiny("analyst")), LoraSettings(targets=("x_proj",)), seed=0)
    with raises_code(ModelError, "model_unusable", "`method='full'`"):
        add_adapter(load(tiny("gpt2")), LoraSettings(), seed=0)
    with raises_code(SpecError, "invalid_value", "rank"):
        LoraSettings(rank=0)


def test_local_models_answer_with_their_adapter(tiny: Tiny, tmp_path: Path) -> None:
    model = load(tiny("analyst"))
    add_adapter(model, LoraSettings(rank=2), seed=1)
    fill_adapters(model, 0.3)
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_adapter(model, LoraSettings(rank=2), str(tiny("analyst")), folder)
    question = [(Message("user", "the cat"),)]
    sampling = Sampling(max_tokens=8)
    plain = build_llm(f"transformers(model={str(tiny('analyst'))!r})")
    local = build_llm(f"local(model={str(tiny('analyst'))!r})")
    adapted = build_llm(f"local(model={str(tiny('analyst'))!r}, adapter={str(folder)!r})")
    answers = [llm.complete(question, sampling)[0].text for llm in (plain, local, adapted)]
    assert answers[0] == answers[1] != answers[2]
    assert plain.facts() == local.facts()
    assert adapted.facts() == {**local.facts(), "adapter": find_adapter(str(folder)).fingerprint}
    assert adapted.remarks() == []
    (folder / "card.json").write_text(json.dumps({"base": {"fingerprint": "other"}}))
    assert "trained on a base with the fingerprint other" in adapted.remarks()[0]
    with raises_code(SpecError, "invalid_value"):
        build_llm(f"local(model={str(tiny('analyst'))!r}, adapter=3)")


# ---- Data


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ({"prompt": "x"}, "'completion'"),
        ({"completion": "x"}, "'prompt'"),
        ({"prompt": 3, "completion": "x"}, "$.prompt"),
        ({"prompt": "x", "completion": "all is well"}, "completion"),
        ({"messages": [{"role": "user", "content": "x"}]}, "'messages'"),
        ({"prompt": "x", "completion": make_row(1, bad=False)["completion"], "errors": [3]}, "$.errors[0]"),
        ({**make_row(0, bad=True), "errors": [{"start": 5, "end": 900}]}, "5 to 900"),
        ({**make_row(0, bad=True), "errors": [{"penalty": True}]}, "$.errors[0].penalty"),
    ],
)
def test_rows_that_are_no_analyses_are_refused(tmp_path: Path, row: dict[str, Any], value: str) -> None:
    path = write_rows(tmp_path / "data.jsonl", [make_row(1, bad=True), row])
    with raises_code(InputError, "unreadable", "data.jsonl:2: ", value):
        read_analyses(path)
    data = load_analyses([path], None, seed=0, skip_bad=True)
    assert (len(data.train), len(data.remarks())) == (1, 1)


def test_all_forms_of_a_file_say_the_same(tmp_path: Path) -> None:
    row = make_row(2, bad=True)
    chat = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
    texts = {name: row[name] for name in ("instruction", "source", "output", "completion", "errors")}
    path = write_rows(tmp_path / "data.jsonl", [row, {"messages": chat}, texts])
    first, second, third = read_analyses(path)
    assert first.prompt == second.prompt == third.prompt
    assert first.completion == second.completion == third.completion
    assert first.errors == third.errors
    assert (first.errors[0].start, first.errors[0].severity) == (row["errors"][0]["start"], "major")
    (tmp_path / "empty.jsonl").write_text("")
    with raises_code(InputError, "no_data"):
        read_analyses(tmp_path / "empty.jsonl")


def test_no_item_source_or_output_is_on_both_sides(tmp_path: Path) -> None:
    rows = [{**make_row(number // 2, bad=number % 3 == 0), "system": str(number)} for number in range(60)]
    path = write_rows(tmp_path / "data.jsonl", rows)
    for seed in range(5):
        data = load_analyses([path], "0.3", seed=seed)
        for name in ("item", "source", "output"):
            sides = [{getattr(analysis, name) for analysis in side} for side in (data.train, data.dev)]
            assert not sides[0] & sides[1]
        assert 0 < len(data.dev) <= 18
        assert len(data.train) + len(data.dev) + data.repeated == 60
    same = load_analyses([path], str(path), seed=0)
    assert same.shared == len(same.dev)
    assert "share their item" in same.remarks()[-1]
    with raises_code(InputError, "too_little_data"):
        load_analyses([write_rows(tmp_path / "one.jsonl", rows[:1])], "0.5", seed=0)


def test_tasks_and_channels_select_what_is_trained_on(tmp_path: Path) -> None:
    rows = [
        {**make_row(number, bad=number % 2 == 0, channel=channel, task=task), "source": f"s{number}{channel}{task}",
         "output": f"{number} {channel} {task}", "item": f"{number}{channel}", "errors": []}
        for number in range(12) for channel in ("real", "human") for task in ("translation", "summarization")
    ]  # fmt: skip
    path = write_rows(tmp_path / "data.jsonl", rows)
    everything = load_analyses([path], "0.2", seed=0)
    chosen = load_analyses([path], "0.2", seed=0, channels=["human"], tasks=["translation"])
    assert {(one.channel, one.task) for one in chosen.train} == {("human", "translation")}
    assert chosen.dev == everything.dev  # All selections are judged on the same.
    with raises_code(InputError, "unreadable", "'synthetic'"):
        load_analyses([path], "0.2", seed=0, channels=["synthetic"])


def test_presets_are_those_of_the_paper() -> None:
    """TIGERScore paper, section 2.4."""
    for name, epochs, lr in (("tigerscore-7b", 3, 2e-5), ("tigerscore-13b", 2, 1e-5)):
        recipe = PRESETS[name].recipe
        assert (recipe.epochs, recipe.lr, recipe.batch, recipe.schedule, recipe.warmup) == (
            epochs,
            lr,
            128,
            "cosine",
            0.1,
        )
        assert PRESETS[name].method == "full"


# ---- Training


@pytest.mark.parametrize(
    "settings",
    [{}, {"stored": "merged"}, {"method": "full", "gradient_checkpointing": True}],
    ids=["adapter", "merged", "full"],
)
def test_a_stopped_training_ends_with_the_same_weights(tiny: Tiny, tmp_path: Path, settings: Any) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(16))
    base = tiny("analyst")
    card = fit(make_task(base, data, tmp_path / "whole", **settings))
    assert card["training"]["steps"] == 6
    assert card["figures"]["after"] > card["figures"]["before"]
    with pytest.raises(RuntimeError, match="killed"):
        fit(make_task(base, data, tmp_path / "stopped", **settings), StopAt(3))
    if settings.get("method") != "full":
        size = sum(path.stat().st_size for path in (tmp_path / "stopped").rglob("model.safetensors"))
        assert size < (base / "model.safetensors").stat().st_size  # Checkpoints hold the adapter alone.
    resumed = fit(make_task(base, data, tmp_path / "stopped", **settings))
    assert resumed["fingerprint"] == card["fingerprint"]
    # Neither packing nor checkpointing nor the tokens at once change what is learned.
    other = replace(make_task(base, data, tmp_path / "other", **settings), packing=False)
    other = replace(other, recipe=replace(other.recipe, max_tokens=300), gradient_checkpointing=False)
    assert fit(other)["figures"]["after"] == pytest.approx(card["figures"]["after"], abs=1e-4)
    page = (tmp_path / "whole" / "card.md").read_text()
    assert "An error-analysis metric" in page
    assert f"| method | {settings.get('method', 'lora')} |" in page


def test_a_trained_model_is_also_written_as_gguf(tiny: Tiny, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    data = write_rows(tmp_path / "data.jsonl", make_rows(8))
    card = fit(make_task(tiny("analyst"), data, tmp_path / "out", stored="gguf", dev=None))
    assert f"model='{tmp_path / 'out'}'" in card["metric"]
    ids = torch.arange(30)[None] % 60
    with torch.no_grad():
        expected = load(tmp_path / "out")(ids).logits
        from transformers import AutoModelForCausalLM

        written = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model.gguf", dtype=torch.float32)
        assert torch.allclose(written(ids).logits, expected, atol=0.01)
    with raises_code(ModelError, "cannot_write", "'gpt2'"):
        plan_training(make_task(tiny("gpt2"), data, tmp_path / "other", stored="gguf"))


def test_merged_and_adapter_give_the_same_answers(tiny: Tiny, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(16))
    ids = torch.arange(30)[None] % 60
    logits = []
    for stored in ("adapter", "merged"):
        out = tmp_path / stored
        card = fit(make_task(tiny("analyst"), data, out, stored=stored))
        if stored == "merged":
            assert card["metric"] == f"tigerscore(llm=local(model={str(out)!r}))"
            logits.append(load(out)(ids).logits)
        else:
            assert f"adapter={str(out)!r}" in card["metric"]
            model = load(tiny("analyst"))
            load_adapter(model, find_adapter(str(out)))
            logits.append(model(ids).logits)
    assert torch.allclose(*logits, atol=1e-4)


def test_a_training_is_planned_without_weights(tiny: Tiny, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(16))
    task = make_task(tiny("analyst"), data, tmp_path / "out")
    limit = int(np.median(encode(tiny("analyst"), 16).lengths))
    plan = plan_training(replace(task, max_length=limit))
    assert any("left out: longer than" in remark for remark in plan.remarks())
    assert not (tmp_path / "out").exists()
    for changes, message in (
        ({"base": Options(model=str(tiny("t5")))}, "not a causal language model"),
        ({"base": Options(model=str(tiny("bare analyst"))), "turns": "chat"}, "no chat template"),
        ({"max_length": 10}, "none of 12 analyses fits into 10 tokens"),
        ({"dev": None, "recipe": replace(task.recipe, patience=1)}, "`patience`"),
    ):
        with pytest.raises((ModelError, InputError, RunError), match=message):
            plan_training(replace(task, **changes))
    with raises_code(SpecError, "conflict"):
        make_task(tiny("analyst"), data, tmp_path / "x", method="full", stored="adapter")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")
def test_a_killed_command_resumes(tiny: Tiny, tmp_path: Path) -> None:
    """kill -9 in the middle; the same command goes on and gives the weights of a training without a stop."""
    data = write_rows(tmp_path / "data.jsonl", make_rows(12))
    base, out, output = tiny("analyst"), tmp_path / "killed", tmp_path / "output.txt"
    options = {"--base": base, "-o": out, "--dev": 0, "--epochs": 4, "--batch": 2, "--lr": 1e-3, "--rank": 2}
    command = ["train", "error-analysis", data, *chain(*options.items()), "--checkpoint-every", 1]
    process = forked_command(*command, output=output)
    until = time.monotonic() + 300
    while not list((out / "checkpoints").glob("step-0000000[3-9]")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    assert not (out / "card.json").exists()
    assert exit_code(forked_command(*command, output=output)) == 0, output.read_text()
    assert "resuming after step" in output.read_text()
    recipe = Recipe(epochs=4, batch=2, lr=1e-3, schedule="cosine", warmup=0.1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = fit(make_task(base, data, tmp_path / "whole", dev=None, rank=2, alpha=4.0, recipe=recipe))
    torch.set_num_threads(threads)
    assert find_adapter(str(out)).fingerprint == whole["fingerprint"]


def test_memory_is_released_before_the_evaluation(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(8))
    order: list[str] = []
    release = Trainer.release
    monkeypatch.setattr(Trainer, "release", lambda self: (order.append("release"), release(self)))
    task = make_task(tiny("analyst"), data, tmp_path / "out", dev=None)
    fit(replace(task, evaluate=lambda metrics, dev: order.append(f"{len(metrics)} {len(dev)}")))
    assert order == ["release", "2 0"]


def test_the_function_does_what_the_command_does(tiny: Tiny, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(16))
    card = train_error_analysis(
        data,
        tmp_path / "out",
        base=str(tiny("analyst")),
        dev="0.25",
        outputs=0,
        rank=2,
        epochs=1,
        batch=4,
        dtype="float32",
    )
    assert (card["recipe"]["lr"], card["recipe"]["epochs"], card["recipe"]["rank"]) == (2e-4, 1, 2)
    assert "evaluation" not in card
    with raises_code(SpecError, "unknown_name", "'x'"):
        train_error_analysis(data, tmp_path / "out", base="b", preset="x")


def run_together(start: Callable[[Mapping[str, str]], int]) -> list[int]:
    """Run two processes on the CPU, over gloo, with the environment of `accelerate launch`; return their codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    processes = [start({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    return [exit_code(process) for process in processes]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes that train together")
def test_two_processes_learn_what_one_learns(tiny: Tiny, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(16))
    base = tiny("analyst")
    options = ["--dev", "0", "--epochs", "2", "--batch", "4", "--lr", "1e-3", "--rank", "2", "--eval-outputs", "0"]
    command = ["train", "error-analysis", data, "--base", base, *options, "-o", tmp_path / "both"]

    def start(environment: Mapping[str, str]) -> int:
        return forked_command(*command, output=tmp_path / environment["RANK"], environment=environment)

    assert run_together(start) == [0, 0]
    recipe = Recipe(epochs=2, batch=4, lr=1e-3, schedule="cosine", warmup=0.1, dtype="float32")
    fit(make_task(base, data, tmp_path / "one", dev=None, rank=2, alpha=4.0, recipe=recipe))
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "both"))
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)
    card = json.loads((tmp_path / "both" / "card.json").read_text())
    assert card["training"]["processes"] == 2


def make_sharded_task(base: Path, data: Path, out: Path, *, sharded: bool) -> ErrorAnalysisTask:
    # Few tokens at once: the processes have different numbers of passes.
    recipe = Recipe(epochs=2, batch=5, lr=1e-3, schedule="cosine", warmup=0.1, dtype="float32", max_tokens=700)
    return make_task(base, data, out, recipe=recipe, method="full", sharded=sharded, checkpoint_every=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes that train together")
def test_two_processes_that_share_the_weights_learn_what_one_learns(tiny: Tiny, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", make_rows(18))
    base = tiny("analyst")

    def train(stop: StopAt | None) -> None:
        warnings.simplefilter("ignore")  # torch's, of what it will change.
        fit(make_sharded_task(base, data, tmp_path / "both", sharded=True), stop)

    assert 0 not in run_together(partial(forked, lambda: train(StopAt(4))))
    assert (tmp_path / "both" / "checkpoints").is_dir()
    assert run_together(partial(forked, lambda: train(None))) == [0, 0]
    both = json.loads((tmp_path / "both" / "card.json").read_text())
    one = fit(make_sharded_task(base, data, tmp_path / "one", sharded=True))
    assert (both["training"]["processes"], one["training"]["processes"]) == (2, 1)
    for name in ("before", "after"):
        assert both["figures"][name] == pytest.approx(one["figures"][name], abs=1e-5)
    assert both["training"]["last_loss"] == pytest.approx(one["training"]["last_loss"], abs=1e-5)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "both"))
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)
    assert load(tmp_path / "both").config.architectures == ["LlamaForCausalLM"]


def test_only_all_weights_are_shared(tmp_path: Path) -> None:
    with raises_code(SpecError, "invalid_value", "`method='full'`"):
        make_task(tmp_path, tmp_path, tmp_path / "out", sharded=True)

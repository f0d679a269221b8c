"""Qwen2 in plain torch: reading its 4- and 6-bit weights, an adapter beside every linear layer, and fast decoding.

The GPU script of the error analyst needs nothing but torch and numpy. Weights are read from the tensors of a GGUF file
(`analyst_pack.py carry` writes them with a list); the input embedding is the output layer, as in the original model,
where both are one matrix.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: A layer's linear layers: the names of peft's files, and those of GGUF.
LINEAR = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


# ---- Weights


def dequantize(data: Tensor, kind: str, shape: Sequence[int]) -> Tensor:
    """The numbers of one tensor of a GGUF file, from its bytes; `shape` has the rows first."""
    if kind == "F32":
        return data.view(torch.float32).reshape(*shape)
    if kind == "Q6_K":
        blocks = data.reshape(-1, 210)
        count = len(blocks)
        low, high = blocks[:, :128].reshape(count, 2, 1, 64), blocks[:, 128:192].reshape(count, 2, 1, 32)
        low = torch.cat([low & 15, low >> 4], dim=2).reshape(count, 8, 32)
        high = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).reshape(count, 8, 32)
        values = (low | (high << 4)).to(torch.float32).reshape(count, 16, 16) - 32
        scales = blocks[:, 192:208].contiguous().view(torch.int8).to(torch.float32)
        factor = blocks[:, 208:210].contiguous().view(torch.float16).to(torch.float32)
        return (values * (factor * scales)[:, :, None]).reshape(*shape)
    assert kind == "Q4_K", kind
    blocks = data.reshape(-1, 144)
    count = len(blocks)
    factors = blocks[:, :4].contiguous().view(torch.float16).to(torch.float32)
    first, second, third = blocks[:, 4:16].reshape(count, 3, 4).unbind(1)
    scales = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], dim=1)
    least = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], dim=1)
    digits = blocks[:, 16:].reshape(count, 4, 1, 32)
    values = torch.cat([digits & 15, digits >> 4], dim=2).reshape(count, 8, 32).to(torch.float32)
    scale, shift = factors[:, :1] * scales, factors[:, 1:] * least
    return (values * scale[:, :, None] - shift[:, :, None]).reshape(*shape)


def read_tensors(folder: Path, device: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a carried model (list.json; weights.000, …), in float32 on the device."""
    listed = json.loads((folder / "list.json").read_text())
    data = np.concatenate([np.fromfile(path, np.uint8) for path in sorted(folder.glob("weights.[0-9][0-9][0-9]"))])
    assert len(data) == sum(entry["bytes"] for entry in listed["tensors"]), "weights are missing"
    start = 0
    for entry in listed["tensors"]:
        part = torch.from_numpy(data[start : start + entry["bytes"]]).to(device)
        start += entry["bytes"]
        yield entry["name"], dequantize(part, entry["kind"], entry["shape"])


class Qwen2:
    """The model's weights, with fused matrices, and its forward passes."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
        self.heads, self.shared = config["num_attention_heads"], config["num_key_value_heads"]
        self.layers, self.eps = config["num_hidden_layers"], config["rms_norm_eps"]
        self.width, self.theta = config["hidden_size"] // self.heads, config["rope_theta"]
        self.embedding = tensors["output.weight"].to(dtype)
        self.norm = tensors["output_norm.weight"].to(dtype)
        self.device, self.dtype = self.embedding.device, dtype
        self.blocks: list[dict[str, Tensor]] = []
        for number in range(self.layers):
            get = {name: tensors[f"blk.{number}.{name}"].to(dtype) for name in (
                *(f"{own}.weight" for own in LINEAR.values()), "attn_norm.weight", "ffn_norm.weight",
                "attn_q.bias", "attn_k.bias", "attn_v.bias",
            )}  # fmt: skip
            self.blocks.append({
                "qkv": torch.cat([get[f"attn_{name}.weight"] for name in "qkv"]),
                "bias": torch.cat([get[f"attn_{name}.bias"] for name in "qkv"]),
                "o": get["attn_output.weight"],
                "gate_up": torch.cat([get["ffn_gate.weight"], get["ffn_up.weight"]]),
                "down": get["ffn_down.weight"],
                "norm1": get["attn_norm.weight"],
                "norm2": get["ffn_norm.weight"],
            })  # fmt: skip
        frequencies = self.theta ** -(torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = torch.arange(4096, dtype=torch.float64)[:, None] * frequencies
        self.cos = torch.cat([angles.cos()] * 2, dim=1).to(self.device, dtype)
        self.sin = torch.cat([-angles.sin(), angles.sin()], dim=1).to(self.device, dtype)

    @classmethod
    def read(cls, folder: Path, device: str, dtype: torch.dtype) -> Qwen2:
        config = json.loads((folder / "list.json").read_text())["config"]
        tensors = {name: tensor.to(dtype) for name, tensor in read_tensors(folder, device)}
        return cls(config, tensors, dtype)

    def clone(self) -> Qwen2:
        """A copy whose layers can be changed."""
        copy = object.__new__(Qwen2)
        copy.__dict__.update(self.__dict__)
        copy.blocks = [dict(block) for block in self.blocks]
        return copy

    def rotate(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = self.width // 2
        swapped = torch.cat([states[..., half:], states[..., :half]], dim=-1)
        return states * cos + swapped * sin

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as batch × heads × length × width."""
        batch, length, _ = qkv.shape
        sizes = [self.heads * self.width, self.shared * self.width, self.shared * self.width]
        q, k, v = (part.view(batch, length, -1, self.width).transpose(1, 2) for part in qkv.split(sizes, dim=-1))
        return q, k, v

    def states(
        self, ids: Tensor, adapter: Adapter | None = None, cache: Any = None, shift: Tensor | None = None
    ) -> Tensor:
        """The last states of rows that are padded on the right: a token sees only those before it. `cache` gets the
        keys and values, `shift` columns to the right."""
        hidden = F.embedding(ids, self.embedding)
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        for number, block in enumerate(self.blocks):
            low = adapter.layers[number] if adapter is not None else None
            normed = F.rms_norm(hidden, hidden.shape[-1:], block["norm1"], self.eps)
            qkv = F.linear(normed, block["qkv"], block["bias"])
            if low is not None:
                qkv = low.add(qkv, normed, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
            q, k, v = self.split(qkv)
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            if cache is not None and shift is not None:
                order = (torch.arange(length, device=ids.device)[None] - shift[:, None]) % length
                order = order[:, None, :, None].expand(k.shape)
                cache[number][0][:, :, :length] = k.gather(2, order)
                cache[number][1][:, :, :length] = v.gather(2, order)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            attended = attended.transpose(1, 2).reshape(*ids.shape, -1)
            output = F.linear(attended, block["o"])
            if low is not None:
                output = low.add(output, attended, ("self_attn.o_proj",))
            hidden = hidden + output
            normed = F.rms_norm(hidden, hidden.shape[-1:], block["norm2"], self.eps)
            both = F.linear(normed, block["gate_up"])
            if low is not None:
                both = low.add(both, normed, ("mlp.gate_proj", "mlp.up_proj"))
            gate, up = both.chunk(2, dim=-1)
            inner = F.silu(gate) * up
            output = F.linear(inner, block["down"])
            if low is not None:
                output = low.add(output, inner, ("mlp.down_proj",))
            hidden = hidden + output
        return F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps)

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[np.ndarray], most: int, end: int, watch: tuple[int, Sequence[int]] | None = None
    ) -> tuple[list[list[int]], np.ndarray | None]:
        """Greedy answers to prompts of similar length, without the token that ends them; and the log-probabilities of
        the `watch`ed tokens at one place of the answers."""
        count = len(prompts)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        longest = int(lengths.max())
        ids = torch.zeros(count, longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.from_numpy(prompt.astype(np.int64))
        ids = ids.to(self.device)
        # In the cache all prompts end at the same place: the next token of each row goes into one column.
        begin = longest - lengths
        shape = (count, self.shared, _round_up(longest + most), self.width)
        cache = [[torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in "kv"] for _ in self.blocks]
        last = torch.empty(count, self.norm.numel(), device=self.device, dtype=self.dtype)
        step = max(1, 32768 // longest)
        for first in range(0, count, step):
            rows = slice(first, first + step)
            states = self.states(ids[rows], cache=[[k[rows], v[rows]] for k, v in cache], shift=begin[rows])
            last[rows] = states[torch.arange(len(states), device=self.device), lengths[rows] - 1]
        answers: list[list[int]] = [[] for _ in range(count)]
        watched = np.full((count, len(watch[1])), np.nan, np.float32) if watch else None
        alive = torch.arange(count, device=self.device)
        taken = torch.full((count, most), -1, dtype=torch.long, device=self.device)
        used = longest
        for number in range(most):
            logits = F.linear(last, self.embedding)
            if watch is not None and watched is not None and number == watch[0]:
                chosen = torch.log_softmax(logits.float(), -1)[:, list(watch[1])]
                watched[alive.cpu().numpy()] = chosen.cpu().numpy()
            following = logits.argmax(-1)
            taken[alive, number] = following
            if number % 8 == 7:
                # Rows that have ended leave the batch now and then.
                going = ~(taken[alive] == end).any(1)
                if not bool(going.any()):
                    break
                if float(going.float().mean()) < 0.8:
                    alive, following, begin = alive[going], following[going], begin[going]
                    cache = [[part[going] for part in pair] for pair in cache]
            if number == most - 1:
                break
            last = self._decode(following[:, None], used - begin, cache, used, begin)
            used += 1
        for row, tokens in enumerate(taken.cpu().tolist()):
            stop = next((at for at, token in enumerate(tokens) if token in (end, -1)), len(tokens))
            answers[row] = tokens[: stop + 1] if stop < len(tokens) and tokens[stop] == end else tokens[:stop]
        return answers, watched

    def _decode(self, ids: Tensor, places: Tensor, cache: Any, used: int, begin: Tensor) -> Tensor:
        """The states of one more token of each row, which goes into column `used` of the cache."""
        hidden = F.embedding(ids, self.embedding)
        cos, sin = self.cos[places][:, None, None], self.sin[places][:, None, None]
        until = _round_up(used + 1)
        columns = torch.arange(until, device=self.device)[None]
        hidden_columns = (columns < begin[:, None]) | (columns > used)
        mask = torch.zeros(hidden_columns.shape, device=self.device, dtype=self.dtype)
        mask = mask.masked_fill(hidden_columns, float("-inf"))[:, None, None, :]
        mask = mask.expand(-1, self.shared, self.heads // self.shared, -1)
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            normed = F.rms_norm(hidden, hidden.shape[-1:], block["norm1"], self.eps)
            q, k, v = self.split(F.linear(normed, block["qkv"], block["bias"]))
            keys[:, :, used : used + 1] = self.rotate(k, cos, sin)
            values[:, :, used : used + 1] = v
            # The heads that share keys are rows of one product.
            grouped = self.rotate(q, cos, sin).reshape(len(ids), self.shared, -1, self.width)
            attended = F.scaled_dot_product_attention(grouped, keys[:, :, :until], values[:, :, :until], attn_mask=mask)
            hidden = hidden + F.linear(attended.reshape(len(ids), 1, -1), block["o"])
            normed = F.rms_norm(hidden, hidden.shape[-1:], block["norm2"], self.eps)
            gate, up = F.linear(normed, block["gate_up"]).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, block["down"])
        return F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps)[:, 0]


def _round_up(number: int) -> int:
    """The next multiple of 16, to which kernels align masks."""
    return -(-number // 16) * 16


# ---- The adapter


class LayerAdapter:
    """Low-rank matrices beside the linear layers of one layer."""

    def __init__(self, sizes: dict[str, tuple[int, int]], rank: int, scale: float, device: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.scale = scale
        self.down, self.up = {}, {}
        for name, (out, into) in sizes.items():
            limit = 1 / math.sqrt(into)
            down = torch.empty(rank, into).uniform_(-limit, limit, generator=generator)
            self.down[name] = down.to(device).requires_grad_(True)
            self.up[name] = torch.zeros(out, rank, device=device, requires_grad=True)

    def add(self, output: Tensor, inputs: Tensor, names: Sequence[str]) -> Tensor:
        """The output of a matrix that joins the named ones, with what the adapter adds."""
        flat = inputs.reshape(-1, inputs.shape[-1])
        down = torch.cat([self.down[name] for name in names]).to(flat.dtype)
        # One product for all of them, added to the output at once: wide outputs are not read and written again.
        up = torch.block_diag(*(self.scale * self.up[name] for name in names)).to(flat.dtype)
        added = torch.addmm(output.reshape(-1, output.shape[-1]), F.linear(flat, down), up.T)
        return added.view(output.shape)


class Adapter:
    """An adapter for every linear layer but the output layer."""

    def __init__(self, model: Qwen2, rank: int = 16, alpha: float = 32.0, seed: int = 0) -> None:
        block = model.blocks[0]
        width, own, shared = block["o"].shape[0], model.heads * model.width, model.shared * model.width
        inner = block["down"].shape[1]
        sizes = {
            "self_attn.q_proj": (own, width), "self_attn.k_proj": (shared, width), "self_attn.v_proj": (shared, width),
            "self_attn.o_proj": (width, own), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }  # fmt: skip
        self.rank, self.alpha = rank, alpha
        self.layers = [
            LayerAdapter(sizes, rank, alpha / rank, model.device, seed * 1000 + number)
            for number in range(model.layers)
        ]

    def parameters(self) -> list[Tensor]:
        return [part for layer in self.layers for name in LINEAR for part in (layer.down[name], layer.up[name])]

    def merge(self, model: Qwen2) -> Qwen2:
        """A model with the adapter in its weights."""
        merged = model.clone()
        for block, layer in zip(merged.blocks, self.layers, strict=True):
            for key, names in {
                "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "o": ("self_attn.o_proj",),
                "gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",),
            }.items():  # fmt: skip
                change = torch.cat([layer.scale * (layer.up[name] @ layer.down[name]) for name in names]).detach()
                block[key] = (block[key].float() + change).to(model.dtype)
        return merged

    def tensors(self) -> dict[str, Tensor]:
        """The weights with the names of peft's files."""
        found = {}
        for number, layer in enumerate(self.layers):
            for name in LINEAR:
                prefix = f"base_model.model.model.layers.{number}.{name}"
                found[f"{prefix}.lora_A.weight"] = layer.down[name].detach().to(torch.bfloat16).cpu().contiguous()
                found[f"{prefix}.lora_B.weight"] = layer.up[name].detach().to(torch.bfloat16).cpu().contiguous()
        return found

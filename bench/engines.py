"""Text encoders on a CPU: metrist's kernels, numpy and onnxruntime. `python -m bench.engines [NAME=FILE] [--write]`

The models have the sizes of gte-small and nomic-embed-text-v1.5, and random weights: times do not depend on them. With
`gte-small=FOLDER`, the weights of a trained encoder are used, and the difference from torch in float32 is shown too.
CPU seconds are those of one thread, the best of several runs; other work on the machine changes them little.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from bench.document import machine, show_section

SIZES = {
    "gte-small": {"kind": "bert", "hidden": 384, "inner": 1536, "positions": 512},
    "nomic-embed": {"kind": "nomic", "hidden": 768, "inner": 3072, "positions": 2048},
}
LAYERS, HEADS, WORDS = 12, 12, 30_522
#: Texts and the tokens of each.
INPUTS = ((1, 512), (1, 256), (4, 128), (32, 32))
ROUNDS = 3
#: Outputs of the head whose numbers are compared.
PROBES = 8

State = Mapping[str, Any]
#: Token ids of texts of equal length -> the last layer's states, [texts, tokens, width].
Engine = Callable[[Any], Any]


class Result(NamedTuple):
    """CPU seconds for each of `INPUTS`, and the difference of the probes from torch: root mean square over a text's
    tokens, relative to their standard deviation."""

    seconds: list[float]
    difference: float | None


def main() -> None:
    arguments = sys.argv[1:]
    if "--load" in arguments:
        print(measure_load(arguments[1]))
        return
    files = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    report = "\n\n".join(
        [describe_setup(), *(describe_model(name, Path(files[name]) if name in files else None) for name in SIZES)]
    )
    show_section("bench-engines", report)


def describe_setup() -> str:
    shown = " and ".join(f"{texts} × {tokens}" if texts > 1 else str(tokens) for texts, tokens in INPUTS)
    return (
        f"Text encoders, measured by `python -m bench.engines` on {machine()}; numpy {np.__version__}, onnxruntime "
        f"{version('onnxruntime')}. CPU seconds of one thread for {shown} tokens, the best of {ROUNDS} runs. "
        "*Difference*: from torch in float32, of random linear heads on each token of frequent words, root mean square "
        "relative to the standard deviation over tokens. *Companions*: whether the rest of a batch changes a number."
    )


def describe_model(name: str, file: Path | None) -> str:
    config = {**SIZES[name], "layers": LAYERS, "attention_heads": HEADS, "epsilon": 1e-12}
    config |= {"max_tokens": config["positions"], "begin_token": 101, "end_token": 102}
    state = draw_state(config) if file is None else read_state(file, config)
    with tempfile.TemporaryDirectory() as directory:
        folder = export(state, config, Path(directory))
        engines = make_engines(state, config, folder)
        results = measure(engines, None if file is None else compute_with_torch(state, config), state)
        rates = measure_rates(folder)
        load = subprocess.run(
            [sys.executable, "-m", "bench.engines", "--load", str(folder)], capture_output=True, text=True, check=True
        ).stdout
    lines = [
        f"{name}, {LAYERS} layers:",
        "",
        f"| | {' | '.join(map(describe_input, INPUTS))} | difference | companions |",
    ]
    lines.append("|---|" + "--:|" * (len(INPUTS) + 1) + "---|")
    for engine, result in results.items():
        shown = "" if result.difference is None else f"{result.difference:.3f}"
        companions = "yes" if "one scale per batch" in engine else "no"
        lines.append(f"| {engine} | {' | '.join(f'{s:.3f}' for s in result.seconds)} | {shown} | {companions} |")
    sentence = f"A second of one core's time is enough for {rates}. Loading takes {float(load):.2f} s of CPU time."
    return "\n".join([*lines, "", sentence])


def describe_input(size: tuple[int, int]) -> str:
    return str(size[1]) if size[0] == 1 else f"{size[0]} × {size[1]}"


def draw_state(config: Mapping[str, Any]) -> State:
    rng, width, inner = np.random.default_rng(0), config["hidden"], config["inner"]
    shapes = {
        "words.weight": (WORDS, width),
        "types.weight": (2, width),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    parts = {"qkv": (3 * width, width), "out": (width, width), "up": (inner, width), "down": (width, inner)}
    parts |= {"gate": (inner, width)} if config["kind"] == "nomic" else {}
    if config["kind"] == "bert":
        shapes["places.weight"] = (config["positions"], width)
    for name in (f"blocks.{number}." for number in range(LAYERS)):
        for part, shape in parts.items():
            shapes[f"{name}{part}.weight"] = shape
            if config["kind"] == "bert":
                shapes[f"{name}{part}.bias"] = shape[:1]
        shapes |= {f"{name}{norm}.{end}": (width,) for norm in ("norm1", "norm2") for end in ("weight", "bias")}
    shapes |= {"heads.probe.weight": (PROBES, width), "heads.probe.bias": (PROBES,)}
    state = {name: (rng.standard_normal(shape) * 0.05).astype(np.float32) for name, shape in shapes.items()}
    for name in state:
        if name.endswith(("norm.weight", "norm1.weight", "norm2.weight")):
            state[name] += 1
    return state


def read_state(folder: Path, config: Mapping[str, Any]) -> State:
    from metrist.models.numpy_inference import storage

    arrays = storage.read_arrays(folder / storage.WEIGHTS)
    state = {name: array for name, array in arrays.items() if not name.startswith("heads.")}
    rng = np.random.default_rng(1)
    state["heads.probe.weight"] = rng.standard_normal((PROBES, config["hidden"])).astype(np.float32)
    state["heads.probe.bias"] = np.zeros(PROBES, np.float32)
    return state


def export(state: State, config: Mapping[str, Any], directory: Path) -> Path:
    from tokenizers import Tokenizer, models

    from metrist.models.numpy_inference.export import export_text_encoder

    words = {f"w{number}": number for number in range(WORDS)}
    Tokenizer(models.WordLevel(words, unk_token="w100")).save(str(directory / "tokenizer.json"))
    return export_text_encoder(state, config, directory / "tokenizer.json", directory / "model")


# ---- Engines


def make_engines(state: State, config: Mapping[str, Any], folder: Path) -> dict[str, Callable[[], Engine]]:
    """Return functions that load each engine: together they would take gigabytes."""
    from metrist.kernels import compiled, reference

    engines: dict[str, Callable[[], Engine]] = {
        "metrist, compiled kernels, 7-bit weights": lambda: run_metrist(folder, compiled),
        "metrist, without compiled kernels": lambda: run_metrist(folder, reference),
    }
    if config["kind"] == "bert":
        engines["numpy, float32 (the engine of preference-small)"] = lambda: run_numpy(state, config)
    for name, mode, block in (
        ("onnxruntime, float32", "float", 0),
        ("onnxruntime, dynamic int8, one scale per batch", "dynamic", 0),
        *(
            (f"onnxruntime, MatMulNBits, {bits} bits, blocks of {block}", str(bits), block)
            for bits in (8, 4)
            for block in (32, 64, 128)
        ),
    ):
        engines[name] = partial(run_onnxruntime, state, config, mode, block)
    return engines


def run_metrist(folder: Path, kernels: Any) -> Engine:
    from metrist import kernels as chosen
    from metrist.models.devices import Options
    from metrist.models.text_encoder import TextEncoder
    from metrist.models.weights import find_weights

    names = ("pack_linear", "apply_linear", "attend", "add_and_normalize", "gate_rows")
    own = {name: getattr(kernels, name) for name in names}
    with mock.patch.multiple(chosen, **own):
        network = TextEncoder(find_weights(Options(model=str(folder))))._network

    def run(ids: Any) -> Any:
        with mock.patch.multiple(chosen, **own):
            return network.encode([(row, len(row)) for row in ids]).reshape(*ids.shape, -1)

    return run


def run_numpy(state: State, config: Mapping[str, Any]) -> Engine:
    from metrist.models.numpy_inference.encoder_network import BertSizes, EncoderSizes, Network

    names = {"words": "word_embeddings", "types": "token_type_embeddings", "places": "position_embeddings"}
    arrays = {f"embeddings.{to}.weight": state[f"{at}.weight"] for at, to in names.items()}
    pairs = {"out": "attention.output.dense", "norm1": "attention.output.LayerNorm"}
    pairs |= {"up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm"}
    for end in ("weight", "bias"):
        arrays[f"embeddings.LayerNorm.{end}"] = state[f"norm.{end}"]
        for number in range(LAYERS):
            ours, theirs = f"blocks.{number}.", f"encoder.layer.{number}."
            for part, name in zip(np.split(state[f"{ours}qkv.{end}"], 3), ("query", "key", "value"), strict=True):
                arrays[f"{theirs}attention.self.{name}.{end}"] = part
            arrays |= {f"{theirs}{to}.{end}": state[f"{ours}{at}.{end}"] for at, to in pairs.items()}
    sizes = BertSizes(
        hidden_size=config["hidden"],
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=config["positions"],
        layer_norm_eps=1e-12,
        hidden_act="gelu",
    )
    network = Network(arrays, EncoderSizes.from_bert(sizes, arrays), sizes.hidden_act)
    return lambda ids: network.encode([(row, len(row)) for row in ids]).reshape(*ids.shape, -1)


def run_onnxruntime(state: State, config: Mapping[str, Any], mode: str, block: int) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(build_graph(state, config, mode, block), options)

    def run(ids: Any) -> Any:
        texts, tokens = ids.shape
        inputs = {"ids": ids.astype(np.int64), "types": np.zeros((texts, tokens), np.int64)}
        inputs |= {"places": np.tile(np.arange(tokens), (texts, 1)), "mask": np.ones((texts, tokens), np.int32)}
        return session.run(None, inputs)[0]

    return run


def build_graph(state: State, config: Mapping[str, Any], mode: str, block: int) -> bytes:
    """Return an ONNX graph with onnxruntime's fused operators. `mode` is 'float', 'dynamic' or the bits of a weight."""
    from onnx import TensorProto, helper, numpy_helper

    own = "com.microsoft"
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, array: Any) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(kind: str, inputs: Sequence[str], count: int = 1, domain: str = "", **attributes: Any) -> Any:
        outputs = [f"{kind}-{len(nodes)}-{number}" for number in range(count)]
        nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0] if count == 1 else outputs

    def apply(rows: str, name: str) -> str:
        weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
        biases = [] if bias is None else [constant(f"{name}.bias", bias)]
        if mode == "dynamic":
            scale = (np.abs(weight).max(1) / 127).astype(np.float32)
            integers = np.rint(weight / scale[:, None]).astype(np.int8).T
            zeros = constant(f"{name}.zero", np.zeros(len(scale), np.int8))
            inputs = [rows, constant(name, integers), constant(f"{name}.scale", scale), zeros, *biases]
            return str(add("DynamicQuantizeMatMul", inputs, domain=own))
        if mode == "float":
            result = add("MatMul", [rows, constant(name, weight.T)])
        else:
            outputs, inputs_ = weight.shape
            bits, grouped = int(mode), weight.reshape(outputs, -1, block)
            zero = 2 ** (bits - 1)
            scale = np.abs(grouped).max(2) / (zero - 1)
            shifted = (np.rint(grouped / scale[..., None]) + zero).astype(np.uint8)
            packed = shifted if bits == 8 else shifted[..., 0::2] | shifted[..., 1::2] << 4
            scales = constant(f"{name}.scale", scale.astype(np.float32).ravel())
            sizes = {"K": inputs_, "N": outputs, "bits": bits, "block_size": block, "accuracy_level": 4}
            result = add("MatMulNBits", [rows, constant(name, packed.astype(np.uint8)), scales], domain=own, **sizes)
        return str(add("Add", [result, *biases])) if biases else str(result)

    def normalize(rows: str, more: str, name: str) -> str:
        norm = [constant(f"{name}.{end}", state[f"{name}.{end}"]) for end in ("weight", "bias")]
        return str(add("SkipLayerNormalization", [more, rows, *norm], domain=own, epsilon=1e-12))

    bert, heads = config["kind"] == "bert", config["attention_heads"]
    states = add("Gather", [constant("words", state["words.weight"]), "ids"])
    states = add("Add", [states, add("Gather", [constant("kinds", state["types.weight"]), "types"])])
    turns: list[str] = []
    if bert:
        states = add("Add", [states, add("Gather", [constant("positions", state["places.weight"]), "places"])])
    else:
        width = config["hidden"] // heads
        angles = np.arange(config["positions"])[:, None] * 1000.0 ** (-np.arange(0, width, 2) / width)
        turns = [constant("cosines", np.cos(angles).astype("f")), constant("sines", np.sin(angles).astype("f"))]
    norm = [constant(f"norm.{end}", state[f"norm.{end}"]) for end in ("weight", "bias")]
    states = add("LayerNormalization", [states, *norm], epsilon=1e-12, axis=-1)
    for name in (f"blocks.{number}." for number in range(LAYERS)):
        query, key, value = add("Split", [apply(states, f"{name}qkv")], 3, axis=-1, num_outputs=3)
        if turns:
            query, key = (
                add("RotaryEmbedding", [part, "places", *turns], domain=own, num_heads=heads) for part in (query, key)
            )
        mixed = add("MultiHeadAttention", [query, key, value, "", "mask"], domain=own, num_heads=heads)
        states = normalize(states, apply(mixed, f"{name}out"), f"{name}norm1")
        inner = apply(states, f"{name}up")
        if bert:
            inner = add("Gelu", [inner], domain=own)
        else:
            inner = add("Mul", [inner, add("QuickGelu", [apply(states, f"{name}gate")], domain=own, alpha=1.0)])
        states = normalize(states, apply(inner, f"{name}down"), f"{name}norm2")
    nodes.append(helper.make_node("Identity", [states], ["states"]))
    types = {
        "ids": TensorProto.INT64,
        "types": TensorProto.INT64,
        "places": TensorProto.INT64,
        "mask": TensorProto.INT32,
    }
    shape = ["texts", "tokens"]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind in types.items()],
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, [*shape, config["hidden"]])],
        constants,
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(own, 1)]
    serialized: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return serialized


# ---- Measuring


def probe_ids() -> Any:
    """Return frequent words of BERT's vocabulary, where the ids go roughly by frequency."""
    rng = np.random.default_rng(3)
    return np.concatenate([[101], 1996 + rng.geometric(0.0012, 180), [102]]).clip(0, WORDS - 1)[None]


def compute_with_torch(state: State, config: Mapping[str, Any]) -> Any:
    import torch

    from metrist.models.numpy_inference.encoder_network import EncoderSizes
    from metrist.models.trainable_encoder import TrainableEncoder

    ids = torch.from_numpy(probe_ids().astype(np.int64))
    encoder = TrainableEncoder(EncoderSizes.from_config(config), state)
    with torch.inference_mode():
        states = encoder(ids, torch.ones_like(ids), torch.zeros_like(ids))[0].numpy()
    return states @ state["heads.probe.weight"].T + state["heads.probe.bias"]


def measure(engines: Mapping[str, Callable[[], Engine]], expected: Any, state: State) -> dict[str, Result]:
    from metrist import threads

    rng = np.random.default_rng(0)
    batches = [rng.integers(1000, 20_000, size) for size in INPUTS]
    results = {}
    with threads._single_threaded_blas():
        for name, load in engines.items():
            engine = load()
            seconds = [min(measure_once(engine, ids) for _ in range(ROUNDS)) for ids in batches]
            difference = None
            # The engine of preference-small gives means, not tokens.
            if expected is not None and "preference-small" not in name:
                error = engine(probe_ids())[0] @ state["heads.probe.weight"].T - expected
                difference = float(np.sqrt(np.square(error).mean()) / expected.std(0).mean())
            results[name] = Result(seconds, difference)
            print(name, results[name], file=sys.stderr, flush=True)
    return results


def measure_once(engine: Engine, ids: Any) -> float:
    before = time.process_time()
    engine(ids)
    return time.process_time() - before


def measure_rates(folder: Path) -> str:
    """Return how many texts a loaded model reads in a second of CPU time, for the lengths that metrics have."""
    from metrist.models.loading import load_text_encoder

    encoder = load_text_encoder(str(folder))
    rng, parts = np.random.default_rng(0), []
    for tokens, count in ((512, 4), (80, 32), (27, 64)):
        sequences = [(rng.integers(1000, 20_000, tokens).astype(np.int32), tokens) for _ in range(count)]
        rates = []
        for _ in range(ROUNDS):
            before = time.process_time()
            encoder.score_spans(encoder.heads[0], sequences, [[(0, tokens)]] * count)
            rates.append(count / (time.process_time() - before))
        parts.append(f"{max(rates):.1f} texts of {tokens} tokens")
    return ", ".join(parts)


def measure_load(folder: str) -> float:
    """Return the CPU time from the first import to the first score."""
    before = time.process_time()
    from metrist.models.loading import load_text_encoder

    encoder = load_text_encoder(folder)
    encoder.score_spans(encoder.heads[0], [encoder.join(np.arange(9))], [[(0, 2)]])
    return time.process_time() - before


if __name__ == "__main__":
    main()

"""Load models for metrics. A process keeps the latest ones, and equal options share one model."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from metrist.errors import ModelError
from metrist.models import weights
from metrist.models.cache import CachedEncoder, CachedLikelihoodModel, CachedModel, CachedTextModel
from metrist.models.devices import Options, import_torch
from metrist.models.numpy_inference import storage
from metrist.models.protocols import EncoderModel, LikelihoodModel, RewardScorer, TextModel
from metrist.runtime import Runtime, loading_watchers

if TYPE_CHECKING:
    from metrist.models.causal import Causal
    from metrist.models.text_encoder import TextEncoder


_Model = TypeVar("_Model")
#: Options, device, tokens per batch, and what identifies the weights in a folder.
_Key = tuple[Options, str, int | None, str]


class _LoadedModels:
    """The models used last. Threads that ask for the same model at once share one load; a failed load is not kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._forget()
        if hasattr(os, "register_at_fork"):
            # A load under way in another thread never ends in a forked process.
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._futures: OrderedDict[_Key, Future[Any]] = OrderedDict()

    def get(self, key: _Key, load: Callable[[], Any]) -> Any:
        """Return the model under this key, loading it first if need be."""
        with self._lock:
            future = self._futures.get(key)
            loads = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            while len(self._futures) > self._size:
                self._futures.popitem(last=False)
        if loads:
            for callback in loading_watchers:
                callback(key[0].model)
            try:
                future.set_result(load())
            except BaseException as error:
                with self._lock:
                    if self._futures.get(key) is future:
                        del self._futures[key]
                future.set_exception(error)
            finally:
                for callback in loading_watchers:
                    callback(None)
        return future.result()


#: A run scores shard by shard with each of its metrics in turn, and asks for its models again with every shard.
_seq2seq_models, _causal_models, _encoders = _LoadedModels(4), _LoadedModels(4), _LoadedModels(4)
#: All members of an ensemble stay loaded.
_reward_models = _LoadedModels(8)
_text_encoders = _LoadedModels(4)


def load_seq2seq(options: Options, *, runtime: Runtime | None = None) -> LikelihoodModel:
    """Load a sequence-to-sequence model: its encoder reads the condition, its decoder scores the target."""
    runtime = runtime or Runtime.current()

    def load() -> LikelihoodModel:
        files = weights.find_weights(options)
        if not files.runs_on_numpy:
            from metrist.models.seq2seq import Seq2Seq

            return Seq2Seq.load(options, runtime)
        from metrist.models.numpy_inference.t5 import NumpySeq2Seq

        if options.languages:
            raise ModelError(
                f"{options.model} takes no language; leave language={options.languages[1]!r} out", code="unsupported"
            )
        _check_dtype(options)
        return NumpySeq2Seq(files, runtime)

    model: LikelihoodModel = _seq2seq_models.get(model_key(options, runtime), load)
    return _add_cache(model, runtime, CachedLikelihoodModel)


def load_causal(options: Options, *, runtime: Runtime | None = None) -> LikelihoodModel:
    """Load a causal language model: the condition stands before the target and is not scored."""
    runtime = runtime or Runtime.current()
    return _add_cache(_load_causal(options, runtime), runtime, CachedLikelihoodModel)


def load_reader(options: Options, *, runtime: Runtime | None = None) -> TextModel:
    """Load a causal language model that scores whole texts."""
    runtime = runtime or Runtime.current()
    return _add_cache(_load_causal(options, runtime), runtime, CachedTextModel)


def load_encoder(options: Options, *, runtime: Runtime | None = None) -> EncoderModel:
    """Load an encoder, which gives vectors after any of its layers."""
    runtime = runtime or Runtime.current()

    def load() -> EncoderModel:
        from metrist.models.encoder import Encoder

        return Encoder.load(options, runtime)

    model: EncoderModel = _encoders.get(model_key(options, runtime), load)
    return _add_cache(model, runtime, CachedEncoder)


def load_reward(options: Options, *, runtime: Runtime | None = None) -> RewardScorer:
    """Load a reward model, which turns an instruction, a context and an answer into a number, higher for better
    answers. Only numbers of the same model compare; their zero and unit have no meaning."""
    runtime = runtime or Runtime.current()

    def load() -> RewardScorer:
        files = weights.find_weights(options)
        if not files.runs_on_numpy:
            import_torch(f"the preference model {options.model!r}")
            from metrist.models.reward_model import TorchReward

            return TorchReward.load(options, runtime)
        from metrist.models.text_encoder import EncoderReward, TextEncoder

        _check_dtype(options)
        # Other metrics use the same text encoder.
        shared = files.config.get("architecture") == storage.TEXT_ENCODER
        encoder = load_text_encoder(options.model, runtime=runtime) if shared else TextEncoder(files, runtime)
        return EncoderReward(encoder, files)

    model: RewardScorer = _reward_models.get(model_key(options, runtime), load)
    return model


def load_text_encoder(name: str, *, runtime: Runtime | None = None) -> TextEncoder:
    """Load a text encoder with heads: a shipped one (`metrist:NAME`) or a folder."""
    runtime = runtime or Runtime.current()
    options = Options(model=str(name))

    def load() -> TextEncoder:
        from metrist.models.text_encoder import TextEncoder

        files = weights.find_weights(options)
        if files.config.get("architecture") != storage.TEXT_ENCODER:
            kind = files.config.get("architecture") or files.config.get("model_type")
            raise ModelError(f"{name} is a {kind!r} model, expected a {storage.TEXT_ENCODER!r}", code="invalid_value")
        return TextEncoder(files, runtime)

    encoder: TextEncoder = _text_encoders.get(model_key(options, runtime), load)
    return encoder


def model_key(options: Options, runtime: Runtime) -> _Key:
    """Return what identifies a loaded model. A folder that was trained again is another model; hub names are not
    resolved again for every shard."""
    is_folder = Path(options.model).expanduser().is_dir()
    fingerprint = weights.find_weights(options).fingerprint if is_folder else ""
    return options, runtime.device, runtime.batch_tokens, fingerprint


def _add_cache(model: _Model, runtime: Runtime, kind: type[CachedModel]) -> _Model:
    """The model with a cache, if the runtime has one."""
    cached: Any = model if runtime.cache is None else kind(model, runtime.cache, runtime.cache_gb)
    return cast(_Model, cached)


def _load_causal(options: Options, runtime: Runtime) -> Causal:
    def load() -> Causal:
        import_torch(f"the model {options.model!r}")
        from metrist.models.causal import Causal

        return Causal.load(options, runtime)

    model: Causal = _causal_models.get(model_key(options, runtime), load)
    return model


def _check_dtype(options: Options) -> None:
    """Refuse a number format for a model in metrist's own format."""
    if options.dtype != "float32":
        raise ModelError(f"{options.model} has a fixed number format; leave dtype={options.dtype!r} out")

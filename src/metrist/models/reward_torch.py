"""Reward models scored with torch: each distinct answer once, in batches by a budget of tokens over sorted lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching, devices, pretrained, weights
from metrist.models.encoder import at_once, limit_of
from metrist.models.options import Options
from metrist.models.reward_layout import Encode, Judged, Layout, bare_ids, frame_of, lay_out, unknown_id
from metrist.models.reward_model import RewardModel, begun, loaded, padding_of, pooling_of
from metrist.models.reward_settings import Pooling, RewardSettings
from metrist.models.rewards import Rewards

Row = NDArray[np.int32]


@dataclass(eq=False, kw_only=True)
class TorchReward:
    """A reward model that is ready to score."""

    model: RewardModel
    encode: Encode
    unknown: int | None
    pad: int
    settings: RewardSettings
    device: Any
    budget: batching.Budget
    facts: Mapping[str, str]
    name: str

    @staticmethod
    def load(options: Options) -> TorchReward:
        """One that was trained, on the device that the environment asks for."""
        place, found = devices.place(options), weights.find(options)
        settings = RewardSettings.read(found.folder, found.name)
        model = loaded(found, options, place, settings.pooling)
        return ready(model, pretrained.read_tokenizer(found, options), settings, place, found, options)

    @staticmethod
    def untrained(options: Options, layout: Layout, pooling: str = "auto", seed: int = 0) -> TorchReward:
        """A base model as it is, with a head drawn by the seed: what a training begins with."""
        place, found = devices.place(options), weights.find(options)
        tokenizer = pretrained.read_tokenizer(found, options)
        model = begun(found, options, place, pooling_of(found, pooling), seed)
        settings = settings_of(model.body, tokenizer, layout, model.pooling)
        return ready(model, tokenizer, settings, place, found, options)

    def rewards(self, judged: Sequence[Judged]) -> Rewards:
        distinct = list(dict.fromkeys(judged))
        laid = lay_out(self.encode, self.settings.frame, self.settings.layout, distinct, self.unknown)
        values = self._values(laid.ids, laid.starts)
        number = {one: at for at, one in enumerate(distinct)}
        order = np.array([number[one] for one in judged], np.int64)
        return Rewards(values[order], np.array(laid.cut, np.int64)[order], np.array(laid.read, np.int64)[order])

    def _values(self, rows: Sequence[Row], starts: Sequence[int]) -> NDArray[np.float64]:
        order = batching.longest_first([len(row) for row in rows])
        values = np.empty(len(rows), np.float64)

        def work(batch: list[int]) -> None:
            places = [order[at] for at in batch]
            values[places] = self._forward([rows[at] for at in places], [starts[at] for at in places])

        lengths = [len(rows[at]) for at in order]
        failures = batching.halving(lengths, self.budget, work, lambda: devices.free(self.device))
        for reason in failures.values():
            raise ModelError(f"{self.name}: an answer {reason}")
        return values

    def _forward(self, rows: Sequence[Row], starts: Sequence[int]) -> NDArray[np.float64]:
        tables = (*padded(rows, self.pad), np.array(starts, np.int64))
        with torch.inference_mode():
            put = (torch.from_numpy(table).to(self.device) for table in tables)
            found: NDArray[np.float64] = self.model(*put).double().cpu().numpy()
        return found


def padded(rows: Sequence[Row], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows as one table, padded on the right, and where it has tokens."""
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def settings_of(body: Any, tokenizer: Any, layout: Layout, pooling: Pooling) -> RewardSettings:
    """How a base model reads answers: as the layout says, within what the model takes."""
    limit = limit_of(body, tokenizer)
    within = replace(layout, max_length=min(layout.max_length or limit, limit))
    return RewardSettings(pooling=pooling, layout=within, frame=frame_of(tokenizer))


def ready(
    model: RewardModel,
    tokenizer: Any,
    settings: RewardSettings,
    place: devices.Place,
    found: weights.Weights,
    options: Options,
) -> TorchReward:
    """A model in memory as one that scores."""
    return TorchReward(
        model=model,
        encode=bare_ids(tokenizer),
        unknown=unknown_id(tokenizer),
        pad=padding_of(model.body.config, tokenizer),
        settings=settings,
        device=place.device,
        budget=batching.Budget(at_once(place)),
        facts={"weights": found.fingerprint, "dtype": options.dtype},
        name=found.name,
    )

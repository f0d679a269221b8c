"""BARTScore under the names of its paper: the metric `likelihood` with the models that the paper used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metrist.errors import ModelError, SpecError
from metrist.metrics.likelihood import Likelihood
from metrist.models.devices import Options

LARGE = "facebook/bart-large"
CNN = "facebook/bart-large-cnn"

#: How the published ParaBank2 weights become a folder that can be loaded. A pickle can run code when it is read, so
#: metrist reads none; `weights_only` keeps torch from running any either.
CONVERSION = f"""\
import torch
from transformers import AutoTokenizer, BartForConditionalGeneration

model = BartForConditionalGeneration.from_pretrained("{CNN}")
model.load_state_dict(torch.load("bart_score.pth", map_location="cpu", weights_only=True))
model.save_pretrained("bart-large-cnn-para")
AutoTokenizer.from_pretrained("{CNN}").save_pretrained("bart-large-cnn-para")"""


@dataclass(frozen=True, kw_only=True)
class BartScore(Likelihood):
    """BARTScore (Yuan, Neubig and Liu, 2021) with the model of its reference implementation, or any other."""

    model: str = CNN

    extra: ClassVar[str | None] = "neural"
    catalog_name: ClassVar[str | None] = "bartscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        own = type(self).model
        if "model" in self.in_name and self.model != own:
            raise SpecError(f"{self.name} is {own}; with another model it is bartscore(model={self.model!r})")


@dataclass(frozen=True, kw_only=True)
class BartScoreLarge(BartScore):
    """BARTSCORE of the paper: BART as it was pre-trained."""

    model: str = LARGE

    in_name: ClassVar[tuple[str, ...]] = ("model",)
    catalog_name: ClassVar[str | None] = "bartscore_large"


@dataclass(frozen=True, kw_only=True)
class BartScoreCnn(BartScore):
    """BARTSCORE-CNN of the paper: BART fine-tuned on summaries of news."""

    model: str = CNN

    in_name: ClassVar[tuple[str, ...]] = ("model",)
    catalog_name: ClassVar[str | None] = "bartscore_cnn"


@dataclass(frozen=True, kw_only=True)
class BartScorePara(BartScore):
    """BARTSCORE-CNN-PARA of the paper: the same, fine-tuned further on paraphrases. The user brings the weights."""

    model: str = ""

    catalog_name: ClassVar[str | None] = "bartscore_para"

    @property
    def options(self) -> Options:
        if not self.model:
            lines = CONVERSION.replace("\n", "\n    ")
            raise ModelError(
                f"{self.name} needs a folder with the paper's weights: {self.name}(model='bart-large-cnn-para'). They "
                "were published as a pickled state dict only (bart_score.pth, linked from "
                "https://github.com/neulab/BARTScore), which metrist does not read; these lines make the folder:\n\n"
                f"    {lines}"
            )
        return super().options

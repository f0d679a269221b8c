"""How the models of a study are made: one base for all trainings, and what was chosen or printed for some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from metrist.errors import RunError, did_you_mean
from metrist.models.devices import Options
from metrist.models.reward_layout import Layout
from metrist.train.preference import RECIPE, Ties
from metrist.train.recipe import Recipe

#: What `changed` may change: of the recipe, of the layout, and which paraphrase of a criterion's instruction is used.
IN_RECIPE = ("lr", "batch", "epochs")
IN_LAYOUT = ("labelled", "keep", "max_length")
CHANGEABLE = (*IN_RECIPE, *IN_LAYOUT, "instructions")
Change = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that decides a model besides its pairs. `instructions` has the number of the paraphrase for criteria that do
    not use the first; `dev_most` is how many development pairs of a criterion are looked at while training (None: all);
    the recipe's seed is set for each training."""

    base: Options
    layout: Layout = field(default_factory=Layout)
    pooling: str = "auto"
    recipe: Recipe = RECIPE
    balance: float = 1.0
    ties: Ties = "drop"
    regression: float = 0.0
    head_lr: float | None = None
    dev_most: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)

    def changed(self, change: Change) -> Settings:
        """These settings with some values replaced."""
        for name in change:
            if name not in CHANGEABLE:
                raise RunError(f"no setting {name!r} that a study changes{did_you_mean(name, CHANGEABLE)}")
        return replace(
            self,
            recipe=replace(self.recipe, **{name: change[name] for name in IN_RECIPE if name in change}),
            layout=replace(self.layout, **{name: change[name] for name in IN_LAYOUT if name in change}),
            instructions={**self.instructions, **change.get("instructions", {})},
        )

    def seeded(self, seed: int) -> Settings:
        return replace(self, recipe=replace(self.recipe, seed=seed))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def decides(self) -> dict[str, Any]:
        """All of it that decides what is learned."""
        row = self.to_dict()
        return {**row, "recipe": {name: value for name, value in row["recipe"].items() if name != "max_tokens"}}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Settings:
        languages = row["base"]["languages"]
        base = Options(**{**row["base"], "languages": tuple(languages) if languages else None})
        parts = {"base": base, "layout": Layout(**row["layout"]), "recipe": Recipe(**row["recipe"])}
        return Settings(**{**row, **parts})

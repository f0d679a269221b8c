"""Which prompts help a likelihood metric, on data that people have judged."""

from __future__ import annotations

from metrist.evaluate.prompts.groups import aspect_groups
from metrist.evaluate.prompts.result import PromptStudy, Tried
from metrist.evaluate.prompts.search import search_prompts

__all__ = ["PromptStudy", "Tried", "aspect_groups", "search_prompts"]

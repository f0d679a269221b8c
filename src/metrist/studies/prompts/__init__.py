"""Which prompts help a likelihood metric, on data that people have judged."""

from __future__ import annotations

from metrist.studies.prompts.groups import aspect_groups
from metrist.studies.prompts.result import PromptStudy, Tried
from metrist.studies.prompts.search import search_prompts

__all__ = ["PromptStudy", "Tried", "aspect_groups", "search_prompts"]
